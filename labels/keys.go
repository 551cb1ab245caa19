package labels

import (
	"slices"
	"strings"
	"sync"
)

// Key describes one label, or the labels that differ only in the one part that
// Pattern leaves open.
type Key struct {
	Pattern string // e.g. nvidia.com/mig-{profile}.count
	Group   Group
	Meaning string
	Form    Form
	Source  string // where the value is read
	Example string // a key, where the pattern is open, and its value
}

// Matches reports whether the pattern fits a label's key.
func (k Key) Matches(key string) bool {
	before, rest, open := strings.Cut(k.Pattern, "{")
	if !open {
		return key == k.Pattern
	}
	_, after, _ := strings.Cut(rest, "}")
	return len(key) > len(before)+len(after) && strings.HasPrefix(key, before) && strings.HasSuffix(key, after)
}

// Known tells whether a key is one of Keys.
func Known(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return slices.ContainsFunc(byDomain()[domain], func(k Key) bool { return k.Matches(key) })
}

// byDomain are Keys by what is before the slash, since most labels of a Node are
// of none of these domains.
var byDomain = sync.OnceValue(func() map[string][]Key {
	keys := map[string][]Key{}
	for _, k := range Keys {
		domain, _, _ := strings.Cut(k.Pattern, "/")
		keys[domain] = append(keys[domain], k)
	}
	return keys
})

// OthersToo tells whether a key is one that other programs publish beside us by
// right: PCI labels of other classes are NFD's, and some labels of GFD's and of
// AMD's labeller are published here only on request.
func OthersToo(key string) bool {
	return strings.HasPrefix(key, nfdPrefix) || strings.HasPrefix(key, "beta.amd.com/") || key == "nvidia.com/gfd.timestamp"
}

// Group is the heading under which keys are documented.
type Group string

// The groups, in the order of the documentation.
const (
	GroupDriver Group = "NVIDIA driver and CUDA"
	GroupNode   Group = "NVIDIA node"
	GroupGPU    Group = "NVIDIA GPUs"
	GroupMIG    Group = "NVIDIA MIG devices"
	GroupExtra  Group = "GPUs of any vendor"
	GroupAMD    Group = "AMD GPUs"
	GroupIntel  Group = "Intel GPUs"
	GroupPCI    Group = "PCI functions"
)

// Form says what a value looks like.
type Form string

// The forms of values.
const (
	FormTrue    Form = "`true`"
	FormBool    Form = "`true` or `false`"
	FormInt     Form = "integer"
	FormMiB     Form = "MiB, integer"
	FormVersion Form = "version"
	FormName    Form = "name"
	FormUUID    Form = "UUID and number"
	FormID      Form = "four hexadecimal digits"
	FormGiB     Form = "GiB, integer and `G`"
	FormGFX     Form = "`gfx` and hexadecimal digits"
	FormModes   Form = "compute and memory mode"

	FormMode        Form = "`compute`, `graphics` or `unknown`"
	FormSharing     Form = "`none`, `time-slicing` or `mps`"
	FormMIGStrategy Form = "`single` or `mixed`"
	FormFamily      Form = "`tesla`, `fermi`, `kepler`, `maxwell`, `pascal`, `volta`, `turing`, `ampere`, `ada-lovelace`, `hopper`, `blackwell` or `rubin`"
	FormState       Form = "`ok`, `degraded`, `no-driver`, `driver-mismatch`, `no-permission`, `timeout`, `error` or `passthrough`"
	FormMemory      Form = "`dedicated` or `unified`"
	FormMIGState    Form = "`disabled`, `enabled`, `enabled-empty`, `mixed` or `unknown`"
	FormNVLink      Form = "`all` or `some`"
)

