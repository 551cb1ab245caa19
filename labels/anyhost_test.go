package labels

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/amd"
	"github.com/gpu-labeller/gpu-labeller/discover/intel"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// drawHost is a whole host: GPUs of all makers, each with what its driver says,
// sensible or not.
func drawHost(t *rapid.T) *discover.Inventory {
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "NVIDIA A100-SXM4-40GB", "AMD Instinct MI250X / MI250", "Data Center GPU Max 1550", "N/A"}), rapid.String(), rapid.StringMatching(`[ -~]{0,90}`))
	number := rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(-5, 1<<40))
	inv := &discover.Inventory{SystemMemoryMiB: rapid.Uint64().Draw(t, "system memory")}
	if rapid.Bool().Draw(t, "machine") {
		machine := text.Draw(t, "machine's name")
		inv.Machine = &machine
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "GPUs") {
		f := pci.Function{
			Address: pci.Address{Bus: uint8(i + 1)},
			Class:   rapid.SampledFrom([]uint32{0x030000, 0x030200, 0x038000, 0x120000}).Draw(t, "class"),
			Device:  rapid.Uint16().Draw(t, "device ID"),
			VGPU: maybe(t, "no capability", func() pci.VGPU {
				return pci.VGPU{Present: rapid.Bool().Draw(t, "vGPU"), HostDriverVersion: text.Draw(t, "host's driver"), HostDriverBranch: text.Draw(t, "its branch")}
			}),
			TotalVFs: maybe(t, "no SR-IOV", func() int { return 8 }),
		}
		g := discover.GPU{
			Function:    &f,
			Condition:   rapid.SampledFrom([]discover.Condition{discover.Usable, discover.Usable, discover.Failed, discover.NoDriver, discover.Passthrough, discover.Virtual}).Draw(t, "condition"),
			Product:     text.Draw(t, "product"),
			MemoryBytes: rapid.Uint64().Draw(t, "memory"),
			Unified:     rapid.Bool().Draw(t, "unified"),
		}
		switch rapid.IntRange(0, 2).Draw(t, "maker") {
		case 0:
			g.Vendor, f.Vendor = discover.NVIDIA, pci.NVIDIA
			if g.Condition == discover.Usable {
				g.NVML = drawAnswer(t, i, text)
				g.Product, g.MemoryBytes = g.NVML.Name, g.NVML.MemoryBytes
				inv.NVIDIA.State, inv.NVIDIA.DriverVersion, inv.NVIDIA.CUDADriverVersion = discover.StateOK, text.Draw(t, "driver"), number.Draw(t, "CUDA")
			}
		case 1:
			g.Vendor, f.Vendor = discover.AMD, pci.AMD
			g.AMD = &amd.GPU{
				Product: text.Draw(t, "AMD product"), VRAMBytes: rapid.Uint64().Draw(t, "VRAM"), VRAMVendor: text.Draw(t, "VRAM vendor"),
				APU: rapid.Bool().Draw(t, "APU"), ChipKnown: rapid.Bool().Draw(t, "chip known"),
				GFX: text.Draw(t, "gfx"), Family: text.Draw(t, "family"), PartitionCount: rapid.IntRange(0, 64).Draw(t, "partitions"),
				DriverVersion: text.Draw(t, "amdgpu"), DriverSrcVersion: text.Draw(t, "amdgpu source"),
			}
			for _, p := range []*amd.Partitioning{&g.AMD.Compute, &g.AMD.Memory} {
				p.Current, p.Unread = text.Draw(t, "partitioning"), rapid.Bool().Draw(t, "unread")
				p.Available = rapid.SliceOfN(text, 0, 2).Draw(t, "partitionings")
			}
			for range rapid.IntRange(0, 3).Draw(t, "KFD nodes") {
				g.AMD.Partitions = append(g.AMD.Partitions, amd.Partition{SIMDs: number.Draw(t, "SIMDs"), CUs: number.Draw(t, "CUs")})
			}
		case 2:
			g.Vendor, f.Vendor = discover.Intel, pci.Intel
			g.Intel = &intel.GPU{Tiles: number.Draw(t, "tiles"), MemoryBytes: rapid.Uint64().Draw(t, "local memory")}
			g.Intel.Model.Product, g.Intel.Model.Family = text.Draw(t, "Intel product"), text.Draw(t, "Intel family")
		}
		inv.GPUs = append(inv.GPUs, g)
		inv.Functions = append(inv.Functions, f)
	}
	return inv
}

