// Package intel reads what the kernel drivers i915 and xe say of Intel GPUs, from
// sysfs alone.
//
// The files are those of i915_sysfs.c and intel_gt_sysfs.c (Linux 6.12) and
// xe_tile_sysfs.c (6.12), and of Intel's out-of-tree i915.
package intel

import (
	"errors"
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// GPU is what the kernel and the table of device IDs say of one PCI function. A
// field that they do not give has its zero value.
type GPU struct {
	// Model is the row of the table, zero for an unknown device ID.
	Model Model
	// Tiles is how many tiles the GPU has; 0 when unknown.
	Tiles int
	// MemoryBytes is the GPU's own memory. No kernel without out-of-tree
	// drivers gives it.
	MemoryBytes uint64
}

// Integrated tells a GPU that is a part of the processor and shares its memory.
func (g *GPU) Integrated() bool { return g.Model.Kind == Integrated }

// Scan reads the given Intel functions; what it gives is in the same order. Of a
// function that neither i915 nor xe is bound to there is only the model.
// Problems are *pci.FieldError.
func Scan(root hostfs.Root, functions []*pci.Function) (gpus []GPU, problems []error) {
	gpus = make([]GPU, len(functions))
	for i, f := range functions {
		g := &gpus[i]
		g.Model, _ = Lookup(f.Device)
		r := reader{root: root, address: f.Address.String()}
		switch f.Driver {
		case "i915":
			r.i915(g)
		case "xe":
			r.xe(g)
		}
		problems = append(problems, r.problems...)
	}
	return gpus, problems
}

// reader reads the files of one function and keeps what went wrong.
type reader struct {
	root     hostfs.Root
	address  string
	problems []error
}

func (r *reader) path(file string) string { return "sys/bus/pci/devices/" + r.address + "/" + file }

// i915 shows GTs below the card, a tile's main one and the media engines' alike:
// Meteor Lake has two in its one tile. Only the Max series has several tiles.
func (r *reader) i915(g *GPU) {
	card := ""
	for _, name := range r.list("drm") {
		if numbered(name, "card") {
			card = "drm/" + name
		}
	}
	if card == "" {
		return
	}
	gts := 0
	for _, name := range r.list(card + "/gt") {
		if numbered(name, "gt") {
			gts++
		}
	}
	switch {
	case gts == 1 || g.Model.Family == maxSeries:
		g.Tiles = gts
	case g.Model.Kind != Unknown:
		g.Tiles = 1
	}
	perTile, ok := r.bytes(card + "/lmem_total_bytes")
	if ok {
		g.MemoryBytes = perTile * uint64(g.Tiles)
	}
}

// xe shows each tile in a folder of its own, and the tile's GTs in that. The
// files with the tiles' memory were taken out before xe was merged; trees from
// before have them.
func (r *reader) xe(g *GPU) {
	var total uint64
	all := true
	for _, name := range r.list("") {
		if !numbered(name, "tile") {
			continue
		}
		g.Tiles++
		size, ok := r.bytes(name + "/physical_vram_size_bytes")
		total += size
		all = all && ok
	}
	if all {
		g.MemoryBytes = total
	}
}

// list gives the names in a folder below the function's, none where there is no
// such folder.
func (r *reader) list(folder string) []string {
	names, err := r.root.ReadDir(r.path(folder))
	if err != nil && !hostfs.Gone(err) {
		r.problem(folder, err)
	}
	return names
}

func (r *reader) bytes(file string) (uint64, bool) {
	text, err := r.root.Attribute(r.path(file))
	if hostfs.Gone(err) {
		return 0, false
	}
	var n uint64
	if err == nil {
		n, err = parseBytes(text)
	}
	if err != nil {
		r.problem(file, err)
	}
	return n, err == nil
}

func (r *reader) problem(file string, err error) {
	r.problems = append(r.problems, &pci.FieldError{Address: r.address, Field: file, Err: err})
}

var errNotBytes = errors.New("want a number of bytes")

// parseBytes reads decimal, as i915 writes it, or hexadecimal with 0x, as xe did.
// More than 2^50 bytes is no memory of a GPU.
func parseBytes(s string) (uint64, error) {
	digits, base := s, 10
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil || n > 1<<50 {
		return 0, pci.Parsing(s, errNotBytes)
	}
	return n, nil
}

// numbered tells names such as card10: the prefix and a number of any length.
func numbered(name, prefix string) bool {
	digits, ok := strings.CutPrefix(name, prefix)
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}
