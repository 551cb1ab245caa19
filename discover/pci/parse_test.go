package pci

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseModalias(t *testing.T) {
	want := ids{vendor: 0x10de, device: 0x2335, subsystemVendor: 0x10de, subsystemDevice: 0x18bf, class: 0x030200}
	const text = "pci:v000010DEd00002335sv000010DEsd000018BFbc03sc02i00"
	if got := want.modalias(); got != text {
		t.Errorf("modalias: got %q", got)
	}
	for _, s := range []string{text, strings.ToLower(text), text + "and more"} {
		if got, err := parseModalias(s); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", s, got, err)
		}
	}
	for i := range len(text) {
		if got, err := parseModalias(text[:i]); err == nil {
			t.Errorf("%q: got %+v", text[:i], got)
		}
	}
}

func TestParseLinkSpeed(t *testing.T) {
	for text, want := range map[string]string{
		"2.5 GT/s PCIe": "2.5 GT/s PCIe", "64.0 GT/s PCIe": "64.0 GT/s PCIe", "8 GT/s": "8 GT/s",
		"Unknown": "", "Unknown speed": "",
	} {
		if got, err := parseLinkSpeed(text); got != want || err != nil {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "8", "GT/s", " GT/s PCIe", "inf GT/s", "nan GT/s", "-8 GT/s", "8 GT/s PCIe\x00", "133 MHz PCI-X"} {
		if got, err := parseLinkSpeed(text); err == nil {
			t.Errorf("%q: got %q", text, got)
		}
	}
}

func TestParseHex(t *testing.T) {
	for text, want := range map[string]uint32{"0x10de": 0x10de, "0X10DE": 0x10de, "10de": 0x10de, "0x0": 0, "0xffff": 0xffff} {
		if got, err := parseHex(text, 16); got != want || err != nil {
			t.Errorf("%q: got %x, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0x", "0x0x1", "0X0x1", "+1", "-1", "1_0", "0x10000", "0x10de 0x1002"} {
		if got, err := parseHex(text, 16); err == nil {
			t.Errorf("%q: got %x", text, got)
		}
	}
}

// FuzzAttributes gives any text to every parser of a file: none may panic, none
// may give more than its file can hold, and errors are short and printable.
func FuzzAttributes(f *testing.F) {
	for _, text := range []string{
		"", "0x10de", "0X030200", "0x", "zz", "-1", "16", "255", "32.0 GT/s PCIe", "Unknown", "inf GT/s",
		"pci:v000010DEd00002335sv000010DEsd000018BFbc03sc02i00", "../../../bus/pci/drivers/nvidia", "/", "..", "../0000:1a:00.0",
		strings.Repeat("0", 4096), strings.Repeat("\xff", 100),
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var errs []error
		check := func(ok bool, err error) {
			t.Helper()
			if err != nil {
				errs = append(errs, err)
			} else if !ok {
				t.Errorf("%q: out of range", text)
			}
		}
		_, err := parseID(text)
		check(true, err)
		class, err := parseClass(text)
		check(class < 1<<24, err)
		_, err = parseRevision(text)
		check(true, err)
		node, err := parseNUMANode(text)
		check(node == nil || *node >= 0, err)
		vfs, err := parseVFs(text)
		check(vfs != nil && *vfs >= 0 && *vfs < 1<<16, err)
		width, err := parseLinkWidth(text)
		check(width >= 0 && width <= 32, err)
		speed, err := parseLinkSpeed(text)
		check(speed == "" || speed == text, err)
		name, err := parseName(text)
		check(name != "" && !strings.Contains(name, "/"), err)
		pf, err := parsePhysicalFunction(text)
		check(pf != nil, err)
		found, err := parseModalias(text)
		check(found.class < 1<<24, err)
		if err == nil {
			if again, err := parseModalias(found.modalias()); err != nil || again != found {
				t.Errorf("%q: %+v, and again %+v, %v", text, found, again, err)
			}
		}
		for _, err := range errs {
			s := err.Error()
			if len(s) > 1000 || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' }) {
				t.Errorf("error %q", s)
			}
		}
	})
}
