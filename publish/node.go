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
	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// Node publishes labels on one Node, by server-side apply: the API server
// records which labels we applied, so those that we no longer apply go by
// themselves, and others' labels stay. It needs the verbs get and patch on
// nodes; Watch needs watch.
//
// A label that another field manager set to another value is left alone and
// reported as a *ConflictError, also when it was ours and was taken from us. So is
// one that an admission webhook or policy refuses, while it takes others, and one
// that is not to be there, of a key that is ours (labels.Known), unless NFD set
// it. A label that someone removed comes back with the next Publish.
//
// When managedFields are cleared, or a Node is restored from a copy without them,
// nobody is known to have applied our labels. Those of our keys that are nobody
// else's are taken for ours: that takes one more write.
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

	// Force takes labels away from other field managers, and removes labels that
	// are ours by their key, that others set, and that are not true. Two who force
	// the same label change it forever; one that is removed and returns is left
	// alone.
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
	dryRuns int               // of this Publish
	tainted *taintNote        // nil while the taint is not kept
	seen    reading           // by Published, for the Publish that follows
	// dropped are labels that were ours, are not wanted, and stayed since others
	// set them, too; taken are those that were removed from others by force.
	dropped map[string]bool
	taken   map[Conflict]bool
	partial bool // want is not all that will be wanted
	repair  repair
	rivalry rivalry
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
// *ForbiddenError, *UnansweredError, ErrNoNode, ErrTwoAgents, and RetryAfter.
//
// Labels of ours that we did not write last are corrected once: a write of our own
// may have been carried out late, or one of an agent that was killed. Where they
// come back within rivalTime there are two agents, and the Node is left to the
// other one, for longer each time, until set changes, the other one withdraws, or
// the Node is re-created: ErrTwoAgents. So two agents take turns every hour at
// most. A new Node value has no memory.
func (n *Node) Publish(ctx context.Context, set labels.Set) error {
	return n.put(ctx, set, n.Taint != nil, false)
}

// PublishLabels is Publish for labels that are not all yet, and do not say whether
// the taint is wanted: it stays as it is, and so do labels that we did not apply.
func (n *Node) PublishLabels(ctx context.Context, set labels.Set) error {
	return n.put(ctx, set, false, true)
}

func (n *Node) put(ctx context.Context, set labels.Set, taint, partial bool) error {
	n.mu.Lock() // Watch waits, and then sees what we left
	defer n.mu.Unlock()
	n.partial, n.dryRuns = partial, 0
	n.repair.begin()
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
	n.repair.fail(err, set)
	if errors.Is(err, ErrNoNode) && len(set) == 0 {
		return nil // withdrawn, with the Node
	}
	if p := n.last.plan; err == nil && len(p.conflicts)+len(p.stale)+len(p.refused)+len(left) > 0 {
		err = &ConflictError{Conflicts: p.conflicts, Stale: p.stale, Refused: p.refused, Taints: left}
	}
	if err != nil {
		return fmt.Errorf("%v: %w", n, err)
	}
	return nil
}

// overtakenTries is how often a Node is read and written anew, where what is
// written holds only for what was read.
const overtakenTries = 4

// publish returns what it left, or nothing if that is unknown: a write that
// failed may have taken place.
func (n *Node) publish(ctx context.Context, set labels.Set, last outcome, changed bool) (outcome, error) {
	for try := 1; ; try++ {
		live := n.seen.live
		if live == nil || time.Since(n.seen.at) > readingTime {
			var err error
			if live, err = n.read(ctx); err != nil {
				return outcome{}, err
			}
		}
		n.seen = reading{}
		p := n.plan(live, set)
		who := labelOwners(&live.ObjectMeta, n.manager())
		if !p.write {
			n.remember(nil)
			n.repair.finish(live.Labels, p.apply, false)
			return outcome{uid: live.UID, version: live.ResourceVersion, at: time.Now(), applied: who.applied, plan: p}, nil
		}
		if !changed && live.UID == last.uid && another(live, who, last) && !n.rivalry.found(live, who) && n.rivalry.yield(time.Now()) {
			// What it looked like stays in mind, so that Watch is quiet until it moves.
			return outcome{uid: last.uid, version: last.version, at: last.at, applied: last.applied, plan: p.without(live, n.manager(), n.refused)}, ErrTwoAgents
		}
		left, err := n.carryOut(ctx, live, set, p)
		if errors.Is(err, errOvertaken) && try < overtakenTries {
			continue
		}
		if err == nil {
			n.repair.finish(live.Labels, left.plan.apply, false)
		}
		return left, err
	}
}

// errOvertaken means that the Node was written between our read and a write that
// is only right for what was read.
var errOvertaken = errors.New("the Node is written again and again while it is being labelled")

