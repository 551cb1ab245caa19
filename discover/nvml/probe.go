package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-labeller/gpu-labeller/discover/pci/address"
	"github.com/gpu-labeller/gpu-labeller/internal/footprint"
)

// probe loads NVML and asks everything. It runs in the child process: a call
// may hang or crash. Nothing is shut down at the end, since the process ends
// with it and the kernel closes what is open.
func probe(driverRoot string) Answer {
	a, found := findLibrary(driverRoot)
	if !found {
		return a
	}
	p := prober{lib: nvml.New(nvml.WithLibraryPath(a.Library))}
	_ = footprint.Trim() // NVML takes 20 MB to initialise, and our start-up is over
	if a.Init = codeOf(p.lib.Init()); a.Init != Success {
		return a
	}
	p.profiles = device.New(p.lib)

	a.DriverVersion = ask(&p, &a.Errors, "driver_version", "nvmlSystemGetDriverVersion", p.lib.SystemGetDriverVersion)
	a.NVMLVersion = ask(&p, &a.Errors, "nvml_version", "nvmlSystemGetNVMLVersion", p.lib.SystemGetNVMLVersion)
	a.CUDADriverVersion = ask(&p, &a.Errors, "cuda_driver_version", "nvmlSystemGetCudaDriverVersion", p.lib.SystemGetCudaDriverVersion)

	n := ask(&p, &a.Errors, "gpus", "", p.lib.DeviceGetCount)
	if n < 0 || n > MaxGPUs {
		a.Errors.put("gpus", outOfRange)
		n = 0
	}
	a.GPUs = make([]GPU, n)
	handles := make([]nvml.Device, len(a.GPUs))
	for i := range a.GPUs {
		a.GPUs[i] = GPU{Index: i}
		h, ret := p.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			a.GPUs[i].Handle = codeOf(ret)
			continue
		}
		handles[i] = h
		p.gpu(&a.GPUs[i], h)
	}
	if len(a.GPUs) > 1 {
		p.nvlink(a.GPUs, handles)
	}
	return a
}

type prober struct {
	lib      nvml.Interface
	profiles device.Interface // for the names of MIG profiles
}

// has tells whether the library has a symbol. A call of one that it lacks ends
// the process, since go-nvml binds its symbols at the first call.
func (p *prober) has(symbol string) bool {
	return symbol == "" || p.lib.Extensions().LookupSymbol(symbol) == nil
}

// ask makes one call; when it fails, or the library lacks the symbol, it notes
// the code under field and returns the zero value. go-nvml picks the version of
// a versioned function itself: symbol is empty for those that every NVML has.
func ask[T any](p *prober, errors *Errors, field, symbol string, call func() (T, nvml.Return)) (v T) {
	if !p.has(symbol) {
		errors.put(field, FunctionNotFound)
		return v
	}
	got, ret := call()
	if ret != nvml.SUCCESS {
		errors.put(field, codeOf(ret))
		return v
	}
	return got
}

