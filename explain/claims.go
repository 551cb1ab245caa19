package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"

	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// claims is what a pod asks of dynamic resource allocation.
type claims struct {
	asked     bool
	unclear   bool                        // something could not be read
	allocate  []*resourcev1.ResourceClaim // those that wait for devices
	done      []*resourcev1.ResourceClaim // those that have theirs
	byName    *extendedresourcecache.ExtendedResourceCache
	allocated fleet.Allocated
	allocator structured.Allocator
}

// prepareClaims resolves the pod's claims. What is wrong with one whatever the
// Node goes to podMisses.
func (p *problem) prepareClaims(ctx context.Context) error {
	c := &p.claims
	c.byName = extendedresourcecache.NewExtendedResourceCache(klog.TODO())
	for _, class := range p.cluster.Classes {
		c.byName.OnAdd(class, true)
	}
	c.asked = len(p.pod.Spec.ResourceClaims) > 0
	if c.asked && !p.cluster.Knows(fleet.Claims, fleet.Templates, fleet.Classes, fleet.Slices) {
		c.unclear = true
		return nil
	}
	for i := range p.pod.Spec.ResourceClaims {
		claim := p.resolve(&p.pod.Spec.ResourceClaims[i])
		switch {
		case claim == nil:
			continue
		case claim.Status.Allocation != nil && !(p.release && idle(claim)):
			if !resourceclaim.CanBeReserved(claim) && !resourceclaim.IsReservedForPod(p.pod, claim, false) {
				p.miss(Miss{Check: Claims, Text: fmt.Sprintf("claim %s is in use by as many pods as can share it", fleet.Name(claim.Namespace, claim.Name))},
					"resourceclaim in use")
				continue
			}
			c.done = append(c.done, claim)
		default:
			p.checkClasses(claim)
			c.allocate = append(c.allocate, claim)
		}
	}
	c.allocated = without(p.cluster, c.allocate).Allocated()
	for i, claim := range c.allocate {
		if claim.Status.Allocation != nil {
			c.allocate[i] = claim.DeepCopy()
			c.allocate[i].Status.Allocation = nil
		}
	}
	if len(c.allocate) == 0 && len(p.cluster.Classes) == 0 {
		return nil
	}
	var err error
	c.allocator, err = structured.NewAllocator(ctx, fleet.Features, c.allocated.State, classLister(p.cluster.Classes), p.cluster.Slices, fleet.Selectors())
	if err != nil {
		return fmt.Errorf("ResourceSlices: %w", err)
	}
	return nil
}

// idle tells that a claim has devices that no pod uses. When nothing else helps
// the scheduler takes them back and allocates anew.
func idle(claim *resourcev1.ResourceClaim) bool {
	return claim.Status.Allocation != nil && len(claim.Status.ReservedFor) == 0
}

// without is a cluster where these claims have no devices.
func without(c *fleet.Cluster, claims []*resourcev1.ResourceClaim) *fleet.Cluster {
	less := *c
	less.Claims = slices.DeleteFunc(slices.Clone(c.Claims), func(claim *resourcev1.ResourceClaim) bool { return slices.Contains(claims, claim) })
	return &less
}

// idleClaims names those of the pod.
func (p *problem) idleClaims() []string {
	var names []string
	for _, claim := range p.claims.done {
		if idle(claim) {
			names = append(names, fleet.Name(claim.Namespace, claim.Name))
		}
	}
	return names
}