// Keys are all labels that Compute gives.
var Keys = []Key{
	{"nvidia.com/cuda.driver-version.full", GroupDriver, "version of the driver", FormVersion, "NVML, driver version", "580.159.04"},
	{"nvidia.com/cuda.driver-version.major", GroupDriver, "its first part", FormVersion, "NVML, driver version", "580"},
	{"nvidia.com/cuda.driver-version.minor", GroupDriver, "its second part", FormVersion, "NVML, driver version", "159"},
	{"nvidia.com/cuda.driver-version.revision", GroupDriver, "its third part, empty for a version of two parts", FormVersion, "NVML, driver version", "04"},
	{"nvidia.com/cuda.driver.major", GroupDriver, "older name of `cuda.driver-version.major`", FormVersion, "NVML, driver version", "580"},
	{"nvidia.com/cuda.driver.minor", GroupDriver, "older name of `cuda.driver-version.minor`", FormVersion, "NVML, driver version", "159"},
	{"nvidia.com/cuda.driver.rev", GroupDriver, "older name of `cuda.driver-version.revision`", FormVersion, "NVML, driver version", "04"},
	{"nvidia.com/cuda.runtime-version.full", GroupDriver, "newest CUDA version that the driver runs", FormVersion, "NVML, CUDA driver version", "13.0"},
	{"nvidia.com/cuda.runtime-version.major", GroupDriver, "its first part", FormInt, "NVML, CUDA driver version", "13"},
	{"nvidia.com/cuda.runtime-version.minor", GroupDriver, "its second part", FormInt, "NVML, CUDA driver version", "0"},
	{"nvidia.com/cuda.runtime.major", GroupDriver, "older name of `cuda.runtime-version.major`", FormInt, "NVML, CUDA driver version", "13"},
	{"nvidia.com/cuda.runtime.minor", GroupDriver, "older name of `cuda.runtime-version.minor`", FormInt, "NVML, CUDA driver version", "0"},

	{"nvidia.com/gpu.machine", GroupNode, "the computer's product name, `unknown` when it cannot be read", FormName, "DMI, product_name", "PowerEdge-XE9680"},
	{"nvidia.com/gpu.mode", GroupNode, "whether the GPUs are set to drive displays; `unknown` if they differ", FormMode, "PCI class", "compute"},
	{"nvidia.com/gpu.clique", GroupNode, "NVLink fabric: cluster UUID and clique that all attached GPUs share", FormUUID, "NVML, fabric info", "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"},
	{"nvidia.com/mig.capable", GroupNode, "whether any GPU can be split by MIG", FormBool, "NVML, MIG mode", "true"},
	{"nvidia.com/mig.strategy", GroupNode, "the MIG strategy, unless it is `none`", FormMIGStrategy, "`--mig-strategy`", "mixed"},
	{"nvidia.com/mps.capable", GroupNode, "whether the device plugin shares GPUs through MPS", FormBool, "sharing configuration; MIG mode", "false"},
	{"nvidia.com/vgpu.present", GroupNode, "whether the node is a virtual machine with a vGPU", FormBool, "PCI vendor-specific capability", "false"},
	{"nvidia.com/vgpu.host-driver-version", GroupNode, "version of the host's driver behind the vGPU", FormVersion, "PCI vendor-specific capability", "550.90.05"},
	{"nvidia.com/vgpu.host-driver-branch", GroupNode, "branch of the host's driver behind the vGPU", FormName, "PCI vendor-specific capability", "r550_00"},
	{"nvidia.com/gfd.timestamp", GroupNode, "when the labeller started, in Unix seconds; only with `--timestamp`", FormInt, "clock", "1754006400"},

	{"nvidia.com/gpu.product", GroupGPU, "model; `-SHARED` follows when the GPUs are shared under the same name, `-MIG-{profile}` or `-MIG-INVALID` with the MIG strategy `single`", FormName, "NVML, name", "NVIDIA-H100-80GB-HBM3"},
	{"nvidia.com/gpu.count", GroupGPU, "GPUs of the model, those with MIG enabled included", FormInt, "NVML", "8"},
	{"nvidia.com/gpu.memory", GroupGPU, "memory of one GPU", FormMiB, "NVML, memory info", "81559"},
	{"nvidia.com/gpu.family", GroupGPU, "architecture", FormFamily, "NVML, compute capability", "hopper"},
	{"nvidia.com/gpu.compute.major", GroupGPU, "CUDA compute capability, first part", FormInt, "NVML, compute capability", "9"},
	{"nvidia.com/gpu.compute.minor", GroupGPU, "CUDA compute capability, second part", FormInt, "NVML, compute capability", "0"},
	{"nvidia.com/gpu.replicas", GroupGPU, "how many pods share a GPU; 0 when MIG is enabled on all GPUs of the model", FormInt, "sharing configuration", "1"},
	{"nvidia.com/gpu.sharing-strategy", GroupGPU, "how they share it; empty beside `-MIG-INVALID`", FormSharing, "sharing configuration", "none"},

	{"nvidia.com/gpu.multiprocessors", GroupMIG, "streaming multiprocessors of a MIG device (strategy `single`)", FormInt, "NVML, attributes", "14"},
	{"nvidia.com/gpu.slices.gi", GroupMIG, "slices of its GPU instance (strategy `single`)", FormInt, "NVML, attributes", "1"},
	{"nvidia.com/gpu.slices.ci", GroupMIG, "slices of its compute instance (strategy `single`)", FormInt, "NVML, attributes", "1"},
	{"nvidia.com/gpu.engines.copy", GroupMIG, "copy engines (strategy `single`)", FormInt, "NVML, attributes", "1"},
	{"nvidia.com/gpu.engines.decoder", GroupMIG, "video decoders (strategy `single`)", FormInt, "NVML, attributes", "0"},
	{"nvidia.com/gpu.engines.encoder", GroupMIG, "video encoders (strategy `single`)", FormInt, "NVML, attributes", "0"},
	{"nvidia.com/gpu.engines.jpeg", GroupMIG, "JPEG engines (strategy `single`)", FormInt, "NVML, attributes", "0"},
	{"nvidia.com/gpu.engines.ofa", GroupMIG, "optical flow accelerators (strategy `single`)", FormInt, "NVML, attributes", "0"},
	{"nvidia.com/mig-{profile}.product", GroupMIG, "model and profile (strategy `mixed`, as all that follow)", FormName, "NVML, name", "nvidia.com/mig-1g.5gb.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"},
	{"nvidia.com/mig-{profile}.count", GroupMIG, "MIG devices of the profile", FormInt, "NVML", "nvidia.com/mig-1g.5gb.count=14"},
	{"nvidia.com/mig-{profile}.memory", GroupMIG, "memory of one MIG device", FormMiB, "NVML, attributes", "nvidia.com/mig-1g.5gb.memory=4864"},
	{"nvidia.com/mig-{profile}.multiprocessors", GroupMIG, "streaming multiprocessors", FormInt, "NVML, attributes", "nvidia.com/mig-1g.5gb.multiprocessors=14"},
	{"nvidia.com/mig-{profile}.slices.gi", GroupMIG, "slices of its GPU instance", FormInt, "NVML, attributes", "nvidia.com/mig-1c.3g.20gb.slices.gi=3"},
	{"nvidia.com/mig-{profile}.slices.ci", GroupMIG, "slices of its compute instance", FormInt, "NVML, attributes", "nvidia.com/mig-1c.3g.20gb.slices.ci=1"},
	{"nvidia.com/mig-{profile}.engines.copy", GroupMIG, "copy engines", FormInt, "NVML, attributes", "nvidia.com/mig-3g.20gb.engines.copy=3"},
	{"nvidia.com/mig-{profile}.engines.decoder", GroupMIG, "video decoders", FormInt, "NVML, attributes", "nvidia.com/mig-3g.20gb.engines.decoder=2"},
	{"nvidia.com/mig-{profile}.engines.encoder", GroupMIG, "video encoders", FormInt, "NVML, attributes", "nvidia.com/mig-3g.20gb.engines.encoder=0"},
	{"nvidia.com/mig-{profile}.engines.jpeg", GroupMIG, "JPEG engines", FormInt, "NVML, attributes", "nvidia.com/mig-1g.5gb.me.engines.jpeg=1"},
	{"nvidia.com/mig-{profile}.engines.ofa", GroupMIG, "optical flow accelerators", FormInt, "NVML, attributes", "nvidia.com/mig-1g.5gb.me.engines.ofa=1"},
	{"nvidia.com/mig-{profile}.replicas", GroupMIG, "how many pods share a MIG device", FormInt, "sharing configuration", "nvidia.com/mig-1g.5gb.replicas=1"},
	{"nvidia.com/mig-{profile}.sharing-strategy", GroupMIG, "how they share it", FormSharing, "sharing configuration", "nvidia.com/mig-1g.5gb.sharing-strategy=none"},

	{ExtraPrefix + "state", GroupExtra, "what can be said of the node's GPUs, in one word", FormState, "all of what follows", "ok"},
	{ExtraPrefix + "count", GroupExtra, "usable GPUs", FormInt, "PCI, NVML", "8"},
	{ExtraPrefix + "count.pci", GroupExtra, "GPUs on the PCI bus; virtual functions of a GPU of the node are not counted", FormInt, "PCI", "8"},
	{ExtraPrefix + "count.failed", GroupExtra, "GPUs that are on the bus and do not answer", FormInt, "PCI, NVML", "1"},
	{ExtraPrefix + "count.passthrough", GroupExtra, "GPUs bound to vfio-pci, for virtual machines", FormInt, "PCI driver", "2"},
	{ExtraPrefix + "vendor.{vendor}.count", GroupExtra, "usable GPUs of a vendor: `nvidia`, `amd` or `intel`", FormInt, "PCI, NVML", ExtraPrefix + "vendor.nvidia.count=8"},
	{ExtraPrefix + "homogeneous", GroupExtra, "whether all usable GPUs are of one product and memory size", FormBool, "driver", "true"},
	{ExtraPrefix + "model.{model}.count", GroupExtra, "usable GPUs of a product. Its name in lower case with dashes, at most 50 characters; a longer one is cut and ends in six digits of a hash", FormInt, "driver", ExtraPrefix + "model.nvidia-geforce-rtx-4090.count=1"},
	{ExtraPrefix + "memory.min", GroupExtra, "memory of the GPU that has least: what a pod can count on whichever GPU it gets. As the next two, of GPUs that have memory of their own", FormMiB, "driver", "10240"},
	{ExtraPrefix + "memory.max", GroupExtra, "memory of the GPU that has most", FormMiB, "driver", "24576"},
	{ExtraPrefix + "memory.total", GroupExtra, "memory of all usable GPUs together", FormMiB, "driver", "59380"},
	{ExtraPrefix + "memory.type", GroupExtra, "whether GPUs have memory of their own or share the system's", FormMemory, "driver", "dedicated"},
	{ExtraPrefix + "mig.state", GroupExtra, "MIG on the GPUs that can: off, on with or without MIG devices, or not alike on all. Whatever the MIG strategy, as the next two", FormMIGState, "NVML, MIG mode", "enabled"},
	{ExtraPrefix + "mig.gpus", GroupExtra, "GPUs with MIG enabled", FormInt, "NVML, MIG mode", "2"},
	{ExtraPrefix + "mig.devices", GroupExtra, "MIG devices", FormInt, "NVML", "14"},
	{ExtraPrefix + "nvlink", GroupExtra, "whether all pairs of NVIDIA GPUs are linked by NVLink, or some; absent if none is", FormNVLink, "NVML, peer-to-peer status", "all"},
	{ExtraPrefix + "nvlink.version", GroupExtra, "NVLink's version, where all linked GPUs have the same", FormVersion, "NVML, NVLink version", "4.0"},

	{"amd.com/gpu.count", GroupAMD, "usable GPUs, however they are partitioned", FormInt, "PCI", "8"},
	{"amd.com/gpu.device-id", GroupAMD, "PCI device ID", FormID, "PCI", "74a1"},
	{"amd.com/gpu.device-id.{id}", GroupAMD, "GPUs with that value, where they differ", FormInt, "PCI", "amd.com/gpu.device-id.74a1=4"},
	{"amd.com/gpu.product-name", GroupAMD, "product: the board's own name, or that of the device ID", FormName, "product_name, or a table", "AMD_Instinct_MI300X_OAM"},
	{"amd.com/gpu.product-name.{name}", GroupAMD, "GPUs with that value, where they differ", FormInt, "product_name, or a table", "amd.com/gpu.product-name.AMD_Instinct_MI210=4"},
	{"amd.com/gpu.vram", GroupAMD, "memory of a GPU, or of a partition", FormGiB, "KFD topology, or mem_info_vram_total", "192G"},
	{"amd.com/gpu.vram.{size}", GroupAMD, "GPUs with that value, where they differ", FormInt, "KFD topology, or mem_info_vram_total", "amd.com/gpu.vram.64G=4"},
	{"amd.com/gpu.simd-count", GroupAMD, "SIMDs of a GPU, or of a partition", FormInt, "KFD topology", "1216"},
	{"amd.com/gpu.simd-count.{count}", GroupAMD, "GPUs with that value, where they differ", FormInt, "KFD topology", "amd.com/gpu.simd-count.416=4"},
	{"amd.com/gpu.cu-count", GroupAMD, "compute units of a GPU, or of a partition", FormInt, "KFD topology", "304"},
	{"amd.com/gpu.cu-count.{count}", GroupAMD, "GPUs with that value, where they differ", FormInt, "KFD topology", "amd.com/gpu.cu-count.104=4"},
	{"amd.com/gpu.family", GroupAMD, "the driver's name for a group of chips", FormName, "ip_discovery, or a table", "AI"},
	{"amd.com/gpu.family.{family}", GroupAMD, "GPUs with that value, where they differ", FormInt, "ip_discovery, or a table", "amd.com/gpu.family.NV=4"},
	{"amd.com/gpu.gfx", GroupAMD, "the compilers' name for the chip", FormGFX, "KFD topology, ip_discovery, or a table", "gfx942"},
	{"amd.com/gpu.gfx.{gfx}", GroupAMD, "GPUs with that value, where they differ", FormInt, "KFD topology, ip_discovery, or a table", "amd.com/gpu.gfx.gfx90a=4"},
	{"amd.com/gpu.driver-version", GroupAMD, "version of the driver, which only AMD's own has", FormVersion, "module, version", "6.10.5"},
	{"amd.com/gpu.driver-src-version", GroupAMD, "hash of the driver's source", FormName, "module, srcversion", "533BB7E5866E52F63B9ACCB"},
	{"amd.com/gpu.compute-memory-partition", GroupAMD, "how the GPUs are partitioned, where it is alike", FormModes, "current_compute_partition, current_memory_partition", "cpx_nps4"},
	{"amd.com/gpu.compute-partitioning-supported", GroupAMD, "whether the GPUs' compute units can be partitioned, where it is alike", FormBool, "available_compute_partition", "true"},
	{"amd.com/gpu.memory-partitioning-supported", GroupAMD, "whether the GPUs' memory can be partitioned, where it is alike", FormBool, "available_memory_partition", "true"},
	{"beta.amd.com/gpu.device-id", GroupAMD, "as `amd.com/gpu.device-id`; only with `--amd-beta-labels`", FormID, "as there", "74a1"},
	{"beta.amd.com/gpu.device-id.{id}", GroupAMD, "GPUs with that value", FormInt, "as there", "beta.amd.com/gpu.device-id.74a1=4"},
	{"beta.amd.com/gpu.product-name", GroupAMD, "as `amd.com/gpu.product-name`; only with `--amd-beta-labels`", FormName, "as there", "AMD_Instinct_MI210"},
	{"beta.amd.com/gpu.product-name.{name}", GroupAMD, "GPUs with that value", FormInt, "as there", "beta.amd.com/gpu.product-name.AMD_Instinct_MI210=4"},
	{"beta.amd.com/gpu.vram", GroupAMD, "as `amd.com/gpu.vram`; only with `--amd-beta-labels`", FormGiB, "as there", "64G"},
	{"beta.amd.com/gpu.vram.{size}", GroupAMD, "GPUs with that value", FormInt, "as there", "beta.amd.com/gpu.vram.64G=4"},
	{"beta.amd.com/gpu.simd-count", GroupAMD, "as `amd.com/gpu.simd-count`; only with `--amd-beta-labels`", FormInt, "as there", "416"},
	{"beta.amd.com/gpu.simd-count.{count}", GroupAMD, "GPUs with that value", FormInt, "as there", "beta.amd.com/gpu.simd-count.416=4"},
	{"beta.amd.com/gpu.cu-count", GroupAMD, "as `amd.com/gpu.cu-count`; only with `--amd-beta-labels`", FormInt, "as there", "104"},
	{"beta.amd.com/gpu.cu-count.{count}", GroupAMD, "GPUs with that value", FormInt, "as there", "beta.amd.com/gpu.cu-count.104=4"},
	{"beta.amd.com/gpu.family", GroupAMD, "as `amd.com/gpu.family`; only with `--amd-beta-labels`", FormName, "as there", "AI"},
	{"beta.amd.com/gpu.family.{family}", GroupAMD, "GPUs with that value", FormInt, "as there", "beta.amd.com/gpu.family.AI=4"},
	{"intel.feature.node.kubernetes.io/gpu", GroupIntel, "a usable GPU is there", FormTrue, "PCI driver", "true"},
	{"gpu.intel.com/device.count", GroupIntel, "usable GPUs", FormInt, "PCI", "4"},
	{"gpu.intel.com/device-id.{ids}.present", GroupIntel, "a usable GPU of this class and device ID is there", FormTrue, "PCI", "gpu.intel.com/device-id.0380-56c1.present=true"},
	{"gpu.intel.com/device-id.{ids}.count", GroupIntel, "usable GPUs of this class and device ID", FormInt, "PCI", "gpu.intel.com/device-id.0380-56c1.count=2"},
	{"gpu.intel.com/product", GroupIntel, "product, where all GPUs are of one; the processor's own GPU counts only where it is alone", FormName, "a table", "Max_1550"},
	{"gpu.intel.com/family", GroupIntel, "series, likewise: `Max_Series`, `Flex_Series`, `A_Series`, `B_Series`", FormName, "a table", "Flex_Series"},
	{"gpu.intel.com/tiles", GroupIntel, "tiles of all GPUs together", FormInt, "i915 and xe", "8"},

	{nfdPrefix + "pci-{ids}.present", GroupPCI, "a function of this class and vendor is there (`0302_10de`), or a GPU maker's of any listed class (`10de`)", FormTrue, "PCI", nfdPrefix + "pci-0302_10de.present=true"},
	{nfdPrefix + "pci-{ids}.sriov.capable", GroupPCI, "one such function can have virtual functions", FormTrue, "PCI, sriov_totalvfs", nfdPrefix + "pci-0302_10de.sriov.capable=true"},
}
