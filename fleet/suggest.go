package fleet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// Suggestion is what to write into a pod to get GPUs like those of a Node.
type Suggestion struct {
	Node        string                    `json:"node"`
	Product     string                    `json:"product,omitempty"`
	AlsoOn      []string                  `json:"alsoOn"` // other Nodes that the selector selects
	Selector    map[string]string         `json:"nodeSelector,omitempty"`
	Affinity    *corev1.NodeSelectorTerm  `json:"nodeAffinityTerm,omitempty"` // what it must have at least
	Tolerations []corev1.Toleration       `json:"tolerations,omitempty"`
	Limits      map[string]int64          `json:"limits,omitempty"`
	Resources   []string                  `json:"resources"` // all that the Node offers
	Claim       *resourcev1.DeviceRequest `json:"deviceRequest,omitempty"`
	ClaimNote   string                    `json:"deviceRequestNote,omitempty"` // why there is none, or what else there is to select by
	Warnings    []string                  `json:"warnings,omitempty"`          // why the pod may wait, as sentences
}

// Suggest says how a pod asks for n GPUs like those of a Node of one vendor.
func (c *Cluster) Suggest(ctx context.Context, node *corev1.Node, vendor Vendor, n int64) (Suggestion, error) {
	l := node.Labels
	g := describe(node, vendor)
	s := Suggestion{Node: node.Name, Product: g.Product, AlsoOn: []string{}, Resources: []string{}}
	for _, key := range []string{nvidiaPrefix + "gpu.product", amdPrefix + "gpu.product-name", intelPrefix + "product"} {
		if l[key] != "" && keyVendor(key) == vendor {
			s.Selector = map[string]string{key: l[key]}
		}
	}
	if s.Selector == nil {
		if key := OwnPrefix + "vendor." + string(vendor) + ".count"; l[key] != "" {
			s.Affinity = &corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpExists}}}
		}
	}
	if e := atLeast(l, vendor); len(e) > 0 {
		s.Affinity = &corev1.NodeSelectorTerm{MatchExpressions: e}
	}
	for _, other := range c.Nodes {
		if other.Name != node.Name && selects(s, other) {
			s.AlsoOn = append(s.AlsoOn, other.Name)
		}
	}
	slices.Sort(s.AlsoOn)
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule || strings.HasPrefix(t.Key, "node.kubernetes.io/") || strings.HasPrefix(t.Key, "node.cloudprovider.kubernetes.io/") {
			continue
		}
		toleration := corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpExists, Effect: t.Effect}
		if t.Value != "" {
			toleration.Operator, toleration.Value = corev1.TolerationOpEqual, t.Value
		}
		s.Tolerations = append(s.Tolerations, toleration)
	}
	for _, o := range c.offers(node, vendor, nil) {
		if o.Allocatable > 0 {
			s.Resources = append(s.Resources, o.Resource)
		}
	}
	if len(s.Resources) > 0 {
		s.Limits = map[string]int64{s.Resources[0]: n}
		most, on := c.most(corev1.ResourceName(s.Resources[0]), append([]string{node.Name}, s.AlsoOn...))
		if n > most {
			s.Warnings = append(s.Warnings, fmt.Sprintf("no such node has more than %d %s (%s), and a pod gets its GPUs from one node: with %d it stays pending", most, s.Resources[0], on, n))
		}
	}
	if err := c.suggestClaim(ctx, &s, node, vendor, n); err != nil {
		return s, err
	}
	if s.Selector == nil && s.Affinity == nil && s.Claim == nil {
		s.Warnings = append(s.Warnings, "no label tells of the node's GPUs, so the pod may go to any node with the resource: does gpu-labeller run there?")
	}
	if !c.anyTakesPods(append([]string{node.Name}, s.AlsoOn...)) {
		s.Warnings = append(s.Warnings, "each node with such GPUs is cordoned or not ready: until one is not, the pod stays pending")
	}
	if s.Limits == nil && s.Claim == nil {
		// A pod without a limit would be there, and have no GPU.
		name := usualResource[vendor]
		s.Limits = map[string]int64{name: n}
		if g.Count > 0 && n > g.Count {
			s.Warnings = append(s.Warnings, fmt.Sprintf("by its labels the node has %d, and a pod gets its GPUs from one node: with %d it stays pending", g.Count, n))
		}
		s.Warnings = append(s.Warnings, fmt.Sprintf("the node offers no resource of GPUs: does the device plugin run there? It would offer %s; until it does the pod stays pending", name))
	}
	return s, nil
}

// usualResource is what the vendor's device plugin offers whole GPUs as. Intel's
// names them by the kernel driver, i915 or xe.
var usualResource = map[Vendor]string{NVIDIA: "nvidia.com/gpu", AMD: "amd.com/gpu", Intel: "gpu.intel.com/i915"}

// anyTakesPods tells whether one of these Nodes is ready and not cordoned. A Node
// without conditions was read from a file, or nobody has reported on it yet.
func (c *Cluster) anyTakesPods(nodes []string) bool {
	return slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool {
		return slices.Contains(nodes, n.Name) && !n.Spec.Unschedulable && (ready(n) || len(n.Status.Conditions) == 0)
	})
}

