// Package nvml asks NVIDIA's management library (NVML) about the GPUs of a
// host. NVML runs in a child process, so that a hang, a crash or a driver
// swapped under it costs one answer and nothing else.
//
// Answer is the wire form between child and parent, and, as nvml.yaml, what a
// recorded host holds. Names and units are NVML's; the calls are named at the
// fields, as of nvml.h 13.
package nvml

import "github.com/gpu-labeller/gpu-labeller/discover/pci/address"

// Answer is all that came of asking NVML once. Where a call failed, the field
// stays zero and Errors holds the call's code under the field's name.
type Answer struct {
	// Failure says why there is no answer at all: the child hung, crashed or
	// wrote nonsense. Nothing else is set then.
	Failure *Failure `json:"failure,omitempty"`

	// Library is the file that was loaded, or the name given to the loader.
	Library string `json:"library,omitempty"`
	// Init is the result of nvmlInit_v2, or LIBRARY_NOT_FOUND when the library
	// could not be loaded. Without SUCCESS nothing below is set but Detail.
	Init Code `json:"init,omitempty"`
	// Detail is the loader's own text when the library could not be loaded.
	Detail string `json:"detail,omitempty"`

	DriverVersion     string `json:"driver_version,omitempty"`      // nvmlSystemGetDriverVersion
	NVMLVersion       string `json:"nvml_version,omitempty"`        // nvmlSystemGetNVMLVersion
	CUDADriverVersion int    `json:"cuda_driver_version,omitempty"` // nvmlSystemGetCudaDriverVersion: 1000*major + 10*minor

	// GPUs are all that nvmlDeviceGetCount_v2 counts, by index.
	GPUs []GPU `json:"gpus,omitempty"`
	// Errors: driver_version, nvml_version, cuda_driver_version, gpus.
	Errors Errors `json:"errors,omitempty"`
}

// Failure is why NVML gave no answer.
type Failure struct {
	Kind FailureKind `json:"kind"`
	Text string      `json:"text"` // a sentence
	// Cure is what to do about it, where that is known better than by the kind.
	Cure string `json:"cure,omitempty"`
}

// FailureKind sorts failures.
type FailureKind string

// The kinds of failure.
const (
	// Timeout: the child did not answer within the deadline and was killed.
	Timeout FailureKind = "timeout"
	// Stuck: a killed child has still not ended (it waits inside the kernel),
	// so no other was started.
	Stuck FailureKind = "stuck"
	// Crash: the child ended without a whole answer.
	Crash FailureKind = "crash"
	// NotStarted: there was no child, for a reason that is none of NVML's.
	NotStarted FailureKind = "not-started"
)

// Errors are the codes of failed calls, by the name of the field that they
// leave empty.
type Errors map[string]Code

// put notes a call that failed.
func (e *Errors) put(field string, code Code) {
	if *e == nil {
		*e = Errors{}
	}
	(*e)[field] = code
}

// GPU is what NVML said of one GPU.
type GPU struct {
	Index int `json:"index"`
	// Handle is the result of nvmlDeviceGetHandleByIndex_v2; empty means
	// SUCCESS. With any other nothing else is set.
	Handle Code `json:"handle,omitempty"`

	Name string `json:"name,omitempty"` // nvmlDeviceGetName
	UUID string `json:"uuid,omitempty"` // nvmlDeviceGetUUID; never published
	// PCIAddress is from nvmlDeviceGetPciInfo_v3; nil for a GPU that is not on
	// a PCI bus.
	PCIAddress *address.Address `json:"pci_address,omitempty"`

	MemoryBytes       uint64             `json:"memory_bytes,omitempty"`       // nvmlDeviceGetMemoryInfo, total
	ComputeCapability *ComputeCapability `json:"compute_capability,omitempty"` // nvmlDeviceGetCudaComputeCapability
	Architecture      string             `json:"architecture,omitempty"`       // nvmlDeviceGetArchitecture: kepler, …, blackwell
	Brand             string             `json:"brand,omitempty"`              // nvmlDeviceGetBrand: tesla, nvidia, geforce, …
	AddressingMode    string             `json:"addressing_mode,omitempty"`    // nvmlDeviceGetAddressingMode: none, hmm, ats

	MIG    *MIG    `json:"mig,omitempty"`    // nil: the GPU does not answer the MIG-mode query
	Fabric *Fabric `json:"fabric,omitempty"` // nvmlDeviceGetGpuFabricInfo
	NVLink *NVLink `json:"nvlink,omitempty"` // nil: no peer over NVLink

	// Errors holds the codes of failed calls under the names used above:
	// name, uuid, pci_address, memory_bytes, compute_capability, architecture,
	// brand, addressing_mode, mig, mig.devices, fabric, nvlink.
	Errors Errors `json:"errors,omitempty"`
}

