package labels

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

type ruleTest struct {
	name string
	inv  *discover.Inventory
	opts Options
	want string
}

func runRules(t *testing.T, tests []ruleTest) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, rejected := Compute(test.inv, test.opts)
			check(t, got, test.want)
			if len(rejected) > 0 {
				t.Errorf("rejected %v", rejected)
			}
		})
	}
}

func TestDriverVersion(t *testing.T) {
	driver := func(version string, cuda int) *discover.Inventory {
		inv := host(t4(0))
		inv.NVIDIA.DriverVersion, inv.NVIDIA.CUDADriverVersion = version, cuda
		return inv
	}
	runRules(t, []ruleTest{
		{"three parts", driver("550.107.02", 12050), Options{}, `
			cuda.driver-version.full=550.107.02
			cuda.driver-version.major=550
			cuda.driver-version.minor=107
			cuda.driver-version.revision=02
			cuda.driver.major=550
			cuda.driver.minor=107
			cuda.driver.rev=02
			cuda.runtime-version.full=12.5
			cuda.runtime-version.major=12
			cuda.runtime-version.minor=5
			cuda.runtime.major=12
			cuda.runtime.minor=5`},
		{"two parts", driver("384.81", 9000), Options{}, `
			cuda.driver-version.full=384.81
			cuda.driver-version.major=384
			cuda.driver-version.minor=81
			cuda.driver-version.revision=
			cuda.driver.rev=
			cuda.runtime-version.full=9.0`},
		{"one part", driver("580", 13000), Options{}, `
			cuda.driver-version.full=580
			cuda.driver-version.major=580
			cuda.driver.major=580
			!cuda.driver-version.minor
			!cuda.driver-version.revision
			!cuda.driver.minor
			!cuda.driver.rev`},
		{"four parts", driver("580.1.2.3", 13000), Options{}, `
			cuda.driver-version.full=580.1.2.3
			cuda.driver-version.major=580
			cuda.driver-version.minor=1
			cuda.driver-version.revision=2`},
		{"neither is known", driver("", 0), Options{}, "!cuda.*\ngpu.count=1"},
	})
}

