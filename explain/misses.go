package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// misses says of everything that is asked for how close the closest Node comes:
// first what is wrong with the pod alone, then what stops most Nodes.
func (p *problem) misses(nodes []Node) []Miss {
	var misses []Miss
	if name := p.pod.Spec.NodeName; name == "" {
		misses = append(misses, p.cordonMisses()...)
		misses = append(misses, p.taintMisses()...)
	} else {
		misses = append(misses, p.nameMisses(name)...)
	}
	for _, r := range p.selector() {
		if m := r.miss(Selector, p.nodes); m != nil {
			misses = append(misses, *m)
		}
	}
	misses = append(misses, p.affinityMisses()...)
	misses = append(misses, p.resourceMisses(nodes)...)
	misses = append(misses, p.claimMisses(nodes)...)
	slices.SortStableFunc(misses, func(a, b Miss) int { return cmp.Compare(len(b.Nodes), len(a.Nodes)) })
	return append(slices.Clone(p.podMisses), misses...)
}

// nameMisses says of spec.nodeName that there is no such Node.
func (p *problem) nameMisses(name string) []Miss {
	names := nodeNames(p.nodes)
	if len(names) == 0 || slices.Contains(names, name) {
		return nil
	}
	text := "asks for " + name
	if like := Similar(name, names); like != "" {
		text += "; is " + like + " meant?"
	}
	return []Miss{{Check: NodeName, Text: text, Nodes: names}}
}

func (p *problem) cordonMisses() []Miss {
	m := Miss{Check: Cordon}
	for _, node := range p.nodes {
		if p.checkCordon(node) != nil {
			m.Nodes = append(m.Nodes, node.Name)
		}
	}
	if len(m.Nodes) == 0 {
		return nil
	}
	m.Text, m.Cure = some(m.Nodes)+" "+is(len(m.Nodes))+" cordoned", "kubectl uncordon "+m.Nodes[0]
	return []Miss{m}
}

func is(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// taintMisses puts the Nodes of one taint together.
func (p *problem) taintMisses() []Miss {
	var misses []Miss
	index := make(map[string]int)
	for _, node := range p.nodes {
		for i := range node.Spec.Taints {
			t := &node.Spec.Taints[i]
			if t.Effect == corev1.TaintEffectPreferNoSchedule || p.tolerates(t) {
				continue
			}
			if p.cordonSays(node, t) {
				continue
			}
			key := t.ToString()
			if _, ok := index[key]; !ok {
				index[key] = len(misses)
				misses = append(misses, Miss{Check: Taints, Text: "taint " + key + " is not tolerated", Cure: taintCure(t)})
			}
			m := &misses[index[key]]
			m.Nodes = append(m.Nodes, node.Name)
		}
	}
	return misses
}

// taintCure is the toleration, or for a taint that Kubernetes sets of itself what
// it means.
func taintCure(t *corev1.Taint) string {
	switch {
	case t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable:
		return "the node is not ready: kubectl describe node tells why"
	case kubernetesTaint(t):
		return "Kubernetes set it: kubectl describe node tells why"
	case t.Value == "":
		return fmt.Sprintf("tolerations: [{key: %s, operator: Exists, effect: %s}]", t.Key, t.Effect)
	}
	return fmt.Sprintf("tolerations: [{key: %s, operator: Equal, value: %q, effect: %s}]", t.Key, t.Value, t.Effect)
}

// kubernetesTaint tells of a taint that Kubernetes sets of itself: something is
// wrong with the Node, and no pod should tolerate that.
func kubernetesTaint(t *corev1.Taint) bool {
	return strings.HasPrefix(t.Key, "node.kubernetes.io/") || strings.HasPrefix(t.Key, "node.cloudprovider.kubernetes.io/")
}

// affinityMisses says what each term lacks, unless some Node matches another.
func (p *problem) affinityMisses() []Miss {
	var without []*corev1.Node
	if requiredAffinity(p.pod) == nil {
		return nil
	}
	for _, node := range p.nodes {
		if !p.matchesAffinity(node) {
			without = append(without, node)
		}
	}
	if len(without) == 0 {
		return nil
	}
	var misses []Miss
	terms := p.terms()
	for i, term := range terms {
		alone := false
		for _, r := range term {
			m := r.miss(Affinity, p.nodes)
			if m == nil {
				continue
			}
			alone = alone || len(m.Nodes) == len(p.nodes)
			if len(terms) > 1 {
				m.Text = fmt.Sprintf("term %d of %d %s", i+1, len(terms), m.Text)
			}
			misses = append(misses, *m)
		}
		if len(term) == 0 {
			misses = append(misses, Miss{Check: Affinity, Text: fmt.Sprintf("term %d of %d is empty, and so matches no node", i+1, len(terms)), Nodes: nodeNames(without)})
		}
		if !alone && len(term) > 1 && len(without) == len(p.nodes) {
			misses = append(misses, Miss{Check: Affinity, Nodes: nodeNames(without),
				Text: "each of " + join(term) + " holds on some node, but on no node all of them"})
		}
	}
	if len(terms) == 0 {
		misses = append(misses, Miss{Check: Affinity, Text: "the required node affinity has no term, and so matches no node", Nodes: nodeNames(without)})
	}
	return misses
}

func join(all []requirement) string {
	texts := make([]string, len(all))
	for i, r := range all {
		texts[i] = r.String()
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return strings.Join(texts[:len(texts)-1], ", ") + " and " + texts[len(texts)-1]
}
