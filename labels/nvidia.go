package labels

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// The labels of this file and of mig.go are those of GPU Feature Discovery
// (GFD) v0.20, byte for byte, but for several models on a node, GPUs that fail,
// values that the API server would refuse, and architectures that GFD does not
// know.

const (
	nvidiaPrefix = "nvidia.com/"
	gpuResource  = nvidiaPrefix + "gpu"
)

// nvidiaLabels gives the nvidia.com/ labels. There are none unless NVML
// answered for at least one GPU.
func nvidiaLabels(s Set, inv *discover.Inventory, opts Options) []Rejected {
	gpus := answeringNVML(inv.GPUs)
	if len(gpus) == 0 {
		return nil
	}
	s["nvidia.com/gpu.machine"] = "unknown"
	if inv.Machine != nil {
		s["nvidia.com/gpu.machine"] = sanitise(*inv.Machine) // empty where the firmware says nothing, as in GFD
	}
	s["nvidia.com/gpu.mode"] = gpuMode(gpus)
	if clique := fabricClique(gpus); clique != "" {
		s["nvidia.com/gpu.clique"] = clique
	}
	if capable, known := migCapable(gpus); known {
		s["nvidia.com/mig.capable"] = strconv.FormatBool(capable)
	}
	if !opts.Timestamp.IsZero() {
		s["nvidia.com/gfd.timestamp"] = strconv.FormatInt(opts.Timestamp.Unix(), 10)
	}
	driverLabels(s, &inv.NVIDIA)
	vgpuLabels(s, inv)
	rejected := mpsLabel(s, gpus, opts.Sharing)
	if rejected != nil {
		opts.Sharing = nil // nothing is shared then
	}
	gpuResourceLabels(s, gpus, inv.SystemMemoryMiB, opts)
	migLabels(s, gpus, opts)
	return rejected
}

// answeringNVML gives the usable GPUs that NVML knows, by NVML index: GFD's
// order, which decides which of several GPUs a label describes.
func answeringNVML(all []discover.GPU) []*discover.GPU {
	gpus := make([]*discover.GPU, 0, len(all))
	for i := range all {
		if all[i].NVML != nil && all[i].Condition == discover.Usable {
			gpus = append(gpus, &all[i])
		}
	}
	slices.SortStableFunc(gpus, func(a, b *discover.GPU) int {
		return cmp.Or(cmp.Compare(a.NVML.Index, b.NVML.Index), a.Compare(b))
	})
	return gpus
}

// driverLabels splits the driver's version and CUDA's into their parts. GFD
// knows two parts (with an empty revision) and three; of a longer version the
// first three are given, of a shorter one only those it has.
func driverLabels(s Set, driver *discover.NVIDIADriver) {
	if version := sanitise(driver.DriverVersion); version != "" {
		s["nvidia.com/cuda.driver-version.full"] = version
		parts := strings.Split(version, ".")
		if len(parts) == 2 {
			parts = append(parts, "")
		}
		names := [...][2]string{
			{"nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major"},
			{"nvidia.com/cuda.driver-version.minor", "nvidia.com/cuda.driver.minor"},
			{"nvidia.com/cuda.driver-version.revision", "nvidia.com/cuda.driver.rev"},
		}
		for i := range min(len(parts), len(names)) {
			s[names[i][0]], s[names[i][1]] = parts[i], parts[i]
		}
	}
	if version := driver.CUDADriverVersion; version > 0 {
		major, minor := strconv.Itoa(version/1000), strconv.Itoa(version%1000/10)
		s["nvidia.com/cuda.runtime-version.full"] = major + "." + minor
		s["nvidia.com/cuda.runtime-version.major"] = major
		s["nvidia.com/cuda.runtime-version.minor"] = minor
		s["nvidia.com/cuda.runtime.major"] = major
		s["nvidia.com/cuda.runtime.minor"] = minor
	}
}

// gpuMode tells from the GPUs' PCI classes whether they are set to drive
// displays. As in GFD it is NVML that says where on the bus a GPU is.
func gpuMode(gpus []*discover.GPU) string {
	for _, g := range gpus {
		if g.Function == nil || g.NVML.PCIAddress == nil || *g.NVML.PCIAddress != g.Function.Address || g.Function.Class != gpus[0].Function.Class {
			return "unknown"
		}
	}
	switch gpus[0].Function.Class {
	case 0x030000:
		return "graphics"
	case 0x030200:
		return "compute"
	}
	return "unknown"
}

