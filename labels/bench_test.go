package labels

import (
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

func BenchmarkCompute(b *testing.B) {
	linked := func(i, of int) discover.GPU {
		g := migOff(a100(i))
		g.NVML.NVLink = &nvml.NVLink{Version: "3.0"}
		for peer := range of {
			if peer != i {
				g.NVML.NVLink.Peers = append(g.NVML.NVLink.Peers, peer)
			}
		}
		return g
	}
	eight := host(n(8, func(i int) discover.GPU { return linked(i, 8) })...)
	split := host(n(16, func(i int) discover.GPU { return mig(linked(i, 16), repeat(oneG(), 7)...) })...)

	run := func(name string, inv *discover.Inventory, opts Options) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Compute(inv, opts)
			}
		})
	}
	run("8 GPUs", eight, Options{})
	run("16 GPUs with 7 MIG devices each", split, Options{MIGStrategy: MIGMixed})
}