func TestNode(t *testing.T) {
	class := func(g discover.GPU, class uint32) discover.GPU {
		g.Function.Class = class
		return g
	}
	fabricFails := func(g discover.GPU, code nvml.Code) discover.GPU {
		g.NVML.Errors = nvml.Errors{"fabric": code}
		return g
	}
	fabric := func(g discover.GPU, cluster string, clique uint32) discover.GPU {
		g.NVML.Fabric = &nvml.Fabric{State: nvml.FabricCompleted, Status: nvml.Success, ClusterUUID: cluster, CliqueID: clique}
		return g
	}
	fabricOf := func(g discover.GPU, f nvml.Fabric) discover.GPU {
		g.NVML.Fabric = &f
		return g
	}
	const cluster, other = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31", "f5ac7571-0b3c-4a3c-8c5c-1d0a3c1f2b11"
	machine := func(name string) *discover.Inventory {
		inv := host(t4(0))
		inv.Machine = &name
		return inv
	}
	runRules(t, []ruleTest{
		{"machine name unread", host(t4(0)), Options{}, "gpu.machine=unknown"},
		{"the firmware gives no machine name", machine(""), Options{}, "gpu.machine="},
		{"nothing left of the machine name", machine("未知/"), Options{}, "gpu.machine="},
		{"long machine name", machine(strings.Repeat("x", 62) + " y"), Options{}, "gpu.machine=" + strings.Repeat("x", 62)},
		{"compute", host(t4(0), t4(1)), Options{}, "gpu.mode=compute"},
		{"graphics", host(class(t4(0), 0x030000), class(t4(1), 0x030000)), Options{}, "gpu.mode=graphics"},
		{"both modes", host(class(t4(0), 0x030000), t4(1)), Options{}, "gpu.mode=unknown"},
		{"another class", host(class(t4(0), 0x038000)), Options{}, "gpu.mode=unknown"},
		{"another programming interface", host(class(t4(0), 0x030001)), Options{}, "gpu.mode=unknown"},
		{"no timestamp", host(t4(0)), Options{}, "!gfd.timestamp"},
		{"timestamp", host(t4(0)), Options{Timestamp: time.Unix(1754006400, 5)}, "gfd.timestamp=1754006400"},
		{"timestamp without GPU", host(), Options{Timestamp: time.Unix(1754006400, 5)}, "!gfd.timestamp"},

		{"one clique", host(fabric(a100(0), cluster, 1), a100(1), fabric(a100(2), cluster, 1)), Options{}, "gpu.clique=" + cluster + ".1"},
		{"two cliques", host(fabric(a100(0), cluster, 1), fabric(a100(1), cluster, 2)), Options{}, "!gpu.clique"},
		{"two clusters", host(fabric(a100(0), cluster, 1), fabric(a100(1), other, 1)), Options{}, "!gpu.clique"},
		{"no cluster", host(fabric(a100(0), "00000000-0000-0000-0000-000000000000", 0)), Options{}, "!gpu.clique"},
		{"one does not tell", host(fabric(a100(0), cluster, 1), fabricFails(a100(1), nvml.Unknown)), Options{}, "!gpu.clique"},
		{"one has no fabric", host(fabric(a100(0), cluster, 1), fabricFails(a100(1), nvml.NotSupported)), Options{}, "gpu.clique=" + cluster + ".1"},
		{"cluster unread", host(fabric(a100(0), "", 0)), Options{}, "!gpu.clique"},
		{"registration under way", host(fabricOf(a100(0), nvml.Fabric{State: "in_progress", Status: nvml.Success, ClusterUUID: cluster})), Options{}, "!gpu.clique"},
		{"registration failed", host(fabricOf(a100(0), nvml.Fabric{State: nvml.FabricCompleted, Status: unknownError, ClusterUUID: cluster})), Options{}, "!gpu.clique"},
		{"no fabric", host(a100(0)), Options{}, "!gpu.clique"},
	})
}

func TestVGPU(t *testing.T) {
	vgpu := func(v ...*pci.VGPU) *discover.Inventory {
		inv := host(t4(0))
		inv.Functions = nil
		for i, v := range v {
			f := function(i, pci.NVIDIA, 0x1eb8)
			f.VGPU = v
			inv.Functions = append(inv.Functions, *f)
		}
		return inv
	}
	first := &pci.VGPU{Present: true, HostDriverVersion: "550.90.05", HostDriverBranch: "r550_00"}
	last := &pci.VGPU{Present: true, HostDriverVersion: "580.1", HostDriverBranch: "r580_00"}
	backwards := vgpu(first, last)
	// The GPU at the second place, with a function for its sound.
	lost := func(inv *discover.Inventory) *discover.Inventory {
		inv.GPUs = append(inv.GPUs, failed(t4(1)))
		sound := *function(1, pci.NVIDIA, 0x10f8)
		sound.Address.Function, sound.Class = 1, 0x040300
		inv.Functions = append(inv.Functions, sound)
		return inv
	}
	slices.Reverse(backwards.Functions)
	runRules(t, []ruleTest{
		{"a vGPU", vgpu(&pci.VGPU{}, first), Options{}, `
			vgpu.present=true
			vgpu.host-driver-version=550.90.05
			vgpu.host-driver-branch=r550_00`},
		{"the last by address", vgpu(first, last), Options{}, "vgpu.host-driver-version=580.1\nvgpu.host-driver-branch=r580_00"},
		{"the last by address, listed backwards", backwards, Options{}, "vgpu.host-driver-version=580.1"},
		{"no record of the host", vgpu(&pci.VGPU{Present: true}), Options{}, "vgpu.present=true\n!vgpu.host*"},
		{"none", vgpu(&pci.VGPU{}), Options{}, "vgpu.present=false\n!vgpu.host*"},
		{"configuration space unread", vgpu(nil), Options{}, "!vgpu.*"},
		{"configuration space unread of one", vgpu(&pci.VGPU{}, nil), Options{}, "!vgpu.*"},
		{"configuration space unread of a GPU that is lost", lost(vgpu(&pci.VGPU{}, nil)), Options{}, "vgpu.present=false"},
		{"configuration space unread of a GPU beside one that is lost", lost(vgpu(nil, nil)), Options{}, "!vgpu.*"},
		{"a vGPU beside one unread", vgpu(nil, first), Options{}, "vgpu.present=true"},
		{"no NVIDIA function", vgpu(), Options{}, "vgpu.present=false"},
	})
}

