package hostfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/internal/redact"
)

// What is recorded of a PCI function. Nothing here identifies the machine:
// serial numbers, VPD, ROMs and resources stay where they are. So does
// configuration space beyond its first 256 bytes, where PCI Express keeps a
// serial number; of the rest, only that of NVIDIA's functions is read.
var (
	functionFiles = []string{
		"class", "vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "modalias",
		"numa_node", "sriov_totalvfs", "sriov_numvfs",
		"current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
	}
	functionLinks = []string{"driver", "iommu_group", "physfn"}
	hostFiles     = []string{"proc/driver/nvidia/version", "sys/module/amdgpu/version", "sys/module/amdgpu/srcversion"}
)

// configSize is the part of configuration space that a scan reads.
const configSize = 256

const pciDevices = "sys/bus/pci/devices"

// Record reads from a host what a scan of it reads. NVML is host.NVML's answer,
// already asked for. A file that cannot be read is left out, so that a replay
// does not find it either.
func Record(host discover.Host, answer *nvml.Answer) (*File, error) {
	root := cmp.Or(host.Root, "/")
	f := &File{Files: map[string][]byte{}, Links: map[string]string{}, NVML: anonymous(answer)}
	names, err := root.ReadDir(pciDevices)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading /%s: %w", pciDevices, err)
		}
		f.Dirs = append(f.Dirs, "sys/bus") // a host without a PCI bus
	} else if len(names) == 0 {
		f.Dirs = append(f.Dirs, pciDevices)
	}
	for _, name := range names {
		if local(path.Join(pciDevices, name)) { // else it is none of the kernel's
			f.recordFunction(root, path.Join(pciDevices, name))
		}
	}
	for _, name := range hostFiles {
		f.recordFile(root, name)
	}
	f.recordTopology(root)
	if content, err := root.ReadFile(host.MachineFile, hostfs.PageSize); err == nil && host.MachineFile != "" {
		// A replay looks where the kernel would show it.
		f.Files[strings.TrimPrefix(discover.DefaultMachineFile, "/")] = redact.MaskName(content)
	}
	if text, err := root.ReadFile("proc/meminfo", 64<<10); err == nil {
		total, _, _ := strings.Cut(string(text), "\n")
		f.Files["proc/meminfo"] = []byte(total + "\n") // the rest changes by the second
	}
	return f, nil
}

func (f *File) recordFunction(root hostfs.Root, dir string) {
	for _, name := range functionFiles {
		f.recordFile(root, path.Join(dir, name))
	}
	switch vendor, _ := root.Attribute(path.Join(dir, "vendor")); vendor {
	case "0x1002":
		f.recordAMD(root, dir)
	case "0x8086":
		f.recordIntel(root, dir)
	case "0x10de":
		name := path.Join(dir, "config")
		if content, err := root.ReadFile(name, configSize); err == nil || errors.Is(err, hostfs.ErrTooLong) {
			f.Files[name] = content
		}
	}
	for _, name := range functionLinks {
		target, err := root.Readlink(path.Join(dir, name))
		if err != nil || !plain(target) {
			continue
		}
		// Only the target's name is read. Links to other devices lead through
		// /sys/devices, which is not recorded.
		f.Links[path.Join(dir, name)] = map[string]string{
			"driver":      "../../../bus/pci/drivers/",
			"iommu_group": "../../../kernel/iommu_groups/",
			"physfn":      "../",
		}[name] + path.Base(target)
	}
}

func (f *File) recordFile(root hostfs.Root, name string) {
	if content, err := root.ReadFile(name, hostfs.PageSize); err == nil {
		f.Files[name] = content
	}
}

// anonymous is a copy of the answer with the GPUs' UUIDs and serial numbers
// replaced, and taken out of what the loader and the NVML process said. The UUID of
// the NVLink cluster stays: it is part of a label.
func anonymous(a *nvml.Answer) *nvml.Answer {
	if a == nil {
		return nil
	}
	b := *a
	b.Detail = redact.Foreign(a.Detail)
	if a.Failure != nil {
		failure := *a.Failure
		failure.Text = redact.Foreign(failure.Text)
		b.Failure = &failure
	}
	b.GPUs = slices.Clone(a.GPUs)
	for i := range b.GPUs {
		b.GPUs[i].Name = string(redact.MaskName([]byte(b.GPUs[i].Name)))
		if b.GPUs[i].UUID != "" {
			b.GPUs[i].UUID = fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i)
		}
	}
	return &b
}

func isLoop(err error) bool { return errors.Is(err, syscall.ELOOP) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