func (p *prober) gpu(g *GPU, h nvml.Device) {
	g.Name = ask(p, &g.Errors, "name", "nvmlDeviceGetName", h.GetName)
	g.UUID = ask(p, &g.Errors, "uuid", "nvmlDeviceGetUUID", h.GetUUID)
	g.PCIAddress = ask(p, &g.Errors, "pci_address", "", func() (*address.Address, nvml.Return) {
		info, ret := h.GetPciInfo()
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		return pciAddress(info), ret
	})
	g.MemoryBytes = ask(p, &g.Errors, "memory_bytes", "nvmlDeviceGetMemoryInfo", h.GetMemoryInfo).Total
	g.ComputeCapability = ask(p, &g.Errors, "compute_capability", "nvmlDeviceGetCudaComputeCapability", func() (*ComputeCapability, nvml.Return) {
		major, minor, ret := h.GetCudaComputeCapability()
		return &ComputeCapability{Major: major, Minor: minor}, ret
	})
	g.Architecture = ask(p, &g.Errors, "architecture", "nvmlDeviceGetArchitecture", func() (string, nvml.Return) {
		v, ret := h.GetArchitecture()
		return architectures[v], ret
	})
	g.Brand = ask(p, &g.Errors, "brand", "nvmlDeviceGetBrand", func() (string, nvml.Return) {
		v, ret := h.GetBrand()
		return brands[v], ret
	})
	g.AddressingMode = ask(p, &g.Errors, "addressing_mode", "nvmlDeviceGetAddressingMode", func() (string, nvml.Return) {
		v, ret := h.GetAddressingMode()
		return addressingModes[nvml.DeviceAddressingModeType(v.Value)], ret
	})
	g.Fabric = p.fabric(g, h)
	g.MIG = ask(p, &g.Errors, "mig", "nvmlDeviceGetMigMode", func() (*MIG, nvml.Return) {
		current, pending, ret := h.GetMigMode()
		return &MIG{Enabled: current == nvml.DEVICE_MIG_ENABLE, Pending: pending == nvml.DEVICE_MIG_ENABLE}, ret
	})
	if g.MIG != nil && g.MIG.Enabled {
		p.migDevices(g, h)
	}
}

func pciAddress(info nvml.PciInfo) *address.Address {
	var text []byte
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	if a, err := address.Parse(string(text)); err == nil {
		return &a
	}
	if info.Domain == 0 && info.Bus == 0 && info.Device == 0 {
		return nil // a GPU that is not on a PCI bus
	}
	return &address.Address{Domain: info.Domain, Bus: uint8(info.Bus), Device: uint8(info.Device)}
}

func (p *prober) fabric(g *GPU, h nvml.Device) *Fabric {
	if p.has("nvmlDeviceGetGpuFabricInfo") {
		return ask(p, &g.Errors, "fabric", "", func() (*Fabric, nvml.Return) {
			info, ret := h.GetGpuFabricInfo()
			return newFabric(info.State, info.Status, info.ClusterUuid, info.CliqueId), ret
		})
	}
	return ask(p, &g.Errors, "fabric", "nvmlDeviceGetGpuFabricInfoV", func() (*Fabric, nvml.Return) {
		info, ret := h.GetGpuFabricInfoV().V2()
		return newFabric(info.State, info.Status, info.ClusterUuid, info.CliqueId), ret
	})
}

func newFabric(state uint8, status uint32, cluster [16]uint8, clique uint32) *Fabric {
	return &Fabric{
		State:       fabricStates[state],
		Status:      codeOf(nvml.Return(status)),
		ClusterUUID: fmt.Sprintf("%x-%x-%x-%x-%x", cluster[0:4], cluster[4:6], cluster[6:8], cluster[8:10], cluster[10:16]),
		CliqueID:    clique,
	}
}

// migDevices lists the MIG devices of a GPU. Places without one answer
// NOT_FOUND, or INVALID_ARGUMENT with some drivers.
func (p *prober) migDevices(g *GPU, h nvml.Device) {
	const field = "mig.devices"
	for _, symbol := range migSymbols {
		if !p.has(symbol) {
			g.Errors.put(field, FunctionNotFound)
			return
		}
	}
	n := ask(p, &g.Errors, field, "nvmlDeviceGetMaxMigDeviceCount", h.GetMaxMigDeviceCount)
	if n < 0 || n > maxMIGDevices {
		g.Errors.put(field, outOfRange)
		return
	}
	known := profileTable{gpu: h, memory: g.MemoryBytes}
	for i := range n {
		d, ret := h.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if ret != nvml.SUCCESS {
			g.Errors.put(field, codeOf(ret))
			continue
		}
		m, code := p.migDevice(d, &known)
		if code != Success {
			g.Errors.put(field, code)
			continue
		}
		g.MIG.Devices = append(g.MIG.Devices, m)
	}
}

