package doctor

import (
	"fmt"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/intel"
	"github.com/gpu-labeller/gpu-labeller/dra"
)

// advertiser is who tells the kubelet of a vendor's GPUs, and under what names.
type advertiser struct {
	vendor   discover.Vendor
	plugin   *component
	dra      string // the DRA driver, in ResourceSlices
	resource func(name string) bool
}

var advertisers = []advertiser{
	{discover.NVIDIA, &nvidiaPlugin, dra.NVIDIA, func(r string) bool {
		return r == "nvidia.com/gpu" || r == "nvidia.com/gpu.shared" || strings.HasPrefix(r, "nvidia.com/mig-")
	}},
	// With its naming strategy mixed, AMD's plugin names partitions as they are:
	// amd.com/cpx_nps4.
	{discover.AMD, &amdPlugin, "gpu.amd.com", func(r string) bool { return strings.HasPrefix(r, "amd.com/") }},
	{discover.Intel, &intelPlugin, "gpu.intel.com", func(r string) bool {
		return strings.HasPrefix(r, "gpu.intel.com/") && !strings.HasSuffix(r, "_monitoring") && !strings.HasSuffix(r, "/millicores") && !strings.HasSuffix(r, "/memory.max")
	}},
}

// wanting gives the usable GPUs of the vendor that somebody should advertise: not
// a processor's own, which is a node's display more often than not.
func (v *advertiser) wanting(h *host) []*discover.GPU {
	var gpus []*discover.GPU
	for _, g := range h.usable(v.vendor) {
		switch {
		case g.Intel != nil && g.Intel.Model.Kind != intel.Discrete:
		case g.AMD != nil && g.AMD.APU && g.Function.ClassID() == 0x0300:
		default:
			gpus = append(gpus, g)
		}
	}
	return gpus
}

// checkPlugin looks for the pod that tells the kubelet of the GPUs.
func (v *advertiser) checkPlugin(k *state) Check {
	c := v.plugin.check(k.pods)
	switch {
	case c.Name != "":
		return c
	case k.advertised(v.vendor):
		return Check{Name: v.plugin.name, Result: OK, Text: "GPUs are advertised, by something that is not known here"}
	case k.podsErr != nil:
		return skip(v.plugin.name, because(k.podsErr))
	}
	c = Check{Name: v.plugin.name, Result: Fault, Text: v.plugin.title + " does not run on this Node, and nothing else advertises its GPUs"}
	c.Evidence, c.Cure = v.plugin.absentBecause(k)
	switch {
	case len(c.Evidence) > 0:
	case k.daemonErr != nil:
		c.Evidence = []string{"whether there is a DaemonSet cannot be told: " + because(k.daemonErr)}
		c.Cure = "install it, or find out why it has no pod here"
	default:
		c.Evidence = []string{"no DaemonSet of it was found"}
		c.Cure = fmt.Sprintf("install %s, or the vendor's operator or DRA driver", v.plugin.title)
	}
	return c
}
