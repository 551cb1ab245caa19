package fleet

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
)

// Holder is a pod that requests a resource of the Node it is on.
type Holder struct {
	Pod       string `json:"pod"` // namespace/name
	Amount    int64  `json:"amount"`
	Priority  int32  `json:"priority"`
	Nominated bool   `json:"nominated,omitempty"` // not there yet: pods are being evicted for it
}

// Held is how much of a resource of a Node is requested, and by whom.
type Held struct {
	Amount  int64
	Holders []Holder // the most first
}

// Usage is what the pods of a cluster request: Node, then resource.
type Usage map[string]map[corev1.ResourceName]*Held

// Usage counts as the scheduler does: pods that have not ended, on the Node they
// are bound to. For a pod that is to be scheduled it does not count that pod
// itself, and does count pods that are nominated for a Node and no less
// important. pod may be nil.
func (c *Cluster) Usage(pod *corev1.Pod) Usage {
	u := make(Usage, len(c.Nodes))
	for _, p := range c.Pods {
		if Ended(p) || pod != nil && p.Namespace == pod.Namespace && p.Name == pod.Name {
			continue
		}
		priority := schedulinghelper.PodPriority(p)
		h := Holder{Pod: PodName(p), Priority: priority}
		node := p.Spec.NodeName
		if node == "" && p.Status.NominatedNodeName != "" && (pod == nil || priority >= schedulinghelper.PodPriority(pod)) {
			node, h.Nominated = p.Status.NominatedNodeName, true
		}
		if node == "" {
			continue
		}
		u.add(node, corev1.ResourcePods, h, 1)
		for name, quantity := range Requests(p) {
			u.add(node, name, h, Amount(name, quantity))
		}
	}
	for _, resources := range u {
		for _, held := range resources {
			slices.SortFunc(held.Holders, func(a, b Holder) int {
				return cmp.Or(cmp.Compare(b.Amount, a.Amount), strings.Compare(a.Pod, b.Pod))
			})
		}
	}
	return u
}

func (u Usage) add(node string, name corev1.ResourceName, h Holder, amount int64) {
	if amount == 0 {
		return
	}
	if u[node] == nil {
		u[node] = make(map[corev1.ResourceName]*Held)
	}
	held := u[node][name]
	if held == nil {
		held = new(Held)
		u[node][name] = held
	}
	h.Amount = amount
	held.Amount += amount
	held.Holders = append(held.Holders, h)
}

// Of returns what is requested of a resource of a Node.
func (u Usage) Of(node string, name corev1.ResourceName) Held {
	if held := u[node][name]; held != nil {
		return *held
	}
	return Held{}
}

// Requests is what a pod requests of a Node: containers together, init containers
// one after the other, and the pod's overhead. A resize under way counts at the
// higher value.
func Requests(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		UseStatusResources: pod.Spec.NodeName != "",
		InPlacePodLevelResourcesVerticalScalingEnabled: pod.Spec.NodeName != "",
	})
}

// Amount is a quantity as the scheduler counts it: processors in thousandths, all
// else in whole units, rounded up.
func Amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// Write is the opposite of Amount: an amount as people write it.
func Write(name corev1.ResourceName, amount int64) string {
	switch {
	case name == corev1.ResourceCPU:
		return resource.NewMilliQuantity(amount, resource.DecimalSI).String()
	case name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		return resource.NewQuantity(amount, resource.BinarySI).String()
	}
	return resource.NewQuantity(amount, resource.DecimalSI).String()
}

// Ended reports whether a pod holds nothing any more.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
