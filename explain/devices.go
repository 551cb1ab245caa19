package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// request is one request of a claim, or one of its alternatives.
type request struct {
	name        string // claim and request
	class       string
	selectors   []resourcev1.DeviceSelector
	tolerations []resourcev1.DeviceToleration
	count       int // 0: all that match
	admin       bool
	alternative bool
}

func requestsOf(claim *resourcev1.ResourceClaim) []request {
	var all []request
	name := func(parts ...string) string {
		return fmt.Sprintf("claim %s, request %s", fleet.Name(claim.Namespace, claim.Name), strings.Join(parts, "/"))
	}
	number := func(mode resourcev1.DeviceAllocationMode, n int64) int {
		if mode == resourcev1.DeviceAllocationModeAll {
			return 0
		}
		return int(max(1, n))
	}
	for _, r := range claim.Spec.Devices.Requests {
		if e := r.Exactly; e != nil {
			all = append(all, request{name(r.Name), e.DeviceClassName, e.Selectors, e.Tolerations, number(e.AllocationMode, e.Count), ptr.Deref(e.AdminAccess, false), false})
		}
		for _, s := range r.FirstAvailable {
			all = append(all, request{name(r.Name, s.Name), s.DeviceClassName, s.Selectors, s.Tolerations, number(s.AllocationMode, s.Count), false, true})
		}
	}
	return all
}

// devicesLacking says why the allocator found no devices on a Node.
func (p *problem) devicesLacking(ctx context.Context, node *corev1.Node, todo []*resourcev1.ResourceClaim) ([]Reason, error) {
	devices, err := p.cluster.Devices(node)
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		r := Reason{Text: "no ResourceSlice offers devices of this node: does the DRA driver run there?", weight: outOfReach, never: true}
		need := 0
		for _, claim := range todo {
			for _, r := range requestsOf(claim) {
				if !r.alternative && !strings.Contains(r.class, "mig") { // of which a GPU may have several
					need = max(need, r.count)
				}
			}
		}
		for _, vendor := range []fleet.Vendor{fleet.NVIDIA, fleet.AMD, fleet.Intel} {
			if key, _ := gpuLabel(node, vendor); key != "" {
				r.weight, r.never = notOffered, r.never && fewerByLabel(node, vendor, int64(need))
			}
		}
		return []Reason{r}, nil
	}
	var reasons []Reason
	for _, claim := range todo {
		for _, r := range requestsOf(claim) {
			if text := p.requestLacking(ctx, r, devices); text != "" {
				reasons = append(reasons, Reason{Text: r.name + ": " + text, never: r.count > len(devices) && !r.alternative})
			}
		}
	}
	if len(reasons) == 0 {
		reasons = []Reason{{Text: "there are devices for each request, but not for all together: requests compete for them, or constraints, shared counters or capacity are in the way"}}
	}
	return reasons, nil
}

// requestLacking narrows the devices down as the allocator does: class, selectors,
// taints, allocation. It says where too few are left, or nothing.
func (p *problem) requestLacking(ctx context.Context, r request, devices []fleet.Device) string {
	class := p.cluster.Class(r.class)
	if class == nil {
		return "there is no DeviceClass " + r.class
	}
	need := max(1, r.count)
	left, failed := keep(ctx, devices, class.Spec.Selectors)
	if len(left) < need {
		return fmt.Sprintf("needs %s of class %s; the node has %d%s", count(need, "device"), r.class, len(left), after("; others do not match ", failed))
	}
	ofClass := left
	if left, failed = keep(ctx, left, r.selectors); len(left) < need {
		return fmt.Sprintf("needs %s; %d of %d of class %s match %s", count(need, "device"), len(left), len(ofClass), r.class, failed)
	}
	matching := left
	var taint string
	left = slices.DeleteFunc(slices.Clone(left), func(d fleet.Device) bool {
		t := untolerated(d, r.tolerations)
		taint = cmp.Or(taint, t)
		return t != ""
	})
	if len(left) < need {
		return fmt.Sprintf("needs %s; %d of %d that match are untainted: taint %s is not tolerated", count(need, "device"), len(left), len(matching), taint)
	}
	if r.admin {
		return ""
	}
	var held []string
	free := 0
	for _, d := range left {
		if p.claims.allocated.State.AllocatedDevices.Has(d.ID()) {
			held = append(held, fmt.Sprintf("%s (%s)", strings.Join(p.claims.allocated.Holders[d.ID()], " and "), d.Name))
			continue
		}
		free++
	}
	if free < need || r.count == 0 && len(held) > 0 {
		const most = 4
		if len(held) > most {
			held = append(held[:most], fmt.Sprintf("%d more", len(held)-most))
		}
		wanted := count(need, "device")
		if r.count == 0 {
			wanted = "all devices"
		}
		return fmt.Sprintf("needs %s; %d of %d that match are free: held by %s", wanted, free, len(left), strings.Join(held, ", "))
	}
	return ""
}

