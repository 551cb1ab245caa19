// Package explain says, for each Node of a cluster, whether the scheduler would
// put a pod there, and if not, what is in the way and how close it is. It asks
// the scheduler's own libraries what matches, so that it agrees with it. It is a
// pure function of objects that were read before.
package explain

import (
	"cmp"
	"context"
	"fmt"
	"math"
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

// Answer says whether a Node fits, or what a check comes to.
type Answer string

// The answers: whether a Node fits is Yes, No or Unclear. A check is OK, or it
// Blocks the pod; one that the pod asks nothing of is NotAsked.
const (
	Yes      Answer = "yes"
	No       Answer = "no"
	OK       Answer = "ok"
	Blocks   Answer = "blocks"
	Unclear  Answer = "unknown"
	NotAsked Answer = "not asked"
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
	// Said is what the scheduler has said of the pod, in its condition
	// PodScheduled: it looks at more than Explain does, and maybe at an older
	// cluster.
	Said string `json:"said,omitempty"`
	// Room is how many such pods fit in all, by resources; absent with device
	// claims, and where pods could not be read.
	Room *int64 `json:"room,omitempty"`
}

// Node is what can be said of a pod on one Node.
type Node struct {
	Name       string           `json:"name"`
	Fits       Answer           `json:"fits"`
	Checks     map[Check]Answer `json:"checks"`
	Reasons    []Reason         `json:"reasons"`
	Preference int64            `json:"preference"` // weights of the preferred terms that match, together
	// Distance is how much is in the way, weighed by how hard it is to change; 0
	// of a Node that fits. Only the order of two Nodes means anything.
	Distance float64 `json:"-"`
}

// Reason is why a pod cannot be on one Node.
type Reason struct {
	Check Check  `json:"check"`
	Text  string `json:"text"`
	// Scheduler is how the scheduler says it; empty where it has said it already.
	Scheduler string `json:"scheduler,omitempty"`

	weight float64 // see the weights; 0 stands for what its check weighs
	never  bool    // the Node would have to be another one: it is never nearest
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
	if len(p.podMisses) == 0 && pod.Spec.NodeName == "" {
		r.Nearest = nearest(r.Nodes)
	}
	r.Said = said(pod)
	r.Room = p.room(r.Fits)
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
	case r.Said != "" && len(r.Fits) > 0:
		r.Verdict, r.Summary = Pending, fmt.Sprintf("Pod %s is pending, though by all that is checked here it fits on %s.", r.Pod, some(r.Fits))
		if len(r.Unchecked) > 0 {
			r.Summary += fmt.Sprintf(" Not checked: %s.", strings.Join(r.Unchecked, "; "))
		} else {
			r.Summary += " The cluster may have changed since the scheduler looked."
		}
	case r.Said != "" && unclear:
		r.Verdict, r.Summary = Pending, fmt.Sprintf("Pod %s is pending; where it fits cannot be told: not all could be read.", r.Pod)
	case len(r.Fits) > 0 && p.otherScheduler() != "" && p.pod.Status.Phase == corev1.PodPending:
		r.Verdict, r.Summary = Pending, fmt.Sprintf("Pod %s is pending: its scheduler %s has not placed it, and has said nothing of it. Does it run?", r.Pod, p.otherScheduler())
	case len(r.Fits) > 0:
		r.Verdict, r.Summary = Schedulable, fmt.Sprintf("Pod %s fits on %s.", r.Pod, some(r.Fits))
	case unclear:
		r.Verdict, r.Summary = Unknown, fmt.Sprintf("It cannot be told whether pod %s fits: not all could be read.", r.Pod)
	case len(r.Nodes) == 1:
		r.Verdict, r.Summary = Pending, fmt.Sprintf("Pod %s is pending: it does not fit on %s, the only node.", r.Pod, r.Nodes[0].Name)
	default:
		r.Verdict, r.Summary = Pending, fmt.Sprintf("Pod %s is pending: it fits on none of %s.", r.Pod, count(len(r.Nodes), "node"))
	}
	if r.Verdict == Pending && p.pod.Spec.NodeName == "" && (len(r.Fits) == 0 || len(p.podMisses) > 0) {
		r.Scheduler = p.message(r.Nodes)
	}
}

// nearest is the Node of the least distance, if none fits. A Node that is out of
// reach is near to nothing.
func nearest(nodes []Node) string {
	best, least := "", math.Inf(1)
	for i := range nodes {
		n := &nodes[i]
		if len(n.Failed()) == 0 {
			return ""
		}
		never := slices.ContainsFunc(n.Reasons, func(r Reason) bool { return r.never })
		if n.Distance < least && !never {
			best, least = n.Name, n.Distance
		}
	}
	return best
}

// Failed are the checks that do not hold, in the scheduler's order.
func (n *Node) Failed() []Check {
	return slices.DeleteFunc(slices.Clone(Checks), func(c Check) bool { return n.Checks[c] != Blocks })
}

// said is what the scheduler has said of a pod that waits. Of a pod that is gated
// it says no more than that.
func said(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" || fleet.Ended(pod) {
		return ""
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason != corev1.PodReasonSchedulingGated {
			return cmp.Or(c.Message, c.Reason)
		}
	}
	return ""
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
