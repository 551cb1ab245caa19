// Package explain says, for each Node of a cluster, whether the scheduler would
// put a pod there, and if not, what is in the way and how close it is. It asks
// the scheduler's own libraries what matches, so that it agrees with it. It is a
// pure function of objects that were read before.
package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// Verdict is what becomes of a pod.
type Verdict string

// The verdicts.
const (
	Schedulable Verdict = "schedulable" // at least one Node fits
	Pending     Verdict = "pending"
	Unknown     Verdict = "unknown" // it hangs on what could not be read
	Bound       Verdict = "bound"   // it has its Node already
	Ended       Verdict = "ended"
)

// Check is one thing that a Node must satisfy.
type Check string

// The checks, in the order in which the scheduler and Checks have them.
const (
	NodeName  Check = "node name"
	Cordon    Check = "cordon"
	Taints    Check = "taints"
	Selector  Check = "node selector"
	Affinity  Check = "node affinity"
	Resources Check = "resources"
	Claims    Check = "device claims"
)

// Gates is a check of the pod alone: no Node is looked at while it fails.
const Gates Check = "scheduling gates"

// Checks are the checks of a Node, in the order in which the scheduler has them.
var Checks = []Check{NodeName, Cordon, Taints, Selector, Affinity, Resources, Claims}

// Answer says whether a check holds.
type Answer string

// The answers. A check that the pod asks nothing of is NotAsked.
const (
	Yes      Answer = "yes"
	No       Answer = "no"
	Unclear  Answer = "unknown"
	NotAsked Answer = "-"
)

// Result is what can be said of a pod.
type Result struct {
	Pod       string         `json:"pod"` // namespace/name
	Verdict   Verdict        `json:"verdict"`
	Summary   string         `json:"summary"` // a sentence
	Fits      []string       `json:"fits"`    // Nodes, the preferred first
	Nearest   string         `json:"nearest,omitempty"`
	Misses    []Miss         `json:"misses"` // what is in the way, what stops most Nodes first
	Nodes     []Node         `json:"nodes"`  // sorted by name
	Unchecked []string       `json:"unchecked"`
	Notes     []string       `json:"notes"`
	Unread    []fleet.Unread `json:"unread"`
	// Scheduler is what the scheduler says of a pod that does not fit, word by
	// word but for preemption. It stops at the first check of a Node that fails.
	Scheduler string `json:"scheduler,omitempty"`
}

// Node is what can be said of a pod on one Node.
type Node struct {
	Name       string           `json:"name"`
	Fits       Answer           `json:"fits"`
	Checks     map[Check]Answer `json:"checks"`
	Reasons    []Reason         `json:"reasons"`
	Preference int64            `json:"preference"` // weights of the preferred terms that match, together
}

// Reason is why a pod cannot be on one Node.
type Reason struct {
	Check Check  `json:"check"`
	Text  string `json:"text"`
	// Scheduler is how the scheduler says it; empty where it has said it already.
	Scheduler string `json:"scheduler,omitempty"`
}

// Miss is one thing that Nodes lack, with how close the closest comes.
type Miss struct {
	Check Check    `json:"check"`
	Text  string   `json:"text"`
	Cure  string   `json:"cure,omitempty"`
	Nodes []string `json:"nodes"` // those that lack it; empty for one of the pod alone
}

// Explain tells where a pod can be scheduled. The error is the context's, or that
// of a ResourceSlice that makes no sense.
func Explain(ctx context.Context, c *fleet.Cluster, pod *corev1.Pod) (*Result, error) {
	r, p, err := explain(ctx, c, pod, false)
	if err != nil || r.Verdict != Pending {
		return r, err
	}
	if idle := p.idleClaims(); len(idle) > 0 {
		again, _, err := explain(ctx, c, pod, true)
		if err != nil || again.Verdict != Schedulable {
			return r, err
		}
		again.Notes = append(again.Notes, "the devices of claim "+some(idle)+" are in use by no pod: the scheduler takes them back first, and allocates anew")
		return again, nil
	}
	return r, nil
}

