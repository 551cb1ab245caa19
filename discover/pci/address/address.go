// Package address reads and writes PCI addresses. It imports next to nothing.
package address

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Address is a PCI address: domain, bus, device and function. The kernel's
// domains are 32 bits wide (VMD and some hypervisors hand out domains of five
// and more hexadecimal digits), so an address is a value, not a string.
type Address struct {
	Domain   uint32
	Bus      uint8
	Device   uint8
	Function uint8
}

// Parse reads an address as sysfs writes it (0000:1b:00.0, 10000:e1:00.0)
// or as NVML writes it (00000000:1B:00.0).
func Parse(s string) (Address, error) {
	bad := func() (Address, error) {
		return Address{}, fmt.Errorf("parsing PCI address %.40q: want domain:bus:device.function in hexadecimal", s)
	}
	domain, rest, ok := strings.Cut(s, ":")
	if !ok {
		return bad()
	}
	bus, rest, ok := strings.Cut(rest, ":")
	if !ok {
		return bad()
	}
	device, function, ok := strings.Cut(rest, ".")
	if !ok || len(domain) < 4 || len(domain) > 8 || len(bus) != 2 || len(device) != 2 || len(function) != 1 {
		return bad()
	}
	var v [4]uint64
	for i, part := range []struct {
		text string
		bits int
	}{{domain, 32}, {bus, 8}, {device, 5}, {function, 3}} {
		n, err := strconv.ParseUint(part.text, 16, part.bits)
		if err != nil {
			return bad()
		}
		v[i] = n
	}
	return Address{Domain: uint32(v[0]), Bus: uint8(v[1]), Device: uint8(v[2]), Function: uint8(v[3])}, nil
}

// String writes the address as the kernel does: at least four digits of
// domain, lower case.
func (a Address) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// Compare orders addresses by domain, bus, device and function.
func (a Address) Compare(b Address) int {
	return cmp.Or(
		cmp.Compare(a.Domain, b.Domain),
		cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device),
		cmp.Compare(a.Function, b.Function),
	)
}

// MarshalText and UnmarshalText write and read the form of String.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads any form that Parse takes.
func (a *Address) UnmarshalText(text []byte) (err error) {
	*a, err = Parse(string(text))
	return err
}
