package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// advertisementStep compares what the kubelet advertises with the GPUs that are
// there.
func advertisementStep(h *host, k *state, opts labels.Options, no string) Step {
	if why := incomparable(h, k, no); why != "" {
		return skippedStep(why)
	}
	opts, _ = likeTheNode(opts, k.node.Metadata.Labels)
	var s Step
	for i := range advertisers {
		v := &advertisers[i]
		dra := len(k.draDevices(v.dra)) > 0
		for _, want := range v.expected(h, k, opts) {
			if c := want.check(k, dra); c.Name != "" {
				s.Checks = append(s.Checks, c)
			}
		}
	}
	if c := h.checkSlices(k); c.Name != "" {
		s.Checks = append(s.Checks, c)
	}
	if len(s.Checks) == 0 {
		s.Note = "there is nothing to advertise"
	}
	return s
}

// expectation is how many of a resource there should be.
type expectation struct {
	resource string
	count    int
	what     string // how the count comes about
	least    bool   // more are right, too: the plugin may share them
}

// expected are the resources that the vendor's plugin should advertise, and
// those of it that the Node has without.
func (v *advertiser) expected(h *host, k *state, opts labels.Options) []expectation {
	var all []expectation
	switch gpus := v.wanting(h); v.vendor {
	case discover.NVIDIA:
		all = expectNVIDIA(gpus, k, opts)
	case discover.AMD:
		all = expectAMD(gpus, k)
	case discover.Intel:
		all = expectIntel(gpus, k)
	}
	for _, name := range sortedKeys(k.node.Status.Capacity) {
		if v.resource(name) && !slices.ContainsFunc(all, func(e expectation) bool { return e.resource == name }) && v.vendor == discover.NVIDIA {
			all = append(all, expectation{resource: name, what: "no such device is there"})
		}
	}
	return all
}

// expectNVIDIA counts as NVIDIA's device plugin does (v0.20): with the MIG
// strategy none every GPU is one; with mixed, GPUs with MIG disabled, and each
// profile by itself; with single, MIG devices in the GPUs' place.
func expectNVIDIA(gpus []*discover.GPU, k *state, opts labels.Options) []expectation {
	whole := 0
	profiles := map[string]int{}
	for _, g := range gpus {
		if g.NVML == nil || g.NVML.MIG == nil || !g.NVML.MIG.Enabled {
			whole++
			continue
		}
		for _, d := range g.NVML.MIG.Devices {
			profiles[strings.ReplaceAll(d.Profile, "+", ".")]++
		}
	}
	strategy := opts.MIGStrategy
	if strategy == labels.MIGNone {
		for name := range k.node.Status.Capacity {
			if strings.HasPrefix(name, "nvidia.com/mig-") {
				strategy = labels.MIGMixed // the plugin's, whatever the labels'
			}
		}
	}
	var all []expectation
	add := func(name string, n int, what string) {
		if n == 0 {
			return
		}
		for _, shared := range sharedResources(opts.Sharing) {
			if shared.Name != name {
				continue
			}
			what += fmt.Sprintf(", each shared by %d", shared.Replicas)
			n *= shared.Replicas
			if _, ok := k.node.Status.Capacity[name+".shared"]; ok && shared.Renamed {
				name += ".shared"
			}
		}
		all = append(all, expectation{resource: name, count: n, what: what})
	}
	switch {
	case strategy == labels.MIGMixed:
		add("nvidia.com/gpu", whole, plural(whole, "usable GPU")+" with MIG disabled")
		for _, p := range sortedKeys(profiles) {
			add("nvidia.com/mig-"+p, profiles[p], plural(profiles[p], "MIG device"))
		}
	case strategy == labels.MIGSingle && whole < len(gpus):
		n := 0
		for _, p := range profiles {
			n += p
		}
		if whole == 0 && len(profiles) == 1 { // else the plugin refuses
			add("nvidia.com/gpu", n, plural(n, "MIG device"))
		}
	default:
		add("nvidia.com/gpu", len(gpus), plural(len(gpus), "usable GPU"))
	}
	return all
}

func sharedResources(s *labels.Sharing) []labels.SharedResource {
	if s == nil {
		return nil
	}
	return s.Resources
}

