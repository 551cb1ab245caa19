// Package discover finds the GPUs of a host and puts what it read into an
// Inventory. It reads; it formats no label.
package discover

import (
	"cmp"
	"math"

	"github.com/gpu-labeller/gpu-labeller/discover/amd"
	"github.com/gpu-labeller/gpu-labeller/discover/intel"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// Inventory is what one scan found. It is plain data: the same host gives the
// same Inventory, whatever the order in which things were read.
type Inventory struct {
	// Functions are the PCI functions of the classes asked for, and all of
	// vendor NVIDIA, by address.
	Functions []pci.Function

	// Unread is the number of functions of which class or vendor could not be
	// read: they may be GPUs.
	Unread int

	// GPUs are the GPUs of the host: one for each PCI function that is a GPU,
	// and those that only NVML knows of (WSL, integrated GPUs). By PCI
	// address; those without one come last, by NVML index.
	GPUs []GPU

	// NVIDIA is what is true of the NVIDIA driver as a whole.
	NVIDIA NVIDIADriver

	// Machine is the DMI product name, trimmed, as the firmware spells it,
	// which may be as nothing at all; nil when it could not be read.
	Machine *string

	// SystemMemoryMiB is MemTotal of /proc/meminfo, 0 when unknown.
	SystemMemoryMiB uint64

	// Problems are what went wrong, each with its cure where one is known.
	Problems []Problem
}

// Vendor is a maker of GPUs, named as labels name it.
type Vendor string

// The vendors whose GPUs are found.
const (
	NVIDIA Vendor = "nvidia"
	AMD    Vendor = "amd"
	Intel  Vendor = "intel"
)

// Condition says what can be said of a GPU.
type Condition string

// The conditions of a GPU.
const (
	// Usable: it answered. For vendors without a management library: its
	// kernel driver is bound.
	Usable Condition = "usable"
	// Failed: it is on the bus and did not answer.
	Failed Condition = "failed"
	// NoDriver: no kernel driver is bound to it. For vendors without a
	// management library; an NVIDIA GPU without a driver does not answer.
	NoDriver Condition = "no driver"
	// Passthrough: it is bound to vfio-pci and belongs to a guest.
	Passthrough Condition = "passthrough"
	// Virtual: it is a virtual function of a GPU of this host, which is
	// counted in its place.
	Virtual Condition = "virtual function"
)

// GPU is one GPU, in facts that every vendor has.
type GPU struct {
	Vendor    Vendor
	Condition Condition

	// Function is the GPU's PCI function, nil for a GPU that is not on a PCI
	// bus of this host.
	Function *pci.Function

	// Product is the name as the driver gives it, empty when unknown.
	Product string
	// MemoryBytes is the GPU's own memory, 0 when unknown or when it has none.
	MemoryBytes uint64
	// Unified: the GPU has no memory of its own but shares the system's.
	Unified bool

	// NVML is the answer that NVML gave for this GPU; nil for other vendors
	// and for a GPU that NVML did not list.
	NVML *nvml.GPU
	// AMD and Intel are what those vendors' kernel drivers say of this GPU;
	// nil for other vendors.
	AMD   *amd.GPU
	Intel *intel.GPU
}

// MemoryMiB is MemoryBytes in MiB (2^20 bytes), rounded down.
func (g *GPU) MemoryMiB() uint64 { return g.MemoryBytes >> 20 }

// NVIDIADriver is what holds for all NVIDIA GPUs of a host.
type NVIDIADriver struct {
	// State is what came of asking NVML: ok, or why there is no answer. It is
	// empty where NVML was not asked, or nothing suggests an NVIDIA GPU.
	State State
	// DriverVersion and CUDADriverVersion are NVML's (1000*major + 10*minor).
	DriverVersion     string
	CUDADriverVersion int
	// KernelDriverVersion is that of the loaded kernel module, from
	// /proc/driver/nvidia/version; empty when it is not loaded.
	KernelDriverVersion string
}

// State is the value of the label gpu.feature.node.kubernetes.io/state.
type State string

// The states of a node that has GPUs. A node without any has the empty state.
const (
	StateOK             State = "ok"
	StateDegraded       State = "degraded"        // some GPU failed
	StateNoDriver       State = "no-driver"       // hardware, but no driver or no library
	StateDriverMismatch State = "driver-mismatch" // library and kernel module differ
	StateNoPermission   State = "no-permission"
	StateTimeout        State = "timeout"
	StateError          State = "error"
	StatePassthrough    State = "passthrough" // every GPU is bound to vfio-pci
)

// State sums the inventory up in one word, empty when there is no GPU.
func (inv *Inventory) State() State {
	var usable, failed, noDriver, passthrough int
	nvidia := false // a GPU that NVML has to do with
	for i := range inv.GPUs {
		if g := &inv.GPUs[i]; g.Vendor == NVIDIA && (g.Condition == Usable || g.Condition == Failed) {
			nvidia = true
		}
		switch inv.GPUs[i].Condition {
		case Usable:
			usable++
		case Failed:
			failed++
		case NoDriver:
			noDriver++
		case Passthrough:
			passthrough++
		}
	}
	switch {
	case nvidia && inv.NVIDIA.State != "" && inv.NVIDIA.State != StateOK:
		return inv.NVIDIA.State
	case failed > 0 && usable > 0:
		return StateDegraded
	case failed > 0:
		return StateError
	case usable > 0:
		return StateOK
	case noDriver > 0:
		return StateNoDriver
	case passthrough > 0:
		return StatePassthrough
	}
	return ""
}

// The sources of problems of AMD's and Intel's GPUs.
const (
	SourceAMD   = amd.Driver
	SourceIntel = "intel"
)

// Problem is one thing that went wrong during a scan: a sentence that an
// operator can act on.
type Problem struct {
	Source string `json:"source" yaml:"source"`                     // pci, nvml, amdgpu, intel, dmi, procfs
	Device string `json:"device,omitempty" yaml:"device,omitempty"` // PCI address, where one device is concerned
	Text   string `json:"text" yaml:"text"`                         // what, with the device in it once
	Cure   string `json:"cure,omitempty" yaml:"cure,omitempty"`     // what to do, where it is known
}

// String joins the sentence and its cure.
func (p Problem) String() string {
	if p.Cure == "" {
		return p.Text
	}
	return p.Text + ": " + p.Cure
}

// isGPU tells GPUs from the other display controllers and accelerators: by
// vendor and class, so that a BMC's graphics, a virtual display, an NPU or a
// card's audio function is none.
func isGPU(f *pci.Function) bool { return isGPUClass(f.Vendor, f.ClassID()) }

func isGPUClass(vendor, class uint16) bool {
	switch vendor {
	case pci.NVIDIA:
		return class == 0x0300 || class == 0x0302
	case pci.AMD:
		return class == 0x0300 || class == 0x0302 || class == 0x0380 || class == 0x1200
	case pci.Intel:
		return class == 0x0300 || class == 0x0302 || class == 0x0380
	}
	return false
}

// Compare orders GPUs as Inventory.GPUs is ordered.
func (g *GPU) Compare(other *GPU) int {
	switch {
	case g.Function != nil && other.Function != nil:
		return g.Function.Address.Compare(other.Function.Address)
	case g.Function != nil:
		return -1
	case other.Function != nil:
		return 1
	}
	return cmp.Compare(g.index(), other.index())
}

// index is a GPU's NVML index; those that have none come last.
func (g *GPU) index() int {
	if g.NVML == nil {
		return math.MaxInt
	}
	return g.NVML.Index
}