// HasHandle tells whether NVML gave a handle for the GPU, without which nothing
// can be asked of it.
func (g *GPU) HasHandle() bool { return g.Handle == "" || g.Handle == Success }

// OffBus tells a GPU that is not on a PCI bus from one whose address NVML could
// not tell.
func (g *GPU) OffBus() bool {
	code := g.Errors["pci_address"]
	return g.HasHandle() && g.PCIAddress == nil && (code == "" || code.Absent())
}

// ComputeCapability is CUDA's major.minor, e.g. 9.0.
type ComputeCapability struct {
	Major int `json:"major"`
	Minor int `json:"minor"`
}

// MIG is a GPU's MIG mode (nvmlDeviceGetMigMode) and its MIG devices.
type MIG struct {
	Enabled bool `json:"enabled"` // current mode
	Pending bool `json:"pending"` // mode after the next reset
	// Devices are in NVML's order. They are incomplete when the GPU's
	// Errors["mig.devices"] is set.
	Devices []MIGDevice `json:"devices,omitempty"`
}

// MIGDevice is one MIG device (nvmlDeviceGetMigDeviceHandleByIndex) with its
// attributes (nvmlDeviceGetAttributes_v2).
type MIGDevice struct {
	// Profile is the name that NVIDIA's tools give it: 1g.5gb, 1g.5gb+me,
	// 1c.3g.20gb.
	Profile               string `json:"profile"`
	GPUInstance           int    `json:"gpu_instance"`
	ComputeInstance       int    `json:"compute_instance"`
	MemoryMB              uint64 `json:"memory_mb"` // memorySizeMB: 2^20 bytes, whatever the name
	Multiprocessors       uint32 `json:"multiprocessors"`
	GPUInstanceSlices     uint32 `json:"gpu_instance_slices"`
	ComputeInstanceSlices uint32 `json:"compute_instance_slices"`
	CopyEngines           uint32 `json:"copy_engines"`
	Decoders              uint32 `json:"decoders"`
	Encoders              uint32 `json:"encoders"`
	JPEGEngines           uint32 `json:"jpeg_engines"`
	OFAEngines            uint32 `json:"ofa_engines"`
}

// FabricCompleted is the state of a GPU that has registered with its fabric.
const FabricCompleted = "completed"

// Fabric is a GPU's registration with an NVLink fabric
// (nvmlDeviceGetGpuFabricInfo).
type Fabric struct {
	State       string `json:"state"`        // not_supported, not_started, in_progress, completed
	Status      Code   `json:"status"`       // result of the registration
	ClusterUUID string `json:"cluster_uuid"` // canonical form, all zero without a cluster
	CliqueID    uint32 `json:"clique_id"`
}

// NVLink is what connects a GPU with the others of its host. It is asked only
// where there are several.
type NVLink struct {
	// Version is NVIDIA's number of the first active link
	// (nvmlDeviceGetNvLinkVersion), e.g. "4.0".
	Version string `json:"version,omitempty"`
	// Peers are the NVML indices of the GPUs with which peer-to-peer over
	// NVLink is up (nvmlDeviceGetP2PStatus, NVML_P2P_CAPS_INDEX_NVLINK).
	Peers []int `json:"peers,omitempty"`
}
