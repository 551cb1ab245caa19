package pci

import (
	"iter"
	"strconv"
	"strings"
)

// Rows gives the rows of a table by device ID, "2331 hopper H100 PCIe": the ID,
// and what follows it. Comments (#) and empty lines are no rows.
func Rows(table string) iter.Seq2[uint16, string] {
	return func(yield func(uint16, string) bool) {
		for line := range strings.Lines(table) {
			id, row, _ := strings.Cut(strings.TrimSpace(line), " ")
			device, err := strconv.ParseUint(id, 16, 16)
			if err == nil && !yield(uint16(device), strings.TrimSpace(row)) {
				return
			}
		}
	}
}
