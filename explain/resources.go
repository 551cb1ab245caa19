package explain

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// shortage is one resource that a Node has too little of.
type shortage struct {
	resource corev1.ResourceName
	node     *corev1.Node
	need     int64
	total    int64 // allocatable
	held     fleet.Held
}

// asked is the resources that the scheduler looks at, those every pod needs first.
func (p *problem) asked() []corev1.ResourceName {
	names := []corev1.ResourceName{corev1.ResourcePods}
	var others []corev1.ResourceName
	for name, q := range p.requests {
		if fleet.Amount(name, q) > 0 && counted(name) {
			others = append(others, name)
		}
	}
	slices.SortFunc(others, func(a, b corev1.ResourceName) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(string(a), string(b)))
	})
	return append(names, others...)
}

// rank puts a Node's own resources before those of device plugins.
func rank(name corev1.ResourceName) int {
	return slices.Index([]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, name}, name)
}

// counted leaves out what the scheduler does not know: names without a domain.
func counted(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	return strings.Contains(string(name), "/") || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix)
}

// shortages of a Node. A resource that the Node does not offer and a DeviceClass
// stands for is one of the device claims.
func (p *problem) shortages(node *corev1.Node) []shortage {
	var short []shortage
	for _, name := range p.asked() {
		total := offered(node, name)
		if p.byDevices(name, node) {
			continue
		}
		need := int64(1)
		if name != corev1.ResourcePods {
			need = fleet.Amount(name, p.requests[name])
		}
		if held := p.usage.Of(node.Name, name); need > total-held.Amount {
			short = append(short, shortage{name, node, need, total, held})
		}
	}
	return short
}

func offered(node *corev1.Node, name corev1.ResourceName) int64 {
	q, ok := node.Status.Allocatable[name]
	if !ok {
		return 0
	}
	return fleet.Amount(name, q)
}

func (s shortage) free() int64 { return max(0, s.total-s.held.Amount) }

func (p *problem) checkResources(node *corev1.Node) []Reason {
	var reasons []Reason
	for _, s := range p.shortages(node) {
		r := Reason{Text: s.String(), Scheduler: "Insufficient " + string(s.resource), weight: s.weight(), never: s.never()}
		if s.resource == corev1.ResourcePods {
			r.Scheduler = "Too many pods"
		}
		reasons = append(reasons, r)
	}
	return reasons
}

// weight is how far the Node is from having enough. Of two that have too little
// the one that lacks less is nearer.
func (s shortage) weight() float64 {
	lacks := float64(s.need-s.free()) / float64(s.need)
	switch {
	case s.total == 0:
		return s.absence()
	case s.need > s.total:
		return tooSmall + lacks
	}
	return inUse + lacks
}

// never tells that the Node will not have enough whatever ends there, and whatever
// its device plugin comes to.
func (s shortage) never() bool {
	if s.total > 0 {
		return s.need > s.total
	}
	if q, ok := s.node.Status.Capacity[s.resource]; ok && q.Value() > 0 {
		return fleet.Amount(s.resource, q) < s.need
	}
	if s.resource == corev1.ResourcePods {
		return false
	}
	_, name, _ := strings.Cut(string(s.resource), "/")
	vendor := fleet.ResourceVendor(s.resource)
	usual := name == "gpu" || vendor == fleet.Intel
	return s.absence() != notOffered || !usual || fewerByLabel(s.node, vendor, s.need)
}

// absence is how far a Node is that does not offer the resource at all.
func (s shortage) absence() float64 {
	mig := func(name string) bool { return strings.Contains(name, "/mig-") }
	if vendor := fleet.ResourceVendor(s.resource); vendor != "" {
		switch others := gpuResources(s.node, vendor); {
		case mig(string(s.resource)) && slices.ContainsFunc(others, mig):
			return otherProfile
		case len(others) > 0:
			return otherName
		}
	}
	if s.resource == corev1.ResourcePods || s.hint() != "" {
		return notOffered
	}
	return outOfReach
}

// room is how many pods like this fit by what is free, on the Nodes where one does.
func (p *problem) room(fits []string) *int64 {
	if p.claims.asked || !p.cluster.Knows(fleet.Pods) {
		return nil
	}
	in := sets.New(fits...)
	sum := int64(0)
	for _, node := range p.nodes {
		if !in.Has(node.Name) {
			continue
		}
		least := int64(math.MaxInt64)
		for _, name := range p.asked() {
			if p.byDevices(name, node) {
				return nil
			}
			need := int64(1)
			if name != corev1.ResourcePods {
				need = fleet.Amount(name, p.requests[name])
			}
			least = min(least, max(0, offered(node, name)-p.usage.Of(node.Name, name).Amount)/need)
		}
		if p.hostPorts() {
			least = min(least, 1)
		}
		sum += least
	}
	return &sum
}