// keep returns the devices that match all selectors, and the last selector that
// not all matched, with what the devices have instead.
func keep(ctx context.Context, devices []fleet.Device, selectors []resourcev1.DeviceSelector) (left []fleet.Device, failed string) {
	left = devices
	for _, s := range selectors {
		if s.CEL == nil {
			continue
		}
		var next []fleet.Device
		var trouble error
		for _, d := range left {
			ok, err := d.Matches(ctx, s.CEL.Expression)
			trouble = cmp.Or(trouble, err)
			if err == nil && ok {
				next = append(next, d)
			}
		}
		if len(next) < len(left) {
			failed = oneLine(s.CEL.Expression)
			if trouble != nil {
				failed += ", which cannot be evaluated: " + oneLine(trouble.Error())
			} else {
				failed += after("; they have ", values(s.CEL.Expression, left))
			}
		}
		left = next
	}
	return left, failed
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// values lists what the devices have of the attributes and capacities that occur
// in an expression.
func values(expression string, devices []fleet.Device) string {
	seen := make(map[string]map[string]bool)
	note := func(name resourcev1.QualifiedName, value string) {
		_, short, ok := strings.Cut(string(name), "/")
		if !ok {
			short = string(name)
		}
		if !word(expression, short) {
			return
		}
		if seen[short] == nil {
			seen[short] = make(map[string]bool)
		}
		seen[short][value] = true
	}
	for _, d := range devices {
		for name, a := range d.Attributes {
			note(name, fleet.Value(a))
		}
		for name, c := range d.Capacity {
			note(name, c.Value.String())
		}
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		all := slices.Sorted(maps.Keys(seen[name]))
		parts = append(parts, name+" "+some(all))
	}
	return strings.Join(parts, ", ")
}

// word reports whether a name stands in a text on its own.
func word(text, name string) bool {
	part := func(r rune) bool {
		return r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	return slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return !part(r) }), name)
}

// untolerated is the first taint of a device that a request does not tolerate.
func untolerated(d fleet.Device, tolerations []resourcev1.DeviceToleration) string {
	for _, t := range d.Taints {
		if t.Effect == resourcev1.DeviceTaintEffectNone {
			continue
		}
		if !slices.ContainsFunc(tolerations, func(tol resourcev1.DeviceToleration) bool { return resourceclaim.ToleratesTaint(tol, t) }) {
			if t.Value == "" {
				return fmt.Sprintf("%s:%s", t.Key, t.Effect)
			}
			return fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect)
		}
	}
	return ""
}

// claimMisses puts the Nodes together that lack devices for the same reason.
func (p *problem) claimMisses(nodes []Node) []Miss {
	var misses []Miss
	index := make(map[string]int)
	for _, n := range nodes {
		for _, r := range n.Reasons {
			if r.Check != Claims || slices.ContainsFunc(p.podMisses, func(m Miss) bool { return m.Text == r.Text }) {
				continue
			}
			if _, ok := index[r.Text]; !ok {
				index[r.Text] = len(misses)
				misses = append(misses, Miss{Check: Claims, Text: r.Text})
			}
			m := &misses[index[r.Text]]
			m.Nodes = append(m.Nodes, n.Name)
		}
	}
	return misses
}
