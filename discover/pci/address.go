package pci

import "github.com/gpu-labeller/gpu-labeller/discover/pci/address"

// Address is a PCI address.
type Address = address.Address

// ParseAddress is address.Parse.
func ParseAddress(s string) (Address, error) { return address.Parse(s) }
