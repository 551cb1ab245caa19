package labels

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

var (
	anyName = rapid.OneOf(
		rapid.SampledFrom([]string{"Tesla T4", "NVIDIA A100-SXM4-40GB", "NVIDIA A100 SXM4 40GB", "nvidia a100-sxm4-40gb", "N/A", "", "A (B)", "A B"}),
		rapid.String(),
		rapid.StringMatching(`[A-Z][A-Za-z0-9 _.()/-]{0,90}`),
	)
	anyMemory  = rapid.SampledFrom([]uint64{0, 0, 1, 4 << 30, 40 << 30, 80<<30 + 1})
	anyCode    = rapid.SampledFrom([]nvml.Code{nvml.NotSupported, nvml.FunctionNotFound, nvml.NoPermission, unknownError})
	anyClass   = rapid.SampledFrom([]uint32{0, 0x030000, 0x030200, 0x038000, 0x120000, 0x040300, 0x0b4000})
	anyVendor  = rapid.SampledFrom([]uint16{0, pci.NVIDIA, pci.AMD, pci.Intel, 0x1d0f})
	anyProfile = rapid.OneOf(rapid.SampledFrom([]string{"1g.5gb", "1g.5gb+me", "1c.3g.20gb", "2g.10gb-me", ""}), rapid.String())
)

func maybe[T any](t *rapid.T, label string, draw func() T) *T {
	if rapid.Bool().Draw(t, label) {
		return nil
	}
	v := draw()
	return &v
}

func drawFunction(t *rapid.T, at int) pci.Function {
	f := pci.Function{
		Address: pci.Address{Bus: uint8(at)},
		Class:   anyClass.Draw(t, "class"),
		Vendor:  anyVendor.Draw(t, "vendor ID"),
		Device:  rapid.Uint16Range(0, 2).Draw(t, "device ID"),
	}
	f.TotalVFs = maybe(t, "no VFs", func() int { return 16 })
	f.VGPU = maybe(t, "vGPU unread", func() pci.VGPU {
		return pci.VGPU{Present: rapid.Bool().Draw(t, "vGPU"), HostDriverVersion: rapid.String().Draw(t, "host version"), HostDriverBranch: "r550_00"}
	})
	return f
}

func drawNVML(t *rapid.T, index, gpus int) *nvml.GPU {
	g := &nvml.GPU{Index: index, Name: anyName.Draw(t, "NVML name"), MemoryBytes: anyMemory.Draw(t, "NVML memory")}
	g.ComputeCapability = maybe(t, "no compute capability", func() nvml.ComputeCapability {
		return nvml.ComputeCapability{Major: rapid.IntRange(0, 15).Draw(t, "major"), Minor: rapid.IntRange(0, 9).Draw(t, "minor")}
	})
	g.MIG = maybe(t, "no MIG", func() nvml.MIG {
		m := nvml.MIG{Enabled: rapid.Bool().Draw(t, "MIG enabled")}
		for range rapid.IntRange(0, 3).Draw(t, "MIG devices") {
			sms := rapid.Uint32Range(0, 2).Draw(t, "SMs")
			m.Devices = append(m.Devices, slice(anyProfile.Draw(t, "profile"), 4864, sms, 1))
		}
		return m
	})
	g.Fabric = maybe(t, "no fabric", func() nvml.Fabric {
		return nvml.Fabric{
			State: nvml.FabricCompleted, Status: nvml.Success,
			ClusterUUID: rapid.SampledFrom([]string{"", "00000000-0000-0000-0000-000000000000", "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"}).Draw(t, "cluster"),
			CliqueID:    rapid.Uint32Range(0, 1).Draw(t, "clique"),
		}
	})
	g.NVLink = maybe(t, "no NVLink", func() nvml.NVLink {
		return nvml.NVLink{
			Version: rapid.SampledFrom([]string{"", "3.0", "4.0"}).Draw(t, "NVLink version"),
			Peers:   rapid.SliceOfN(rapid.IntRange(0, gpus), 0, 3).Draw(t, "peers"),
		}
	})
	g.Errors = rapid.MapOfN(rapid.SampledFrom([]string{"mig", "mig.devices", "nvlink", "fabric"}), anyCode, 0, 2).Draw(t, "errors")
	return g
}

