package explain

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

func (p *problem) checkName(node *corev1.Node) []Reason {
	if name := p.pod.Spec.NodeName; name != "" && name != node.Name {
		return []Reason{{Text: "the pod asks for node " + name, Scheduler: "node(s) didn't match the requested node name"}}
	}
	return nil
}

// checkCordon looks at spec.unschedulable, which a toleration of the taint of the
// same meaning overrides.
func (p *problem) checkCordon(node *corev1.Node) []Reason {
	if !node.Spec.Unschedulable || p.tolerates(&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		return nil
	}
	return []Reason{{Text: "the node is cordoned", Scheduler: "node(s) were unschedulable"}}
}

// cordonSays tells of the taint that Kubernetes sets on a cordoned Node: the check
// of the cordon has said it.
func (p *problem) cordonSays(node *corev1.Node, taint *corev1.Taint) bool {
	return taint.Key == corev1.TaintNodeUnschedulable && p.checkCordon(node) != nil
}

func (p *problem) checkTaints(node *corev1.Node) []Reason {
	var reasons []Reason
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || p.tolerates(taint) || p.cordonSays(node, taint) {
			continue
		}
		r := Reason{Text: "taint " + taint.ToString() + " is not tolerated"}
		if kubernetesTaint(taint) {
			r.weight = nodeIsIll
		}
		if len(reasons) == 0 {
			r.Scheduler = "node(s) had untolerated taint(s)"
		}
		reasons = append(reasons, r)
	}
	return reasons
}

// tolerates leaves out the comparison operators of tolerations (Gt, Lt), which
// Kubernetes 1.37 has disabled by default.
func (p *problem) tolerates(taint *corev1.Taint) bool {
	return schedulinghelper.TolerationsTolerateTaint(klog.TODO(), p.pod.Spec.Tolerations, taint, false)
}

// The scheduler has one message for selector and affinity.
const noMatch = "node(s) didn't match Pod's node affinity/selector"

func (p *problem) checkSelector(node *corev1.Node) []Reason {
	var reasons []Reason
	for _, r := range p.selector() {
		if !r.matches(node) {
			reasons = append(reasons, Reason{Text: r.lack(node)})
		}
	}
	if len(reasons) > 0 {
		reasons[0].Scheduler = noMatch
	}
	return reasons
}

// selector is the pod's node selector as requirements, sorted by key.
func (p *problem) selector() []requirement {
	var all []requirement
	for _, key := range slices.Sorted(maps.Keys(p.pod.Spec.NodeSelector)) {
		all = append(all, requirement{key: key, values: []string{p.pod.Spec.NodeSelector[key]}})
	}
	return all
}

func requiredAffinity(pod *corev1.Pod) *corev1.NodeSelector {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// terms is the terms of the required affinity, of which one must match, as
// requirements, of which all must.
func (p *problem) terms() [][]requirement {
	required := requiredAffinity(p.pod)
	if required == nil {
		return nil
	}
	var terms [][]requirement
	for _, t := range required.NodeSelectorTerms {
		var all []requirement
		for _, e := range t.MatchExpressions {
			all = append(all, requirement{key: e.Key, operator: e.Operator, values: e.Values})
		}
		for _, e := range t.MatchFields {
			all = append(all, requirement{key: e.Key, operator: e.Operator, values: e.Values, field: true})
		}
		terms = append(terms, all)
	}
	return terms
}

// checkAffinity asks for the required affinity alone, since the selector is a
// check of its own. Where several terms are offered, each says what it lacks.
func (p *problem) checkAffinity(node *corev1.Node) []Reason {
	if requiredAffinity(p.pod) == nil || p.matchesAffinity(node) {
		return nil
	}
	var reasons []Reason
	terms := p.terms()
	for i, term := range terms {
		prefix := ""
		if len(terms) > 1 {
			prefix = fmt.Sprintf("term %d: ", i+1)
		}
		for _, r := range term {
			if !r.matches(node) {
				reasons = append(reasons, Reason{Text: prefix + r.lack(node)})
			}
		}
		if len(term) == 0 {
			reasons = append(reasons, Reason{Text: prefix + "an empty term matches no node"})
		}
	}
	if len(reasons) == 0 {
		reasons = []Reason{{Text: "the required node affinity has no term, and so matches no node"}}
	}
	if p.checkSelector(node) == nil {
		reasons[0].Scheduler = noMatch
	}
	return reasons
}

// matchesAffinity leaves the selector out of the scheduler's question.
func (p *problem) matchesAffinity(node *corev1.Node) bool {
	ok, _ := affinityOnly(p.pod).Match(node)
	return ok
}

// conflictingNames tells that every term asks for several Nodes by name at once.
func (p *problem) conflictingNames() bool {
	names, all := p.named()
	return all && len(names) == 0
}

// named returns the Nodes that the affinity names, and whether every term does.
func (p *problem) named() (names []string, all bool) {
	required := requiredAffinity(p.pod)
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		return nil, false
	}
	for _, t := range required.NodeSelectorTerms {
		var inTerm []string
		found := false
		for _, e := range t.MatchFields {
			if e.Key != metav1.ObjectNameField || e.Operator != corev1.NodeSelectorOpIn {
				continue
			}
			if !found {
				inTerm, found = slices.Clone(e.Values), true
			} else {
				inTerm = slices.DeleteFunc(inTerm, func(name string) bool { return !slices.Contains(e.Values, name) })
			}
		}
		if !found {
			return nil, false
		}
		names = append(names, inTerm...)
	}
	return names, true
}