// String is the shortage of one Node.
func (s shortage) String() string {
	write := func(n int64) string { return fleet.Write(s.resource, n) }
	switch {
	case s.resource == corev1.ResourcePods:
		return fmt.Sprintf("%s of %s pods are there already", write(s.held.Amount), write(s.total))
	case s.total == 0:
		return fmt.Sprintf("needs %s %s; the node offers none%s", write(s.need), s.resource, after("; ", s.hint()))
	case s.need > s.total:
		return fmt.Sprintf("needs %s %s; the node has %s in all", write(s.need), s.resource, write(s.total))
	}
	return fmt.Sprintf("needs %s %s; %s of %s free%s", write(s.need), s.resource, write(s.free()), write(s.total), s.heldBy())
}

// heldBy names who holds the most.
func (s shortage) heldBy() string {
	const most = 4
	if len(s.held.Holders) == 0 || s.resource == corev1.ResourcePods {
		return ""
	}
	var parts []string
	for i, h := range s.held.Holders {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more", len(s.held.Holders)-most))
			break
		}
		text := fmt.Sprintf("%s (%s)", h.Pod, fleet.Write(s.resource, h.Amount))
		if h.Nominated {
			text = fmt.Sprintf("%s (%s, which pods are being evicted for)", h.Pod, fleet.Write(s.resource, h.Amount))
		}
		parts = append(parts, text)
	}
	return ": held by " + strings.Join(parts, ", ")
}

// hint says what stands where a resource of GPUs should be.
func (s shortage) hint() string {
	vendor := fleet.ResourceVendor(s.resource)
	if vendor == "" {
		return ""
	}
	if q, ok := s.node.Status.Capacity[s.resource]; ok && q.Value() > 0 {
		return fmt.Sprintf("it has %s, and the device plugin reports none of them healthy", q.String())
	}
	if others := gpuResources(s.node, vendor); len(others) > 0 {
		return "it offers " + some(others)
	}
	if key, n := gpuLabel(s.node, vendor); key != "" {
		return fmt.Sprintf("by its label %s it has %s: does the device plugin run there?", key, n)
	}
	return ""
}

// gpuLabel is the label by which a Node has GPUs of a vendor, and its value.
func gpuLabel(node *corev1.Node, vendor fleet.Vendor) (key, n string) {
	for _, key := range []string{fleet.OwnPrefix + "vendor." + string(vendor) + ".count", string(vendor) + ".com/gpu.count"} {
		if n := node.Labels[key]; n != "" && n != "0" {
			return key, n
		}
	}
	return "", ""
}

