package pci

import (
	"errors"
	"path"
	"strconv"
	"strings"
)

var (
	errNotHex      = errors.New("want a hexadecimal number")
	errNotSpeed    = errors.New("want a speed in GT/s")
	errNoBaseName  = errors.New("want a path that ends in a name")
	errNotModalias = errors.New("want pci:v…d…sv…sd…bc…sc…i…")
)

// parseHex reads an ID or a class as sysfs writes it, 0x10de.
func parseHex(s string, bits int) (uint32, error) {
	digits, ok := strings.CutPrefix(s, "0x")
	if !ok {
		digits = strings.TrimPrefix(s, "0X")
	}
	n, err := strconv.ParseUint(digits, 16, bits)
	if err != nil {
		return 0, Parsing(s, err)
	}
	return uint32(n), nil
}

// parseID reads a vendor or device ID.
func parseID(s string) (uint16, error) {
	n, err := parseHex(s, 16)
	return uint16(n), err
}

// parseClass reads a class with its programming interface, 0x030200.
func parseClass(s string) (uint32, error) { return parseHex(s, 24) }

func parseRevision(s string) (uint8, error) {
	n, err := parseHex(s, 8)
	return uint8(n), err
}

// parseNUMANode gives nil for -1: the platform names no node.
func parseNUMANode(s string) (*int, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return nil, Parsing(s, err)
	}
	if n < 0 {
		return nil, nil
	}
	node := int(n)
	return &node, nil
}

// parseVFs reads a number of VFs, which is 16 bits wide in the capability.
func parseVFs(s string) (*int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return nil, Parsing(s, err)
	}
	vfs := int(n)
	return &vfs, nil
}

// parseLinkSpeed gives "" for a speed that the kernel does not know, and calls
// Unknown, or Unknown speed. It wrote "8 GT/s" before it wrote "8.0 GT/s PCIe".
func parseLinkSpeed(s string) (string, error) {
	if strings.HasPrefix(s, "Unknown") {
		return "", nil
	}
	number, ok := strings.CutSuffix(strings.TrimSuffix(s, " PCIe"), " GT/s")
	n, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(n > 0 && n < 1000) {
		return "", Parsing(s, errNotSpeed)
	}
	return s, nil
}

// parseLinkWidth gives 0 for a width that no link has: 0 where the link is
// down, 63 where the function does not answer, 255 where the kernel knows none.
func parseLinkWidth(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return 0, Parsing(s, err)
	}
	if n > 32 {
		return 0, nil
	}
	return int(n), nil
}

// parseName gives the last element of a link's target.
func parseName(target string) (string, error) {
	name := path.Base(target)
	if name == "/" || name == "." || name == ".." {
		return "", Parsing(target, errNoBaseName)
	}
	return name, nil
}

// parsePhysicalFunction gives the address that a physfn link points at.
func parsePhysicalFunction(target string) (*Address, error) {
	a, err := ParseAddress(path.Base(target))
	if err != nil {
		return nil, err
	}
	return &a, nil
}