// expectAMD counts partitions, which AMD's plugin takes for GPUs. Under its
// naming strategy mixed, any of the resources will do.
func expectAMD(gpus []*discover.GPU, k *state) []expectation {
	if len(gpus) == 0 {
		return nil
	}
	partitions := 0
	for _, g := range gpus {
		partitions += max(1, g.AMD.PartitionCount)
	}
	name := "amd.com/gpu"
	for _, key := range sortedKeys(k.node.Status.Capacity) {
		if _, plain := k.node.Status.Capacity[name]; !plain && strings.HasPrefix(key, "amd.com/") {
			name = key
		}
	}
	what := plural(len(gpus), "usable GPU")
	if partitions > len(gpus) {
		what += fmt.Sprintf(" in %d partitions", partitions)
	}
	return []expectation{{resource: name, count: partitions, what: what}}
}

// expectIntel counts GPUs by kernel driver; the plugin may give each to several
// pods.
func expectIntel(gpus []*discover.GPU, _ *state) []expectation {
	count := map[string]int{}
	for _, g := range gpus {
		count[g.Function.Driver]++
	}
	var all []expectation
	for _, driver := range sortedKeys(count) {
		all = append(all, expectation{"gpu.intel.com/" + driver, count[driver], plural(count[driver], "usable GPU"), true})
	}
	return all
}

// check compares the expectation with the Node's capacity, which is what the
// plugin lists, and allocatable, which is what of it is healthy.
func (e *expectation) check(k *state, dra bool) Check {
	c := Check{Name: e.resource, Result: OK}
	capacity, listed := quantity(k.node.Status.Capacity, e.resource)
	allocatable, _ := quantity(k.node.Status.Allocatable, e.resource)
	c.Evidence = []string{fmt.Sprintf("Node status: capacity %d, allocatable %d; expected %d (%s)", capacity, allocatable, e.count, e.what)}
	switch {
	case dra && (!listed || capacity == 0):
		return Check{} // that is DRA's task here
	case e.count == 0 && capacity == 0:
		return Check{} // a kubelet remembers resources that are gone
	case allocatable == e.count, e.least && allocatable >= e.count && allocatable%e.count == 0:
		c.Text = fmt.Sprintf("%d are allocatable", allocatable)
	case capacity == 0:
		c.Result = Fault
		c.Text = "the kubelet advertises none"
		c.Cure = "look at the device plugin's log: does it find the GPUs, and does the kubelet know it? Restart its pod after a driver that came late or a restart of the kubelet"
	case e.count > 0 && allocatable > e.count && allocatable%e.count == 0:
		c.Result = Warning
		c.Text = fmt.Sprintf("%d are allocatable, %d times what is there: perhaps they are shared", allocatable, allocatable/e.count)
		c.Cure = "if the device plugin shares them (time-slicing, MPS), give the labeller its configuration (--config-file), so that labels tell; if not, restart its pod: it lists what it found at its start"
	case allocatable > e.count:
		c.Result = Fault
		c.Text = fmt.Sprintf("more are allocatable (%d) than are there (%d)", allocatable, e.count)
		c.Cure = "restart the device plugin's pod: it lists what it found at its start"
	case allocatable < capacity:
		c.Result = Fault
		c.Text = fmt.Sprintf("%d of %d are not allocatable: the device plugin calls them unhealthy", capacity-allocatable, capacity)
		c.Cure = "look at the device plugin's log and the kernel log for Xid messages; reset the GPU or reboot, then restart the plugin's pod"
	default:
		c.Result = Fault
		c.Text = fmt.Sprintf("fewer are advertised (%d) than are there (%d)", allocatable, e.count)
		c.Cure = "restart the device plugin's pod: it lists what it found at its start; is its MIG strategy the labels'?"
	}
	return c
}

// quantity reads a whole number; others are none of a device plugin's.
func quantity(all map[string]string, name string) (int, bool) {
	text, ok := all[name]
	if !ok {
		return 0, false
	}
	if thousands, k := strings.CutSuffix(text, "k"); k { // 1k, as the API server writes 1000
		n, _ := strconv.Atoi(thousands)
		return 1000 * n, true
	}
	n, _ := strconv.Atoi(text)
	return n, true
}