func (p *prober) migDevice(d nvml.Device, known *profileTable) (MIGDevice, Code) {
	attributes, ret := d.GetAttributes()
	if ret != nvml.SUCCESS {
		return MIGDevice{}, codeOf(ret)
	}
	gi, ret := d.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return MIGDevice{}, codeOf(ret)
	}
	ci, ret := d.GetComputeInstanceId()
	if ret != nvml.SUCCESS {
		return MIGDevice{}, codeOf(ret)
	}
	indices, ok := known.of(gi, ci)
	if !ok || known.memory == 0 {
		return MIGDevice{}, p.reason(d)
	}
	profile, err := p.profiles.NewMigProfile(indices.gpu, indices.compute, indices.engine, attributes.MemorySizeMB, known.memory)
	if err != nil {
		return MIGDevice{}, p.reason(d)
	}
	return MIGDevice{
		Profile:               profile.String(),
		GPUInstance:           gi,
		ComputeInstance:       ci,
		MemoryMB:              attributes.MemorySizeMB,
		Multiprocessors:       attributes.MultiprocessorCount,
		GPUInstanceSlices:     attributes.GpuInstanceSliceCount,
		ComputeInstanceSlices: attributes.ComputeInstanceSliceCount,
		CopyEngines:           attributes.SharedCopyEngineCount,
		Decoders:              attributes.SharedDecoderCount,
		Encoders:              attributes.SharedEncoderCount,
		JPEGEngines:           attributes.SharedJpegCount,
		OFAEngines:            attributes.SharedOfaCount,
	}, Success
}

// maxMIGDevices is more than any GPU has.
const maxMIGDevices = 64

// reason asks again for the code of a failure that go-nvlib keeps to itself.
func (p *prober) reason(d nvml.Device) Code {
	if _, ret := d.GetAttributes(); ret != nvml.SUCCESS {
		return codeOf(ret)
	}
	return Unknown
}

// nvlink finds which GPUs reach each other over NVLink, directly or through
// switches. P2P status says so for both; the links themselves name only what
// is at their other end.
func (p *prober) nvlink(gpus []GPU, handles []nvml.Device) {
	if !p.has("nvmlDeviceGetP2PStatus") {
		return
	}
	link := func(i, j int) {
		if gpus[i].NVLink == nil {
			gpus[i].NVLink = &NVLink{Version: p.nvlinkVersion(handles[i])}
		}
		gpus[i].NVLink.Peers = append(gpus[i].NVLink.Peers, j)
	}
	for i := range gpus {
		for j := i + 1; j < len(gpus); j++ {
			if handles[i] == nil || handles[j] == nil {
				continue
			}
			status, ret := p.lib.DeviceGetP2PStatus(handles[i], handles[j], nvml.P2P_CAPS_INDEX_NVLINK)
			if ret != nvml.SUCCESS {
				gpus[i].Errors.put("nvlink", codeOf(ret))
				gpus[j].Errors.put("nvlink", codeOf(ret))
				continue
			}
			if status == nvml.P2P_STATUS_OK {
				link(i, j)
				link(j, i)
			}
		}
	}
}

// nvlinkVersion is the version of the GPU's first active link, empty when it
// cannot be told.
func (p *prober) nvlinkVersion(h nvml.Device) string {
	if !p.has("nvmlDeviceGetNvLinkState") || !p.has("nvmlDeviceGetNvLinkVersion") {
		return ""
	}
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := h.GetNvLinkState(link)
		if ret != nvml.SUCCESS {
			return ""
		}
		if state != nvml.FEATURE_ENABLED {
			continue
		}
		version, ret := h.GetNvLinkVersion(link)
		if ret != nvml.SUCCESS {
			return ""
		}
		return nvlinkVersions[nvml.NvlinkVersion(version)]
	}
	return ""
}

