package intel

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

// Kind says whether a GPU is a part of the processor.
type Kind uint8

// The kinds of GPUs.
const (
	Unknown Kind = iota
	Discrete
	Integrated
)

const maxSeries = "Max_Series"

// Model is what a device ID tells.
type Model struct {
	// Product is the name on the market without the maker's, such as
	// "Arc A770" or "Data Center GPU Max 1550"; empty when it has none.
	Product string
	// Family is a series of discrete GPUs as Intel's labels name it:
	// Max_Series, Flex_Series, A_Series, B_Series; empty for others.
	Family string
	Kind   Kind
}

// String is the product with the maker's name, empty when it has none.
func (m Model) String() string {
	if m.Product == "" || strings.HasPrefix(m.Product, "Intel ") {
		return m.Product
	}
	return "Intel " + m.Product
}

var models = sync.OnceValue(func() map[uint16]Model {
	byDevice := make(map[uint16]Model, 256)
	for device, row := range pci.Rows(idsText) {
		if m, ok := parseModel(row); ok {
			byDevice[device] = m
		}
	}
	return byDevice
})

// parseModel reads "d A_Series Arc A770".
func parseModel(row string) (m Model, ok bool) {
	fields := strings.Fields(row)
	if len(fields) < 2 {
		return Model{}, false
	}
	switch fields[0] {
	case "d":
		m.Kind = Discrete
	case "i":
		m.Kind = Integrated
	default:
		return Model{}, false
	}
	if fields[1] != "-" {
		m.Family = fields[1]
	}
	m.Product = strings.Join(fields[2:], " ")
	return m, true
}

// Lookup is the model of a device ID.
func Lookup(device uint16) (Model, bool) {
	m, ok := models()[device]
	return m, ok
}
