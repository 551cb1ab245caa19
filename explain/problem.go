package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// problem is one pod to place in one cluster, with what is the same for all Nodes.
type problem struct {
	cluster *fleet.Cluster
	pod     *corev1.Pod
	nodes   []*corev1.Node // sorted by name

	requests  corev1.ResourceList
	usage     fleet.Usage
	affinity  nodeaffinity.RequiredNodeAffinity
	preferred *nodeaffinity.PreferredSchedulingTerms
	claims    claims

	// What is wrong with the pod whatever the Node, and how the scheduler says it,
	// if it says anything.
	podMisses  []Miss
	podMessage string

	release bool  // claims that nobody uses give their devices back
	broken  error // what keeps the allocator from telling, on the last Node
}

func newProblem(ctx context.Context, c *fleet.Cluster, pod *corev1.Pod, release bool) (*problem, error) {
	p := &problem{
		cluster: c, pod: pod, nodes: slices.Clone(c.Nodes), release: release,
		requests: fleet.Requests(pod), usage: c.Usage(pod), affinity: nodeaffinity.GetRequiredNodeAffinity(pod),
	}
	slices.SortFunc(p.nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		// A term that makes no sense is what the scheduler ignores, too: it only
		// costs preference.
		p.preferred, _ = nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if gates := pod.Spec.SchedulingGates; len(gates) > 0 && pod.Spec.NodeName == "" {
		var names []string
		for _, g := range gates {
			names = append(names, g.Name)
		}
		p.podMisses = append(p.podMisses, Miss{Check: Gates,
			Text: "it waits for " + some(names) + " to be removed from spec.schedulingGates",
			Cure: "whoever set the gate removes it; until then no node is looked at"})
		p.podMessage = "Scheduling is blocked due to non-empty scheduling gates"
	}
	if p.conflictingNames() {
		p.miss(Miss{Check: Affinity, Text: "its node affinity names several nodes at once, and a pod runs on one",
			Cure: "put the names into the values of one expression"}, "pod affinity terms conflict")
	}
	return p, p.prepareClaims(ctx)
}

// miss records what is wrong with the pod alone. The scheduler passes over a pod
// whose claim is not there, and says nothing.
func (p *problem) miss(m Miss, scheduler string) {
	m.Nodes = []string{}
	if len(p.podMisses) == 0 && scheduler != "" {
		p.podMessage = fmt.Sprintf("0/%d nodes are available: %s.", len(p.nodes), scheduler)
	}
	p.podMisses = append(p.podMisses, m)
}

// node does all checks of one Node; the scheduler stops at the first that fails.
func (p *problem) node(ctx context.Context, node *corev1.Node) (Node, error) {
	n := Node{Name: node.Name, Fits: Yes, Checks: make(map[Check]Answer, len(Checks)), Reasons: []Reason{}}
	p.broken = nil
	for _, check := range Checks {
		answer, reasons, err := p.check(ctx, check, node)
		if err != nil {
			return n, err
		}
		n.Checks[check] = answer
		for i := range reasons {
			reasons[i].Check = check
		}
		n.Reasons = append(n.Reasons, reasons...)
		switch {
		case answer == Blocks:
			n.Fits = No
		case answer == Unclear && n.Fits == Yes:
			n.Fits = Unclear
		}
	}
	if p.broken != nil && len(n.Failed()) == 1 {
		// The scheduler comes as far as the claims, and gives up the pod.
		if len(p.podMisses) == 0 {
			p.podMessage = `running "DynamicResources" filter plugin: ` + p.broken.Error()
		}
		p.podMisses = append(p.podMisses, Miss{Check: Claims, Text: p.broken.Error(), Nodes: []string{},
			Cure: "correct the selector: an error on one node stops the scheduler on all"})
	}
	n.Distance = distance(n.Reasons)
	if p.preferred != nil {
		n.Preference = p.preferred.Score(node)
	}
	return n, nil
}

func (p *problem) check(ctx context.Context, check Check, node *corev1.Node) (Answer, []Reason, error) {
	var reasons []Reason
	asked := true
	switch check {
	case NodeName:
		asked = p.pod.Spec.NodeName != ""
		reasons = p.checkName(node)
	case Cordon:
		asked = node.Spec.Unschedulable
		reasons = p.checkCordon(node)
	case Taints:
		asked = slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return !p.cordonSays(node, &t) })
		reasons = p.checkTaints(node)
	case Selector:
		asked = len(p.pod.Spec.NodeSelector) > 0
		reasons = p.checkSelector(node)
	case Affinity:
		asked = requiredAffinity(p.pod) != nil
		reasons = p.checkAffinity(node)
	case Resources:
		reasons = p.checkResources(node)
		if len(reasons) == 0 && !p.cluster.Knows(fleet.Pods) {
			return Unclear, nil, nil
		}
	case Claims:
		return p.checkClaims(ctx, node)
	}
	return answerOf(asked, reasons), reasons, nil
}

func answerOf(asked bool, reasons []Reason) Answer {
	switch {
	case len(reasons) > 0:
		return Blocks
	case !asked:
		return NotAsked
	}
	return OK
}
