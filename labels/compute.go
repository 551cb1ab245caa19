package labels

import "github.com/gpu-labeller/gpu-labeller/discover"

// Compute gives the labels of the node that inv describes, and those that the
// API server would refuse, which are left out of the Set. The order of inv's
// slices does not matter.
func Compute(inv *discover.Inventory, opts Options) (Set, []Rejected) {
	s := make(Set, 64)
	if !opts.OmitPCI {
		pciLabels(s, inv.Functions, opts)
	}
	rejected := nvidiaLabels(s, inv, opts)
	amdLabels(s, inv, opts)
	intelLabels(s, inv, opts)
	if !opts.OmitExtra {
		gpuLabels(s, inv)
	}
	return s, append(rejected, s.dropIllegal()...)
}