// fabricClique is the NVLink clique that all GPUs on a fabric share, empty when
// there is none, they disagree, or one does not tell.
func fabricClique(gpus []*discover.GPU) string {
	var clique string
	for _, g := range gpus {
		f := g.NVML.Fabric
		if code := g.NVML.Errors["fabric"]; code != "" && !code.Absent() {
			return ""
		}
		if f == nil || f.State != nvml.FabricCompleted || f.Status != nvml.Success ||
			strings.Trim(f.ClusterUUID, "0-") == "" {
			continue
		}
		c := f.ClusterUUID + "." + strconv.FormatUint(uint64(f.CliqueID), 10)
		if clique != "" && c != clique {
			return ""
		}
		clique = c
	}
	return clique
}

// vgpuLabels tells whether the node is a virtual machine with an NVIDIA vGPU.
// Without configuration space there is no telling, but a GPU that does not work
// needs to tell nothing: that of one which fell off the bus reads as ones.
func vgpuLabels(s Set, inv *discover.Inventory) {
	var vgpu *pci.Function
	unread := false
	for i := range inv.Functions {
		f := &inv.Functions[i]
		switch {
		case f.Vendor != pci.NVIDIA:
		case f.VGPU == nil:
			unread = unread || !ofUnusable(f, inv.GPUs)
		case f.VGPU.Present && (vgpu == nil || f.Address.Compare(vgpu.Address) > 0):
			vgpu = f
		}
	}
	if vgpu == nil {
		if !unread {
			s["nvidia.com/vgpu.present"] = "false"
		}
		return
	}
	s["nvidia.com/vgpu.present"] = "true"
	if version := sanitise(vgpu.VGPU.HostDriverVersion); version != "" {
		s["nvidia.com/vgpu.host-driver-version"] = version
	}
	if branch := sanitise(vgpu.VGPU.HostDriverBranch); branch != "" {
		s["nvidia.com/vgpu.host-driver-branch"] = branch
	}
}

// ofUnusable tells whether f belongs to a GPU that is not usable, as its audio
// controller, too, does.
func ofUnusable(f *pci.Function, gpus []discover.GPU) bool {
	device := f.Address
	device.Function = 0
	return slices.ContainsFunc(gpus, func(g discover.GPU) bool {
		if g.Function == nil || g.Condition == discover.Usable {
			return false
		}
		at := g.Function.Address
		at.Function = 0
		return at == device
	})
}

// mpsLabel tells whether the device plugin shares GPUs through MPS, which it
// does not do where a GPU has MIG enabled.
func mpsLabel(s Set, gpus []*discover.GPU, sharing *Sharing) []Rejected {
	const key = "nvidia.com/mps.capable"
	s[key] = "false"
	if sharing.active() != MPS {
		return nil
	}
	if slices.ContainsFunc(gpus, migEnabled) {
		return []Rejected{{Key: key, Value: "true", Instead: "false", Reason: "the device plugin shares nothing through MPS where a GPU has MIG enabled, so all labels are those of a node without sharing: disable MIG, or take MPS out of the sharing configuration"}}
	}
	s[key] = "true"
	return nil
}

// model is the GPUs of one name, by NVML index.
type model struct {
	name string
	gpus []*discover.GPU
}

// modelsOf sorts GPUs by model: the one with the most GPUs first, among equals
// the one with the lowest PCI address.
func modelsOf(gpus []*discover.GPU) []model {
	var models []model
	for _, g := range gpus {
		i := slices.IndexFunc(models, func(m model) bool { return m.name == g.NVML.Name })
		if i < 0 {
			i = len(models)
			models = append(models, model{name: g.NVML.Name})
		}
		models[i].gpus = append(models[i].gpus, g)
	}
	slices.SortStableFunc(models, func(a, b model) int {
		return cmp.Or(
			cmp.Compare(len(b.gpus), len(a.gpus)),
			slices.MinFunc(a.gpus, (*discover.GPU).Compare).Compare(slices.MinFunc(b.gpus, (*discover.GPU).Compare)),
		)
	})
	return models
}

// gpuResourceLabels describes the resource nvidia.com/gpu.
func gpuResourceLabels(s Set, gpus []*discover.GPU, systemMiB uint64, opts Options) {
	models := modelsOf(gpus)
	if opts.MixedGPUs != Omit || len(models) == 1 {
		models[0].labels(s, systemMiB, opts)
		return
	}
	sets := make([]Set, len(models))
	for i, m := range models {
		sets[i] = Set{}
		m.labels(sets[i], systemMiB, opts)
	}
	s.addCommon(sets)
	s[gpuResource+".count"] = strconv.Itoa(len(gpus))
}