// carryOut removes what p says, and applies the rest.
func (n *Node) carryOut(ctx context.Context, live *metav1.PartialObjectMetadata, set labels.Set, p plan) (outcome, error) {
	who := labelOwners(&live.ObjectMeta, n.manager())
	n.drop(who, set)
	if len(p.remove) == 0 {
		return n.write(ctx, live, set, p)
	}
	answer, err := n.remove(ctx, live, p.remove, false)
	var refused map[string]string
	if _, denied := reasonOf(err); denied {
		refusal := err
		// Half of the dry runs is for what is to be applied.
		refused, err = n.sift(refusal, p.remove, (siftLimit-n.dryRuns)/2, func(keys []string) error {
			_, err := n.remove(ctx, live, keys, true)
			return err
		})
		if err != nil {
			return outcome{}, err
		}
		p.remove = slices.DeleteFunc(slices.Clone(p.remove), func(key string) bool { _, ok := refused[key]; return ok })
		answer = live
		if len(p.remove) > 0 {
			answer, err = n.remove(ctx, live, p.remove, false)
		} else if !n.known(refused) && !p.without(live, n.manager(), refused).write {
			return outcome{}, refusal
		}
	}
	if err != nil {
		return outcome{}, err
	}
	for _, key := range p.remove {
		if owner, ok := who.others[key]; ok {
			if n.taken == nil {
				n.taken = map[Conflict]bool{}
			}
			n.taken[Conflict{Key: key, Manager: owner}] = true
		}
	}
	begun := len(p.remove) > 0
	p = n.plan(answer, set).without(answer, n.manager(), refused)
	p.begun = begun
	if !p.write {
		return n.left(answer, set, p), nil
	}
	return n.write(ctx, answer, set, p)
}

// drop notes which labels cease to be ours.
func (n *Node) drop(who owners, set labels.Set) {
	for key := range who.ours {
		if _, wanted := set[key]; !wanted && labels.Known(key) {
			if n.dropped == nil {
				n.dropped = map[string]bool{}
			}
			n.dropped[key] = true
		}
	}
}

// left is the outcome of p, by the API server's answer.
func (n *Node) left(answer *metav1.PartialObjectMetadata, set labels.Set, p plan) outcome {
	p.write, p.claim, p.begun, p.remove = false, false, false, nil
	p.stale = n.plan(answer, set).stale
	n.remember(p.refused)
	who := labelOwners(&answer.ObjectMeta, n.manager())
	return outcome{uid: answer.UID, version: answer.ResourceVersion, at: time.Now(), applied: who.applied, plan: p}
}

// another reports whether labels were applied under our field manager since our
// last Publish. If somebody only took or removed some of our labels,
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
func (n *Node) write(ctx context.Context, was *metav1.PartialObjectMetadata, set labels.Set, p plan) (outcome, error) {
	for sifted := false; ; {
		live, err := n.applyPlan(ctx, was, p, p.apply, false)
		if _, refused := reasonOf(err); refused && !sifted {
			sifted = true
			if p, err = n.siftApply(ctx, was, p, err); err != nil {
				return outcome{}, err
			}
			if p.write {
				continue
			}
			live = was
		}
		if err == nil {
			return n.left(live, set, p), nil
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

// applyPlan applies a set as p wants it done.
func (n *Node) applyPlan(ctx context.Context, read *metav1.PartialObjectMetadata, p plan, set labels.Set, dryRun bool) (*metav1.PartialObjectMetadata, error) {
	if p.claim {
		return n.claim(ctx, read, set, dryRun)
	}
	return n.apply(ctx, read.UID, set, dryRun)
}

func (n *Node) apply(ctx context.Context, uid types.UID, set labels.Set, dryRun bool) (*metav1.PartialObjectMetadata, error) {
	live, err := n.applyAt(ctx, uid, "", set, n.Force, dryRun)
	if anotherUID(err) {
		return nil, fmt.Errorf("%w (%w)", ErrNoNode, err)
	}
	return live, err
}

// claim applies labels that are in conflict with no field manager that has an
// opinion. It is refused if the Node was written since it was read.
func (n *Node) claim(ctx context.Context, read *metav1.PartialObjectMetadata, set labels.Set, dryRun bool) (*metav1.PartialObjectMetadata, error) {
	live, err := n.applyAt(ctx, read.UID, read.ResourceVersion, set, true, dryRun)
	if anotherUID(err) {
		return nil, fmt.Errorf("%w (%w)", errOvertaken, err)
	}
	return live, err
}

func (n *Node) applyAt(ctx context.Context, uid types.UID, version string, set labels.Set, force, dryRun bool) (*metav1.PartialObjectMetadata, error) {
	type metadata struct {
		Name    string     `json:"name"`
		UID     types.UID  `json:"uid"`
		Version string     `json:"resourceVersion,omitempty"`
		Labels  labels.Set `json:"labels,omitempty"`
	}
	object, err := json.Marshal(struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Metadata   metadata `json:"metadata"`
	}{"v1", "Node", metadata{n.Name, uid, version, set}})
	if err != nil {
		return nil, err
	}
	live, err := n.patch(ctx, dryRun, n.Client.core.Patch(types.ApplyPatchType).Param("force", strconv.FormatBool(force)).Body(object))
	if _, lost := errors.AsType[*UnansweredError](err); lost && !dryRun {
		n.rivalry.lose(set)
	}
	return live, err
}

// remove takes labels away whoever owns them, which an apply cannot do. It is
// refused if the Node was written since it was read.
func (n *Node) remove(ctx context.Context, read *metav1.PartialObjectMetadata, keys []string, dryRun bool) (*metav1.PartialObjectMetadata, error) {
	gone := map[string]any{}
	for _, key := range keys {
		gone[key] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": read.UID, "resourceVersion": read.ResourceVersion, "labels": gone,
	}})
	if err != nil {
		return nil, err
	}
	live, err := n.patch(ctx, dryRun, n.Client.core.Patch(types.MergePatchType).Body(patch))
	if anotherUID(err) {
		return nil, fmt.Errorf("%w (%w)", errOvertaken, err)
	}
	return live, err
}