func explain(ctx context.Context, c *fleet.Cluster, pod *corev1.Pod, release bool) (*Result, *problem, error) {
	p, err := newProblem(ctx, c, pod, release)
	if err != nil {
		return nil, nil, err
	}
	r := &Result{Pod: fleet.PodName(pod), Fits: []string{}, Misses: []Miss{}, Nodes: []Node{}, Unread: []fleet.Unread{}}
	r.Unchecked = append([]string{}, p.unchecked()...)
	r.Notes = append([]string{}, p.notes()...)
	for _, u := range c.Unread {
		if u.Kind == fleet.Pods || p.claims.asked {
			r.Unread = append(r.Unread, u)
		}
	}
	preference := make(map[string]int64)
	for _, node := range p.nodes {
		n, err := p.node(ctx, node)
		if err != nil {
			return nil, nil, err
		}
		r.Nodes = append(r.Nodes, n)
		preference[n.Name] = n.Preference
		if n.Fits == Yes {
			r.Fits = append(r.Fits, n.Name)
		}
	}
	slices.SortStableFunc(r.Fits, func(a, b string) int { return cmp.Compare(preference[b], preference[a]) })
	r.Misses = append(r.Misses, p.misses(r.Nodes)...)
	if len(p.podMisses) == 0 {
		r.Nearest = nearest(r.Nodes)
	}
	r.decide(p)
	return r, p, nil
}

// decide gives the verdict, and the sentence that goes with it.
func (r *Result) decide(p *problem) {
	unclear := slices.ContainsFunc(r.Nodes, func(n Node) bool { return n.Fits == Unclear })
	switch name := p.pod.Spec.NodeName; {
	case fleet.Ended(p.pod):
		r.Verdict, r.Summary = Ended, fmt.Sprintf("Pod %s has ended (%s).", r.Pod, p.pod.Status.Phase)
	case name != "" && slices.ContainsFunc(r.Nodes, func(n Node) bool { return n.Name == name }):
		r.Verdict, r.Summary = Bound, fmt.Sprintf("Pod %s is bound to %s: the scheduler is done with it.", r.Pod, name)
	case name != "":
		r.Verdict, r.Summary = Pending, fmt.Sprintf("Pod %s is pending: spec.nodeName asks for %s, and there is no such node.", r.Pod, name)
	case len(p.podMisses) > 0:
		r.Verdict, r.Summary = Pending, fmt.Sprintf("Pod %s is pending: %s.", r.Pod, p.podMisses[0].Text)
		if len(r.Fits) > 0 {
			r.Summary += fmt.Sprintf(" But for that it fits on %s.", some(r.Fits))
		}
	case len(r.Nodes) == 0:
		r.Verdict, r.Summary = Pending, fmt.Sprintf("Pod %s is pending: the cluster has no node.", r.Pod)
	case len(r.Fits) > 0:
		r.Verdict, r.Summary = Schedulable, fmt.Sprintf("Pod %s fits on %s.", r.Pod, some(r.Fits))
	case unclear:
		r.Verdict, r.Summary = Unknown, fmt.Sprintf("It cannot be told whether pod %s fits: not all could be read.", r.Pod)
	case len(r.Nodes) == 1:
		r.Verdict, r.Summary = Pending, fmt.Sprintf("Pod %s is pending: it does not fit on %s, the only node.", r.Pod, r.Nodes[0].Name)
	default:
		r.Verdict, r.Summary = Pending, fmt.Sprintf("Pod %s is pending: it fits on none of %s.", r.Pod, count(len(r.Nodes), "node"))
	}
	if r.Verdict == Pending && p.pod.Spec.NodeName == "" {
		r.Scheduler = p.message(r.Nodes)
	}
}

// nearest is the Node that fails the fewest checks, if none fits.
func nearest(nodes []Node) string {
	best, fewest := "", len(Checks)+1
	for _, n := range nodes {
		failed := len(n.Failed())
		if failed == 0 {
			return ""
		}
		if failed < fewest {
			best, fewest = n.Name, failed
		}
	}
	return best
}

// Failed are the checks that do not hold, in the scheduler's order.
func (n *Node) Failed() []Check {
	return slices.DeleteFunc(slices.Clone(Checks), func(c Check) bool { return n.Checks[c] != No })
}

// count writes a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// some names up to three things and counts the others.
func some(names []string) string {
	const most = 3
	switch n := len(names); {
	case n == 0:
		return "none"
	case n == 1:
		return names[0]
	case n <= most:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	default:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
}