// drawAnswer is what NVML says of a GPU.
func drawAnswer(t *rapid.T, index int, text *rapid.Generator[string]) *nvml.GPU {
	n := &nvml.GPU{Index: index, Name: text.Draw(t, "name"), MemoryBytes: rapid.Uint64().Draw(t, "NVML memory"), Brand: text.Draw(t, "brand"), Architecture: text.Draw(t, "architecture")}
	if rapid.Bool().Draw(t, "compute capability") {
		n.ComputeCapability = &nvml.ComputeCapability{Major: rapid.Int().Draw(t, "major"), Minor: rapid.Int().Draw(t, "minor")}
	}
	if rapid.Bool().Draw(t, "MIG") {
		n.MIG = &nvml.MIG{Enabled: rapid.Bool().Draw(t, "MIG on")}
		for range rapid.IntRange(0, 3).Draw(t, "MIG devices") {
			n.MIG.Devices = append(n.MIG.Devices, nvml.MIGDevice{Profile: text.Draw(t, "profile"), MemoryMB: rapid.Uint64().Draw(t, "MIG memory")})
		}
	}
	if rapid.Bool().Draw(t, "NVLink") {
		n.NVLink = &nvml.NVLink{Peers: rapid.SliceOfN(rapid.IntRange(0, 6), 1, 6).Draw(t, "peers"), Version: text.Draw(t, "NVLink's version")}
	}
	if rapid.Bool().Draw(t, "fabric") {
		n.Fabric = &nvml.Fabric{State: nvml.FabricCompleted, Status: nvml.Success, ClusterUUID: text.Draw(t, "cluster"), CliqueID: rapid.Uint32().Draw(t, "clique")}
	}
	return n
}

func drawAnyOptions(t *rapid.T) Options {
	return Options{
		MIGStrategy:   rapid.SampledFrom([]MIGStrategy{MIGNone, MIGSingle, MIGMixed}).Draw(t, "MIG strategy"),
		MixedGPUs:     rapid.SampledFrom([]MixedGPUs{Majority, Omit}).Draw(t, "mixed GPUs"),
		UnifiedMemory: rapid.SampledFrom([]UnifiedMemory{UnifiedNone, UnifiedSystem, UnifiedSystemGiB}).Draw(t, "unified memory"),
		AMDBeta:       rapid.Bool().Draw(t, "AMD beta"),
	}
}

// Whatever the drivers of three makers say, the labels are legal and documented.
func TestAnyHostsLabelsAreLegal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set, _ := Compute(drawHost(t), drawAnyOptions(t))
		for key, value := range set {
			if wrong := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(wrong) > 0 {
				t.Errorf("%s=%s: %v", key, value, wrong)
			}
			if !slices.ContainsFunc(Keys, func(k Key) bool { return k.Matches(key) }) {
				t.Errorf("%s=%s is not documented", key, value)
			}
		}
	})
}

// The order in which GPUs of three makers are found does not matter.
func TestAnyHostsOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv, opts := drawHost(t), drawAnyOptions(t)
		want, _ := Compute(inv, opts)
		other := *inv
		other.GPUs = rapid.Permutation(inv.GPUs).Draw(t, "order")
		other.Functions = rapid.Permutation(inv.Functions).Draw(t, "order of functions")
		if got, _ := Compute(&other, opts); !maps.Equal(got, want) {
			t.Errorf("%v\nwant\n%v", got, want)
		}
	})
}

