package amd

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"
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
	for line := range strings.Lines(idsText) {
		device, row, ok := parseName(line)
		if ok {
			byDevice[device] = append(byDevice[device], row)
		}
	}
	return byDevice
})

// parseName reads "744c c8,cc AMD Radeon RX 7900". Comments and empty lines are
// no rows.
func parseName(line string) (device uint16, row name, ok bool) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return 0, name{}, false
	}
	id, rest, ok1 := strings.Cut(line, " ")
	revisions, text, ok2 := strings.Cut(rest, " ")
	n, err := strconv.ParseUint(id, 16, 16)
	if !ok1 || !ok2 || err != nil || text == "" {
		return 0, name{}, false
	}
	row.name = text
	if revisions == "*" {
		return uint16(n), row, true
	}
	for s := range strings.SplitSeq(revisions, ",") {
		r, err := strconv.ParseUint(s, 16, 8)
		if err != nil {
			return 0, name{}, false
		}
		row.revisions = append(row.revisions, uint8(r))
	}
	return uint16(n), row, true
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
