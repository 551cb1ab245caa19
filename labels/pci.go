package labels

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// nfdPrefix is that of NFD's own labels.
const nfdPrefix = "feature.node.kubernetes.io/"

// pciFields are the parts of a PCI label, in the order in which NFD writes
// them.
var pciFields = []struct {
	name string
	of   func(*pci.Function) uint16
}{
	{"class", (*pci.Function).ClassID},
	{"vendor", func(f *pci.Function) uint16 { return f.Vendor }},
	{"device", func(f *pci.Function) uint16 { return f.Device }},
	{"subsystem_vendor", func(f *pci.Function) uint16 { return f.SubsystemVendor }},
	{"subsystem_device", func(f *pci.Function) uint16 { return f.SubsystemDevice }},
}

var (
	defaultPCIClasses     = []string{"03", "0b40", "12"}
	defaultPCILabelFields = []string{"class", "vendor"}
)

// pciLabels gives the labels of NFD's PCI source, and the vendor-only form that
// NVIDIA's GPU Operator and device plugin select on.
func pciLabels(s Set, functions []pci.Function, opts Options) {
	fields := canonicalFields(opts.PCILabelFields)
	vendorOnly := slices.Equal(fields, defaultPCILabelFields)

	for i := range functions {
		f := &functions[i]
		if !opts.WantsClass(f.Class) || f.Vendor == 0 { // 0: sysfs did not tell
			continue
		}
		key := []byte(nfdPrefix + "pci")
		separator := byte('-')
		for _, field := range pciFields {
			if slices.Contains(fields, field.name) {
				key = appendHex(append(key, separator), field.of(f))
				separator = '_'
			}
		}
		s[string(key)+".present"] = "true"
		if f.TotalVFs != nil {
			s[string(key)+".sriov.capable"] = "true"
		}
		if vendorOnly && (f.Vendor == pci.NVIDIA || f.Vendor == pci.AMD || f.Vendor == pci.Intel) {
			key = appendHex([]byte(nfdPrefix+"pci-"), f.Vendor)
			s[string(key)+".present"] = "true"
		}
	}
}

// ParsePCIClasses checks entries for Options.PCIClasses: up to four hexadecimal
// digits, in any case, with or without 0x. An empty entry stands for every
// class, as in NFD. Nil gives NFD's default.
func ParsePCIClasses(entries []string) ([]string, error) {
	if entries == nil {
		return slices.Clone(defaultPCIClasses), nil
	}
	classes := make([]string, len(entries))
	for i, entry := range entries {
		class := normalClass(entry)
		switch {
		case strings.Trim(class, "0123456789abcdef") != "":
			return nil, fmt.Errorf("PCI class %q: write up to four hexadecimal digits, such as 03 or 0b40", entry)
		case len(class) > 4:
			return nil, fmt.Errorf("PCI class %q: only base class and subclass are matched, write %s", entry, class[:4])
		}
		classes[i] = class
	}
	return classes, nil
}

// ParsePCILabelFields checks names for Options.PCILabelFields and gives them in
// the order in which NFD writes them, each once. No names, or nil, give NFD's
// default.
func ParsePCILabelFields(names []string) ([]string, error) {
	for _, name := range names {
		if !isPCIField(name) {
			return nil, fmt.Errorf("PCI label field %q: write class, vendor, device, subsystem_vendor or subsystem_device", name)
		}
	}
	return canonicalFields(names), nil
}

func isPCIField(name string) bool {
	for _, field := range pciFields {
		if field.name == name {
			return true
		}
	}
	return false
}

func normalClass(entry string) string {
	return strings.TrimPrefix(strings.ToLower(entry), "0x")
}

// canonicalFields passes over unknown names; when none is left the default
// stands. NFD does both.
func canonicalFields(names []string) []string {
	var fields []string
	for _, field := range pciFields {
		if slices.Contains(names, field.name) {
			fields = append(fields, field.name)
		}
	}
	if fields == nil {
		return slices.Clone(defaultPCILabelFields)
	}
	return fields
}

// appendHex appends the four lower-case digits of an ID.
func appendHex(b []byte, id uint16) []byte {
	const digits = "0123456789abcdef"
	return append(b, digits[id>>12], digits[id>>8&0xf], digits[id>>4&0xf], digits[id&0xf])
}
