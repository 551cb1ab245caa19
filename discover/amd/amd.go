// Package amd reads what the kernel drivers amdgpu and KFD say of AMD GPUs, from
// sysfs alone: no ioctl, no library, no device node.
//
// PCI sysfs comes first and needs no privilege. The KFD topology comes second:
// the kernel hides its GPU nodes from readers whose device cgroup may not use
// the GPU, so what only it knows may be absent.
//
// The files are those of amdgpu_device.c, amdgpu_vram_mgr.c, amdgpu_gfx.c,
// amdgpu_discovery.c, amdgpu_fru_eeprom.c and kfd_topology.c as of Linux 6.12,
// and of the older and the out-of-tree drivers that the tests name.
package amd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
	"github.com/gpu-labeller/gpu-labeller/internal/redact"
)

// Driver is the kernel driver that gives all that follows but the name.
const Driver = "amdgpu"

// GPU is what the kernel says of one PCI function. A field that it does not
// give, or that could not be read, has its zero value.
type GPU struct {
	// Product is the board's name from its FRU EEPROM, which only some server
	// boards have, or else libdrm's for the device ID and revision.
	Product string

	// VRAMBytes is mem_info_vram_total: of the whole GPU, however it is
	// partitioned. For an APU it is the part of system memory set aside.
	VRAMBytes uint64
	// VRAMVendor is who made the memory, mem_info_vram_vendor: not given for
	// APUs, and neither for virtual functions and some other GPUs.
	VRAMVendor string
	// APU: processor and GPU share one memory.
	APU bool
	// ChipKnown tells that the graphics core is one the tables know, so that
	// APU is certain either way.
	ChipKnown bool

	// GC is the version of the graphics core, GFX its name as compilers spell
	// it (gfx942), Family that of the kernel's AMDGPU_FAMILY_ constants (AI).
	GC     Version
	GFX    string
	Family string

	// Compute and Memory are how the GPU is partitioned.
	Compute Partitioning
	Memory  Partitioning

	// Partitions are those that the KFD topology shows, one for a GPU that is
	// not partitioned; nil where it could not be read.
	Partitions []Partition
	// PartitionCount is their number, by the compute partition mode where the
	// KFD topology does not tell; 0 when unknown.
	PartitionCount int

	// DriverVersion is amdgpu's, which only the out-of-tree driver has, and
	// DriverSrcVersion the hash of its source.
	DriverVersion    string
	DriverSrcVersion string
}

// Partition is one compute partition of a GPU, or all of it.
type Partition struct {
	SIMDs     int    // simd_count
	CUs       int    // simd_count / simd_per_cu: those enabled
	VRAMBytes uint64 // its share of the GPU's memory
}

// VRAMPerPartition gives the memory of each partition, nil where it is unknown.
// The kernel deals the GPU's memory out evenly.
func (g *GPU) VRAMPerPartition() []uint64 {
	if len(g.Partitions) > 0 && g.Partitions[0].VRAMBytes > 0 {
		sizes := make([]uint64, len(g.Partitions))
		for i, p := range g.Partitions {
			sizes[i] = p.VRAMBytes
		}
		return sizes
	}
	if g.VRAMBytes == 0 || g.PartitionCount == 0 {
		return nil
	}
	sizes := make([]uint64, g.PartitionCount)
	for i := range sizes {
		sizes[i] = g.VRAMBytes / uint64(g.PartitionCount)
	}
	return sizes
}

// OwnMemoryBytes is the memory that is the GPU's alone: 0 for an APU, and for a
// chip that might be one. A maker of the memory is only known of memory chips on
// a board.
func (g *GPU) OwnMemoryBytes() uint64 {
	if g.APU || !g.ChipKnown && g.VRAMVendor == "" {
		return 0
	}
	return g.VRAMBytes
}

// Scan reads the given AMD functions; what it gives is in the same order. Of a
// function that amdgpu is not bound to there is only the name.
//
// Problems are *pci.FieldError where a function is concerned. The KFD topology
// gives one problem a host at most, which wraps ErrTopology.
func Scan(root hostfs.Root, functions []*pci.Function) (gpus []GPU, problems []error) {
	gpus = make([]GPU, len(functions))
	bound := false
	for i, f := range functions {
		g := &gpus[i]
		if f.Driver == Driver {
			bound = true
			r := reader{root: root, function: f}
			r.read(g)
			problems = append(problems, r.problems...)
		}
		if g.Product == "" {
			g.Product = Product(f.Device, f.Revision)
		}
	}
	if bound {
		if err := readTopology(root, functions, gpus); err != nil {
			problems = append(problems, err)
		}
		problems = append(problems, readModule(root, functions, gpus)...)
	}
	for i, f := range functions {
		gpus[i].conclude(f)
	}
	return gpus, problems
}

