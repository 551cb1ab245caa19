package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// Node publishes labels on one Node, by server-side apply: the API server
// records which labels we applied, so those that we no longer apply go by
// themselves, and others' labels stay. It needs the verbs get and patch on
// nodes; Watch needs watch.
//
// A label that another field manager set to another value is left alone and
// reported as a *ConflictError, also when it was ours and was taken from us. So is
// one that an admission webhook or policy refuses, while it takes others. A label
// that someone removed comes back with the next Publish.
//
// The Node itself is never created: what is applied names the UID it had a
// moment before, and the API server refuses to create an object with a given UID
// (v1.37; nor would the verb patch suffice for it).
type Node struct {
	Client *Client
	Name   string

	// FieldManager is the name under which the API server records our labels. All
	// versions of an agent use the same, or the old one's labels stay for ever.
	// Default FieldManager.
	FieldManager string

	// Force takes labels away from other field managers. Two who force the same
	// label change it forever.
	Force bool

	// Taint is kept beside the labels; nil for none, and then no taint is read or
	// written.
	Taint *NodeTaint

	// Stray is told, by Published, of taints that we wrote last while Taint is nil:
	// an agent before us kept one, and nobody will take it away. Nil for no one.
	Stray func(*NodeTaints)

	mu      sync.Mutex        // guards what follows from Watch, which runs beside Publish
	want    labels.Set        // as last published; nil before the first Publish
	last    outcome           // of the last Publish
	refused map[string]string // labels that admission last refused, and its words
	tainted *taintNote        // nil while the taint is not kept
	seen    reading           // by Published, for the Publish that follows
}

// reading is a Node as it was at a time.
type reading struct {
	live *metav1.PartialObjectMetadata
	at   time.Time
}

// readingTime is for how long a reading will do. What changed since is for the
// API server, which refuses a conflict, and for Watch.
const readingTime = time.Second

// outcome is what Publish found or left.
type outcome struct {
	uid     types.UID
	version string      // resourceVersion
	at      time.Time   // of the answer
	applied metav1.Time // see owners
	plan    plan
}

func (n *Node) String() string { return fmt.Sprintf("Node %q", n.Name) }

// Publish implements Sink with one read, and one write if there is something to
// change; with a taint, as much again. Where admission refuses the write, siftLimit
// dry runs and a few more requests. Errors to test for: *ConflictError,
// *ForbiddenError, ErrNoNode, ErrTwoAgents, and RetryAfter.
//
// ErrTwoAgents needs a memory, so only the agent that wrote first finds it: it
// leaves the Node to the second until set changes, the second one withdraws, or
// the Node is re-created. So two agents do not take turns. A new Node value has
// no memory.
func (n *Node) Publish(ctx context.Context, set labels.Set) error {
	return n.put(ctx, set, n.Taint != nil)
}

// PublishLabels is Publish for labels that do not say yet whether the taint is
// wanted: it stays as it is.
func (n *Node) PublishLabels(ctx context.Context, set labels.Set) error {
	return n.put(ctx, set, false)
}

func (n *Node) put(ctx context.Context, set labels.Set, taint bool) error {
	n.mu.Lock() // Watch waits, and then sees what we left
	defer n.mu.Unlock()
	changed, last := n.want == nil || !maps.Equal(n.want, set), n.last
	n.want = labels.Set{}
	maps.Copy(n.want, set)
	n.tainted = nil

	var left []string
	var err error
	if taint && len(set) == 0 {
		// First, for a Node without labels of ours is not seen to have been ours.
		left, err = n.keepTaint(ctx, false)
	}
	if err == nil {
		n.last, err = n.publish(ctx, set, last, changed)
	}
	if err == nil && taint && len(set) > 0 {
		left, err = n.keepTaint(ctx, n.Taint.Wanted(set))
	}
	if errors.Is(err, ErrNoNode) && len(set) == 0 {
		return nil // withdrawn, with the Node
	}
	if p := n.last.plan; err == nil && len(p.conflicts)+len(p.refused)+len(left) > 0 {
		err = &ConflictError{Conflicts: p.conflicts, Refused: p.refused, Taints: left}
	}
	if err != nil {
		return fmt.Errorf("%v: %w", n, err)
	}
	return nil
}

