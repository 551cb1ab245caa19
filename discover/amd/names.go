package amd

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"

	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// ids.txt has the names by device ID and revision; NOTICE says where from.
//
//go:embed ids.txt
var idsText string

// name is a row: the revisions that have the name, nil for all.
type name struct {
	revisions []uint8
	name      string
}

var names = sync.OnceValue(func() map[uint16][]name {
	byDevice := make(map[uint16][]name, 256)
	for device, row := range pci.Rows(idsText) {
		if n, ok := parseName(row); ok {
			byDevice[device] = append(byDevice[device], n)
		}
	}
	return byDevice
})

// parseName reads "c8,cc AMD Radeon RX 7900".
func parseName(row string) (n name, ok bool) {
	revisions, text, _ := strings.Cut(row, " ")
	if text == "" {
		return name{}, false
	}
	n.name = text
	if revisions == "*" {
		return n, true
	}
	for s := range strings.SplitSeq(revisions, ",") {
		r, err := strconv.ParseUint(s, 16, 8)
		if err != nil {
			return name{}, false
		}
		n.revisions = append(n.revisions, uint8(r))
	}
	return n, true
}

// Product is the marketing name of a device ID and revision, such as
// "AMD Instinct MI210"; of an unknown revision, the name that all revisions
// share. It is empty when no table knows it.
func Product(device uint16, revision uint8) string {
	rows := names()[device]
	for _, row := range rows {
		for _, r := range row.revisions {
			if r == revision {
				return row.name
			}
		}
	}
	if len(rows) == 0 {
		return ""
	}
	for _, row := range rows[1:] {
		if row.name != rows[0].name {
			return ""
		}
	}
	return rows[0].name
}
