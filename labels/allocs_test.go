package labels

import (
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
)

// A bound by allocations holds on every machine; one by time would not. The race detector
// adds some.
func TestAllocations(t *testing.T) {
	split := host(n(16, func(i int) discover.GPU { return mig(a100(i), repeat(oneG(), 7)...) })...)
	whole := host(n(8, func(i int) discover.GPU { return migOff(a100(i)) })...)
	for name, c := range map[string]struct {
		inv  *discover.Inventory
		opts Options
		most float64
	}{
		"8 GPUs":                          {whole, Options{}, 170},
		"16 GPUs with 7 MIG devices each": {split, Options{MIGStrategy: MIGMixed}, 450},
	} {
		if n := testing.AllocsPerRun(20, func() { Compute(c.inv, c.opts) }); n > c.most {
			t.Errorf("%s: %v allocations, want %v at most", name, n, c.most)
		}
	}
}
