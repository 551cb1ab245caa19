package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-labeller/gpu-labeller/internal/cluster"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// TestCluster runs the sinks against a real control plane, as a ServiceAccount
// with the rights that their documentation names and no more.
func TestCluster(t *testing.T) {
	c := cluster.Start(t)
	token := c.ServiceAccount("gpu-labeller", "agent",
		`{apiGroups: [""], resources: [nodes], verbs: [get, patch, watch]}`,
		`{apiGroups: [nfd.k8s-sigs.io], resources: [nodefeatures], verbs: [get, create, update]}, {apiGroups: [""], resources: [pods], verbs: [get]}`)
	agent, err := NewClient(c.ConfigWithToken(token))
	if err != nil {
		t.Fatal(err)
	}
	admin, err := NewClient(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*testing.T, *bench){
		"node":                    testNode,
		"conflict":                testNodeConflict,
		"taken by force":          testNodeTaken,
		"label removed":           testNodeRemoved,
		"force":                   testNodeForce,
		"managed fields cleared":  testNodeCleared,
		"cleared and refused":     testNodeClearedRefused,
		"restored":                testNodeRestored,
		"labels of nfd":           testNodeOfNFD,
		"two agents":              testNodeTwoAgents,
		"node re-created":         testNodeRecreated,
		"node not recreated":      testNodeNotCreated,
		"invalid label":           testNodeInvalid,
		"watch":                   testNodeWatch,
		"watch survives restarts": testNodeWatchRestart,
		"forbidden":               testForbidden,
		"taint":                   testTaint,
		"taint of others":         testTaintOfOthers,
		"taint and scheduler":     testTaintScheduler,
		"taint watch":             testTaintWatch,
		"node feature":            testNodeFeature,
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{Cluster: c, node: "node-" + strings.ReplaceAll(name, " ", "-"), agent: agent, admin: admin}
			c.CreateNode(b.node)
			test(t, b)
		})
	}
}

// bench is what one test works with: a Node of its own.
type bench struct {
	*cluster.Cluster
	node         string
	agent, admin *Client
}

func (b *bench) meta(t *testing.T) *metav1.ObjectMeta {
	t.Helper()
	var object metav1.PartialObjectMetadata
	check(t, json.Unmarshal([]byte(b.Kubectl("get", "node", b.node, "-o", "json", "--show-managed-fields")), &object))
	return &object.ObjectMeta
}

// wantLabels compares the labels under our prefixes.
func (b *bench) wantLabels(t *testing.T, want labels.Set) {
	t.Helper()
	got := labels.Set(b.meta(t).Labels)
	maps.DeleteFunc(got, func(key, _ string) bool { return strings.Contains(key, "kubernetes.io/") })
	if !maps.Equal(got, want) {
		t.Errorf("labels are\n%v, want\n%v", got, want)
	}
}

// unwritten fails the test if f writes to the Node.
func (b *bench) unwritten(t *testing.T, f func()) {
	t.Helper()
	before := b.meta(t).ResourceVersion
	f()
	if after := b.meta(t).ResourceVersion; after != before {
		t.Errorf("the Node was written: resourceVersion %s, then %s", before, after)
	}
}

func conflicts(t *testing.T, err error) []Conflict {
	t.Helper()
	conflict, ok := errors.AsType[*ConflictError](err)
	if !ok {
		t.Fatalf("error %v, want a *ConflictError", err)
	}
	t.Log(err)
	return conflict.Conflicts
}