// resolve returns the claim that a pod refers to. One that is still to be made
// from a template is made here, as the controller will.
func (p *problem) resolve(ref *corev1.PodResourceClaim) *resourcev1.ResourceClaim {
	namespace := p.pod.Namespace
	name, mustOwn, err := resourceclaim.Name(p.pod, ref)
	switch {
	case errors.Is(err, resourceclaim.ErrClaimNotFound) && ref.ResourceClaimTemplateName != nil:
		return p.fromTemplate(ref, *ref.ResourceClaimTemplateName)
	case err != nil:
		p.miss(Miss{Check: Claims, Text: err.Error()}, "")
		return nil
	case name == nil:
		return nil // the controller says that none is needed
	}
	i := slices.IndexFunc(p.cluster.Claims, func(c *resourcev1.ResourceClaim) bool { return c.Namespace == namespace && c.Name == *name })
	if i < 0 {
		p.miss(Miss{Check: Claims, Text: fmt.Sprintf("there is no ResourceClaim %s", fleet.Name(namespace, *name)),
			Cure: "kubectl get resourceclaims --namespace " + namespace}, "")
		return nil
	}
	claim := p.cluster.Claims[i]
	if claim.DeletionTimestamp != nil {
		p.miss(Miss{Check: Claims, Text: fmt.Sprintf("claim %s is being deleted", fleet.Name(namespace, *name))}, "")
		return nil
	}
	if mustOwn {
		if err := resourceclaim.IsForPod(p.pod, claim, false); err != nil {
			p.miss(Miss{Check: Claims, Text: err.Error()}, "")
			return nil
		}
	}
	return claim
}

func (p *problem) fromTemplate(ref *corev1.PodResourceClaim, template string) *resourcev1.ResourceClaim {
	i := slices.IndexFunc(p.cluster.Templates, func(t *resourcev1.ResourceClaimTemplate) bool {
		return t.Namespace == p.pod.Namespace && t.Name == template
	})
	if i < 0 {
		p.miss(Miss{Check: Claims, Text: fmt.Sprintf("there is no ResourceClaimTemplate %s", fleet.Name(p.pod.Namespace, template)),
			Cure: "kubectl get resourceclaimtemplates --namespace " + p.pod.Namespace}, "")
		return nil
	}
	return &resourcev1.ResourceClaim{
		// The allocator tells claims apart by UID.
		ObjectMeta: metav1.ObjectMeta{Namespace: p.pod.Namespace, Name: p.pod.Name + "-" + ref.Name, UID: types.UID("of " + ref.Name)},
		Spec:       *p.cluster.Templates[i].Spec.Spec.DeepCopy(),
	}
}

// checkClasses looks for the DeviceClass of each request.
func (p *problem) checkClasses(claim *resourcev1.ResourceClaim) {
	look := func(request, class string) {
		if p.cluster.Class(class) != nil {
			return
		}
		cure := "kubectl get deviceclasses"
		var names []string
		for _, c := range p.cluster.Classes {
			names = append(names, c.Name)
		}
		slices.Sort(names)
		if len(names) > 0 {
			cure = "there are " + some(names)
			if len(names) == 1 {
				cure = "there is " + names[0]
			}
		}
		p.miss(Miss{Check: Claims, Text: fmt.Sprintf("claim %s, request %s: there is no DeviceClass %s", fleet.Name(claim.Namespace, claim.Name), request, class), Cure: cure},
			fmt.Sprintf("request %s: device class %s does not exist", request, class))
	}
	for _, r := range claim.Spec.Devices.Requests {
		if r.Exactly != nil {
			look(r.Name, r.Exactly.DeviceClassName)
		}
		for _, sub := range r.FirstAvailable {
			look(r.Name+"/"+sub.Name, sub.DeviceClassName)
		}
	}
}

// classLister is what the allocator finds DeviceClasses with.
type classLister []*resourcev1.DeviceClass

func (l classLister) List() ([]*resourcev1.DeviceClass, error) { return l, nil }

func (l classLister) Get(name string) (*resourcev1.DeviceClass, error) {
	for _, c := range l {
		if c.Name == name {
			return c, nil
		}
	}
	return nil, apierrors.NewNotFound(resourcev1.Resource("deviceclasses"), name)
}