// fewerByLabel tells that a Node which offers no GPUs of a vendor would offer fewer
// than a pod needs. Those that are shared or partitioned count as often as they may
// be offered, and where the labels do not say how often, nothing is known.
func fewerByLabel(node *corev1.Node, vendor fleet.Vendor, need int64) bool {
	number := func(key string) int64 {
		n, err := strconv.ParseInt(node.Labels[key], 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	key, _ := gpuLabel(node, vendor)
	most := number(key)
	switch vendor {
	case fleet.NVIDIA:
		most = max(most, number("nvidia.com/gpu.count"), number(fleet.OwnPrefix+"mig.devices")) * max(1, number("nvidia.com/gpu.replicas"))
	case fleet.AMD:
		mode := node.Labels["amd.com/gpu.compute-memory-partition"]
		if mode != "" && !strings.HasPrefix(mode, "spx") || mode == "" && node.Labels["amd.com/gpu.compute-partitioning-supported"] == "true" {
			return false
		}
	}
	return most > 0 && most < need
}

// idleGPUs says which Nodes have GPUs that nobody can ask for, as far as labels
// and capacity tell: that is a way to more.
func idleGPUs(short []shortage) string {
	var unhealthy, unoffered []shortage
	for _, s := range short {
		vendor := fleet.ResourceVendor(s.resource)
		if s.total > 0 || vendor == "" || s.never() {
			continue
		}
		key, _ := gpuLabel(s.node, vendor)
		switch q := s.node.Status.Capacity[s.resource]; {
		case q.Value() > 0:
			unhealthy = append(unhealthy, s)
		case key != "" && len(gpuResources(s.node, vendor)) == 0:
			unoffered = append(unoffered, s)
		}
	}
	say := func(all []shortage, several string) string {
		switch len(all) {
		case 0:
			return ""
		case 1:
			return all[0].node.Name + ": " + all[0].hint()
		}
		names := make([]string, len(all))
		for i, s := range all {
			names[i] = s.node.Name
		}
		return some(names) + " " + several
	}
	text := say(unoffered, "have GPUs by their labels: does the device plugin run there?")
	return text + after(map[bool]string{true: "; "}[text != ""], say(unhealthy, "have some, and the device plugin reports none of them healthy"))
}

// gpuResources is a vendor's GPU resources that a Node offers.
func gpuResources(node *corev1.Node, vendor fleet.Vendor) []string {
	var names []string
	for name, q := range node.Status.Allocatable {
		if q.Value() > 0 && fleet.ResourceVendor(name) == vendor {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// resourceMisses says of each resource how close the closest Node comes. A Node
// where all else holds comes before one with more that is free.
func (p *problem) resourceMisses(nodes []Node) []Miss {
	far := make(map[string]float64, len(nodes))
	for _, n := range nodes {
		far[n.Name] = n.Distance
	}
	short := make(map[corev1.ResourceName][]shortage)
	for _, node := range p.nodes {
		for _, s := range p.shortages(node) {
			short[s.resource] = append(short[s.resource], s)
		}
	}
	var misses []Miss
	for _, name := range p.asked() {
		if len(short[name]) > 0 {
			misses = append(misses, p.resourceMiss(short[name], far))
		}
	}
	return misses
}

// resourceMiss chooses the closest of the Nodes that are short of one resource.
func (p *problem) resourceMiss(short []shortage, far map[string]float64) Miss {
	name := short[0].resource
	m := Miss{Check: Resources}
	for _, s := range short {
		m.Nodes = append(m.Nodes, s.node.Name)
	}
	best := slices.MinFunc(short, func(a, b shortage) int {
		return cmp.Or(cmp.Compare(far[a.node.Name], far[b.node.Name]), cmp.Compare(b.free(), a.free()), cmp.Compare(b.total, a.total))
	})
	most := slices.MaxFunc(short, func(a, b shortage) int { return cmp.Compare(a.total, b.total) })
	write := func(n int64) string { return fleet.Write(name, n) }
	switch {
	case name == corev1.ResourcePods && best.total == 0:
		m.Text = best.node.Name + " has no room for pods: has its kubelet come up?"
	case name == corev1.ResourcePods:
		m.Text = fmt.Sprintf("no room for another pod; %s has %s of %s", best.node.Name, write(best.held.Amount), write(best.total))
	case most.total == 0 && len(short) == len(p.nodes):
		m.Text = fmt.Sprintf("needs %s %s; no node offers it", write(best.need), name)
		m.Cure = p.missingResource(name)
	case most.total == 0 && len(short) > 1:
		m.Text = fmt.Sprintf("needs %s %s; none of them offers it", write(best.need), name)
		if m.Cure = idleGPUs(short); m.Cure == "" {
			m.Cure = after(best.node.Name+": ", best.hint())
		}
	case best.total == 0:
		m.Text = fmt.Sprintf("needs %s %s; %s does not offer it", write(best.need), name, best.node.Name)
		m.Cure = best.hint()
	case best.need > best.total:
		m.Text = fmt.Sprintf("needs %s %s; the most a node has is %s on %s", write(best.need), name, write(most.total), most.node.Name)
		m.Cure = "ask for no more than one node has"
		if best.node != most.node {
			m.Text = fmt.Sprintf("needs %s %s; %s has %s in all", write(best.need), name, best.node.Name, write(best.total))
		}
	default:
		m.Text = fmt.Sprintf("needs %s %s; %s of %s free on %s%s", write(best.need), name, write(best.free()), write(best.total), best.node.Name, best.heldBy())
		m.Cure = idleGPUs(short)
	}
	return m
}

// missingResource is the cure for a resource of GPUs that no Node offers.
func (p *problem) missingResource(name corev1.ResourceName) string {
	var offers []string
	for _, node := range p.nodes {
		for other := range node.Status.Allocatable {
			if counted(other) && offered(node, other) > 0 {
				offers = append(offers, string(other))
			}
		}
	}
	slices.Sort(offers)
	// One profile of MIG is not another spelt wrong.
	if like := Similar(string(name), slices.Compact(offers)); like != "" && !strings.Contains(string(name), "/mig-") {
		return "is " + like + " meant?"
	}
	vendor := fleet.ResourceVendor(name)
	if vendor == "" {
		return "is the name spelt right?"
	}
	var all []string
	for _, node := range p.nodes {
		all = append(all, gpuResources(node, vendor)...)
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > 0 {
		return "nodes offer " + some(all) + ": ask for that instead"
	}
	need := fleet.Amount(name, p.requests[name])
	few := ""
	for _, node := range p.nodes {
		s := shortage{resource: name, node: node, need: need}
		switch hint := s.hint(); {
		case hint == "":
		case !s.never():
			return node.Name + ": " + hint
		case few == "":
			few = node.Name + ": " + hint
		}
	}
	if few != "" {
		return few
	}
	return "does the device plugin run on the nodes with GPUs?"
}

// evictable names the less important pods that hold what the pod lacks: the
// scheduler may evict them for it.
func (p *problem) evictable() []string {
	if p.pod.Spec.PreemptionPolicy != nil && *p.pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return nil
	}
	mine := int32(0)
	if p.pod.Spec.Priority != nil {
		mine = *p.pod.Spec.Priority
	}
	var pods []string
	for _, node := range p.nodes {
		for _, s := range p.shortages(node) {
			for _, h := range s.held.Holders {
				if h.Priority < mine && !h.Nominated {
					pods = append(pods, h.Pod)
				}
			}
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// after puts a separator before a text, if there is one.
func after(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}