func testNode(t *testing.T, b *bench) {
	b.Kubectl("label", "node", b.node, "nvidia.com/gpu=true", "nvidia.com/same=1")
	first := labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/same": "1"}
	n := &Node{Client: b.agent, Name: b.node}
	mustPublish(t, n, first)
	b.wantLabels(t, labels.Set{"nvidia.com/gpu": "true", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/same": "1"})
	b.unwritten(t, func() {
		mustPublish(t, n, first)
		mustPublish(t, &Node{Client: b.agent, Name: b.node}, first) // a restart
	})

	second := labels.Set{"nvidia.com/gpu.count": "7", "nvidia.com/mig.capable": "true"}
	mustPublish(t, n, second)
	b.wantLabels(t, labels.Set{"nvidia.com/gpu": "true", "nvidia.com/gpu.count": "7", "nvidia.com/mig.capable": "true", "nvidia.com/same": "1"})

	mustPublish(t, n, nil)
	b.wantLabels(t, labels.Set{"nvidia.com/gpu": "true", "nvidia.com/same": "1"})
	for _, entry := range b.meta(t).ManagedFields {
		if entry.Manager == FieldManager {
			t.Errorf("withdrawn, but managedFields has %v", entry)
		}
	}
	b.unwritten(t, func() {
		mustPublish(t, n, labels.Set{})
		mustPublish(t, &Node{Client: b.agent, Name: b.node}, nil)
	})
}

func testNodeConflict(t *testing.T, b *bench) {
	b.Kubectl("label", "node", b.node, "nvidia.com/gpu.count=9", "nvidia.com/gpu.product=Fake")
	n := &Node{Client: b.agent, Name: b.node}
	set := labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.family": "hopper"}
	want := []Conflict{{"nvidia.com/gpu.count", "kubectl-label", "9"}, {"nvidia.com/gpu.product", "kubectl-label", "Fake"}}
	if got := conflicts(t, n.Publish(t.Context(), set)); !slices.Equal(got, want) {
		t.Errorf("conflicts %v, want %v", got, want)
	}
	b.wantLabels(t, labels.Set{"nvidia.com/gpu.count": "9", "nvidia.com/gpu.product": "Fake", "nvidia.com/gpu.family": "hopper"})
	b.unwritten(t, func() {
		conflicts(t, n.Publish(t.Context(), set))
	})

	// The API server agrees with makePlan, in all three.
	live, err := n.read(t.Context())
	check(t, err)
	_, err = n.apply(t.Context(), live.UID, set, false)
	if got := conflictsIn(err); !slices.Equal(sorted(got), withoutValues(want)) {
		t.Errorf("the API server's conflicts are %v, want %v", got, want)
	}
	// And write leaves out what turns out to be in conflict.
	now, err := n.write(t.Context(), live, set, plan{apply: set, write: true})
	check(t, err)
	if !slices.Equal(now.plan.conflicts, withoutValues(want)) || !maps.Equal(now.plan.apply, labels.Set{"nvidia.com/gpu.family": "hopper"}) {
		t.Errorf("write left %v", now.plan)
	}

	// One is taken back by its owner.
	b.Kubectl("label", "node", b.node, "nvidia.com/gpu.count-")
	if got := conflicts(t, n.Publish(t.Context(), set)); !slices.Equal(got, want[1:]) {
		t.Errorf("conflicts %v, want %v", got, want[1:])
	}
	b.wantLabels(t, labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "Fake", "nvidia.com/gpu.family": "hopper"})
	err = n.Publish(t.Context(), nil)
	if conflict, ok := errors.AsType[*ConflictError](err); !ok || len(conflict.Conflicts) > 0 || len(conflict.Stale) != 1 || conflict.Stale[0].Key != want[1].Key {
		t.Errorf("withdrawn: error %v, want %v", err, want[1:])
	}
	b.wantLabels(t, labels.Set{"nvidia.com/gpu.product": "Fake"})
}

// withoutValues are conflicts as the API server tells them, without values.
func withoutValues(all []Conflict) []Conflict {
	all = slices.Clone(all)
	for i := range all {
		all[i].Value = ""
	}
	return all
}

func sorted(all []Conflict) []Conflict {
	all = slices.Clone(all)
	slices.SortFunc(all, byKey)
	return all
}

// applyAs server-side applies labels as another field manager.
func (b *bench) applyAs(t *testing.T, manager string, set labels.Set) {
	t.Helper()
	n := &Node{Client: b.admin, Name: b.node, FieldManager: manager, Force: true}
	live, err := n.read(t.Context())
	check(t, err)
	_, err = n.apply(t.Context(), live.UID, set, false)
	check(t, err)
}

func testNodeTaken(t *testing.T, b *bench) {
	set := labels.Set{"nvidia.com/a": "1", "nvidia.com/b": "1", "nvidia.com/c": "1"}
	n := &Node{Client: b.agent, Name: b.node}
	mustPublish(t, n, set)
	b.applyAs(t, "argocd", labels.Set{"nvidia.com/a": "theirs"})
	b.Kubectl("label", "node", b.node, "--overwrite", "nvidia.com/b=theirs")

	want := []Conflict{{"nvidia.com/a", "argocd", "theirs"}, {"nvidia.com/b", "kubectl-label", "theirs"}}
	for range 2 {
		b.unwritten(t, func() {
			if got := conflicts(t, n.Publish(t.Context(), set)); !slices.Equal(got, want) {
				t.Errorf("conflicts %v, want %v", got, want)
			}
		})
	}
	b.wantLabels(t, labels.Set{"nvidia.com/a": "theirs", "nvidia.com/b": "theirs", "nvidia.com/c": "1"})
	mustPublish(t, n, nil)
	b.wantLabels(t, labels.Set{"nvidia.com/a": "theirs", "nvidia.com/b": "theirs"})
}

func testNodeRemoved(t *testing.T, b *bench) {
	set := labels.Set{"nvidia.com/a": "1", "nvidia.com/b": "1"}
	n := &Node{Client: b.agent, Name: b.node}
	mustPublish(t, n, set)
	b.Kubectl("label", "node", b.node, "nvidia.com/a-")
	mustPublish(t, n, set)
	b.wantLabels(t, set)
	// In another second than the last apply, as in life.
	time.Sleep(1100 * time.Millisecond)
	b.Kubectl("label", "node", b.node, "nvidia.com/b-")
	mustPublish(t, n, set)
	b.wantLabels(t, set)
	b.Kubectl("label", "node", b.node, "nvidia.com/a-", "nvidia.com/b-")
	mustPublish(t, n, set)
	b.wantLabels(t, set)
}

func testNodeForce(t *testing.T, b *bench) {
	b.Kubectl("label", "node", b.node, "nvidia.com/gpu.count=9", "nvidia.com/gpu=true")
	n := &Node{Client: b.agent, Name: b.node, Force: true}
	set := labels.Set{"nvidia.com/gpu.count": "8"}
	mustPublish(t, n, set)
	b.wantLabels(t, labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu": "true"})
	b.unwritten(t, func() { mustPublish(t, n, set) })
	mustPublish(t, n, nil)
	b.wantLabels(t, labels.Set{"nvidia.com/gpu": "true"})
}

// clear takes from a Node the record of who owns what.
func (b *bench) clear() {
	b.Kubectl("patch", "node", b.node, "--type=merge", "-p", `{"metadata":{"managedFields":[{}]}}`)
}

func testNodeCleared(t *testing.T, b *bench) {
	full := labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/mig.capable": "true"}
	less := labels.Set{"nvidia.com/gpu.count": "7", "nvidia.com/mig.capable": "true"}
	others := labels.Set{"nvidia.com/gpu.present": "true", "nvidia.com/x": "1"}
	with := func(set labels.Set) labels.Set {
		all := maps.Clone(others)
		maps.Copy(all, set)
		return all
	}
	b.Kubectl("label", "node", b.node, "nvidia.com/gpu.present=true", "nvidia.com/x=1")
	n := &Node{Client: b.agent, Name: b.node}
	mustPublish(t, n, full)

	// While an agent runs: it applies, and all that was there has an owner without
	// an opinion.
	b.clear()
	mustPublish(t, n, full)
	b.unwritten(t, func() { mustPublish(t, n, full) })
	mustPublish(t, n, less)
	b.wantLabels(t, with(less))
	b.unwritten(t, func() { mustPublish(t, n, less) })
	mustPublish(t, n, nil)
	b.wantLabels(t, others)

	// Between two agents.
	mustPublish(t, n, full)
	b.clear()
	if all, err := b.admin.Owned(t.Context(), ""); err != nil || !slices.Contains(all, b.node) {
		t.Errorf("Owned gives %v, %v", all, err)
	}
	n = &Node{Client: b.agent, Name: b.node}
	if set, err := n.Published(t.Context()); err != nil || !maps.Equal(set, full) {
		t.Errorf("Published gives %v, %v", set, err)
	}
	mustPublish(t, n, less)
	b.wantLabels(t, with(less))
	b.clear()
	mustPublish(t, &Node{Client: b.agent, Name: b.node}, nil)
	b.wantLabels(t, others)
}

// testNodeClearedRefused has admission refuse to have labels of ours removed and
// changed of which nobody is known to be the owner.
func testNodeClearedRefused(t *testing.T, b *bench) {
	full := labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "1", "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.family": "hopper"}
	less := labels.Set{"nvidia.com/gpu.count": "7", "nvidia.com/gpu.family": "ampere"}
	n := &Node{Client: b.agent, Name: b.node}
	mustPublish(t, n, full)
	b.clear()
	probe := []string{"label", "node", b.node, "nvidia.com/gpu.product-", "--dry-run=server"}
	b.Refuse("nodes", b.node, "'nvidia.com/gpu.product' in object.metadata.labels && object.metadata.labels['nvidia.com/gpu.count'] == '8'", probe...)
	for range 2 {
		err := n.Publish(t.Context(), less)
		t.Log(err)
		conflict, ok := errors.AsType[*ConflictError](err)
		if !ok || len(conflict.Refused) != 2 || conflict.Refused[0].Key != "nvidia.com/gpu.count" || conflict.Refused[1].Key != "nvidia.com/gpu.product" || len(conflict.Conflicts)+len(conflict.Stale) > 0 {
			t.Errorf("error %v", err)
		}
		b.wantLabels(t, labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.family": "ampere"})
	}
	b.StopRefusing(b.node)
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if _, err := b.TryKubectl(probe...); err == nil || time.Now().After(end) {
			break
		}
	}
	mustPublish(t, n, less)
	b.wantLabels(t, less)
}

// testNodeRestored has a Node from a copy without managedFields.
func testNodeRestored(t *testing.T, b *bench) {
	full := labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gfd.timestamp": "1"}
	n := &Node{Client: b.agent, Name: b.node}
	mustPublish(t, n, full)
	restore := func() {
		b.Kubectl("delete", "node", b.node)
		b.CreateNode(b.node)
		b.Kubectl("label", "node", b.node, "--field-manager=kubectl-create",
			"nvidia.com/gpu.count=8", "nvidia.com/gpu.product=NVIDIA-H200", "nvidia.com/gfd.timestamp=1")
	}
	restore()
	mustPublish(t, n, full)
	less := labels.Set{"nvidia.com/gpu.count": "8"}
	stale := []Conflict{{Key: "nvidia.com/gfd.timestamp", Manager: "kubectl-create"}, {Key: "nvidia.com/gpu.product", Manager: "kubectl-create"}}
	wantStale := func(err error, want ...Conflict) {
		t.Helper()
		conflict, ok := errors.AsType[*ConflictError](err)
		if !ok || len(conflict.Conflicts) > 0 || !slices.Equal(conflict.Stale, want) {
			t.Errorf("error %v, want %v", err, want)
		}
		t.Log(err)
	}
	wantStale(n.Publish(t.Context(), less), stale...)
	b.unwritten(t, func() { wantStale(n.Publish(t.Context(), less), stale...) })
	b.wantLabels(t, full)
	// Another process does not know that the timestamp was ours, which may be GFD's.
	again := &Node{Client: b.agent, Name: b.node}
	check(t, again.PublishLabels(t.Context(), less)) // before all is known
	wantStale(again.Publish(t.Context(), less), stale[1])
	wantStale(again.Publish(t.Context(), nil), Conflict{Key: "nvidia.com/gpu.count", Manager: "kubectl-create"}, stale[1])
	if all, err := b.admin.Owned(t.Context(), ""); err != nil || !slices.Contains(all, b.node) {
		t.Errorf("Owned gives %v, %v", all, err)
	}

	force := &Node{Client: b.agent, Name: b.node, Force: true}
	mustPublish(t, force, less)
	b.wantLabels(t, labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gfd.timestamp": "1"})
	// Who sets it again means it.
	b.Kubectl("label", "node", b.node, "--field-manager=kubectl-create", "nvidia.com/gpu.product=NVIDIA-H200")
	b.unwritten(t, func() { wantStale(force.Publish(t.Context(), less), stale[1]) })
	mustPublish(t, &Node{Client: b.agent, Name: b.node, Force: true}, nil)
	b.wantLabels(t, labels.Set{"nvidia.com/gfd.timestamp": "1"})
}

// testNodeOfNFD has labels that NFD set, for GFD, beside ours: they stay, also by
// force and without managedFields.
func testNodeOfNFD(t *testing.T, b *bench) {
	theirs := labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/mig.strategy": "single"}
	b.applyAs(t, "nfd-master", theirs)
	b.Kubectl("annotate", "node", b.node, "nfd.node.kubernetes.io/feature-labels=cpu-x,nvidia.com/gpu.count,nvidia.com/gpu.product,nvidia.com/mig.strategy")
	ours := labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.family": "hopper"}
	all := maps.Clone(theirs)
	maps.Copy(all, ours)
	for _, cleared := range []bool{false, true} {
		if cleared {
			b.clear()
		}
		for _, force := range []bool{false, true} {
			n := &Node{Client: b.agent, Name: b.node, Force: force}
			mustPublish(t, n, ours)
			b.wantLabels(t, all)
			mustPublish(t, n, nil)
			b.wantLabels(t, theirs)
		}
	}
}

// testNodeTwoAgents has two agents with other opinions on one Node, each woken by
// what the other writes.
func testNodeTwoAgents(t *testing.T, b *bench) {
	old, young := labels.Set{"nvidia.com/a": "1", "nvidia.com/b": "1"}, labels.Set{"nvidia.com/a": "2"}
	x, y := &Node{Client: b.agent, Name: b.node}, &Node{Client: b.agent, Name: b.node}
	for _, pause := range []time.Duration{0, 1100 * time.Millisecond} {
		mustPublish(t, x, old)
		time.Sleep(pause)
		mustPublish(t, y, young)
		mustPublish(t, x, old) // it may be the last write of one that is gone
		mustPublish(t, y, young)
		b.unwritten(t, func() {
			for range 3 {
				if err := x.Publish(t.Context(), old); !errors.Is(err, ErrTwoAgents) {
					t.Errorf("error %v, want ErrTwoAgents", err)
				}
				mustPublish(t, y, young)
			}
		})
		b.wantLabels(t, young)
		mustPublish(t, y, nil)
		mustPublish(t, x, old) // has it to itself again
		b.wantLabels(t, old)
		x, y = &Node{Client: b.agent, Name: b.node}, &Node{Client: b.agent, Name: b.node}
	}
	// Of one opinion they do not notice each other.
	mustPublish(t, x, old)
	b.unwritten(t, func() {
		mustPublish(t, y, old)
		mustPublish(t, x, old)
	})
	// With a new opinion the first one gets its way, and the second one yields.
	mustPublish(t, y, young)
	newer := labels.Set{"nvidia.com/a": "3"}
	mustPublish(t, x, newer)
	mustPublish(t, y, young)
	mustPublish(t, x, newer)
	if err := y.Publish(t.Context(), young); !errors.Is(err, ErrTwoAgents) {
		t.Errorf("error %v, want ErrTwoAgents", err)
	}
	b.wantLabels(t, newer)
}

func testNodeRecreated(t *testing.T, b *bench) {
	set := labels.Set{"nvidia.com/gpu.count": "8"}
	n := &Node{Client: b.agent, Name: b.node}
	mustPublish(t, n, set)
	b.Kubectl("delete", "node", b.node)
	err := n.Publish(t.Context(), set)
	if !errors.Is(err, ErrNoNode) {
		t.Errorf("error %v, want ErrNoNode", err)
	}
	t.Log(err)
	mustPublish(t, n, nil)
	b.CreateNode(b.node)
	mustPublish(t, n, set)
	b.wantLabels(t, set)
}

// testNodeNotCreated applies to a Node that has gone between the read and the
// write, with the right to create it.
func testNodeNotCreated(t *testing.T, b *bench) {
	for name, client := range map[string]*Client{"agent": b.agent, "admin": b.admin} {
		t.Run(name, func(t *testing.T) {
			n := &Node{Client: client, Name: b.node}
			before, err := n.read(t.Context())
			check(t, err)
			b.Kubectl("delete", "node", b.node)
			_, err = n.apply(t.Context(), before.UID, labels.Set{"nvidia.com/gpu.count": "8"}, false)
			t.Log(err)
			if !errors.Is(err, ErrNoNode) {
				t.Errorf("deleted: error %v, want ErrNoNode", err)
			}
			if out, err := b.TryKubectl("get", "node", b.node); err == nil {
				t.Errorf("the Node is back: %s", out)
			}
			b.CreateNode(b.node)
			_, err = n.apply(t.Context(), before.UID, labels.Set{"nvidia.com/gpu.count": "8"}, false)
			t.Log(err)
			if !errors.Is(err, ErrNoNode) {
				t.Errorf("re-created: error %v, want ErrNoNode", err)
			}
			b.wantLabels(t, labels.Set{})
		})
	}
}

func testNodeInvalid(t *testing.T, b *bench) {
	n := &Node{Client: b.agent, Name: b.node}
	mustPublish(t, n, labels.Set{"nvidia.com/a": "1"})
	err := n.Publish(t.Context(), labels.Set{"nvidia.com/a": "2", "nvidia.com/b": "not a label value"})
	if err == nil || !strings.Contains(err.Error(), "not a label value") {
		t.Errorf("error %v, want one that names the value", err)
	}
	t.Log(err)
	b.wantLabels(t, labels.Set{"nvidia.com/a": "1"})
}

// follow runs Watch and returns a function that waits for its calls.
func follow(t *testing.T, n *Node) (changed func(want bool, what string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	calls, done := make(chan struct{}, 100), make(chan error, 1)
	go func() { done <- n.Watch(ctx, func() { calls <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	return func(want bool, what string) {
		t.Helper()
		limit := 500 * time.Millisecond
		if want {
			limit = 10 * time.Second
		}
		begin := time.Now()
		select {
		case <-calls:
			if !want {
				t.Errorf("%s: Watch calls", what)
			}
			t.Logf("%s: noticed within %v", what, time.Since(begin).Round(time.Millisecond))
			time.Sleep(200 * time.Millisecond)
			for len(calls) > 0 {
				<-calls
			}
		case <-time.After(limit):
			if want {
				t.Errorf("%s: Watch does not call", what)
			}
		}
	}
}

func testNodeWatch(t *testing.T, b *bench) {
	n := &Node{Client: b.agent, Name: b.node}
	changed := follow(t, n)
	changed(false, "before the first Publish")
	set := labels.Set{"nvidia.com/a": "1", "nvidia.com/b": "1"}
	mustPublish(t, n, set)
	changed(false, "our own write")
	b.Kubectl("label", "node", b.node, "nvidia.com/foreign=1")
	changed(false, "a foreign label")
	b.Kubectl("annotate", "node", b.node, "example.com/x=1")
	changed(false, "an annotation")

	b.Kubectl("label", "node", b.node, "nvidia.com/a-")
	changed(true, "a label removed")
	mustPublish(t, n, set)
	changed(false, "put back")

	b.Kubectl("label", "node", b.node, "--overwrite", "nvidia.com/b=2")
	changed(true, "a label taken")
	conflicts(t, n.Publish(t.Context(), set))
	changed(false, "seen as a conflict")
	b.Kubectl("annotate", "node", b.node, "example.com/x-")
	changed(false, "an annotation, in conflict")
	b.Kubectl("label", "node", b.node, "nvidia.com/b-")
	changed(true, "the conflict gone")
	mustPublish(t, n, set)
	changed(false, "without conflict")

	y := &Node{Client: b.agent, Name: b.node}
	mustPublish(t, y, labels.Set{"nvidia.com/a": "2"})
	changed(true, "another agent")
	mustPublish(t, n, set)
	changed(false, "corrected")
	mustPublish(t, y, labels.Set{"nvidia.com/a": "2"})
	changed(true, "another agent again")
	if err := n.Publish(t.Context(), set); !errors.Is(err, ErrTwoAgents) {
		t.Errorf("error %v, want ErrTwoAgents", err)
	}
	b.Kubectl("annotate", "node", b.node, "example.com/x=2")
	changed(false, "an annotation, with another agent")
	mustPublish(t, y, nil)
	changed(true, "the other agent gone")
	mustPublish(t, n, set)
	changed(false, "alone")

	b.Kubectl("delete", "node", b.node)
	changed(true, "deleted")
	if err := n.Publish(t.Context(), set); !errors.Is(err, ErrNoNode) {
		t.Errorf("error %v, want ErrNoNode", err)
	}
	b.CreateNode(b.node)
	changed(true, "re-created")
	mustPublish(t, n, set)
	changed(false, "labelled again")
	b.wantLabels(t, set)
}

// testNodeWatchRestart ends a watch by a crash of the API server, and changes a
// label while no watch runs.
func testNodeWatchRestart(t *testing.T, b *bench) {
	n := &Node{Client: b.agent, Name: b.node}
	set := labels.Set{"nvidia.com/a": "1"}
	mustPublish(t, n, set)
	done := make(chan error)
	go func() { done <- n.Watch(t.Context(), func() {}) }()
	time.Sleep(500 * time.Millisecond)
	b.StopAPIServer()
	t.Logf("watch ended: %v", <-done)
	t.Logf("publish: %v", n.Publish(t.Context(), set))
	err := n.Watch(t.Context(), func() {})
	if err == nil {
		t.Error("Watch without an API server: no error")
	}
	t.Log(err)
	b.StartAPIServer()
	mustPublish(t, n, set)
	b.Kubectl("label", "node", b.node, "nvidia.com/a-")
	changed := follow(t, n)
	changed(true, "a label removed between watches")
}

func testForbidden(t *testing.T, b *bench) {
	client, err := NewClient(b.ConfigFor("nobody"))
	check(t, err)
	set := labels.Set{"nvidia.com/gpu.count": "8"}
	n := &Node{Client: client, Name: b.node}
	for verb, f := range map[string]func() error{
		"get":   func() error { return n.Publish(t.Context(), set) },
		"watch": func() error { return n.Watch(t.Context(), func() {}) },
		"patch": func() error {
			live, err := (&Node{Client: b.admin, Name: b.node}).read(t.Context())
			check(t, err)
			_, err = n.apply(t.Context(), live.UID, set, false)
			return err
		},
	} {
		err := f()
		t.Log(err)
		forbidden, ok := errors.AsType[*ForbiddenError](err)
		if !ok || forbidden.Verb != verb || forbidden.Resource != "nodes" {
			t.Errorf("%s: error %v, want a *ForbiddenError that names it", verb, err)
		}
	}
}

func testNodeFeature(t *testing.T, b *bench) {
	set := labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200"}
	n := &NodeFeature{Client: b.agent, Namespace: "gpu-labeller", NodeName: b.node}
	err := n.Publish(t.Context(), set)
	if !errors.Is(err, ErrNoNodeFeatures) {
		t.Errorf("error %v, want ErrNoNodeFeatures", err)
	}
	t.Log(err)

	b.ApplyNodeFeatures()
	for begin := time.Now(); err != nil && time.Since(begin) < 10*time.Second; time.Sleep(100 * time.Millisecond) {
		err = n.Publish(t.Context(), nil)
	}
	check(t, err)

	live := func() *nodeFeature {
		t.Helper()
		object := &nodeFeature{}
		check(t, json.Unmarshal([]byte(b.Kubectl("-n", "gpu-labeller", "get", "nodefeature", n.objectName(), "-o", "json")), object))
		return object
	}
	unwritten := func(f func()) {
		t.Helper()
		before := live()
		f()
		if after := live(); after.ResourceVersion != before.ResourceVersion {
			t.Error("the object was written")
		}
	}
	mustPublish(t, n, set)
	got := live()
	if got.Labels[nodeNameLabel] != b.node || !maps.Equal(labels.Set(got.Spec.Labels), set) || len(got.OwnerReferences) != 0 {
		t.Errorf("object is %+v", got)
	}
	raw := b.Kubectl("-n", "gpu-labeller", "get", "nodefeature", n.objectName(), "-o", "jsonpath={.spec.features}")
	if want := `{"attributes":{},"flags":{},"instances":{}}`; raw != want {
		t.Errorf("spec.features is %s, want %s", raw, want)
	}
	unwritten(func() {
		mustPublish(t, n, set)
		mustPublish(t, &NodeFeature{Client: b.agent, Namespace: "gpu-labeller", NodeName: b.node}, set)
	})

	// A DaemonSet's pod; there is nothing to run it, which does not matter.
	b.Apply(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: gpu-labeller}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      serviceAccountName: agent
      containers: [{name: agent, image: agent}]
`)
	var pod string
	for begin := time.Now(); pod == "" && time.Since(begin) < 30*time.Second; time.Sleep(100 * time.Millisecond) {
		pod, _, _ = strings.Cut(b.Kubectl("-n", "gpu-labeller", "get", "pods", "-l", "app=agent", "-o", "jsonpath={.items[*].metadata.name}"), " ")
	}
	n.Owners, err = PodOwners(t.Context(), b.agent, "gpu-labeller", pod)
	check(t, err)
	if len(n.Owners) != 2 || n.Owners[0].Name != "agent" || n.Owners[0].UID == "" || n.Owners[1].Kind != "Pod" || n.Owners[1].Name != pod {
		t.Fatalf("owners are %v", n.Owners)
	}
	mustPublish(t, n, set)
	unwritten(func() { mustPublish(t, n, set) })

	// The next pod of the DaemonSet writes nothing.
	restarted := *n
	restarted.Owners = []metav1.OwnerReference{n.Owners[0], {APIVersion: "v1", Kind: "Pod", Name: "next", UID: "next"}}
	unwritten(func() { mustPublish(t, &restarted, set) })

	// Others' metadata stays; the spec and the label are ours.
	b.Kubectl("-n", "gpu-labeller", "annotate", "nodefeature", n.objectName(), "example.com/x=1")
	unwritten(func() { mustPublish(t, n, set) })
	b.Kubectl("-n", "gpu-labeller", "label", "nodefeature", n.objectName(), nodeNameLabel+"-")
	b.Kubectl("-n", "gpu-labeller", "patch", "nodefeature", n.objectName(), "--type=merge",
		"-p", `{"spec":{"labels":{"nvidia.com/foreign":"1"},"features":{"attributes":{"gpu.x":{"elements":{"a":"b"}}}}}}`)
	mustPublish(t, n, set)
	got = live()
	if got.Labels[nodeNameLabel] != b.node || !maps.Equal(labels.Set(got.Spec.Labels), set) ||
		!got.Spec.Features.empty() || got.Annotations["example.com/x"] != "1" || len(got.OwnerReferences) != 2 {
		t.Errorf("object is %+v", got)
	}

	// Withdrawn without the right to delete, then with it.
	mustPublish(t, n, nil)
	if got := live(); len(got.Spec.Labels) != 0 {
		t.Errorf("withdrawn, but labels are %v", got.Spec.Labels)
	}
	unwritten(func() { mustPublish(t, n, nil) })
	mustPublish(t, n, set)
	n.Client = b.admin
	mustPublish(t, n, nil)
	if out, err := b.TryKubectl("-n", "gpu-labeller", "get", "nodefeature", n.objectName()); err == nil {
		t.Errorf("withdrawn, but there is %s", out)
	}
	mustPublish(t, n, nil)

	n = &NodeFeature{Client: b.agent, Namespace: "elsewhere", NodeName: b.node}
	err = n.Publish(t.Context(), set)
	if forbidden, ok := errors.AsType[*ForbiddenError](err); !ok || forbidden.Verb != "get" || forbidden.Resource != nodeFeatures {
		t.Errorf("error %v, want a *ForbiddenError", err)
	}
	t.Log(err)
	n.Client = b.admin
	t.Log(n.Publish(t.Context(), set))
	err = (&NodeFeature{Client: b.agent, Namespace: "gpu-labeller", NodeName: strings.Repeat("n", 64)}).Publish(t.Context(), set)
	if want := fmt.Sprintf("%d characters", 64); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one with %q", err, want)
	}
	t.Log(err)
}