// publish returns what it left, or nothing if that is unknown: a write that
// failed may have taken place.
func (n *Node) publish(ctx context.Context, set labels.Set, last outcome, changed bool) (outcome, error) {
	live := n.seen.live
	if live == nil || time.Since(n.seen.at) > readingTime {
		var err error
		if live, err = n.read(ctx); err != nil {
			return outcome{}, err
		}
	}
	n.seen = reading{}
	p := makePlan(live, set, n.manager(), n.Force)
	who := labelOwners(&live.ObjectMeta, n.manager())
	if !p.write {
		n.refused = nil
		return outcome{uid: live.UID, version: live.ResourceVersion, at: time.Now(), applied: who.applied, plan: p}, nil
	}
	if !changed && live.UID == last.uid && another(live, who, last) {
		// What it looked like stays in mind, so that Watch is quiet until it moves.
		return outcome{uid: last.uid, version: last.version, at: last.at, applied: last.applied, plan: p}, ErrTwoAgents
	}
	return n.write(ctx, live, p)
}

// another reports whether another process applied labels under our field manager
// since our last Publish. If somebody only took or removed some of our labels,
// our entry in managedFields has fewer keys, but its old time (v1.37).
func another(live *metav1.PartialObjectMetadata, who owners, last outcome) bool {
	if len(who.ours) == 0 || last.uid == "" {
		return false // withdrawn or removed; or we do not know what we left
	}
	if !who.applied.Equal(&last.applied) {
		return true
	}
	// Within the same second.
	for key := range who.ours {
		value, ok := last.plan.apply[key]
		if !ok || value != live.Labels[key] {
			return true
		}
	}
	return false
}

// write applies p, and without the labels that turn out to be in conflict or
// refused: p is made from what was read a moment before.
func (n *Node) write(ctx context.Context, was *metav1.PartialObjectMetadata, p plan) (outcome, error) {
	for {
		live, err := n.apply(ctx, was.UID, p.apply, false)
		if _, refused := reasonOf(err); refused && len(p.refused) == 0 {
			if p, err = n.sift(ctx, was, p, err); err != nil {
				return outcome{}, err
			}
			if p.write {
				continue
			}
			live = was
		}
		if err == nil {
			who := labelOwners(&live.ObjectMeta, n.manager())
			p.write = false
			if len(p.refused) == 0 {
				n.refused = nil
			}
			return outcome{uid: was.UID, version: live.ResourceVersion, at: time.Now(), applied: who.applied, plan: p}, nil
		}
		conflicts := conflictsIn(err)
		if !apierrors.IsConflict(err) || len(conflicts) == 0 {
			return outcome{}, err
		}
		progress := false
		p.apply = maps.Clone(p.apply)
		for _, c := range conflicts {
			if _, ok := p.apply[c.Key]; !ok {
				continue
			}
			delete(p.apply, c.Key)
			p.conflicts = append(p.conflicts, c)
			progress = true
		}
		if !progress {
			return outcome{}, err
		}
		slices.SortFunc(p.conflicts, byKey)
	}
}

func (n *Node) read(ctx context.Context) (*metav1.PartialObjectMetadata, error) {
	body, err := n.Client.do(ctx, "get", "nodes",
		n.Client.core.Get().Resource("nodes").Name(n.Name).SetHeader("Accept", metadataOnly))
	if apierrors.IsNotFound(err) {
		return nil, ErrNoNode
	}
	if err != nil {
		return nil, err
	}
	return decodeMetadata(body)
}

func (n *Node) apply(ctx context.Context, uid types.UID, set labels.Set, dryRun bool) (*metav1.PartialObjectMetadata, error) {
	type metadata struct {
		Name   string     `json:"name"`
		UID    types.UID  `json:"uid"`
		Labels labels.Set `json:"labels,omitempty"`
	}
	object, err := json.Marshal(struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Metadata   metadata `json:"metadata"`
	}{"v1", "Node", metadata{n.Name, uid, set}})
	if err != nil {
		return nil, err
	}
	req := n.Client.core.Patch(types.ApplyPatchType).Resource("nodes").Name(n.Name).
		Param("fieldManager", n.manager()).Param("force", strconv.FormatBool(n.Force)).
		SetHeader("Accept", metadataOnly).Body(object)
	if dryRun {
		req = req.Param("dryRun", metav1.DryRunAll)
	}
	body, err := n.Client.do(ctx, "patch", "nodes", req)
	if anotherUID(err) {
		return nil, fmt.Errorf("%w (%w)", ErrNoNode, err)
	}
	if err != nil {
		return nil, err
	}
	return decodeMetadata(body)
}

