package pci

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
)

// files are the files of one function: name to content. Some contents stand for
// other things than a file.
type files map[string]string

const (
	absent = "\x00absent"
	folder = "\x00folder"
	fifo   = "\x00fifo"
	linkTo = "\x00link to " // and the target
)

// with is f with some files changed.
func (f files) with(changes files) files {
	g := maps.Clone(f)
	maps.Copy(g, changes)
	return g
}

// h200 are the files of an H200, as far as they are read.
var h200 = files{
	"class":              "0x030200\n",
	"vendor":             "0x10de\n",
	"device":             "0x2335\n",
	"subsystem_vendor":   "0x10de\n",
	"subsystem_device":   "0x18bf\n",
	"revision":           "0xa1\n",
	"modalias":           "pci:v000010DEd00002335sv000010DEsd000018BFbc03sc02i00\n",
	"driver":             linkTo + "../../../bus/pci/drivers/nvidia",
	"iommu_group":        linkTo + "../../../kernel/iommu_groups/27",
	"numa_node":          "1\n",
	"sriov_totalvfs":     "32\n",
	"sriov_numvfs":       "0\n",
	"current_link_speed": "32.0 GT/s PCIe\n",
	"current_link_width": "16\n",
	"max_link_speed":     "32.0 GT/s PCIe\n",
	"max_link_width":     "16\n",
	"config":             string(h200Config),
}

// h200Function is what Scan makes of h200.
func h200Function(address string) Function {
	return Function{
		Address:         mustAddress(address),
		Vendor:          NVIDIA,
		Device:          0x2335,
		SubsystemVendor: NVIDIA,
		SubsystemDevice: 0x18bf,
		Class:           0x030200,
		Revision:        0xa1,
		Driver:          "nvidia",
		NUMANode:        new(1),
		IOMMUGroup:      "27",
		TotalVFs:        new(32),
		NumVFs:          new(0),
		LinkSpeed:       "32.0 GT/s PCIe",
		LinkWidth:       16,
		MaxLinkSpeed:    "32.0 GT/s PCIe",
		MaxLinkWidth:    16,
		VGPU:            &VGPU{},
	}
}

// nvme are the files of an NVMe drive, which has fewer of them.
var nvme = files{
	"class":              "0x010802\n",
	"vendor":             "0x144d\n",
	"device":             "0xa80a\n",
	"subsystem_vendor":   "0x144d\n",
	"subsystem_device":   "0xa801\n",
	"revision":           "0x00\n",
	"modalias":           "pci:v0000144Dd0000A80Asv0000144Dsd0000A801bc01sc08i02\n",
	"driver":             linkTo + "../../../bus/pci/drivers/nvme",
	"iommu_group":        linkTo + "../../../kernel/iommu_groups/3",
	"numa_node":          "0\n",
	"current_link_speed": "16.0 GT/s PCIe\n",
	"current_link_width": "4\n",
	"max_link_speed":     "16.0 GT/s PCIe\n",
	"max_link_width":     "4\n",
	"config":             strings.Repeat("\x00", 4096),
}

// host makes a host of these functions, each a link to a folder below
// sys/devices as the kernel has it.
func host(tb testing.TB, functions map[string]files) hostfs.Root {
	tb.Helper()
	root := tb.TempDir()
	list := filepath.Join(root, devicesPath)
	mkdir(tb, list)
	for _, driver := range []string{"nvidia", "nvme", "vfio-pci"} {
		mkdir(tb, filepath.Join(root, "sys/bus/pci/drivers", driver))
	}
	for name, f := range functions {
		dir := filepath.Join(root, "sys/devices/pci0000:00", name)
		mkdir(tb, dir)
		symlink(tb, "../../../devices/pci0000:00/"+name, filepath.Join(list, name))
		for file, content := range f {
			write(tb, filepath.Join(dir, file), content)
		}
	}
	return hostfs.Root(root)
}

func write(tb testing.TB, name, content string) {
	tb.Helper()
	var err error
	target, isLink := strings.CutPrefix(content, linkTo)
	switch {
	case content == absent:
	case content == folder:
		err = os.Mkdir(name, 0o755)
	case content == fifo:
		err = syscall.Mkfifo(name, 0o644)
	case isLink:
		err = os.Symlink(target, name)
	default:
		err = os.WriteFile(name, []byte(content), 0o644)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

func mkdir(tb testing.TB, name string) {
	tb.Helper()
	if err := os.MkdirAll(name, 0o755); err != nil {
		tb.Fatal(err)
	}
}

func symlink(tb testing.TB, target, name string) {
	tb.Helper()
	if err := os.Symlink(target, name); err != nil {
		tb.Fatal(err)
	}
}

func mustAddress(s string) Address {
	a, err := ParseAddress(s)
	if err != nil {
		panic(err)
	}
	return a
}

func all(uint32, uint16) bool { return true }

// gpus wants display controllers, and whatever NVIDIA makes.
func gpus(class uint32, vendor uint16) bool { return class>>16 == 0x03 || vendor == NVIDIA }

// show writes a function with what its pointers point at.
func show(f Function) string {
	deref := func(p *int) string {
		if p == nil {
			return "nil"
		}
		return fmt.Sprint(*p)
	}
	pf, vgpu := "nil", "nil"
	if f.PhysicalFunction != nil {
		pf = f.PhysicalFunction.String()
	}
	if f.VGPU != nil {
		vgpu = fmt.Sprintf("%+v", *f.VGPU)
	}
	return fmt.Sprintf("%v class %06x id %04x:%04x subsystem %04x:%04x rev %02x driver %q numa %s iommu %q pf %s vfs %s/%s link %q x%d max %q x%d vgpu %s",
		f.Address, f.Class, f.Vendor, f.Device, f.SubsystemVendor, f.SubsystemDevice, f.Revision, f.Driver,
		deref(f.NUMANode), f.IOMMUGroup, pf, deref(f.NumVFs), deref(f.TotalVFs),
		f.LinkSpeed, f.LinkWidth, f.MaxLinkSpeed, f.MaxLinkWidth, vgpu)
}
