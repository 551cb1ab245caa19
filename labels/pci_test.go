package labels

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// TestPCI compares all PCI labels. They are NFD's, as observed on v0.18, and
// the vendor-only form.
func TestPCI(t *testing.T) {
	f := func(class uint32, vendor uint16) pci.Function {
		return pci.Function{Class: class, Vendor: vendor, Device: 0x2330, SubsystemVendor: pci.NVIDIA, SubsystemDevice: 0x16c1}
	}
	vfs := func(f pci.Function, total int) pci.Function {
		f.TotalVFs = &total
		return f
	}
	list := func(f ...pci.Function) []pci.Function { return f }
	gpu := f(0x030200, pci.NVIDIA)
	tests := []struct {
		name      string
		functions []pci.Function
		classes   []string
		fields    []string
		want      string
	}{
		{"a GPU", list(gpu), nil, nil, "pci-0302_10de.present pci-10de.present"},
		{"two GPUs", list(gpu, gpu), nil, nil, "pci-0302_10de.present pci-10de.present"},
		{"SR-IOV", list(vfs(gpu, 16)), nil, nil, "pci-0302_10de.present pci-0302_10de.sriov.capable pci-10de.present"},
		{"SR-IOV with no VF", list(vfs(gpu, 0)), nil, nil, "pci-0302_10de.present pci-0302_10de.sriov.capable pci-10de.present"},
		{"a PF and its VF", list(vfs(gpu, 16), gpu), nil, nil, "pci-0302_10de.present pci-0302_10de.sriov.capable pci-10de.present"},
		{"audio function", list(f(0x030000, pci.NVIDIA), f(0x040300, pci.NVIDIA)), nil, nil, "pci-0300_10de.present pci-10de.present"},
		{"only an audio function", list(f(0x040300, pci.NVIDIA)), nil, nil, ""},
		{"accelerator", list(f(0x120000, pci.AMD)), nil, nil, "pci-1002.present pci-1200_1002.present"},
		{"other display controller", list(f(0x038000, pci.AMD)), nil, nil, "pci-0380_1002.present pci-1002.present"},
		{"NVSwitch", list(f(0x068000, pci.NVIDIA)), nil, nil, ""},
		{"co-processor", list(f(0x0b4000, pci.Intel)), nil, nil, "pci-0b40_8086.present pci-8086.present"},
		{"another processor", list(f(0x0b2000, pci.Intel)), nil, nil, ""},
		{"a maker of no GPUs", list(f(0x030000, 0x1a03)), nil, nil, "pci-0300_1a03.present"},
		{"vendor not read", list(f(0x030000, 0)), nil, nil, ""},
		{"GPU Operator's settings", list(gpu), []string{"02", "0200", "0207", "0300", "0302"}, []string{"vendor"}, "pci-10de.present"},
		{"GPU Operator's settings, accelerator", list(f(0x120000, pci.AMD)), []string{"02", "0200", "0207", "0300", "0302"}, []string{"vendor"}, ""},
		{"NFD's order of fields", list(gpu), []string{"03"}, []string{"subsystem_device", "device", "subsystem_vendor", "vendor", "class"}, "pci-0302_10de_2330_10de_16c1.present"},
		{"default fields the other way round", list(gpu), nil, []string{"vendor", "class"}, "pci-0302_10de.present pci-10de.present"},
		{"a field twice", list(gpu), nil, []string{"vendor", "vendor"}, "pci-10de.present"},
		{"unknown field", list(vfs(gpu, 4)), nil, []string{"class", "sriov_totalvfs"}, "pci-0302.present pci-0302.sriov.capable"},
		{"only unknown fields", list(gpu), nil, []string{"Class"}, "pci-0302_10de.present pci-10de.present"},
		{"no class", list(gpu), []string{}, nil, ""},
		{"every class", list(f(0x068000, pci.NVIDIA)), []string{""}, nil, "pci-0680_10de.present pci-10de.present"},
		{"a class with 0x", list(gpu), []string{"0x03"}, nil, "pci-0302_10de.present pci-10de.present"},
		{"a class of six digits", list(gpu), []string{"030200"}, nil, ""},
		{"a class in upper case", list(f(0x0b4000, pci.NVIDIA)), []string{"0B40"}, nil, "pci-0b40_10de.present pci-10de.present"},
		{"a class of three digits", list(gpu, f(0x038000, pci.NVIDIA)), []string{"030"}, nil, "pci-0302_10de.present pci-10de.present"},
		{"no function", nil, nil, nil, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, rejected := Compute(&discover.Inventory{Functions: test.functions},
				Options{PCIClasses: test.classes, PCILabelFields: test.fields})
			if keys := strings.Join(keysOf(got, nfdPrefix), " "); keys != test.want {
				t.Errorf("got %s, want %s", keys, test.want)
			}
			for key, value := range got {
				if value != "true" {
					t.Errorf("got %s=%s, want true", key, value)
				}
			}
			if len(rejected) > 0 {
				t.Errorf("rejected %v", rejected)
			}
		})
	}
}

func TestParsePCIClasses(t *testing.T) {
	good := []struct{ entries, want []string }{
		{nil, []string{"03", "0b40", "12"}},
		{[]string{}, []string{}},
		{[]string{"0B40", "0x03", "0X12", "030", ""}, []string{"0b40", "03", "12", "030", ""}},
	}
	for _, test := range good {
		got, err := ParsePCIClasses(test.entries)
		if err != nil || got == nil || !slices.Equal(got, test.want) {
			t.Errorf("ParsePCIClasses(%q) = %q, %v; want %q", test.entries, got, err, test.want)
		}
	}
	bad := []struct{ entry, want string }{
		{"030200", `PCI class "030200": only base class and subclass are matched, write 0302`},
		{" 03", `PCI class " 03": write up to four hexadecimal digits, such as 03 or 0b40`},
		{"display", `PCI class "display": write up to four hexadecimal digits, such as 03 or 0b40`},
	}
	for _, test := range bad {
		if _, err := ParsePCIClasses([]string{"03", test.entry}); err == nil || err.Error() != test.want {
			t.Errorf("ParsePCIClasses(%q): %v, want %s", test.entry, err, test.want)
		}
	}
}

func TestParsePCILabelFields(t *testing.T) {
	good := []struct{ names, want []string }{
		{nil, []string{"class", "vendor"}},
		{[]string{}, []string{"class", "vendor"}},
		{[]string{"device", "vendor", "device"}, []string{"vendor", "device"}},
	}
	for _, test := range good {
		got, err := ParsePCILabelFields(test.names)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("ParsePCILabelFields(%q) = %q, %v; want %q", test.names, got, err, test.want)
		}
	}
	const want = `PCI label field "Class": write class, vendor, device, subsystem_vendor or subsystem_device`
	if _, err := ParsePCILabelFields([]string{"vendor", "Class"}); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
