package amd

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// Version is that of an IP block, as the kernel's IP_VERSION(9, 4, 3) has it;
// zero when unknown. It is not always the number in the gfx name: GC 10.3.1 is
// gfx1033.
type Version struct {
	Major, Minor, Revision int
	// Instances is how many of the block the GPU has in use: of GC, one for
	// each XCC.
	Instances int
}

// String is the version with dots, empty when unknown.
func (v Version) String() string {
	if v.Major == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Revision)
}

// discovery reads the graphics core from ip_discovery/die/N/GC/M (Linux 5.18).
// GPUs from before the discovery table do not have it.
func (r *reader) discovery() (v Version) {
	dies := r.path() + "/ip_discovery/die"
	for _, die := range r.numbered(dies) {
		for _, instance := range r.numbered(dies + "/" + die + "/GC") {
			file := "ip_discovery/die/" + die + "/GC/" + instance
			found, harvested, err := r.block(r.path() + "/" + file)
			switch {
			case hostfs.Gone(err):
				continue
			case err != nil:
				r.problem(file, err)
				continue
			case harvested:
				continue
			}
			found.Instances = v.Instances + 1
			v = found
		}
	}
	return v
}

// numbered lists the folders in a folder that have numbers for names, if there
// is such a folder.
func (r *reader) numbered(path string) (names []string) {
	all, err := r.root.ReadDir(path)
	if err != nil && !hostfs.Gone(err) && !errors.Is(err, fs.ErrPermission) {
		r.problem("ip_discovery", err)
	}
	for _, name := range all {
		if _, ok := number(name); ok {
			names = append(names, name)
		}
	}
	return names
}

func (r *reader) block(path string) (v Version, harvested bool, err error) {
	dir, err := r.root.OpenDir(path)
	if err != nil {
		return v, false, err
	}
	defer dir.Close()
	harvest := 0
	for _, field := range []struct {
		file     string
		value    *int
		optional bool
	}{
		{"major", &v.Major, false},
		{"minor", &v.Minor, false},
		{"revision", &v.Revision, false},
		{"harvest", &harvest, true},
	} {
		text, err := dir.Attribute(field.file)
		if field.optional && hostfs.Gone(err) {
			continue
		}
		if err == nil {
			*field.value, err = parseBlockNumber(text)
		}
		if err != nil {
			return Version{}, false, fmt.Errorf("%s: %w", field.file, err)
		}
	}
	return v, harvest != 0, nil
}

// parseBlockNumber reads a part of a version, which is decimal, or the harvest
// bits, which have 0x before them.
func parseBlockNumber(s string) (int, error) {
	digits, base := s, 10
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 8)
	if err != nil {
		return 0, pci.Parsing(s, err)
	}
	return int(n), nil
}
