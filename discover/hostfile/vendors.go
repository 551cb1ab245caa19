package hostfile

import (
	"path"
	"slices"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover/amd"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/internal/redact"
)

// amdFiles are what amdgpu adds to a PCI function. Its unique_id and
// serial_number stay where they are.
var amdFiles = []string{
	"product_name", "mem_info_vram_total", "mem_info_vram_vendor",
	"current_compute_partition", "available_compute_partition",
	"current_memory_partition", "available_memory_partition",
}

func (f *File) recordAMD(root hostfs.Root, dir string) {
	for _, name := range amdFiles {
		f.recordFile(root, path.Join(dir, name))
	}
	if name := path.Join(dir, "product_name"); f.Files[name] != nil {
		f.Files[name] = redact.MaskName(f.Files[name])
	}
	dies := path.Join(dir, "ip_discovery/die")
	for _, die := range numbered(root, dies, "") {
		cores := path.Join(dies, die, "GC")
		for _, core := range numbered(root, cores, "") {
			for _, name := range []string{"major", "minor", "revision", "harvest"} {
				f.recordFile(root, path.Join(cores, core, name))
			}
		}
	}
}

func (f *File) recordIntel(root hostfs.Root, dir string) {
	for _, card := range numbered(root, path.Join(dir, "drm"), "card") {
		card = path.Join(dir, "drm", card)
		f.Dirs = append(f.Dirs, card)
		for _, gt := range numbered(root, path.Join(card, "gt"), "gt") {
			f.Dirs = append(f.Dirs, path.Join(card, "gt", gt))
		}
		f.recordFile(root, path.Join(card, "lmem_total_bytes"))
	}
	for _, tile := range numbered(root, dir, "tile") {
		f.Dirs = append(f.Dirs, path.Join(dir, tile))
		f.recordFile(root, path.Join(dir, tile, "physical_vram_size_bytes"))
	}
}

// recordTopology records KFD's nodes. A node that may not be read is recorded as
// a folder in the file's place, which no replay can read either.
func (f *File) recordTopology(root hostfs.Root) {
	for _, node := range numbered(root, amd.TopologyPath, "") {
		dir := path.Join(amd.TopologyPath, node)
		name := path.Join(dir, "properties")
		text, err := root.ReadFile(name, hostfs.PageSize)
		if err != nil {
			f.Dirs = append(f.Dirs, name)
			continue
		}
		f.Files[name] = withoutIDs(text)
		f.Dirs = append(f.Dirs, path.Join(dir, "mem_banks"))
		for _, bank := range numbered(root, path.Join(dir, "mem_banks"), "") {
			f.recordFile(root, path.Join(dir, "mem_banks", bank, "properties"))
		}
	}
}

// withoutIDs leaves out what is of one GPU alone.
func withoutIDs(properties []byte) []byte {
	var kept strings.Builder
	for line := range strings.Lines(string(properties)) {
		if name, _, _ := strings.Cut(line, " "); name != "unique_id" && name != "hive_id" {
			kept.WriteString(line)
		}
	}
	return []byte(kept.String())
}

// numbered lists the names in a folder that are the prefix and a number.
func numbered(root hostfs.Root, dir, prefix string) []string {
	names, _ := root.ReadDir(dir)
	return slices.DeleteFunc(names, func(name string) bool {
		digits, ok := strings.CutPrefix(name, prefix)
		return !ok || digits == "" || strings.Trim(digits, "0123456789") != ""
	})
}