func TestFamily(t *testing.T) {
	tests := map[nvml.ComputeCapability]string{
		{Major: 1, Minor: 3}: "tesla", {Major: 2, Minor: 1}: "fermi", {Major: 3, Minor: 7}: "kepler",
		{Major: 4, Minor: 0}: "", {Major: 5, Minor: 2}: "maxwell", {Major: 6, Minor: 1}: "pascal",
		{Major: 7, Minor: 0}: "volta", {Major: 7, Minor: 2}: "volta", {Major: 7, Minor: 5}: "turing",
		{Major: 8, Minor: 0}: "ampere", {Major: 8, Minor: 8}: "ampere", {Major: 8, Minor: 9}: "ada-lovelace",
		{Major: 9, Minor: 0}: "hopper", {Major: 10, Minor: 3}: "blackwell", {Major: 11, Minor: 0}: "blackwell",
		{Major: 12, Minor: 1}: "blackwell", {Major: 13, Minor: 0}: "rubin", {Major: 14, Minor: 0}: "",
	}
	for cc, want := range tests {
		if got := Family(cc); got != want {
			t.Errorf("Family(%v) = %q, want %q", cc, got, want)
		}
	}
}

func TestGPUResource(t *testing.T) {
	later := func(g discover.GPU, i int) discover.GPU { // the first on the bus, a later one for NVML
		g.NVML.Index = i
		return g
	}
	cc := func(g discover.GPU, capability *nvml.ComputeCapability) discover.GPU {
		g.NVML.ComputeCapability = capability
		return g
	}
	memory := func(g discover.GPU, mib uint64) discover.GPU {
		g.MemoryBytes, g.NVML.MemoryBytes = mib<<20, mib<<20
		return g
	}
	withoutFunction := func(g discover.GPU) discover.GPU {
		g.Function = nil
		return g
	}
	runRules(t, []ruleTest{
		{"the last GPU by NVML index is described", host(memory(a100(0), 1), memory(a100(1), 2)), Options{}, "gpu.memory=2"},
		{"NVML's order, not the bus's", host(later(memory(a100(0), 1), 9), memory(a100(1), 2)), Options{}, "gpu.memory=1"},
		{"a whole GPU goes before a later one with MIG", host(memory(a100(0), 1), mig(memory(a100(1), 2))), Options{}, "gpu.memory=1\ngpu.count=2\ngpu.replicas=1"},
		{"all with MIG: the last, and no replicas", host(mig(memory(a100(0), 1)), mig(memory(a100(1), 2))), Options{}, "gpu.memory=2\ngpu.count=2\ngpu.replicas=0\ngpu.sharing-strategy=none"},
		{"memory query fails on the last", host(memory(a100(0), 1), memory(a100(1), 0)), Options{}, "!gpu.memory"},
		{"no compute capability on the last", host(a100(0), cc(a100(1), nil)), Options{}, "!gpu.compute.*\n!gpu.family"},
		{"no compute capability", host(cc(a100(0), nil)), Options{}, "!gpu.compute.*\n!gpu.family\ngpu.count=1\ngpu.memory=40960"},
		{"compute capability 0", host(cc(a100(0), &nvml.ComputeCapability{})), Options{}, "!gpu.compute.*\n!gpu.family"},
		{"unknown architecture", host(cc(a100(0), &nvml.ComputeCapability{Major: 99, Minor: 1})), Options{}, "gpu.compute.major=99\ngpu.compute.minor=1\n!gpu.family"},
		{"majority", host(t4(0), a100(1), a100(2)), Options{}, "gpu.product=NVIDIA-A100-SXM4-40GB\ngpu.count=2\ngpu.memory=40960"},
		{"a tie goes to the lowest PCI address", host(later(a100(0), 7), t4(1)), Options{}, "gpu.product=NVIDIA-A100-SXM4-40GB\ngpu.count=1"},
		{"a tie goes to the GPU on PCI", host(withoutFunction(t4(0)), a100(1)), Options{}, "gpu.product=NVIDIA-A100-SXM4-40GB"},
		{"a tie without PCI goes to NVML's first", host(withoutFunction(t4(1)), withoutFunction(a100(0))), Options{}, "gpu.product=NVIDIA-A100-SXM4-40GB"},
		{"a failed GPU has no vote", host(t4(0), failed(a100(1)), failed(a100(2))), Options{}, "gpu.product=Tesla-T4\ngpu.count=1"},
		{"omit, one model", host(t4(0), t4(1)), Options{MixedGPUs: Omit}, "gpu.product=Tesla-T4\ngpu.count=2\ngpu.memory=15109"},
		{"omit, a key that one model lacks", host(t4(0), cc(gpu(1, "Tesla T4G", 15109, 7, 5), nil)), Options{MixedGPUs: Omit}, "!gpu.product\n!gpu.family\ngpu.count=2\ngpu.memory=15109"},
		{"unknown unified memory setting is none", host(unified(t4(0))), Options{UnifiedMemory: UnifiedNone}, "!gpu.memory"},
	})
}

