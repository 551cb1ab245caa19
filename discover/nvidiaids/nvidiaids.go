// Package nvidiaids names NVIDIA GPUs by PCI device ID, for people to read while
// no driver answers. What it says is no ground for an nvidia.com/ label: those
// hold the driver's own names, which differ.
package nvidiaids

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"
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
	for line := range strings.Lines(idsText) {
		if device, m, ok := parseModel(line); ok {
			byDevice[device] = m
		}
	}
	return byDevice
})

// parseModel reads "2331 hopper H100 PCIe". Comments and empty lines are no
// rows.
func parseModel(line string) (device uint16, m Model, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 3 || fields[0][0] == '#' {
		return 0, Model{}, false
	}
	n, err := strconv.ParseUint(fields[0], 16, 16)
	if err != nil {
		return 0, Model{}, false
	}
	return uint16(n), Model{Product: "NVIDIA " + strings.Join(fields[2:], " "), Family: fields[1]}, true
}

// Lookup is the model of a device ID. Laptop parts, samples and most models
// before Maxwell are not listed.
func Lookup(device uint16) (Model, bool) {
	m, ok := models()[device]
	return m, ok
}
