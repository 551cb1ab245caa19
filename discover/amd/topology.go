package amd

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// TopologyPath is where KFD shows its nodes, below the root: processors, and
// one for each GPU or partition of one.
const TopologyPath = "sys/class/kfd/kfd/topology/nodes"

// ErrTopology reports that nodes of the KFD topology cannot be read, so that
// there may be GPUs whose compute units are not known. Where it also wraps
// fs.ErrPermission, the reader's device cgroup is not allowed the GPUs'
// render nodes.
var ErrTopology = errors.New("the compute units of AMD GPUs are not known")

// node is what is read of a KFD node that is a GPU or a partition of one.
type node struct {
	number     int // in the topology
	properties properties
	vramBytes  uint64
}

// readTopology adds what KFD says to the GPUs. Without a topology there is
// nothing to add.
func readTopology(root hostfs.Root, functions []*pci.Function, gpus []GPU) error {
	names, err := root.ReadDir(TopologyPath)
	if hostfs.Gone(err) {
		return nil // a kernel without KFD, or a GPU that KFD does not support
	}
	if err != nil {
		return fmt.Errorf("%w: reading /%s: %w", ErrTopology, TopologyPath, err)
	}
	var nodes []node
	count, unread := 0, 0
	var first error
	for _, name := range names {
		n, ok := number(name)
		if !ok {
			continue
		}
		count++
		found, err := readNode(root, TopologyPath+"/"+name)
		if err != nil {
			unread++
			if first == nil {
				first = err
			}
		}
		if found.properties.isGPU() {
			found.number = n
			nodes = append(nodes, found)
		}
	}
	slices.SortFunc(nodes, func(a, b node) int { return a.number - b.number })
	for _, n := range nodes {
		if i := owner(functions, n.properties); i >= 0 {
			gpus[i].add(n)
		}
	}
	if first == nil {
		return nil
	}
	// A node that cannot be read may be a partition of any GPU. Those of a GPU are
	// all there only if there are as many as its mode makes.
	for i := range gpus {
		if g := &gpus[i]; len(g.Partitions) > 0 && len(g.Partitions) != g.partitionsByMode() {
			g.Partitions = nil
		}
	}
	return fmt.Errorf("%w: %d of %d nodes in /%s cannot be read: %w", ErrTopology, unread, count, TopologyPath, first)
}

// readNode may give what it could read with an error.
func readNode(root hostfs.Root, path string) (n node, err error) {
	text, err := root.ReadFile(path+"/properties", hostfs.PageSize)
	if err != nil {
		return node{}, err
	}
	if n.properties, err = parseProperties(text); err != nil || !n.properties.isGPU() {
		return n, err
	}
	banks, err := root.ReadDir(path + "/mem_banks")
	if err != nil {
		return n, err
	}
	var total uint64
	for _, bank := range banks {
		if _, ok := number(bank); !ok {
			continue
		}
		text, err := root.ReadFile(path+"/mem_banks/"+bank+"/properties", hostfs.PageSize)
		if err != nil {
			return n, err
		}
		p, err := parseProperties(text)
		if err != nil {
			return n, err
		}
		// The part that the processor sees and the part that it does not.
		if p.HeapType == heapPublic || p.HeapType == heapPrivate {
			if p.SizeInBytes > maxBytes || total+p.SizeInBytes > maxBytes {
				return n, fmt.Errorf("size_in_bytes %d: %w", p.SizeInBytes, errNotMemory)
			}
			total += p.SizeInBytes
		}
	}
	n.vramBytes = total
	return n, nil
}

// owner is the index of the function that a node is or is a part of, -1 when
// there is none.
func owner(functions []*pci.Function, p properties) int {
	address, exact := p.address(), -1
	sameDevice := -1
	for i, f := range functions {
		if f.Driver != Driver {
			continue
		}
		switch a := f.Address; {
		case a == address:
			exact = i
		case a.Domain == address.Domain && a.Bus == address.Bus && a.Device == address.Device &&
			(sameDevice < 0 || a.Function < functions[sameDevice].Address.Function):
			sameDevice = i
		}
	}
	if exact >= 0 {
		return exact
	}
	return sameDevice
}

func (g *GPU) add(n node) {
	p := Partition{SIMDs: int(n.properties.SIMDCount), VRAMBytes: n.vramBytes}
	if n.properties.SIMDPerCU > 0 {
		p.CUs = int(n.properties.SIMDCount / n.properties.SIMDPerCU)
	}
	g.Partitions = append(g.Partitions, p)
	if g.GFX == "" {
		g.GFX = gfxName(n.properties.GFXTargetVersion)
	}
}

// The kinds of memory of a GPU (kfd_crat.h, HSA_MEM_HEAP_TYPE_).
const (
	heapPublic  = 1
	heapPrivate = 2
)

// properties are those of a KFD node, or of one of its memory banks, that are
// used. Older kernels lack some.
type properties struct {
	SIMDCount        uint32
	SIMDPerCU        uint32
	GFXTargetVersion uint32
	LocationID       uint32
	Domain           uint32
	HeapType         uint32
	SizeInBytes      uint64
}

// isGPU tells GPUs from processors. An old APU is both, in one node.
func (p properties) isGPU() bool { return p.SIMDCount > 0 }

// address is that of the PCI function. On a GPU that is partitioned the function
// number may be the partition's number; newer kernels put that in the four
// highest bits.
func (p properties) address() pci.Address {
	return pci.Address{
		Domain:   p.Domain,
		Bus:      uint8(p.LocationID >> 8),
		Device:   uint8(p.LocationID >> 3 & 0x1f),
		Function: uint8(p.LocationID & 7),
	}
}

var errNotProperty = errors.New("want a name and a number")

// parseProperties reads lines such as "simd_count 416".
func parseProperties(text []byte) (properties, error) {
	var p properties
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, " ")
		if !ok {
			return properties{}, pci.Parsing(line, errNotProperty)
		}
		var small *uint32
		switch name {
		case "simd_count":
			small = &p.SIMDCount
		case "simd_per_cu":
			small = &p.SIMDPerCU
		case "gfx_target_version":
			small = &p.GFXTargetVersion
		case "location_id":
			small = &p.LocationID
		case "domain":
			small = &p.Domain
		case "heap_type":
			small = &p.HeapType
		case "size_in_bytes":
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return properties{}, pci.Parsing(line, err)
			}
			p.SizeInBytes = n
			continue
		default:
			continue
		}
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil {
			return properties{}, pci.Parsing(line, err)
		}
		*small = uint32(n)
	}
	return p, nil
}

// gfxName turns gfx_target_version, 10000*major + 100*minor + stepping, into the
// compilers' name, which writes minor and stepping as one hexadecimal digit each:
// 90010 is gfx90a. It gives "" for 0 and for what does not fit.
func gfxName(version uint32) string {
	major, minor, stepping := version/10000, version/100%100, version%100
	if major == 0 || major > 99 || minor > 15 || stepping > 15 {
		return ""
	}
	return fmt.Sprintf("gfx%d%x%x", major, minor, stepping)
}

// Denied tells that a problem is the kernel's way of hiding GPUs from a process
// that may not use them.
func Denied(err error) bool {
	return errors.Is(err, ErrTopology) && errors.Is(err, fs.ErrPermission)
}