func drawInventory(t *rapid.T) *discover.Inventory {
	inv := &discover.Inventory{
		Machine:         maybe(t, "machine unread", func() string { return rapid.String().Draw(t, "machine") }),
		SystemMemoryMiB: rapid.Uint64Range(0, 4096).Draw(t, "system memory"),
		NVIDIA: discover.NVIDIADriver{
			State:             rapid.SampledFrom([]discover.State{"", discover.StateOK, discover.StateTimeout}).Draw(t, "state"),
			DriverVersion:     rapid.OneOf(rapid.SampledFrom([]string{"580.159.04", "384.81", "580", "1.2.3.4", ""}), rapid.String()).Draw(t, "driver"),
			CUDADriverVersion: rapid.IntRange(-1, 20000).Draw(t, "CUDA"),
		},
	}
	gpus := rapid.IntRange(0, 5).Draw(t, "GPUs")
	for i, index := range rapid.Permutation(slices.Collect(upTo(gpus))).Draw(t, "NVML indices") {
		g := discover.GPU{
			Vendor:      rapid.SampledFrom([]discover.Vendor{discover.NVIDIA, discover.NVIDIA, discover.AMD, discover.Intel}).Draw(t, "vendor"),
			Condition:   rapid.SampledFrom([]discover.Condition{discover.Usable, discover.Usable, discover.Usable, discover.Failed, discover.Passthrough, discover.Virtual}).Draw(t, "condition"),
			Product:     anyName.Draw(t, "product"),
			MemoryBytes: anyMemory.Draw(t, "memory"),
			Unified:     rapid.Bool().Draw(t, "unified"),
		}
		g.Function = maybe(t, "not on PCI", func() pci.Function { return drawFunction(t, i) })
		if g.Function != nil {
			inv.Functions = append(inv.Functions, *g.Function)
		}
		if g.Vendor == discover.NVIDIA && rapid.Bool().Draw(t, "known to NVML") {
			g.NVML = drawNVML(t, index, gpus)
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "functions") {
		inv.Functions = append(inv.Functions, drawFunction(t, 0x40+i))
	}
	return inv
}

func upTo(n int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

func drawOptions(t *rapid.T) Options {
	opts := Options{
		MIGStrategy:    rapid.SampledFrom([]MIGStrategy{"", MIGNone, MIGSingle, MIGMixed}).Draw(t, "MIG strategy"),
		MixedGPUs:      rapid.SampledFrom([]MixedGPUs{"", Majority, Omit}).Draw(t, "mixed GPUs"),
		UnifiedMemory:  rapid.SampledFrom([]UnifiedMemory{"", UnifiedNone, UnifiedSystem, UnifiedSystemGiB}).Draw(t, "unified memory"),
		PCIClasses:     rapid.SampledFrom([][]string{nil, {""}, {"0x03", "zz"}, {}}).Draw(t, "PCI classes"),
		PCILabelFields: rapid.SampledFrom([][]string{nil, {"vendor"}, {"device", "class"}, {"zz"}}).Draw(t, "PCI label fields"),
	}
	opts.Sharing = maybe(t, "not shared", func() Sharing {
		return Sharing{
			Strategy: rapid.SampledFrom([]SharingStrategy{TimeSlicing, MPS}).Draw(t, "sharing strategy"),
			Resources: []SharedResource{{
				Name:     rapid.SampledFrom([]string{"nvidia.com/gpu", "nvidia.com/mig-1g.5gb"}).Draw(t, "shared resource"),
				Replicas: rapid.IntRange(0, 4).Draw(t, "replicas"),
				Renamed:  rapid.Bool().Draw(t, "renamed"),
			}},
		}
	})
	return opts
}

// Whatever a host says, the API server takes the labels, and they are those
// that are documented.
func TestLabelsAreLegalAndDocumented(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		got, rejected := Compute(drawInventory(t), drawOptions(t))
		for key, value := range got {
			if errs := validation.IsQualifiedName(key); len(errs) > 0 {
				t.Errorf("%s=%s: %v", key, value, errs)
			}
			if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
				t.Errorf("%s=%s: %v", key, value, errs)
			}
			if err := documented(key, value); err != nil {
				t.Error(err)
			}
		}
		for _, r := range rejected {
			if r.Reason == "" {
				t.Errorf("%s=%s was rejected without a reason", r.Key, r.Value)
			}
			if value, ok := got[r.Key]; ok && value == r.Value {
				t.Errorf("%s=%s was rejected and published", r.Key, r.Value)
			}
		}
	})
}

// U13: the same host gives the same labels, in whatever order things are found.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv, opts := drawInventory(t), drawOptions(t)
		want, wantRejected := Compute(inv, opts)
		shuffled := *inv
		shuffled.GPUs = rapid.Permutation(inv.GPUs).Draw(t, "order of GPUs")
		shuffled.Functions = rapid.Permutation(inv.Functions).Draw(t, "order of functions")
		got, rejected := Compute(&shuffled, opts)
		if text(got) != text(want) || !slices.Equal(rejected, wantRejected) {
			t.Errorf("got\n%s%v\nwant\n%s%v", text(got), rejected, text(want), wantRejected)
		}
	})
}

func TestComputeLeavesTheInventoryAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv, opts := drawInventory(t), drawOptions(t)
		before := fmt.Sprintf("%+v", inv.GPUs)
		first, _ := Compute(inv, opts)
		second, _ := Compute(inv, opts)
		if after := fmt.Sprintf("%+v", inv.GPUs); after != before {
			t.Errorf("the GPUs are now\n%s\nand were\n%s", after, before)
		}
		if !maps.Equal(first, second) {
			t.Errorf("first\n%sthen\n%s", text(first), text(second))
		}
	})
}

// withUnusable adds a GPU that does not work, and its function on the bus, whose
// configuration space can be read or not. It is no vGPU: that would be the node's.
func withUnusable(t *rapid.T, inv *discover.Inventory, g discover.GPU) *discover.Inventory {
	g.Function.VGPU = maybe(t, "its configuration space unread", func() pci.VGPU { return pci.VGPU{} })
	more := *inv
	more.GPUs = append(slices.Clone(inv.GPUs), g)
	more.Functions = append(slices.Clone(inv.Functions), *g.Function)
	return &more
}

// dropNewPCI drops the labels that say what is on the bus, where another function
// has added one.
func dropNewPCI(got, want Set) {
	maps.DeleteFunc(got, func(key, _ string) bool {
		_, old := want[key]
		return !old && strings.HasPrefix(key, nfdPrefix+"pci-")
	})
}

func TestFailedGPUOnlyCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv, opts := drawInventory(t), drawOptions(t)
		want, _ := Compute(inv, opts)
		more := withUnusable(t, inv, failed(gpu(25, "Tesla T4", 15109, 7, 5)))
		got, _ := Compute(more, opts)
		dropNewPCI(got, want)
		for _, key := range []string{"count.pci", "count.failed", "state"} {
			delete(want, ExtraPrefix+key)
			delete(got, ExtraPrefix+key)
		}
		if !maps.Equal(got, want) {
			t.Errorf("got\n%swant\n%s", text(got), text(want))
		}
	})
}
