package labels

import (
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

func TestMIGCapable(t *testing.T) {
	runRules(t, []ruleTest{
		{"one is", host(t4(0), migOff(a100(1))), Options{}, "mig.capable=true"},
		{"none is", host(fails(t4(0), "mig", nvml.NotSupported), t4(1)), Options{}, "mig.capable=false\n!.../mig.*"},
		{"the library is too old", host(fails(t4(0), "mig", nvml.FunctionNotFound)), Options{}, "mig.capable=false"},
		{"the query failed", host(fails(a100(0), "mig", unknownError)), Options{}, "!mig.capable\n!.../mig.*"},
		{"the query failed on one of two", host(fails(a100(0), "mig", unknownError), t4(1)), Options{}, "!mig.capable"},
		{"one is, the query failed on the other", host(fails(a100(0), "mig", unknownError), migOff(a100(1))), Options{}, "mig.capable=true"},
	})
}

func TestMIGMixed(t *testing.T) {
	mixed := Options{MIGStrategy: MIGMixed}
	odd := slice("3g.20gb", 20096, 42, 3)
	runRules(t, []ruleTest{
		{"no GPU is capable", host(t4(0)), mixed, "mig.strategy=mixed\n!mig-*\ngpu.product=Tesla-T4"},
		{"all attributes", host(mig(a100(0), nvml.MIGDevice{
			Profile: "1c.3g.20gb", MemoryMB: 19968, Multiprocessors: 14, GPUInstanceSlices: 3, ComputeInstanceSlices: 1,
			CopyEngines: 3, Decoders: 2, Encoders: 4, JPEGEngines: 5, OFAEngines: 6,
		})), mixed, `
			mig-1c.3g.20gb.product=NVIDIA-A100-SXM4-40GB-MIG-1c.3g.20gb
			mig-1c.3g.20gb.count=1
			mig-1c.3g.20gb.replicas=1
			mig-1c.3g.20gb.sharing-strategy=none
			mig-1c.3g.20gb.memory=19968
			mig-1c.3g.20gb.multiprocessors=14
			mig-1c.3g.20gb.slices.gi=3
			mig-1c.3g.20gb.slices.ci=1
			mig-1c.3g.20gb.engines.copy=3
			mig-1c.3g.20gb.engines.decoder=2
			mig-1c.3g.20gb.engines.encoder=4
			mig-1c.3g.20gb.engines.jpeg=5
			mig-1c.3g.20gb.engines.ofa=6`},
		{"the first device of a profile is described", host(mig(a100(1), slice("3g.20gb", 1, 1, 1)), mig(a100(0), odd)), mixed, `
			mig-3g.20gb.count=2
			mig-3g.20gb.memory=20096`},
		{"the first device's model", host(mig(a100(0), oneG()), mig(gpu(1, "NVIDIA A100-PCIE-40GB", 40960, 8, 0), oneG())), mixed, `
			mig-1g.5gb.count=2
			mig-1g.5gb.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb`},
		{"+ is a dot", host(mig(a100(0), slice("1g.5gb+me", 4864, 14, 1))), mixed, "mig-1g.5gb.me.count=1"},
		{"an empty GPU is passed over", host(mig(a100(0)), mig(a100(1), oneG())), mixed, "mig-1g.5gb.count=1\ngpu.count=2"},
		{"a device without profile is left out", host(mig(a100(0), nvml.MIGDevice{}, oneG())), mixed, "mig-1g.5gb.count=1\n!mig-.*\n.../mig.devices=2"},
		{"no multiprocessors", host(mig(a100(0), nvml.MIGDevice{Profile: "1g.5gb", MemoryMB: 4864, GPUInstanceSlices: 1, ComputeInstanceSlices: 1})), mixed, `
			mig-1g.5gb.memory=4864
			mig-1g.5gb.multiprocessors=0
			mig-1g.5gb.slices.gi=1`},
		{"more memory than there is", host(mig(a100(0), nvml.MIGDevice{Profile: "1g.5gb", MemoryMB: 1 << 63, Multiprocessors: 14})), mixed, `
			!mig-1g.5gb.memory
			mig-1g.5gb.multiprocessors=14`},
		{"attributes unread", host(mig(a100(0), nvml.MIGDevice{Profile: "1g.5gb"})), mixed, `
			mig-1g.5gb.count=1
			!mig-1g.5gb.memory
			!mig-1g.5gb.multiprocessors
			!mig-1g.5gb.engines.*`},
		{"MIG devices of a GPU whose mode is off", host(func() discover.GPU {
			g := mig(a100(0), oneG())
			g.NVML.MIG.Enabled = false
			return g
		}()), mixed, "!mig-*\n.../mig.state=disabled\n.../mig.devices=0"},
		{"the strategy none does not ask", host(mig(a100(0), oneG())), Options{MIGStrategy: MIGNone}, "!mig-*\n!mig.strategy"},
	})
}

func TestMIGSingle(t *testing.T) {
	single := Options{MIGStrategy: MIGSingle}
	omit := Options{MIGStrategy: MIGSingle, MixedGPUs: Omit}
	other := func(i int) discover.GPU { return gpu(i, "NVIDIA A100-PCIE-40GB", 40960, 8, 0) }
	runRules(t, []ruleTest{
		{"MIG is off", host(migOff(a100(0))), single, "mig.strategy=single\ngpu.product=NVIDIA-A100-SXM4-40GB\ngpu.count=1\ngpu.memory=40960"},
		{"one profile", host(mig(a100(0), repeat(oneG(), 7)...), mig(a100(1), repeat(oneG(), 7)...)), single, `
			mig.strategy=single
			gpu.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb
			gpu.count=14
			gpu.replicas=1
			gpu.sharing-strategy=none
			gpu.memory=4864
			gpu.multiprocessors=14
			gpu.slices.gi=1
			gpu.slices.ci=1
			gpu.engines.copy=1
			gpu.engines.ofa=0
			gpu.family=ampere
			gpu.compute.major=8
			!mig-*`},
		{"MIG on half of the GPUs", host(mig(a100(0), oneG()), migOff(a100(1))), single, "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-INVALID\ngpu.count=0"},
		{"a GPU without MIG beside", host(mig(a100(0), oneG()), t4(1)), single, "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-INVALID\ngpu.count=0"},
		{"one GPU is empty", host(mig(a100(0), oneG()), mig(a100(1))), single, "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-INVALID\ngpu.memory=0"},
		{"INVALID bears the first model with MIG", host(migOff(a100(0)), mig(other(1)), mig(a100(2))), single, "gpu.product=NVIDIA-A100-PCIE-40GB-MIG-INVALID"},
		{"INVALID without a name", host(mig(gpu(0, "", 40960, 8, 0))), single, "!gpu.product\ngpu.count=0"},
		{"MIG devices unread", host(fails(mig(a100(0), oneG()), "mig.devices", nvml.NoPermission)), single, `
			!gpu.product
			!gpu.count
			!gpu.memory
			!gpu.replicas
			!gpu.sharing-strategy
			!gpu.multiprocessors
			gpu.family=ampere
			mig.strategy=single
			.../mig.state=unknown`},
		{"MIG devices unread, invalid all the same", host(fails(mig(a100(0)), "mig.devices", nvml.NoPermission), migOff(a100(1))), single, "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-INVALID"},
		{"a profile unread", host(mig(a100(0), oneG(), nvml.MIGDevice{})), single, "!gpu.product\n!gpu.count"},
		{"MIG mode of another GPU unread", host(mig(a100(0), oneG()), fails(a100(1), "mig", unknownError)), single, "!gpu.product\n!gpu.count"},
		{"MIG mode of the only GPU unread", host(fails(a100(0), "mig", unknownError)), single, "gpu.product=NVIDIA-A100-SXM4-40GB\ngpu.count=1"},
		{"two models: the first device", host(mig(a100(0), oneG()), mig(other(1), oneG()), mig(other(2), oneG())), single, "gpu.product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb\ngpu.count=3"},
		{"two models, omit", host(mig(a100(0), oneG()), mig(other(1), slice("1g.5gb", 4800, 14, 1))), omit, `
			!gpu.product
			!gpu.memory
			gpu.count=2
			gpu.multiprocessors=14
			gpu.replicas=1`},
		{"two models, omit, invalid", host(mig(a100(0)), mig(other(1), oneG())), omit, "!gpu.product\ngpu.count=0\ngpu.memory=0"},
	})
}

func TestMIGState(t *testing.T) {
	unread := func(g discover.GPU) discover.GPU { return fails(g, "mig.devices", nvml.NoPermission) }
	runRules(t, []ruleTest{
		{"no GPU is capable", host(t4(0)), Options{}, "!.../mig.*"},
		{"disabled", host(migOff(a100(0)), migOff(a100(1))), Options{}, ".../mig.state=disabled\n.../mig.gpus=0\n.../mig.devices=0"},
		{"enabled", host(mig(a100(0), oneG())), Options{}, ".../mig.state=enabled\n.../mig.gpus=1\n.../mig.devices=1"},
		{"enabled and empty", host(mig(a100(0))), Options{}, ".../mig.state=enabled-empty\n.../mig.gpus=1\n.../mig.devices=0"},
		{"mixed", host(mig(a100(0)), mig(a100(1), oneG())), Options{}, ".../mig.state=mixed\n.../mig.gpus=2\n.../mig.devices=1"},
		{"a GPU that cannot does not count", host(mig(a100(0), oneG()), t4(1)), Options{}, ".../mig.state=enabled"},
		{"unknown beside disabled", host(migOff(a100(0)), unread(mig(a100(1)))), Options{}, ".../mig.state=unknown\n.../mig.gpus=1\n!.../mig.devices"},
		{"disabled needs no devices", host(unread(migOff(a100(0)))), Options{}, ".../mig.state=disabled\n.../mig.devices=0"},
		{"mode unread on one", host(mig(a100(0), oneG()), fails(a100(1), "mig", unknownError)), Options{}, ".../mig.state=unknown\n!.../mig.gpus\n!.../mig.devices"},
		{"a failed GPU does not count", host(mig(a100(0), oneG()), failed(a100(1))), Options{}, ".../mig.state=enabled\n.../mig.gpus=1"},
	})
}