// most is the Node of these that offers most of a resource, and how much.
func (c *Cluster) most(name corev1.ResourceName, nodes []string) (n int64, on string) {
	for _, node := range c.Nodes {
		if q := node.Status.Allocatable[name]; slices.Contains(nodes, node.Name) && q.Value() > n {
			n, on = q.Value(), node.Name
		}
	}
	return n, on
}

// keyVendor tells whose GPUs a label is of.
func keyVendor(key string) Vendor {
	for prefix, vendor := range map[string]Vendor{nvidiaPrefix: NVIDIA, amdPrefix: AMD, intelPrefix: Intel} {
		if strings.HasPrefix(key, prefix) {
			return vendor
		}
	}
	return ""
}

// atLeast asks for as much memory and the same family, whatever the product.
func atLeast(l map[string]string, vendor Vendor) []corev1.NodeSelectorRequirement {
	var all []corev1.NodeSelectorRequirement
	memory, family := OwnPrefix+"memory.min", ""
	switch vendor {
	case NVIDIA:
		family = nvidiaPrefix + "gpu.family"
		if l[memory] == "" {
			memory = nvidiaPrefix + "gpu.memory"
		}
	case AMD:
		family = amdPrefix + "gpu.family"
	case Intel:
		family = intelPrefix + "family"
	}
	if mib := number(l[memory]); mib > 0 {
		all = append(all, corev1.NodeSelectorRequirement{Key: memory, Operator: corev1.NodeSelectorOpGt, Values: []string{strconv.FormatInt(mib-1, 10)}})
	}
	if l[family] != "" {
		all = append(all, corev1.NodeSelectorRequirement{Key: family, Operator: corev1.NodeSelectorOpIn, Values: []string{l[family]}})
	}
	return all
}

func selects(s Suggestion, node *corev1.Node) bool {
	for key, value := range s.Selector {
		if node.Labels[key] != value {
			return false
		}
	}
	return len(s.Selector) > 0
}

// suggestClaim asks for devices by what the Node's ResourceSlices say of them: the
// attributes have the names that they have there.
func (c *Cluster) suggestClaim(ctx context.Context, s *Suggestion, node *corev1.Node, vendor Vendor, n int64) error {
	if !c.Knows(Slices, Classes) {
		s.ClaimNote = "ResourceSlices and DeviceClasses could not be read"
		return nil
	}
	all, err := c.Devices(node)
	if err != nil {
		return err
	}
	devices := slices.DeleteFunc(all, func(d Device) bool { return driverVendor(d.Driver) != vendor })
	if len(devices) == 0 {
		s.ClaimNote = "no DRA driver offers GPUs of this node"
		return nil
	}
	d := devices[0]
	for _, other := range devices {
		if typeOf(other) == "gpu" {
			d = other
			break
		}
	}
	i := slices.IndexFunc(c.Classes, func(class *resourcev1.DeviceClass) bool {
		return len(class.Spec.Selectors) > 0 && d.matchesAll(ctx, class.Spec.Selectors)
	})
	if i < 0 {
		s.ClaimNote = fmt.Sprintf("no DeviceClass selects device %s of %s", d.Name, d.Driver)
		return nil
	}
	var terms []string
	if name, ok := find(d.Attributes, "productName", "model"); ok && d.Attributes[name].StringValue != nil {
		terms = append(terms, fmt.Sprintf("%s == %s", path("attributes", name, d.Driver), strconv.Quote(*d.Attributes[name].StringValue)))
	}
	if name, ok := find(d.Capacity, "memory", "vram"); ok {
		q := d.Capacity[name].Value
		terms = append(terms, fmt.Sprintf("%s.compareTo(quantity(%q)) >= 0", path("capacity", name, d.Driver), q.String()))
	}
	request := &resourcev1.DeviceRequest{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: c.Classes[i].Name, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n,
	}}
	if expression := strings.Join(terms, " && "); expression != "" {
		if ok, err := d.Matches(ctx, expression); err != nil || !ok {
			return fmt.Errorf("device %s does not match its own attributes (%s): %w", d.Name, expression, cmp.Or(err, fmt.Errorf("false")))
		}
		request.Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
	}
	s.Claim = request
	s.ClaimNote = "the device also has " + strings.Join(describeDevice(d), ", ")
	return nil
}

func typeOf(d Device) string {
	if a, ok := d.Attributes["type"]; ok && a.StringValue != nil {
		return *a.StringValue
	}
	return ""
}

// find returns the first of the names that a device has, with its domain.
func find[T any](m map[resourcev1.QualifiedName]T, names ...string) (resourcev1.QualifiedName, bool) {
	for _, want := range names {
		for _, have := range slices.Sorted(maps.Keys(m)) {
			_, short, ok := strings.Cut(string(have), "/")
			if !ok {
				short = string(have)
			}
			if short == want {
				return have, true
			}
		}
	}
	return "", false
}

// path is how CEL reads an attribute or a capacity.
func path(kind string, name resourcev1.QualifiedName, driver string) string {
	domain, short, ok := strings.Cut(string(name), "/")
	if !ok {
		domain, short = driver, string(name)
	}
	return fmt.Sprintf("device.%s[%q].%s", kind, domain, short)
}

// describeDevice lists what there is to select by.
func describeDevice(d Device) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		all = append(all, fmt.Sprintf("%s %s", name, Value(d.Attributes[name])))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		q := d.Capacity[name].Value
		all = append(all, fmt.Sprintf("%s %s", name, q.String()))
	}
	return all
}
