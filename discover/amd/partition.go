package amd

import (
	"errors"
	"slices"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// Partitioning is a mode that a GPU is partitioned in, and those it can be.
type Partitioning struct {
	// Current is current_compute_partition (SPX, DPX, TPX, QPX, CPX) or
	// current_memory_partition (NPS1, NPS2, NPS4, NPS8).
	Current string
	// Available are the modes to choose from; nil for a GPU that cannot be
	// partitioned.
	Available []string
	// Unread: whether it can be partitioned could not be read.
	Unread bool
}

// notSupported is what the kernel writes for a GPU that has the file and not the
// thing.
const notSupported = "not supported"

var errNotModes = errors.New("want modes such as SPX, DPX")

// partitioning reads the two files of a kind, compute or memory.
func (r *reader) partitioning(dir hostfs.Dir, kind string, p *Partitioning) {
	current := []string{}
	attribute(r, dir, "current_"+kind+"_partition", parseModes, &current)
	if len(current) == 1 && current[0] != "UNKNOWN" {
		p.Current = current[0]
	}
	before := len(r.problems)
	attribute(r, dir, "available_"+kind+"_partition", parseModes, &p.Available)
	p.Unread = len(r.problems) > before
}

// parseModes reads a mode or a list of them: "SPX, DPX, QPX, CPX". It gives nil
// where nothing is supported.
func parseModes(text string) ([]string, error) {
	if text == "" || strings.EqualFold(text, notSupported) {
		return nil, nil
	}
	var modes []string
	for part := range strings.SplitSeq(text, ",") {
		mode := strings.TrimSpace(part)
		if !isMode(mode) {
			return nil, pci.Parsing(text, errNotModes)
		}
		if !slices.Contains(modes, mode) {
			modes = append(modes, mode)
		}
	}
	return modes, nil
}

// isMode tells words such as SPX, NPS4 and UNKNOWN.
func isMode(s string) bool {
	if len(s) < 3 || len(s) > 8 {
		return false
	}
	return strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == ""
}

// partitionsIn is the number of partitions that a compute mode makes of a GPU
// with as many XCCs, 0 when unknown.
func partitionsIn(mode string, xccs int) int {
	switch mode {
	case "SPX":
		return 1
	case "DPX":
		return 2
	case "TPX":
		return 3
	case "QPX":
		return 4
	case "CPX":
		return xccs // each XCC is one
	}
	return 0
}