// addCommon adds the labels that all sets hold with the same value.
func (s Set) addCommon(sets []Set) {
	for key, value := range sets[0] {
		differs := func(other Set) bool {
			v, ok := other[key]
			return !ok || v != value
		}
		if !slices.ContainsFunc(sets[1:], differs) {
			s[key] = value
		}
	}
}

// labels describes the GPUs of a model by one of them: as in GFD, the last that
// is used whole, or else the last of those that have MIG enabled.
func (m model) labels(s Set, systemMiB uint64, opts Options) {
	r := resource{name: gpuResource, sharing: SharingNone}
	described := m.gpus[len(m.gpus)-1]
	for _, g := range m.gpus {
		if !migEnabled(g) {
			described = g
			r = opts.Sharing.resource(gpuResource)
		}
	}
	r.describe(s, described, systemMiB, opts)
	r.labels(s, len(m.gpus), m.name, "")
}

// describe gives what a GPU says of itself.
func (r resource) describe(s Set, g *discover.GPU, systemMiB uint64, opts Options) {
	if mib := memoryMiB(g, systemMiB, opts.UnifiedMemory); mib > 0 {
		s[r.name+".memory"] = strconv.FormatUint(mib, 10)
	}
	cc := g.NVML.ComputeCapability
	if cc == nil || cc.Major <= 0 {
		return
	}
	s[r.name+".compute.major"] = strconv.Itoa(cc.Major)
	s[r.name+".compute.minor"] = strconv.Itoa(cc.Minor)
	if f := Family(*cc); f != "" {
		s[r.name+".family"] = f
	}
}

func memoryMiB(g *discover.GPU, systemMiB uint64, unified UnifiedMemory) uint64 {
	if g.Unified {
		switch unified {
		case UnifiedSystem:
			return systemMiB
		case UnifiedSystemGiB:
			return systemMiB &^ 1023
		}
	}
	return g.NVML.MemoryBytes >> 20
}

// Family is the architecture behind a compute capability, empty when no table
// knows it. Thor was 10.1 before driver 580 and is 11.0 since.
func Family(cc nvml.ComputeCapability) string {
	switch cc.Major {
	case 1:
		return "tesla"
	case 2:
		return "fermi"
	case 3:
		return "kepler"
	case 5:
		return "maxwell"
	case 6:
		return "pascal"
	case 7:
		if cc.Minor < 5 {
			return "volta"
		}
		return "turing"
	case 8:
		if cc.Minor < 9 {
			return "ampere"
		}
		return "ada-lovelace"
	case 9:
		return "hopper"
	case 10, 11, 12:
		return "blackwell"
	case 13:
		return "rubin"
	}
	return ""
}

// resource is a resource as the device plugin advertises it.
type resource struct {
	name     string
	replicas int
	sharing  SharingStrategy
	suffix   string // of the product's name
}

// labels gives the labels that every resource has. The profile is that of a MIG
// device.
func (r resource) labels(s Set, count int, model, profile string) {
	s[r.name+".count"] = strconv.Itoa(count)
	s[r.name+".replicas"] = strconv.Itoa(r.replicas)
	s[r.name+".sharing-strategy"] = string(r.sharing)
	if saysNothing(model) {
		return
	}
	suffix := r.suffix
	if profile != "" {
		suffix = "-MIG-" + clean(profile) + suffix
	}
	s[r.name+".product"] = bound(clean(model), suffix)
}

// active is the strategy in force: none unless some resource is shared.
func (s *Sharing) active() SharingStrategy {
	if s != nil && slices.ContainsFunc(s.Resources, func(r SharedResource) bool { return r.Replicas > 1 }) {
		return s.Strategy
	}
	return SharingNone
}

// resource gives the resource of that name as it is shared.
func (s *Sharing) resource(name string) resource {
	r := resource{name: name, replicas: 1, sharing: SharingNone}
	if s == nil {
		return r
	}
	i := slices.IndexFunc(s.Resources, func(shared SharedResource) bool { return shared.Name == name })
	if i < 0 || s.Resources[i].Replicas < 2 {
		return r
	}
	r.replicas, r.sharing = s.Resources[i].Replicas, s.Strategy
	if !s.Resources[i].Renamed {
		r.suffix = "-SHARED"
	}
	return r
}