// A GPU of any maker that does not work changes counts and the state alone.
func TestGPUThatDoesNotWorkOnlyCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv, opts := drawHost(t), drawAnyOptions(t)
		want, _ := Compute(inv, opts)
		maker := rapid.SampledFrom([]uint16{pci.NVIDIA, pci.AMD, pci.Intel}).Draw(t, "maker of the other")
		g := discover.GPU{
			Function:  &pci.Function{Address: pci.Address{Bus: 0x80}, Vendor: maker, Class: 0x030200},
			Vendor:    map[uint16]discover.Vendor{pci.NVIDIA: discover.NVIDIA, pci.AMD: discover.AMD, pci.Intel: discover.Intel}[maker],
			Condition: rapid.SampledFrom([]discover.Condition{discover.Failed, discover.NoDriver, discover.Passthrough}).Draw(t, "condition of the other"),
			Product:   "another", MemoryBytes: 1 << 30,
		}
		switch g.Vendor {
		case discover.AMD:
			g.AMD = &amd.GPU{GFX: "gfx90a", Family: "AI", VRAMBytes: 1 << 30}
		case discover.Intel:
			g.Intel = &intel.GPU{Tiles: 2}
		}
		got, _ := Compute(withUnusable(t, inv, g), opts)
		dropNewPCI(got, want)
		for _, set := range []Set{got, want} {
			for _, key := range []string{"state", "count.pci", "count.failed", "count.passthrough"} {
				delete(set, ExtraPrefix+key)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%v\nwant\n%v", got, want)
		}
	})
}