// anotherUID reports whether an apply was refused for its UID: there is no Node, a
// conflict without causes (v1.37, also without the verb create), or one with
// another UID, which is invalid since that is immutable.
func anotherUID(err error) bool {
	switch {
	case apierrors.IsNotFound(err):
		return true
	case apierrors.IsConflict(err):
		return len(conflictsIn(err)) == 0
	case apierrors.IsInvalid(err):
		for _, cause := range causesIn(err) {
			if cause.Field == "metadata.uid" {
				return true
			}
		}
	}
	return false
}

func (n *Node) manager() string {
	if n.FieldManager == "" {
		return FieldManager
	}
	return n.FieldManager
}

func decodeMetadata(body []byte) (*metav1.PartialObjectMetadata, error) {
	var live metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &live); err != nil {
		return nil, fmt.Errorf("the API server's answer: %w", err)
	}
	if live.UID == "" {
		return nil, fmt.Errorf("the API server's answer is a %s without a UID", live.Kind)
	}
	return &live, nil
}

// plan is what has to be done to a Node.
type plan struct {
	apply     labels.Set // what to apply
	conflicts []Conflict // what to leave alone, sorted by key
	refused   []Refusal  // what stays as it is, sorted by key
	write     bool       // whether something is to change
}

func (p plan) equal(q plan) bool {
	// That the other one changes a value of its own is no news.
	same := func(a, b Conflict) bool { return a.Key == b.Key && a.Manager == b.Manager }
	return p.write == q.write && maps.Equal(p.apply, q.apply) && slices.EqualFunc(p.conflicts, q.conflicts, same) && slices.Equal(p.refused, q.refused)
}

// makePlan compares what is there with what is wanted, and decides about
// conflicts as the API server would: another field manager owns the label, and
// its value is not ours. So what is in conflict does not cost a write each time.
func makePlan(live *metav1.PartialObjectMetadata, want labels.Set, manager string, force bool) plan {
	who := labelOwners(&live.ObjectMeta, manager)
	p := plan{apply: labels.Set{}}
	for key, value := range want {
		now, exists := live.Labels[key]
		if owner, owned := who.others[key]; owned && exists && now != value && !force {
			p.conflicts = append(p.conflicts, Conflict{Key: key, Manager: owner, Value: now})
			continue
		}
		p.apply[key] = value
		if !exists || now != value || !who.ours[key] {
			p.write = true
		}
	}
	for key := range who.ours {
		if _, ok := p.apply[key]; !ok {
			p.write = true
		}
	}
	slices.SortFunc(p.conflicts, byKey)
	return p
}

func byKey(a, b Conflict) int { return strings.Compare(a.Key, b.Key) }

// conflictsIn returns the labels that err, a refused apply, names. A cause reads
// (v1.37):
//
//	{"reason": "FieldManagerConflict", "field": ".metadata.labels.KEY",
//	 "message": "conflict with \"MANAGER\" using v1"}
func conflictsIn(err error) []Conflict {
	var conflicts []Conflict
	for _, cause := range causesIn(err) {
		key, ok := strings.CutPrefix(cause.Field, ".metadata.labels.")
		if cause.Type != metav1.CauseTypeFieldManagerConflict || !ok {
			continue
		}
		conflicts = append(conflicts, Conflict{Key: key, Manager: managerIn(cause.Message)})
	}
	return conflicts
}

func causesIn(err error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	return status.Status().Details.Causes
}

func managerIn(message string) string {
	rest, _ := strings.CutPrefix(message, "conflict with ")
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return message
	}
	manager, err := strconv.Unquote(quoted)
	if err != nil {
		return message
	}
	return manager
}
