package pci

import (
	_ "embed"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"
)

//go:embed testdata/h200-config.hex
var h200Hex string

// h200Config is the configuration space of an H200, whole and no vGPU: its
// capabilities, at 0x40, 0x48, 0x60 and 0xb0, are none of the vendor's own.
var h200Config = unhex(h200Hex)

func unhex(text string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		panic(err)
	}
	return b
}

// vgpuConfig is the configuration space of a vGPU as far as it is read: a
// power management capability at 0x60, and the vGPU's at 0xd0.
func vgpuConfig(version, branch string) []byte {
	c := make([]byte, 256)
	c[0x06], c[0x34] = 0x10, 0x60
	copy(c[0x60:], []byte{0x01, 0xd0})
	copy(c[0xd0:], []byte{0x09, 0, 27, 'V', 'F'})
	copy(c[0xd5:], []byte{0, 22})
	copy(c[0xd7:], version)
	copy(c[0xe1:], branch)
	return c
}

// change sets bytes from an offset on.
func change(config []byte, at int, bytes ...byte) []byte {
	c := slices.Clone(config)
	copy(c[at:], bytes)
	return c
}

func TestParseVGPU(t *testing.T) {
	vgpu := vgpuConfig("550.90.05", "r550_00")
	full := VGPU{Present: true, HostDriverVersion: "550.90.05", HostDriverBranch: "r550_00"}
	nameless := VGPU{Present: true}
	tests := []struct {
		name   string
		config []byte
		want   VGPU
		err    string
	}{
		{"vGPU", vgpu, full, ""},
		{"vGPU, all 4096 bytes", append(slices.Clone(vgpu), make([]byte, 4096-256)...), full, ""},
		{"whole GPU", h200Config, VGPU{}, ""},
		{"no capabilities", make([]byte, 256), VGPU{}, ""},
		{"no capabilities, header only", make([]byte, 64), VGPU{}, ""},
		{"empty list", change(vgpu, 0x34, 0), VGPU{}, ""},
		{"header only", vgpu[:64], VGPU{}, ErrConfigTruncated.Error()},
		{"a byte short", vgpu[:255], VGPU{}, ErrConfigTruncated.Error()},
		{"nothing", nil, VGPU{}, ErrConfigTruncated.Error()},
		{"less than the header", make([]byte, 63), VGPU{}, ErrConfigTruncated.Error()},
		{"vendor-specific, of another kind", change(vgpu, 0xd3, 'v'), VGPU{}, ""},
		{"first of two is no vGPU's", change(vgpu, 0x60, 0x09, 0xd0, 4), VGPU{}, ""},
		{"reserved bits of pointers", change(change(vgpu, 0x34, 0x63), 0x61, 0xd1), full, ""},
		{"ten characters each", vgpuConfig("1234567890", "abcdefghij"), VGPU{true, "1234567890", "abcdefghij"}, ""},
		{"text that is not printable", vgpuConfig("5\x005\x1b0\xff.\xc3\xa9", "\xff\n"), VGPU{true, "550.", ""}, ""},
		{
			"a record before the version",
			change(change(vgpu, 0xd2, 31), 0xd5, append([]byte{7, 4, 1, 2, 0, 22}, "550.90.05\x00r550_00"...)...),
			full, "",
		},
		{"longer version record", change(change(vgpu, 0xd2, 29), 0xd6, 24), full, ""},

		{"pointer into the header", change(vgpu, 0x34, 0x3c), VGPU{}, "capability list: pointer 0x3c into the header"},
		{"next into the header", change(vgpu, 0x61, 0x04), VGPU{}, "capability list: pointer 0x04 into the header"},
		{"loop of one", change(vgpu, 0x61, 0x60), VGPU{}, "capability list: it has a loop"},
		{"loop of two", change(vgpu, 0xd0, 0x01, 0x60), VGPU{}, "capability list: it has a loop"},
		{"loop after the capability", change(vgpu, 0xd1, 0xd0), full, ""},
		{"fell off the bus", slices.Repeat([]byte{0xff}, 256), VGPU{}, ErrConfigUnreadable.Error()},
		{"capability of length 0", change(vgpu, 0xd2, 0), VGPU{}, ""},
		{"capability too short for a signature", change(vgpu, 0xd2, 4), VGPU{}, ""},
		{"capability past the end", change(vgpu, 0xd2, 49), nameless, "vGPU capability at 0xd0: length 49, with 48 bytes left"},
		{"capability at the very end", change(change(vgpu, 0x61, 0xfc), 0xfc, 0x09, 0, 27, 'V'), VGPU{}, ""},
		{"capability without records", change(vgpu, 0xd2, 5), nameless, "vGPU capability at 0xd0: no record of the host's driver version"},
		{"half a record", change(vgpu, 0xd2, 6), nameless, "vGPU capability at 0xd0: no record of the host's driver version"},
		{"other records only", change(vgpu, 0xd5, 1), nameless, "vGPU capability at 0xd0: no record of the host's driver version"},
		{"record of length 0", change(vgpu, 0xd5, 1, 0), nameless, "vGPU capability at 0xd0: record 1: length 0, with 22 bytes left"},
		{"record of length 1", change(vgpu, 0xd5, 1, 1), nameless, "vGPU capability at 0xd0: record 1: length 1, with 22 bytes left"},
		{"record past the end", change(vgpu, 0xd6, 23), nameless, "vGPU capability at 0xd0: record 0: length 23, with 22 bytes left"},
		{"version record too short", change(change(vgpu, 0xd2, 26), 0xd6, 21), nameless, "vGPU capability at 0xd0: record 0: 21 bytes are too few for a driver version"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseVGPU(tt.config)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if got != tt.want || text != tt.err {
				t.Errorf("got %+v, error %q\nwant %+v, error %q", got, text, tt.want, tt.err)
			}
		})
	}
}

// A list as long as there is room for is no loop.
func TestParseVGPULongestList(t *testing.T) {
	c := make([]byte, 256)
	c[0x06], c[0x34] = 0x10, 0x40
	for at := 0x40; at < 0xfc; at += 4 {
		c[at], c[at+1] = 0x01, byte(at+4)
	}
	c[0xfc] = 0x01
	if got, err := ParseVGPU(c); got.Present || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	c[0xfd] = 0x40
	if got, err := ParseVGPU(c); got.Present || err == nil {
		t.Errorf("with a loop: got %+v, %v", got, err)
	}
}

func FuzzParseVGPU(f *testing.F) {
	vgpu := vgpuConfig("550.90.05", "r550_00")
	for _, config := range [][]byte{
		nil, h200Config, h200Config[:64], vgpu,
		change(vgpu, 0x61, 0x60), change(vgpu, 0xd2, 255), change(vgpu, 0xd6, 0), change(vgpu, 0xd5, 1, 2),
		slices.Repeat([]byte{0xff}, 256),
	} {
		f.Add(config)
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		vgpu, err := ParseVGPU(config)
		text := vgpu.HostDriverVersion + vgpu.HostDriverBranch
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q is not printable", text)
		}
		if text != "" && (err != nil || !vgpu.Present) {
			t.Errorf("a version with %+v, %v", vgpu, err)
		}
		if len(config) < 256 && vgpu.Present || errors.Is(err, ErrConfigTruncated) && len(config) >= 256 {
			t.Errorf("%d bytes: %+v, %v", len(config), vgpu, err)
		}
	})
}
