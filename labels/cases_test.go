package labels

import (
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// TestCases are hosts that users of GPU labellers reported, numbered as they
// were collected.
func TestCases(t *testing.T) {
	single := Options{MIGStrategy: MIGSingle}
	mixed := Options{MIGStrategy: MIGMixed}

	named := func(name string) *discover.Inventory { return host(gpu(0, name, 15360, 7, 5)) }
	machine := func(inv *discover.Inventory, name string) *discover.Inventory {
		inv.Machine = &name
		return inv
	}
	withState := func(inv *discover.Inventory, state discover.State) *discover.Inventory {
		inv.NVIDIA = discover.NVIDIADriver{State: state}
		return inv
	}
	with := func(inv *discover.Inventory, functions ...pci.Function) *discover.Inventory {
		inv.Functions = append(inv.Functions, functions...)
		return inv
	}
	amd := func(i int, name string) discover.GPU {
		return discover.GPU{
			Vendor: discover.AMD, Condition: discover.Usable, Function: function(i, pci.AMD, 0x7408),
			Product: name, MemoryBytes: 64 << 30,
		}
	}
	class := func(g discover.GPU, class uint32) discover.GPU {
		g.Function.Class = class
		return g
	}
	noPCI := func(g discover.GPU) discover.GPU {
		g.Function, g.NVML.PCIAddress = nil, nil
		return g
	}
	onBusOnly := func(g discover.GPU) discover.GPU {
		g = failed(g)
		g.NVML = nil
		return g
	}
	h100 := func(i int) discover.GPU { return gpu(i, "NVIDIA H100 80GB HBM3", 81559, 9, 0) }
	a100of80 := func(i int) discover.GPU { return gpu(i, "NVIDIA A100-SXM4-80GB", 81920, 8, 0) }
	a40 := func(i int) discover.GPU { return gpu(i, "NVIDIA A40", 46068, 8, 6) }
	gb10 := unified(gpu(0, "NVIDIA GB10", 0, 12, 1))
	threeModels := func() *discover.Inventory {
		return host(
			gpu(0, "NVIDIA GeForce RTX 3080", 10240, 8, 6),
			gpu(1, "NVIDIA GeForce RTX 3090", 24576, 8, 6),
			gpu(2, "NVIDIA GeForce RTX 4090", 24564, 8, 9),
		)
	}
	withSystemMemory := func(inv *discover.Inventory, kB uint64) *discover.Inventory {
		inv.SystemMemoryMiB = kB / 1024
		return inv
	}

	tests := []ruleTest{
		{"U01 parentheses in the product", machine(host(class(gpu(0, "NVIDIA TITAN X (Pascal)", 12288, 6, 1), 0x030000)), "HP Z820 Workstation"), Options{}, `
			gpu.product=NVIDIA-TITAN-X-Pascal
			gpu.count=1
			gpu.memory=12288
			gpu.family=pascal
			gpu.compute.major=6
			gpu.compute.minor=1
			gpu.machine=HP-Z820-Workstation
			gpu.mode=graphics
			mig.capable=false`},
		{"U02 model and MIG profile make 67 characters",
			host(mig(gpu(0, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887, 12, 0), slice("1g.24gb", 24192, 46, 1))), mixed, `
			mig-1g.24gb.product=NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edi-MIG-1g.24gb
			gpu.product=NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition`},
		{"U04 slash in the machine's name, dropped as GFD does", machine(host(t4(0)), "X9SRA/X9SRA-3"), Options{}, `
			gpu.machine=X9SRAX9SRA-3`},
		{"U06 slash in an AMD product", host(amd(0, "AMD Instinct MI250X / MI250"), amd(1, "AMD Instinct MI250X / MI250")), Options{}, `
			.../count=2
			.../vendor.amd.count=2
			.../model.amd-instinct-mi250x-mi250.count=2
			.../state=ok
			pci-0302_1002.present=true
			pci-1002.present=true`},
		{"U07 parentheses in a key", host(amd(0, "AMD INSTINCT MI250X (MCM) OAM AC MBA MSFT")), Options{}, `
			.../model.amd-instinct-mi250x-mcm-oam-ac-mba-msft.count=1`},
		{"U08 no name", named(""), Options{}, "!gpu.product\n!.../model.*\ngpu.count=1\ngpu.memory=15360\ngpu.family=turing\n.../count=1"},
		{"U08 white space for a name", named(" \t "), Options{}, "!gpu.product\n!.../model.*\ngpu.count=1"},
		{"U08 Unknown", named("unknown"), Options{}, "!gpu.product\n!.../model.*\ngpu.count=1"},
		{"U08 N/A", named("N/A"), Options{}, "!gpu.product\n!.../model.*\ngpu.count=1"},
		{"U08 Graphics Device", named("Graphics Device"), Options{}, "!gpu.product\n!.../model.*\ngpu.count=1"},
		{"U10 the display GPU of a DGX is no GPU to discover", host(n(4, a100of80)...), Options{}, `
			gpu.product=NVIDIA-A100-SXM4-80GB
			gpu.count=4
			.../homogeneous=true`},
		{"U11 three models, each once: the lowest PCI address", threeModels(), Options{}, `
			gpu.product=NVIDIA-GeForce-RTX-3080
			gpu.count=1
			gpu.memory=10240
			.../count=3
			.../homogeneous=false
			.../memory.min=10240
			.../memory.max=24576
			.../memory.total=59380
			.../model.nvidia-geforce-rtx-3080.count=1
			.../model.nvidia-geforce-rtx-3090.count=1
			.../model.nvidia-geforce-rtx-4090.count=1`},
		{"U11 three models, --mixed-gpus=omit", threeModels(), Options{MixedGPUs: Omit}, `
			gpu.count=3
			!gpu.product
			!gpu.memory
			!gpu.family
			!gpu.compute.minor
			gpu.compute.major=8
			gpu.replicas=1
			gpu.sharing-strategy=none
			gpu.mode=compute
			gpu.machine=unknown`},
		{"U14 MIG on two of eight", host(append([]discover.GPU{
			mig(a100(0), repeat(oneG(), 7)...), mig(a100(1), repeat(oneG(), 7)...)},
			n(8, func(i int) discover.GPU { return migOff(a100(i)) })[2:]...)...), mixed, `
			gpu.count=8
			gpu.replicas=1
			mig.capable=true
			mig.strategy=mixed
			mig-1g.5gb.count=14
			.../count=8
			.../mig.gpus=2
			.../mig.devices=14
			.../mig.state=mixed`},
		{"U15 all H100 split", machine(host(n(8, func(i int) discover.GPU {
			return mig(h100(i), repeat(slice("1g.10gb", 9984, 16, 1), 7)...)
		})...), "PowerEdge XE9680"), mixed, `
			gpu.count=8
			gpu.product=NVIDIA-H100-80GB-HBM3
			gpu.memory=81559
			gpu.family=hopper
			gpu.replicas=0
			gpu.sharing-strategy=none
			gpu.machine=PowerEdge-XE9680
			mig-1g.10gb.count=56
			.../mig.gpus=8
			.../mig.devices=56
			.../mig.state=enabled`},
		{"U16 MIG on and nothing created", host(mig(gpu(0, "NVIDIA A100 80GB PCIe", 81920, 8, 0))), mixed, `
			gpu.product=NVIDIA-A100-80GB-PCIe
			gpu.count=1
			gpu.memory=81920
			mig.capable=true
			!mig-*
			.../mig.state=enabled-empty
			.../mig.gpus=1
			.../mig.devices=0`},
		{"U16 under the strategy single, as GFD", host(mig(gpu(0, "NVIDIA A100 80GB PCIe", 81920, 8, 0))), single, `
			gpu.product=NVIDIA-A100-80GB-PCIe-MIG-INVALID
			gpu.count=0
			gpu.memory=0
			gpu.replicas=0
			gpu.sharing-strategy=
			gpu.family=ampere
			mig.strategy=single
			.../mig.state=enabled-empty
			.../count=1
			.../memory.min=81920`},
		{"U17 balanced profiles", host(mig(a100of80(0),
			slice("1g.10gb", 9728, 14, 1), slice("1g.10gb", 9728, 14, 1), slice("2g.20gb", 19968, 28, 2), slice("3g.40gb", 40192, 42, 3))), mixed, `
			.../mig.state=enabled
			.../mig.devices=4
			mig-1g.10gb.count=2
			mig-2g.20gb.count=1
			mig-3g.40gb.count=1
			gpu.product=NVIDIA-A100-SXM4-80GB`},
		{"U17 balanced profiles under the strategy single, as GFD", host(mig(a100of80(0),
			slice("1g.10gb", 9728, 14, 1), slice("2g.20gb", 19968, 28, 2))), single, `
			.../mig.state=enabled
			gpu.product=NVIDIA-A100-SXM4-80GB-MIG-INVALID
			gpu.count=0
			!gpu.multiprocessors
			!mig-*`},
		{"U19 the profile's name is not its memory", host(n(8, func(i int) discover.GPU {
			return mig(a100(i), repeat(slice("3g.20gb", 20096, 42, 3), 2)...)
		})...), mixed, `
			mig-3g.20gb.count=16
			mig-3g.20gb.memory=20096
			mig-3g.20gb.multiprocessors=42
			!mig-3g.21gb*`},
		{"U21 MIG devices not permitted", func() *discover.Inventory {
			g := fails(mig(gpu(0, "NVIDIA A100-SXM4-40GB", 0, 8, 0)), "mig.devices", nvml.NoPermission)
			g.NVML.Errors["memory_bytes"] = nvml.NoPermission
			return host(g)
		}(), mixed, `
			mig.capable=true
			gpu.product=NVIDIA-A100-SXM4-40GB
			gpu.count=1
			!gpu.memory
			!mig-*
			!.../memory.*
			.../mig.state=unknown
			.../mig.gpus=1
			!.../mig.devices
			.../state=ok`},
		{"U23 unified memory", host(gb10), Options{}, `
			gpu.product=NVIDIA-GB10
			gpu.count=1
			gpu.family=blackwell
			gpu.compute.major=12
			gpu.compute.minor=1
			!gpu.memory
			.../memory.type=unified
			!.../memory.min
			!.../memory.max
			!.../memory.total
			.../homogeneous=true
			.../state=ok`},
		{"U24 unified memory as the system's", withSystemMemory(host(gb10), 127600748), Options{UnifiedMemory: UnifiedSystem}, `
			gpu.memory=124610
			.../memory.type=unified`},
		{"U24 unified memory in whole GiB", withSystemMemory(host(gb10), 127600748), Options{UnifiedMemory: UnifiedSystemGiB}, `
			gpu.memory=123904`},
		{"U24 the system's memory is unknown", host(gb10), Options{UnifiedMemory: UnifiedSystem}, `!gpu.memory`},
		{"U24 memory of its own stays", withSystemMemory(host(t4(0)), 127600748), Options{UnifiedMemory: UnifiedSystem}, `gpu.memory=15109`},
		{"U26 Orin has no PCI function", host(noPCI(unified(gpu(0, "Orin (nvgpu)", 0, 8, 7)))), Options{}, `
			gpu.product=Orin-nvgpu
			gpu.count=1
			gpu.mode=unknown
			!gpu.memory
			!pci-*
			.../memory.type=unified
			.../count=1
			!.../count.pci
			vgpu.present=false`},
		{"U27 Thor with the older driver", host(unified(gpu(0, "NVIDIA Thor", 0, 10, 1))), Options{}, `
			gpu.product=NVIDIA-Thor
			gpu.family=blackwell
			gpu.compute.major=10
			.../memory.type=unified`},
		{"U27 Thor with the newer driver", host(unified(gpu(0, "NVIDIA Thor", 0, 11, 0))), Options{}, `
			gpu.product=NVIDIA-Thor
			gpu.family=blackwell
			gpu.compute.major=11
			gpu.compute.minor=0`},
		{"U28 bytes are rounded down", func() *discover.Inventory {
			g := a100(0)
			g.MemoryBytes, g.NVML.MemoryBytes = 42505273344, 42505273344
			return host(g)
		}(), Options{}, `
			gpu.memory=40536
			.../memory.min=40536`},
		{"U30 the driver is not there yet", withState(host(onBusOnly(t4(0))), discover.StateNoDriver), Options{}, `
			pci-0302_10de.present=true
			pci-10de.present=true
			.../count.pci=1
			.../count.failed=1
			.../state=no-driver
			!.../count
			!gpu.*
			!cuda.*
			!mig.*
			!vgpu.*`},
		{"U33 library and kernel module differ, no history", withState(host(onBusOnly(t4(0))), discover.StateDriverMismatch), Options{}, `
			pci-0302_10de.present=true
			.../state=driver-mismatch
			!gpu.*`},
		{"U34 the first of four GPUs is lost", host(failed(a100(0)), a100(1), a100(2), a100(3)), Options{}, `
			gpu.count=3
			gpu.product=NVIDIA-A100-SXM4-40GB
			gpu.memory=40960
			.../count.pci=4
			.../count=3
			.../count.failed=1
			.../state=degraded
			.../homogeneous=true`},
		{"U34 the last of four GPUs is lost", host(a100(0), a100(1), a100(2), failed(a100(3))), Options{}, `
			gpu.count=3
			gpu.product=NVIDIA-A100-SXM4-40GB
			.../count.failed=1
			.../state=degraded`},
		{"U36 all GPUs passed through", host(passthrough(a40(0)), passthrough(a40(1))), Options{}, `
			pci-0302_10de.present=true
			.../count.pci=2
			.../count.passthrough=2
			.../state=passthrough
			!.../count
			!.../homogeneous
			!.../memory.*
			!gpu.*
			!vgpu.*`},
		{"U37 half of the GPUs passed through", host(a40(0), a40(1), passthrough(a40(2)), passthrough(a40(3))), Options{}, `
			gpu.count=2
			.../count.pci=4
			.../count=2
			.../count.passthrough=2
			.../state=ok`},
		{"U39 a card's other functions", with(host(class(gpu(0, "NVIDIA GeForce RTX 3090", 24576, 8, 6), 0x030000)),
			pci.Function{Address: pci.Address{Bus: 0x10, Function: 1}, Vendor: pci.NVIDIA, Device: 0x1aef, Class: 0x040300},
			pci.Function{Address: pci.Address{Bus: 0x10, Function: 2}, Vendor: pci.NVIDIA, Device: 0x1ad8, Class: 0x0c0330},
			pci.Function{Address: pci.Address{Bus: 0x10, Function: 3}, Vendor: pci.NVIDIA, Device: 0x1ad9, Class: 0x0c8000}), Options{}, `
			pci-0300_10de.present=true
			!pci-0403*
			!pci-0c*
			.../count.pci=1`},
		{"U40 a display controller that is no GPU", with(host(t4(0)),
			pci.Function{Address: pci.Address{Device: 3}, Vendor: 0x1d0f, Device: 0x1111, Class: 0x030000}), Options{}, `
			pci-0300_1d0f.present=true
			!pci-1d0f.present
			pci-0302_10de.present=true
			pci-10de.present=true
			.../count.pci=1
			.../count=1`},
		{"U42 WSL", with(host(noPCI(t4(0)), noPCI(t4(1))),
			pci.Function{Vendor: 0x1414, Device: 0x008e, Class: 0x030200}), Options{}, `
			gpu.count=2
			.../count=2
			.../state=ok
			!.../count.pci
			!pci-10de*
			vgpu.present=false`},
		{"U44 one of two models is left", host(t4(1)), Options{}, `
			gpu.count=1
			gpu.product=Tesla-T4
			!.../model.nvidia-a100-80gb-pcie.count`},
		{"U45 the last GPU is gone", host(), Options{}, "!*\n!.../*\n!pci-*"},
		{"U54 time-slicing under another name", host(t4(0)), Options{Sharing: &Sharing{
			Strategy: TimeSlicing, Resources: []SharedResource{{Name: "nvidia.com/gpu", Renamed: true, Replicas: 50}},
		}}, `
			gpu.product=Tesla-T4
			gpu.memory=15109
			gpu.count=1
			gpu.replicas=50
			gpu.sharing-strategy=time-slicing`},
		{"U60 MIG is off again", host(migOff(a100(0))), mixed, `
			!mig-*
			mig.capable=true
			.../mig.state=disabled
			.../mig.gpus=0
			.../mig.devices=0`},
	}
	runRules(t, tests)
}

// TestWhole compares all labels of one host.
func TestWhole(t *testing.T) {
	h200 := func(i int) discover.GPU {
		g := migOff(gpu(i, "NVIDIA H200", 143771, 9, 0))
		vfs := 0
		g.Function.Device, g.Function.TotalVFs = 0x2335, &vfs
		g.NVML.Fabric = &nvml.Fabric{State: "completed", Status: nvml.Success, ClusterUUID: "00000000-0000-0000-0000-000000000000"}
		g.NVML.NVLink = &nvml.NVLink{Version: "4.0", Peers: []int{1 - i}}
		return g
	}
	inv := host(h200(0), h200(1))
	inv.Machine = new("Google Compute Engine")
	got, rejected := Compute(inv, Options{})
	if len(rejected) > 0 {
		t.Errorf("rejected %v", rejected)
	}
	const want = `feature.node.kubernetes.io/pci-0302_10de.present=true
feature.node.kubernetes.io/pci-0302_10de.sriov.capable=true
feature.node.kubernetes.io/pci-10de.present=true
gpu.feature.node.kubernetes.io/count=2
gpu.feature.node.kubernetes.io/count.pci=2
gpu.feature.node.kubernetes.io/homogeneous=true
gpu.feature.node.kubernetes.io/memory.max=143771
gpu.feature.node.kubernetes.io/memory.min=143771
gpu.feature.node.kubernetes.io/memory.total=287542
gpu.feature.node.kubernetes.io/memory.type=dedicated
gpu.feature.node.kubernetes.io/mig.devices=0
gpu.feature.node.kubernetes.io/mig.gpus=0
gpu.feature.node.kubernetes.io/mig.state=disabled
gpu.feature.node.kubernetes.io/model.nvidia-h200.count=2
gpu.feature.node.kubernetes.io/nvlink=all
gpu.feature.node.kubernetes.io/nvlink.version=4.0
gpu.feature.node.kubernetes.io/state=ok
gpu.feature.node.kubernetes.io/vendor.nvidia.count=2
nvidia.com/cuda.driver-version.full=580.159.04
nvidia.com/cuda.driver-version.major=580
nvidia.com/cuda.driver-version.minor=159
nvidia.com/cuda.driver-version.revision=04
nvidia.com/cuda.driver.major=580
nvidia.com/cuda.driver.minor=159
nvidia.com/cuda.driver.rev=04
nvidia.com/cuda.runtime-version.full=13.0
nvidia.com/cuda.runtime-version.major=13
nvidia.com/cuda.runtime-version.minor=0
nvidia.com/cuda.runtime.major=13
nvidia.com/cuda.runtime.minor=0
nvidia.com/gpu.compute.major=9
nvidia.com/gpu.compute.minor=0
nvidia.com/gpu.count=2
nvidia.com/gpu.family=hopper
nvidia.com/gpu.machine=Google-Compute-Engine
nvidia.com/gpu.memory=143771
nvidia.com/gpu.mode=compute
nvidia.com/gpu.product=NVIDIA-H200
nvidia.com/gpu.replicas=1
nvidia.com/gpu.sharing-strategy=none
nvidia.com/mig.capable=true
nvidia.com/mps.capable=false
nvidia.com/vgpu.present=false
`
	if text(got) != want {
		t.Errorf("got\n%swant\n%s", text(got), want)
	}
}