// checkClaims asks the scheduler's allocator whether the Node has the devices.
func (p *problem) checkClaims(ctx context.Context, node *corev1.Node) (Answer, []Reason, error) {
	c := &p.claims
	if c.unclear {
		return Unclear, nil, nil
	}
	if p.claimMissing() {
		return Blocks, nil, nil // said of the pod
	}
	extended := p.extendedClaim(node)
	if !c.asked && extended == nil {
		return NotAsked, nil, nil
	}
	if extended != nil && !p.cluster.Knows(fleet.Claims, fleet.Slices) {
		return Unclear, nil, nil
	}
	for _, claim := range c.done {
		ok, err := availableOn(claim, node)
		if err != nil {
			return Blocks, nil, err
		}
		if !ok {
			return Blocks, []Reason{{Text: fmt.Sprintf("claim %s has its devices elsewhere", fleet.Name(claim.Namespace, claim.Name)),
				Scheduler: "resourceclaim not available on the node", weight: notOffered}}, nil
		}
	}
	todo := slices.Clone(c.allocate)
	if extended != nil {
		todo = append(todo, extended)
	}
	if len(todo) == 0 || c.allocator == nil {
		return answerOf(true, nil), nil, nil
	}
	result, err := c.allocator.Allocate(ctx, node, todo)
	switch {
	case ctx.Err() != nil:
		return Blocks, nil, context.Cause(ctx)
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return Blocks, []Reason{{Text: err.Error(), Scheduler: err.Error()}}, nil
	case err != nil:
		p.broken = err
		return Blocks, []Reason{{Text: err.Error()}}, nil
	case len(result) == len(todo):
		return OK, nil, nil
	}
	reasons, err := p.devicesLacking(ctx, node, todo)
	if err != nil {
		return Blocks, nil, err
	}
	reasons[0].Scheduler = "cannot allocate all claims"
	return Blocks, reasons, nil
}

// claimMissing tells that a claim or its class is not there, or not to be had.
func (p *problem) claimMissing() bool {
	return slices.ContainsFunc(p.podMisses, func(m Miss) bool { return m.Check == Claims })
}

func availableOn(claim *resourcev1.ResourceClaim, node *corev1.Node) (bool, error) {
	if claim.Status.Allocation.NodeSelector == nil {
		return true, nil
	}
	selector, err := nodeaffinity.NewNodeSelector(claim.Status.Allocation.NodeSelector)
	if err != nil {
		return false, fmt.Errorf("claim %s: allocation: %w", fleet.Name(claim.Namespace, claim.Name), err)
	}
	return selector.Match(node), nil
}

// byDevices tells that a resource comes from a DeviceClass on a Node: it does not
// offer the resource itself, and a class stands for it.
func (p *problem) byDevices(name corev1.ResourceName, node *corev1.Node) bool {
	return offered(node, name) == 0 && p.claims.byName.GetDeviceClass(name) != nil
}

// extendedClaim is the claim that the scheduler makes of resources that come from
// a DeviceClass on a Node; nil if there is none.
func (p *problem) extendedClaim(node *corev1.Node) *resourcev1.ResourceClaim {
	var requests []resourcev1.DeviceRequest
	for _, name := range p.asked() {
		if !p.byDevices(name, node) {
			continue
		}
		class := p.claims.byName.GetDeviceClass(name).Name
		for i, n := range deviceCounts(p.pod, name) {
			if n > 0 {
				requests = append(requests, resourcev1.DeviceRequest{
					Name: fmt.Sprintf("container-%d-%s", i, name),
					Exactly: &resourcev1.ExactDeviceRequest{
						DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n,
					},
				})
			}
		}
	}
	if len(requests) == 0 {
		return nil
	}
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.pod.Namespace, Name: p.pod.Name + "-extended-resources", UID: "extended resources"},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}},
	}
}

// deviceCounts is how many devices each container needs: those that run to the
// end their own, init containers that end only what the containers after them do
// not have anyway.
func deviceCounts(pod *corev1.Pod, name corev1.ResourceName) []int64 {
	all := append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)
	counts := make([]int64, len(all))
	ends := func(i int) bool {
		always := all[i].RestartPolicy != nil && *all[i].RestartPolicy == corev1.ContainerRestartPolicyAlways
		return i < len(pod.Spec.InitContainers) && !always
	}
	want := func(i int) int64 { q := all[i].Resources.Requests[name]; return q.Value() }
	after := int64(0)
	extra, at := int64(0), 0
	for i := len(all) - 1; i >= 0; i-- {
		if !ends(i) {
			counts[i] = want(i)
			after += counts[i]
		} else if more := want(i) - after; more > extra {
			extra, at = more, i
		}
	}
	if extra > 0 {
		counts[at] = extra
	}
	return counts
}