func TestSharing(t *testing.T) {
	shared := func(strategy SharingStrategy, resources ...SharedResource) Options {
		return Options{Sharing: &Sharing{Strategy: strategy, Resources: resources}}
	}
	const gpus = "nvidia.com/gpu"
	mixed := shared(TimeSlicing, SharedResource{Name: "nvidia.com/mig-1g.5gb.me", Replicas: 3})
	mixed.MIGStrategy = MIGMixed
	single := shared(TimeSlicing, SharedResource{Name: gpus, Replicas: 3})
	single.MIGStrategy = MIGSingle
	long := strings.Repeat("a", 60)
	runRules(t, []ruleTest{
		{"not at all", host(t4(0)), Options{}, "gpu.replicas=1\ngpu.sharing-strategy=none\nmps.capable=false\ngpu.product=Tesla-T4"},
		{"time-slicing", host(t4(0)), shared(TimeSlicing, SharedResource{Name: gpus, Replicas: 4}), `
			gpu.replicas=4
			gpu.sharing-strategy=time-slicing
			gpu.product=Tesla-T4-SHARED
			mps.capable=false`},
		{"renamed", host(t4(0)), shared(TimeSlicing, SharedResource{Name: gpus, Replicas: 4, Renamed: true}), "gpu.product=Tesla-T4\ngpu.replicas=4"},
		{"MPS", host(t4(0)), shared(MPS, SharedResource{Name: gpus, Replicas: 10}), "gpu.sharing-strategy=mps\nmps.capable=true\ngpu.product=Tesla-T4-SHARED"},
		{"one replica is no sharing", host(t4(0)), shared(MPS, SharedResource{Name: gpus, Replicas: 1}), "gpu.replicas=1\ngpu.sharing-strategy=none\nmps.capable=false\ngpu.product=Tesla-T4"},
		{"another resource", host(t4(0)), shared(MPS, SharedResource{Name: "nvidia.com/mig-1g.5gb", Replicas: 2}), "gpu.replicas=1\ngpu.sharing-strategy=none\nmps.capable=true"},
		{"a MIG profile", host(mig(a100(0), slice("1g.5gb+me", 4864, 14, 1), oneG())), mixed, `
			mig-1g.5gb.me.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me-SHARED
			mig-1g.5gb.me.replicas=3
			mig-1g.5gb.me.sharing-strategy=time-slicing
			mig-1g.5gb.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb
			mig-1g.5gb.replicas=1
			gpu.replicas=0
			gpu.sharing-strategy=none`},
		{"MIG devices as GPUs", host(mig(a100(0), oneG())), single, "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED\ngpu.replicas=3"},
		{"MIG devices as GPUs, invalid", host(mig(a100(0))), single, "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-INVALID\ngpu.replicas=0\ngpu.sharing-strategy="},
		{"only the model is cut", host(gpu(0, long, 1, 8, 0)), shared(TimeSlicing, SharedResource{Name: gpus, Replicas: 2}), "gpu.product=" + long[:56] + "-SHARED"},
	})
}