func (n *Node) patch(ctx context.Context, dryRun bool, req *rest.Request) (*metav1.PartialObjectMetadata, error) {
	req = req.Resource("nodes").Name(n.Name).Param("fieldManager", n.manager()).SetHeader("Accept", metadataOnly)
	if dryRun {
		req = req.Param("dryRun", metav1.DryRunAll)
	}
	body, err := n.Client.do(ctx, "patch", "nodes", req)
	if err != nil {
		return nil, err
	}
	live, err := decodeMetadata(body)
	return live, doubtful(err)
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
	claim     bool       // some of it from field managers without an opinion
	remove    []string   // what an apply does not take away, sorted
	conflicts []Conflict // what to leave alone, sorted by key
	stale     []Conflict // what to leave alone though it is not wanted, likewise
	refused   []Refusal  // what stays as it is, sorted by key
	write     bool       // whether something is to change
	begun     bool       // some of it is done
}

func (p plan) equal(q plan) bool {
	// That the other one changes a value of its own is no news.
	same := func(a, b Conflict) bool { return a.Key == b.Key && a.Manager == b.Manager }
	return p.write == q.write && maps.Equal(p.apply, q.apply) && slices.EqualFunc(p.conflicts, q.conflicts, same) &&
		slices.Equal(p.stale, q.stale) && slices.Equal(p.refused, q.refused)
}

// plan compares what is there with what is wanted.
func (n *Node) plan(live *metav1.PartialObjectMetadata, want labels.Set) plan {
	who := labelOwners(&live.ObjectMeta, n.manager())
	p := makePlan(live, want, who, n.Force)
	for key := range live.Labels {
		owner, owned := who.others[key]
		if _, wanted := want[key]; wanted || n.partial {
			continue
		}
		switch {
		case who.orphans[key]:
			p.remove = append(p.remove, key)
		case !owned:
		case n.stale(who, key) && n.Force && !n.taken[Conflict{Key: key, Manager: owner}]:
			p.remove = append(p.remove, key)
		case who.ours[key]: // the apply gives up our share
		case n.stale(who, key), n.dropped[key] && len(want) > 0:
			p.stale = append(p.stale, Conflict{Key: key, Manager: owner})
		}
	}
	p.write = p.write || len(p.remove) > 0
	slices.Sort(p.remove)
	slices.SortFunc(p.stale, byKey)
	return p
}

// stale tells whether a label that others set is untrue, if it is not wanted:
// nobody but us has reason to publish that key. What NFD sets is a NodeFeature
// object's or a feature file's to take back, be it GFD's.
func (n *Node) stale(who owners, key string) bool {
	return who.others[key] != "" && !who.byNFD(key) && labels.Known(key) && (!labels.OthersToo(key) || n.dropped[key] || who.ours[key])
}

// makePlan plans what to apply, and decides about conflicts as the API server
// would: another field manager owns the label, and its value is not ours. So what
// is in conflict does not cost a write each time.
func makePlan(live *metav1.PartialObjectMetadata, want labels.Set, who owners, force bool) plan {
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
	p.claim = !force && claims(live, who, p.apply)
	slices.SortFunc(p.conflicts, byKey)
	return p
}

// claims tells whether a set has other values for labels that are nobody's.
func claims(live *metav1.PartialObjectMetadata, who owners, set labels.Set) bool {
	for key, value := range set {
		if now, exists := live.Labels[key]; exists && now != value && who.orphans[key] {
			return true
		}
	}
	return false
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
