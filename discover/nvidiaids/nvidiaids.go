// Package nvidiaids names NVIDIA GPUs by PCI device ID, for people to read while
// no driver answers. What it says is no ground for an nvidia.com/ label: those
// hold the driver's own names, which differ.
package nvidiaids

import (
	_ "embed"
	"strings"
	"sync"

	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// ids.txt has the models by device ID; NOTICE says where from.
//
//go:embed ids.txt
var idsText string

// Model is what a device ID tells.
type Model struct {
	Product string // with the maker's name: "NVIDIA H100 PCIe"
	Family  string // as nvidia.com/gpu.family has it: "hopper"
}

var models = sync.OnceValue(func() map[uint16]Model {
	byDevice := make(map[uint16]Model, 384)
	for device, row := range pci.Rows(idsText) {
		if m, ok := parseModel(row); ok {
			byDevice[device] = m
		}
	}
	return byDevice
})

// parseModel reads "hopper H100 PCIe".
func parseModel(row string) (Model, bool) {
	family, product, ok := strings.Cut(row, " ")
	return Model{Product: "NVIDIA " + product, Family: family}, ok
}

// Lookup is the model of a device ID. Laptop parts, samples and most models
// before Maxwell are not listed.
func Lookup(device uint16) (Model, bool) {
	m, ok := models()[device]
	return m, ok
}