// No label is published whose source did not answer.
func TestNoLabelWithoutItsSource(t *testing.T) {
	for _, source := range []struct {
		name    string
		silence func(*discover.Inventory)
		keys    []string // how those of its labels begin or, with a dot, end
	}{
		{"NVML", func(inv *discover.Inventory) {
			inv.NVIDIA = discover.NVIDIADriver{State: discover.StateError}
			for i := range inv.GPUs {
				if g := &inv.GPUs[i]; g.Vendor == discover.NVIDIA && g.Condition == discover.Usable {
					g.NVML, g.Condition, g.Product, g.MemoryBytes, g.Unified = nil, discover.Failed, "", 0, false
				}
			}
		}, []string{"nvidia.com/cuda.", "nvidia.com/gpu.", "nvidia.com/mig", "nvidia.com/mps", ExtraPrefix + "mig.", ExtraPrefix + "nvlink", ExtraPrefix + "vendor.nvidia"}},
		{"the driver's version", func(inv *discover.Inventory) { inv.NVIDIA.DriverVersion = "" }, []string{"nvidia.com/cuda.driver"}},
		{"CUDA's version", func(inv *discover.Inventory) { inv.NVIDIA.CUDADriverVersion = 0 }, []string{"nvidia.com/cuda.runtime"}},
		{"the bus", func(inv *discover.Inventory) { inv.Functions = nil }, []string{nfdPrefix + "pci-", "nvidia.com/vgpu.host"}},
		{"SR-IOV", func(inv *discover.Inventory) {
			for i := range inv.Functions {
				inv.Functions[i].TotalVFs = nil
			}
		}, []string{".sriov.capable"}},
		{"the PCI configuration space", func(inv *discover.Inventory) {
			inv.Functions = append(inv.Functions, pci.Function{Vendor: pci.NVIDIA, Class: 0x030200})
			for i := range inv.Functions {
				inv.Functions[i].VGPU = nil
			}
		}, []string{"nvidia.com/vgpu."}},
		{"NVLink", each(func(g *discover.GPU) {
			if g.NVML != nil {
				g.NVML.NVLink = nil
			}
		}), []string{ExtraPrefix + "nvlink"}},
		{"NVML's names", each(func(g *discover.GPU) {
			if g.NVML != nil {
				g.NVML.Name, g.Product = "", ""
			}
		}), []string{"nvidia.com/gpu.product"}},
		{"NVML's memory", each(func(g *discover.GPU) {
			if g.NVML != nil {
				g.NVML.MemoryBytes, g.MemoryBytes, g.Unified = 0, 0, false
				g.NVML.MIG = nil // with the strategy single, the label is of MIG devices
			}
		}), []string{"nvidia.com/gpu.memory"}},
		{"NVML's compute capability", each(func(g *discover.GPU) {
			if g.NVML != nil {
				g.NVML.ComputeCapability = nil
			}
		}), []string{"nvidia.com/gpu.compute.", "nvidia.com/gpu.family"}},
		{"NVML's MIG mode", each(func(g *discover.GPU) {
			if g.NVML != nil {
				g.NVML.MIG, g.NVML.Errors = nil, nvml.Errors{"mig": nvml.Unknown}
			}
		}), []string{ExtraPrefix + "mig.", "nvidia.com/mig-"}},
		{"NVML's fabric", each(func(g *discover.GPU) {
			if g.NVML != nil {
				g.NVML.Fabric = nil
			}
		}), []string{"nvidia.com/gpu.clique"}},
		{"every memory size", each(func(g *discover.GPU) { g.MemoryBytes, g.Unified = 0, false }), []string{ExtraPrefix + "memory."}},
		{"every product", each(func(g *discover.GPU) { g.Product = "" }), []string{ExtraPrefix + "model.", "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"}},
		{"amdgpu", each(func(g *discover.GPU) {
			if g.AMD != nil {
				g.Condition = discover.NoDriver
			}
		}), []string{"amd.com/", "beta.amd.com/", ExtraPrefix + "vendor.amd"}},
		{"KFD's topology", each(func(g *discover.GPU) {
			if g.AMD != nil {
				g.AMD.Partitions = nil
			}
		}), []string{"amd.com/gpu.simd-count", "amd.com/gpu.cu-count", "beta.amd.com/gpu.simd-count", "beta.amd.com/gpu.cu-count"}},
		{"AMD's partitioning", each(func(g *discover.GPU) {
			if g.AMD != nil {
				g.AMD.Compute, g.AMD.Memory = amd.Partitioning{Unread: true}, amd.Partitioning{Unread: true}
			}
		}), []string{"amd.com/gpu.compute-", "amd.com/gpu.memory-"}},
		{"AMD's names of chips", each(func(g *discover.GPU) {
			if g.AMD != nil {
				g.AMD.GFX, g.AMD.Family = "", ""
			}
		}), []string{"amd.com/gpu.gfx", "amd.com/gpu.family"}},
		{"Intel's driver", each(func(g *discover.GPU) {
			if g.Intel != nil {
				g.Condition = discover.NoDriver
			}
		}), []string{"gpu.intel.com/", "intel.feature.node.kubernetes.io/", ExtraPrefix + "vendor.intel"}},
		{"Intel's tiles", each(func(g *discover.GPU) {
			if g.Intel != nil {
				g.Intel.Tiles = 0
			}
		}), []string{"gpu.intel.com/tiles"}},
		{"Intel's table", each(func(g *discover.GPU) {
			if g.Intel != nil {
				g.Intel.Model = intel.Model{}
			}
		}), []string{"gpu.intel.com/product", "gpu.intel.com/family"}},
	} {
		t.Run(source.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				inv := drawHost(t)
				source.silence(inv)
				set, _ := Compute(inv, drawAnyOptions(t))
				for key, value := range set {
					if slices.ContainsFunc(source.keys, func(part string) bool {
						return strings.HasPrefix(key, part) || part[0] == '.' && strings.HasSuffix(key, part)
					}) {
						t.Errorf("%s=%s though %s did not answer", key, value, source.name)
					}
				}
			})
		})
	}
}

func each(silence func(*discover.GPU)) func(*discover.Inventory) {
	return func(inv *discover.Inventory) {
		for i := range inv.GPUs {
			silence(&inv.GPUs[i])
		}
	}
}
