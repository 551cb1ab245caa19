package fleet

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Vendor is a maker of GPUs, as labels write it.
type Vendor string

// The vendors, in the order in which they are looked for.
const (
	NVIDIA Vendor = "nvidia"
	AMD    Vendor = "amd"
	Intel  Vendor = "intel"
)

// Resource prefixes, by which device plugins offer GPUs. Intel's plugin has other
// resources under its prefix that are no GPUs.
var gpuPrefixes = []struct {
	prefix string
	vendor Vendor
}{
	{"nvidia.com/gpu", NVIDIA}, {"nvidia.com/mig-", NVIDIA}, {"nvidia.com/pgpu", NVIDIA},
	{"amd.com/gpu", AMD}, {"amd.com/cpx", AMD}, {"amd.com/spx", AMD}, {"amd.com/dpx", AMD}, {"amd.com/qpx", AMD},
	{"gpu.intel.com/i915", Intel}, {"gpu.intel.com/xe", Intel},
}

// ResourceVendor tells whose GPUs a resource is; it is empty for one that is no
// GPU. Monitoring handles (gpu.intel.com/i915_monitoring) are none.
func ResourceVendor(name corev1.ResourceName) Vendor {
	if strings.HasSuffix(string(name), "_monitoring") {
		return ""
	}
	for _, p := range gpuPrefixes {
		if strings.HasPrefix(string(name), p.prefix) {
			return p.vendor
		}
	}
	return ""
}
