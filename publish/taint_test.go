package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

const theTaint = "nvidia.com/gpu=present:NoSchedule"

func TestParseTaint(t *testing.T) {
	for s, want := range map[string]Taint{
		theTaint:                    {"nvidia.com/gpu", "present", "NoSchedule"},
		"amd.com/gpu:NoExecute":     {"amd.com/gpu", "", "NoExecute"},
		"gpu=true:PreferNoSchedule": {"gpu", "true", "PreferNoSchedule"},
	} {
		got, err := ParseTaint(s)
		if err != nil || got != want || got.String() != s {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{
		"", "nvidia.com/gpu", "nvidia.com/gpu=present", "nvidia.com/gpu:Evict", "nvidia.com/gpu=a b:NoSchedule", "a/b/c:NoSchedule",
		"true", ":NoSchedule", "node.kubernetes.io/not-ready:NoExecute", "node-role.kubernetes.io/control-plane:NoSchedule", theTaint + "-",
	} {
		if got, err := ParseTaint(s); err == nil {
			t.Errorf("%q is %v, want an error", s, got)
		}
	}
}

// tainted is a Node that is to be tainted while it has GPUs.
func tainted(client *Client, name string) *Node {
	taint, err := ParseTaint(theTaint)
	if err != nil {
		panic(err)
	}
	return &Node{Client: client, Name: name, Taint: &NodeTaint{
		Taint:  taint,
		Wanted: func(set labels.Set) bool { return set["nvidia.com/gpu.count"] != "" },
	}}
}

// taintsAnswer is a whole Node.
func taintsAnswer(version string, taints ...string) answer {
	meta := nodeMeta("1", eight, nil)
	meta.ResourceVersion = version
	var all []json.RawMessage
	for _, taint := range taints {
		all = append(all, json.RawMessage(taint))
	}
	return answer{code: 200, body: map[string]any{
		"kind": "Node", "apiVersion": "v1", "metadata": meta.ObjectMeta,
		"spec": map[string]any{"podCIDR": "10.0.0.0/24", "taints": all},
	}}
}

func TestTaintErrors(t *testing.T) {
	labelled := nodeAnswer("1", eight, nil)
	conflict := status(409, metav1.StatusReasonConflict, "the object has been modified")
	const other = `{"key":"b","effect":"NoExecute","timeAdded":"2026-01-01T00:00:00Z","x":1}`
	tests := map[string]struct {
		answers []answer
		want    string // what is sent last
		is      func(error) bool
	}{
		"written meanwhile": {
			answers: []answer{labelled, taintsAnswer("7"), conflict, taintsAnswer("8", other), labelled},
			want:    `{"metadata":{"resourceVersion":"8"},"spec":{"taints":[` + other + `,{"key":"nvidia.com/gpu","value":"present","effect":"NoSchedule"}]}}`,
		},
		"written for ever": {
			answers: []answer{labelled, taintsAnswer("1"), conflict, taintsAnswer("2"), conflict, taintsAnswer("3"), conflict, taintsAnswer("4"), conflict, taintsAnswer("5"), conflict},
			is:      apierrors.IsConflict,
		},
		"refused": {
			answers: []answer{labelled, taintsAnswer("1"), status(403, metav1.StatusReasonForbidden, "the spec may not be changed")},
			is: func(err error) bool {
				forbidden, ok := errors.AsType[*ForbiddenError](err)
				return ok && forbidden.Verb == "patch" && strings.Contains(err.Error(), theTaint)
			},
		},
		"deleted meanwhile": {
			answers: []answer{labelled, status(404, metav1.StatusReasonNotFound, "not found")},
			is:      func(err error) bool { return errors.Is(err, ErrNoNode) },
		},
		"throttled": {
			answers: []answer{labelled, {code: 429, body: metav1.Status{Status: "Failure", Reason: metav1.StatusReasonTooManyRequests, Code: 429, Details: &metav1.StatusDetails{RetryAfterSeconds: 9}}, header: "Retry-After: 9"}},
			is:      func(err error) bool { return RetryAfter(err) == 9*time.Second },
		},
		"no Node": {
			answers: []answer{labelled, {code: 200, body: "{}"}},
			is:      func(err error) bool { return err != nil },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, client := serve(t, test.answers...)
			err := tainted(client, "a").Publish(t.Context(), eight)
			if test.is == nil {
				check(t, err)
			} else if !test.is(err) {
				t.Errorf("error is %v", err)
			}
			t.Log(err)
			seen, sent := s.requests()
			if len(seen) != len(test.answers) {
				t.Errorf("requests are %v", seen)
			}
			if test.want != "" && sent[len(sent)-1] != test.want {
				t.Errorf("sent %s, want %s", sent[len(sent)-1], test.want)
			}
		})
	}
}

// Before NVML was asked nobody knows how many GPUs are usable.
func TestPublishLabelsLeavesTheTaint(t *testing.T) {
	s, client := serve(t, nodeAnswer("1", eight, nil))
	check(t, tainted(client, "a").PublishLabels(t.Context(), eight))
	if seen, _ := s.requests(); len(seen) != 1 {
		t.Errorf("requests are %v", seen)
	}
}

func TestTaintMoved(t *testing.T) {
	at := func(seconds int64) *metav1.Time { now := metav1.Unix(seconds, 0); return &now }
	meta := func(version string, entries ...metav1.ManagedFieldsEntry) *metav1.ObjectMeta {
		return &metav1.ObjectMeta{ResourceVersion: version, ManagedFields: entries}
	}
	entry := func(manager string, seconds int64, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: "Update", Time: at(seconds), FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const taints, status = `{"f:spec":{"f:taints":{}}}`, `{"f:status":{"f:conditions":{}}}`
	us, kubelet := entry("gpu-labeller", 100, taints), entry("kubelet", 90, status)
	note := noteTaints(meta("5", us, kubelet))
	for name, test := range map[string]struct {
		live *metav1.ObjectMeta
		want bool
	}{
		"as it was":               {meta("5", us, kubelet), false},
		"heartbeat":               {meta("6", us, entry("kubelet", 110, status)), false},
		"by another":              {meta("6", entry("kubectl-taint", 120, taints), kubelet), true},
		"by the same":             {meta("6", entry("gpu-labeller", 101, taints), kubelet), true},
		"within the same second":  {meta("6", us, kubelet), true},
		"no taint is left":        {meta("6", kubelet), true},
		"managedFields cleared":   {meta("6"), true},
		"managedFields unreadabl": {meta("6", entry("x", 1, `{"f:spec":7}`)), true},
	} {
		if got := note.moved(test.live); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	if (*taintNote)(nil).moved(meta("6")) {
		t.Error("moved, though no taint is kept")
	}
}

// taints are those of the Node, as KEY=VALUE:EFFECT.
func (b *bench) taints(t *testing.T) []string {
	t.Helper()
	var node struct{ Spec struct{ Taints []Taint } }
	check(t, json.Unmarshal([]byte(b.Kubectl("get", "node", b.node, "-o", "json")), &node))
	var all []string
	for _, taint := range node.Spec.Taints {
		all = append(all, taint.String())
	}
	return all
}

func (b *bench) wantTaints(t *testing.T, want ...string) {
	t.Helper()
	if got := b.taints(t); !slices.Equal(got, want) {
		t.Errorf("taints are %v, want %v", got, want)
	}
}

func testTaint(t *testing.T, b *bench) {
	b.Kubectl("taint", "node", b.node, "z=1:PreferNoSchedule", "a:PreferNoSchedule")
	before := b.taints(t)
	n := tainted(b.agent, b.node)
	mustPublish(t, n, labels.Set{"nvidia.com/x": "1"})
	b.wantTaints(t, before...)
	mustPublish(t, n, eight)
	with := append(slices.Clone(before), theTaint)
	b.wantTaints(t, with...)
	b.wantLabels(t, eight)
	b.unwritten(t, func() {
		mustPublish(t, n, eight)
		mustPublish(t, tainted(b.agent, b.node), eight)                      // a restart
		check(t, n.PublishLabels(t.Context(), eight))                        // before NVML was asked
		mustPublish(t, &Node{Client: b.agent, Name: b.node}, eight)          // without --taint
		check(t, tainted(b.agent, b.node).PublishLabels(t.Context(), eight)) // nor after a restart
	})

	// Removed by someone, then by ourselves.
	b.Kubectl("taint", "node", b.node, "nvidia.com/gpu-")
	mustPublish(t, n, eight)
	b.wantTaints(t, with...)
	b.Kubectl("taint", "node", b.node, "b:PreferNoSchedule") // kubectl writes the whole list
	after := slices.DeleteFunc(b.taints(t), func(s string) bool { return s == theTaint })
	mustPublish(t, n, labels.Set{"nvidia.com/x": "1"})
	b.wantTaints(t, after...)

	// Withdrawn, and again.
	mustPublish(t, n, eight)
	b.wantTaints(t, append(slices.Clone(after), theTaint)...)
	mustPublish(t, tainted(b.agent, b.node), nil)
	b.wantTaints(t, after...)
	b.wantLabels(t, labels.Set{})
	b.unwritten(t, func() { mustPublish(t, tainted(b.agent, b.node), nil) })

	// The last taint goes, the field with it.
	b.Kubectl("taint", "node", b.node, "a-", "b-", "z-")
	mustPublish(t, n, eight)
	b.wantTaints(t, theTaint)
	mustPublish(t, n, nil)
	b.wantTaints(t)
	b.Kubectl("delete", "node", b.node)
	mustPublish(t, tainted(b.agent, b.node), nil)
	if err := n.Publish(t.Context(), eight); !errors.Is(err, ErrNoNode) {
		t.Errorf("error %v, want ErrNoNode", err)
	}
}

func testTaintOfOthers(t *testing.T, b *bench) {
	const value, effect = "nvidia.com/gpu=true:NoSchedule", "nvidia.com/gpu=present:PreferNoSchedule"
	b.Kubectl("taint", "node", b.node, value)
	n := tainted(b.agent, b.node)
	left := func(want ...string) {
		t.Helper()
		err := n.Publish(t.Context(), eight)
		conflict, ok := errors.AsType[*ConflictError](err)
		if !ok || len(conflict.Conflicts) > 0 || !slices.Equal(conflict.Taints, want) {
			t.Errorf("error %v, want a *ConflictError of %v", err, want)
		}
		t.Log(err)
	}
	left(value)
	b.wantTaints(t, value)
	b.wantLabels(t, eight)
	b.unwritten(t, func() { left(value) })
	mustPublish(t, n, nil)
	b.wantTaints(t, value)

	// Another effect has room beside it.
	b.Kubectl("taint", "node", b.node, value+"-")
	b.Kubectl("taint", "node", b.node, effect)
	left(effect)
	b.wantTaints(t, effect, theTaint)
	b.unwritten(t, func() { left(effect) })
	mustPublish(t, n, nil)
	b.wantTaints(t, effect)
}

func testTaintScheduler(t *testing.T, b *bench) {
	mustPublish(t, tainted(b.agent, b.node), eight)
	const pod = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  tolerations: [%s]
  containers: [{name: c, image: none}]
`
	b.Apply(fmt.Sprintf(pod, "taint-without", b.node, ""))
	b.Apply(fmt.Sprintf(pod, "taint-with", b.node, "{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}"))
	until(t, "the pod with the toleration is bound", func() bool {
		return b.Kubectl("get", "pod", "taint-with", "-o", "jsonpath={.spec.nodeName}") == b.node
	})
	until(t, "the pod without is kept away", func() bool {
		return strings.Contains(b.Kubectl("get", "pod", "taint-without", "-o", "jsonpath={.status.conditions[*].message}"), "untolerated taint")
	})
	mustPublish(t, tainted(b.agent, b.node), nil)
	until(t, "the pod without the toleration is bound when the taint is gone", func() bool {
		return b.Kubectl("get", "pod", "taint-without", "-o", "jsonpath={.spec.nodeName}") == b.node
	})
}

func testTaintWatch(t *testing.T, b *bench) {
	n := tainted(b.agent, b.node)
	mustPublish(t, n, eight)
	time.Sleep(1100 * time.Millisecond) // so that a heartbeat is later than the taint
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{}, 100)
	done := make(chan error, 1)
	go func() { done <- n.Watch(ctx, func() { changed <- struct{}{} }) }()
	defer func() {
		cancel()
		check(t, <-done)
	}()
	quiet := func(what string) {
		t.Helper()
		select {
		case <-changed:
			t.Errorf("%s: changed was called", what)
		case <-time.After(time.Second):
		}
	}
	moved := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: changed was not called in 10 s", what)
		}
		mustPublish(t, n, eight)
	}
	quiet("as it was left")
	b.Kubectl("label", "node", b.node, "example.com/x=1")
	quiet("another's label")
	b.Kubectl("taint", "node", b.node, "example.com/x:PreferNoSchedule")
	moved("another taint is set")
	b.Kubectl("taint", "node", b.node, "nvidia.com/gpu-") // by the same, often in the same second
	moved("the taint is removed")
	if got := b.taints(t); !slices.Contains(got, theTaint) || len(got) != 2 {
		t.Errorf("taints are %v", got)
	}
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for begin := time.Now(); !f(); time.Sleep(100 * time.Millisecond) {
		if time.Since(begin) > 30*time.Second {
			t.Fatalf("not in 30 s: %s", what)
		}
	}
}
