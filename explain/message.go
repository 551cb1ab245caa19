package explain

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// message is what the scheduler says: it stops at the first check of a Node that
// fails, and counts the Nodes by reason.
func (p *problem) message(nodes []Node) string {
	switch {
	case len(p.podMisses) > 0:
		return p.podMessage
	case len(nodes) == 0:
		return "no nodes available to schedule pods"
	}
	named, byName := p.named()
	counts := make(map[string]int)
	for _, n := range nodes {
		if byName && !slices.Contains(named, n.Name) {
			// The affinity names Nodes: no other is looked at.
			counts["node(s) didn't satisfy plugin(s) [NodeAffinity]"]++
			continue
		}
		for _, reason := range n.first() {
			counts[reason]++
		}
	}
	var parts []string
	for reason, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	sort.Strings(parts)
	return fmt.Sprintf("0/%d nodes are available: %s.", len(nodes), strings.Join(parts, ", "))
}

// first is what the scheduler says of one Node. It takes selector and affinity as
// one check.
func (n *Node) first() []string {
	for _, check := range Checks {
		var reasons []string
		for _, r := range n.Reasons {
			if r.Check == check && r.Scheduler != "" {
				reasons = append(reasons, r.Scheduler)
			}
		}
		if len(reasons) > 0 {
			return reasons
		}
	}
	return nil
}
