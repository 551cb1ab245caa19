package labels

import (
	"slices"
	"strings"
	"time"
)

// MIGStrategy says how MIG devices appear in the nvidia.com/ labels, as in
// NVIDIA's device plugin.
type MIGStrategy string

// The MIG strategies.
const (
	MIGNone   MIGStrategy = "none"
	MIGSingle MIGStrategy = "single"
	MIGMixed  MIGStrategy = "mixed"
)

// MixedGPUs says what the nvidia.com/gpu.* labels describe on a node with
// several models.
type MixedGPUs string

// What to do about several models.
const (
	// Majority: the model with the most GPUs, ties by lowest PCI address.
	Majority MixedGPUs = "majority"
	// Omit: keys whose values differ are left out.
	Omit MixedGPUs = "omit"
)

// UnifiedMemory says what nvidia.com/gpu.memory holds for GPUs that share the
// system's memory.
type UnifiedMemory string

// What to publish for unified memory.
const (
	UnifiedNone      UnifiedMemory = "none"       // no label, as GFD
	UnifiedSystem    UnifiedMemory = "system"     // MemTotal in MiB
	UnifiedSystemGiB UnifiedMemory = "system-gib" // the same, rounded down to whole GiB
)

// Options say which labels to compute. The zero value of a field is its
// default.
type Options struct {
	MIGStrategy   MIGStrategy
	MixedGPUs     MixedGPUs
	UnifiedMemory UnifiedMemory

	// OmitExtra leaves out our own vendor-neutral keys
	// (gpu.feature.node.kubernetes.io/).
	OmitExtra bool
	// OmitPCI leaves out NFD's PCI labels.
	OmitPCI bool
	// PCIClasses are the classes that get a PCI label: prefixes of the four
	// hexadecimal digits. Nil means NFD's default, 03, 0b40 and 12; empty
	// means no label.
	PCIClasses []string
	// PCILabelFields are the parts of a PCI label: class, vendor, device,
	// subsystem_vendor, subsystem_device. Nil means class and vendor.
	PCILabelFields []string

	// AMDBeta also gives the labels that AMD's labeller has under
	// beta.amd.com/.
	AMDBeta bool
	// IntelNames are names for Intel GPUs by PCI device ID, before those of
	// the table.
	IntelNames map[uint16]IntelName

	// Timestamp is published as nvidia.com/gfd.timestamp unless it is zero.
	Timestamp time.Time

	// Sharing is how the device plugin shares GPUs; nil means not at all.
	Sharing *Sharing
}

// Sharing is the sharing part of the device plugin's configuration.
type Sharing struct {
	Strategy  SharingStrategy
	Resources []SharedResource
}

// SharingStrategy is the value of the label …sharing-strategy.
type SharingStrategy string

// The sharing strategies.
const (
	SharingNone SharingStrategy = "none"
	TimeSlicing SharingStrategy = "time-slicing"
	MPS         SharingStrategy = "mps"
)

// SharedResource is one resource that the device plugin advertises several
// times.
type SharedResource struct {
	Name     string // e.g. nvidia.com/gpu
	Renamed  bool   // advertised under another name, so the product stays as it is
	Replicas int
}

// WantsClass tells whether PCI functions of a 24-bit class get a label: it is
// what discover.Host.Class wants to know.
func (o Options) WantsClass(class uint32) bool {
	if o.OmitPCI {
		return false
	}
	classes := o.PCIClasses
	if classes == nil {
		classes = defaultPCIClasses
	}
	id := string(appendHex(nil, uint16(class>>8)))
	return slices.ContainsFunc(classes, func(prefix string) bool { return strings.HasPrefix(id, normalClass(prefix)) })
}
