package intel

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
	for line := range strings.Lines(idsText) {
		if device, m, ok := parseModel(line); ok {
			byDevice[device] = m
		}
	}
	return byDevice
})

// parseModel reads "56a0 d A_Series Arc A770". Comments and empty lines are no
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
	switch fields[1] {
	case "d":
		m.Kind = Discrete
	case "i":
		m.Kind = Integrated
	default:
		return 0, Model{}, false
	}
	if fields[2] != "-" {
		m.Family = fields[2]
	}
	m.Product = strings.Join(fields[3:], " ")
	return uint16(n), m, true
}

// Lookup is the model of a device ID.
func Lookup(device uint16) (Model, bool) {
	m, ok := models()[device]
	return m, ok
}