// conclude fills in what follows from what was read.
func (g *GPU) conclude(f *pci.Function) {
	if c, ok := coreOf(f.Device, g.GC, g.GFX); ok {
		g.ChipKnown = true
		g.APU = c.apu
		g.Family = c.family
		if g.GFX == "" {
			g.GFX = c.gfx
		}
	}
	if f.Driver != Driver {
		// Tables alone say nothing of a GPU that no driver runs.
		g.GFX, g.Family = "", ""
		return
	}
	if g.PartitionCount = len(g.Partitions); g.PartitionCount == 0 {
		g.PartitionCount = g.partitionsByMode()
	}
}

// partitionsByMode is how many partitions the compute partition mode makes, 0
// when that is unknown.
func (g *GPU) partitionsByMode() int {
	if g.Compute.Current == "" {
		return 1
	}
	return partitionsIn(g.Compute.Current, g.GC.Instances)
}

// readModule reads the driver's own files: the link driver/module of a function
// leads there too.
func readModule(root hostfs.Root, functions []*pci.Function, gpus []GPU) (problems []error) {
	read := func(name string) string {
		file := "/sys/module/" + Driver + "/" + name
		text, err := root.Attribute(file)
		if err != nil && !hostfs.Gone(err) {
			problems = append(problems, fmt.Errorf("%s: %w", file, err))
		}
		return text
	}
	version, srcVersion := read("version"), read("srcversion")
	for i, f := range functions {
		if f.Driver == Driver {
			gpus[i].DriverVersion, gpus[i].DriverSrcVersion = version, srcVersion
		}
	}
	return problems
}

// reader reads the files of one function and keeps what went wrong.
type reader struct {
	root     hostfs.Root
	function *pci.Function
	problems []error
}

func (r *reader) path() string { return "sys/bus/pci/devices/" + r.function.Address.String() }

func (r *reader) read(g *GPU) {
	dir, err := r.root.OpenDir(r.path())
	if err != nil {
		r.problem("", err)
		return
	}
	defer dir.Close()
	attribute(r, dir, "product_name", parseProduct, &g.Product)
	attribute(r, dir, "mem_info_vram_total", parseBytes, &g.VRAMBytes)
	attribute(r, dir, "mem_info_vram_vendor", parseVendor, &g.VRAMVendor)
	r.partitioning(dir, "compute", &g.Compute)
	r.partitioning(dir, "memory", &g.Memory)
	g.GC = r.discovery()
}

func (r *reader) problem(file string, err error) {
	r.problems = append(r.problems, &pci.FieldError{Address: r.function.Address.String(), Field: file, Err: err})
}

// attribute reads and parses a file that need not be there into value, and tells
// whether it is there, whatever is in it.
func attribute[T any](r *reader, dir hostfs.Dir, file string, parse func(string) (T, error), value *T) (exists bool) {
	text, err := dir.Attribute(file)
	if hostfs.Gone(err) {
		return false
	}
	if err == nil {
		var v T
		if v, err = parse(text); err == nil {
			*value = v
			return true
		}
	}
	r.problem(file, err)
	return true
}

// parseProduct passes over what boards have for a name where nobody wrote one, and
// over serial numbers in it.
func parseProduct(s string) (string, error) {
	s = redact.Name(s)
	if strings.EqualFold(s, "N/A") || strings.EqualFold(s, "unknown") || strings.EqualFold(s, "none") || !strings.ContainsFunc(s, isLetterOrDigit) {
		s = ""
	}
	return s, nil
}

func isLetterOrDigit(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

func parseVendor(s string) (string, error) {
	if s == "unknown" {
		s = ""
	}
	return s, nil
}

// maxBytes is more memory than any GPU has.
const maxBytes = 1 << 50

var errNotMemory = errors.New("more than any GPU has")

func parseBytes(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err == nil && n > maxBytes {
		err = errNotMemory
	}
	if err != nil {
		return 0, pci.Parsing(s, err)
	}
	return n, nil
}

// number reads the names of numbered folders, of any length; others are not
// numbers.
func number(name string) (int, bool) {
	if name == "" || strings.Trim(name, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(name)
	return n, err == nil
}