var (
	// migSymbols are what migDevices calls; MIG came with all of them in driver
	// 450.
	migSymbols = []string{
		"nvmlDeviceGetMigDeviceHandleByIndex",
		"nvmlDeviceGetGpuInstanceId",
		"nvmlDeviceGetComputeInstanceId",
		"nvmlDeviceGetGpuInstanceById",
		"nvmlDeviceGetGpuInstanceProfileInfo",
		"nvmlGpuInstanceGetInfo",
		"nvmlGpuInstanceGetComputeInstanceById",
		"nvmlGpuInstanceGetComputeInstanceProfileInfo",
		"nvmlComputeInstanceGetInfo",
	}
	architectures = map[nvml.DeviceArchitecture]string{
		nvml.DEVICE_ARCH_KEPLER:    "kepler",
		nvml.DEVICE_ARCH_MAXWELL:   "maxwell",
		nvml.DEVICE_ARCH_PASCAL:    "pascal",
		nvml.DEVICE_ARCH_VOLTA:     "volta",
		nvml.DEVICE_ARCH_TURING:    "turing",
		nvml.DEVICE_ARCH_AMPERE:    "ampere",
		nvml.DEVICE_ARCH_ADA:       "ada",
		nvml.DEVICE_ARCH_HOPPER:    "hopper",
		nvml.DEVICE_ARCH_BLACKWELL: "blackwell",
		nvml.DEVICE_ARCH_RUBIN:     "rubin",
	}
	brands = map[nvml.BrandType]string{
		nvml.BRAND_QUADRO:          "quadro",
		nvml.BRAND_TESLA:           "tesla",
		nvml.BRAND_NVS:             "nvs",
		nvml.BRAND_GRID:            "grid",
		nvml.BRAND_GEFORCE:         "geforce",
		nvml.BRAND_TITAN:           "titan",
		nvml.BRAND_NVIDIA_VAPPS:    "nvidia-vapps",
		nvml.BRAND_NVIDIA_VPC:      "nvidia-vpc",
		nvml.BRAND_NVIDIA_VCS:      "nvidia-vcs",
		nvml.BRAND_NVIDIA_VWS:      "nvidia-vws",
		nvml.BRAND_NVIDIA_VGAMING:  "nvidia-vgaming",
		nvml.BRAND_QUADRO_RTX:      "quadro-rtx",
		nvml.BRAND_NVIDIA_RTX:      "nvidia-rtx",
		nvml.BRAND_NVIDIA:          "nvidia",
		nvml.BRAND_GEFORCE_RTX:     "geforce-rtx",
		nvml.BRAND_TITAN_RTX:       "titan-rtx",
		nvml.BRAND_NVIDIA_VGAMEDEV: "nvidia-vgamedev",
	}
	addressingModes = map[nvml.DeviceAddressingModeType]string{
		nvml.DEVICE_ADDRESSING_MODE_NONE: "none",
		nvml.DEVICE_ADDRESSING_MODE_HMM:  "hmm",
		nvml.DEVICE_ADDRESSING_MODE_ATS:  "ats",
	}
	fabricStates = map[uint8]string{
		nvml.GPU_FABRIC_STATE_NOT_SUPPORTED: "not_supported",
		nvml.GPU_FABRIC_STATE_NOT_STARTED:   "not_started",
		nvml.GPU_FABRIC_STATE_IN_PROGRESS:   "in_progress",
		nvml.GPU_FABRIC_STATE_COMPLETED:     FabricCompleted,
	}
	// nvlinkVersions turns NVML's codes into NVIDIA's numbers.
	nvlinkVersions = map[nvml.NvlinkVersion]string{
		nvml.NVLINK_VERSION_1_0: "1.0",
		nvml.NVLINK_VERSION_2_0: "2.0",
		nvml.NVLINK_VERSION_2_2: "2.2",
		nvml.NVLINK_VERSION_3_0: "3.0",
		nvml.NVLINK_VERSION_3_1: "3.1",
		nvml.NVLINK_VERSION_4_0: "4.0",
		nvml.NVLINK_VERSION_5_0: "5.0",
		nvml.NVLINK_VERSION_6_0: "6.0",
	}
)