func TestMPSWithMIG(t *testing.T) {
	for _, strategy := range []MIGStrategy{MIGNone, MIGSingle, MIGMixed} {
		for name, inv := range map[string]*discover.Inventory{
			"some": host(t4(0), mig(a100(1), oneG())),
			"all":  host(mig(a100(0), oneG())),
		} {
			plain, _ := Compute(inv, Options{MIGStrategy: strategy})
			got, rejected := Compute(inv, Options{MIGStrategy: strategy, Sharing: &Sharing{Strategy: MPS, Resources: []SharedResource{
				{Name: "nvidia.com/gpu", Replicas: 2}, {Name: "nvidia.com/mig-1g.5gb", Replicas: 2},
			}}})
			if !maps.Equal(got, plain) {
				t.Errorf("%s, %s: labels are %v, want those of a node without sharing, %v", strategy, name, got, plain)
			}
			if len(rejected) != 1 || !strings.HasPrefix(rejected[0].String(), "label nvidia.com/mps.capable is false, not true: ") {
				t.Errorf("%s, %s: rejected %v, want mps.capable for MIG", strategy, name, rejected)
			}
		}
	}
}

// A bad label costs itself, not the others.
func TestRejected(t *testing.T) {
	inv := host(mig(a100(0), slice("1g/5gb", 1, 1, 1)))
	inv.NVIDIA.DriverVersion = "580.-1"
	got, rejected := Compute(inv, Options{MIGStrategy: MIGMixed})
	check(t, got, `
		!mig-*
		!cuda.driver.minor
		cuda.driver.major=580
		gpu.product=NVIDIA-A100-SXM4-40GB
		.../mig.devices=1`)
	if !slices.IsSortedFunc(rejected, func(a, b Rejected) int { return strings.Compare(a.Key, b.Key) }) {
		t.Error("rejected labels are not sorted")
	}
	reasons := make(map[string]string)
	for _, r := range rejected {
		reasons[r.Key] = r.Reason
	}
	for _, key := range []string{"nvidia.com/cuda.driver.minor", "nvidia.com/mig-1g/5gb.count"} {
		if reasons[key] == "" {
			t.Errorf("no reason for %s among %v", key, slices.Sorted(maps.Keys(reasons)))
		}
	}
}

func TestOmit(t *testing.T) {
	inv := host(migOff(a100(0)))
	all, _ := Compute(inv, Options{})
	for _, test := range []struct {
		opts Options
		want []string
	}{
		{Options{OmitExtra: true}, []string{nfdPrefix, nvidiaPrefix}},
		{Options{OmitPCI: true}, []string{ExtraPrefix, nvidiaPrefix}},
		{Options{OmitExtra: true, OmitPCI: true}, []string{nvidiaPrefix}},
	} {
		want := Set{}
		for _, prefix := range test.want {
			for _, key := range keysOf(all, prefix) {
				want[prefix+key] = all[prefix+key]
			}
		}
		if got, _ := Compute(inv, test.opts); !maps.Equal(got, want) {
			t.Errorf("%+v: got\n%swant\n%s", test.opts, text(got), text(want))
		}
	}
}
