package publish

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// repairer is a Sink whose repairs are asked for.
type repairer interface {
	Sink
	Repaired() (keys []string, done bool)
}

func wantRepaired(t *testing.T, r repairer, done bool, keys ...string) {
	t.Helper()
	if got, was := r.Repaired(); was != done || !slices.Equal(got, keys) {
		t.Errorf("repaired: %v, %v; want %v, %v", got, was, keys, done)
	}
}

const (
	countKey   = "nvidia.com/gpu.count"
	productKey = "nvidia.com/gpu.product"
)

var two = labels.Set{countKey: "8", productKey: "NVIDIA-H200"}

func TestFeatureFileRepaired(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		between func(t *testing.T, f *FeatureFile)
		set     labels.Set // published then
		done    bool
		keys    []string
	}{
		"as it was":        {func(*testing.T, *FeatureFile) {}, two, false, nil},
		"removed":          {func(t *testing.T, f *FeatureFile) { check(t, os.Remove(f.Path)) }, two, true, []string{countKey, productKey}},
		"unreadable":       {func(t *testing.T, f *FeatureFile) { check(t, os.Chmod(f.Path, 0o600)) }, two, true, []string{countKey, productKey}},
		"another value":    {func(t *testing.T, f *FeatureFile) { write(t, f, render(with(two, countKey, "9"), now)) }, two, true, []string{countKey}},
		"one more":         {func(t *testing.T, f *FeatureFile) { write(t, f, render(with(two, "a", "b"), now)) }, two, true, nil},
		"other labels":     {func(*testing.T, *FeatureFile) {}, with(two, countKey, "9"), false, nil},
		"withdrawn":        {func(t *testing.T, f *FeatureFile) { check(t, os.Remove(f.Path)) }, nil, false, nil},
		"expiry":           {func(_ *testing.T, f *FeatureFile) { f.now = func() time.Time { return now.Add(40 * time.Minute) } }, two, false, nil},
		"others, and gone": {func(t *testing.T, f *FeatureFile) { check(t, os.Remove(f.Path)) }, with(two, countKey, "9"), true, []string{productKey}},
	} {
		t.Run(name, func(t *testing.T) {
			f := folder(t)
			f.Expiry, f.now = time.Hour, func() time.Time { return now }
			mustPublish(t, f, two)
			wantRepaired(t, f, false)
			test.between(t, f)
			mustPublish(t, f, test.set)
			wantRepaired(t, f, test.done, test.keys...)
			mustPublish(t, f, test.set)
			wantRepaired(t, f, false)
		})
	}
	t.Run("what was there before", func(t *testing.T) {
		f := folder(t)
		write(t, f, []byte("something"))
		mustPublish(t, f, two)
		wantRepaired(t, f, false)
	})
}

func with(set labels.Set, key, value string) labels.Set {
	set = maps.Clone(set)
	set[key] = value
	return set
}

func TestNodeRepaired(t *testing.T) {
	s, client := serve(t, nodeAnswer("1", nil, nil), nodeAnswer("1", two, nil))
	n := &Node{Client: client, Name: "a"}
	mustPublish(t, n, two)
	wantRepaired(t, n, false)

	s.answer(nodeAnswer("1", seven, nil), status(500, "", "no"))
	if err := n.Publish(t.Context(), two); err == nil {
		t.Error("no error")
	}
	wantRepaired(t, n, false)
	s.answer(nodeAnswer("1", labels.Set{countKey: "8"}, nil), nodeAnswer("1", two, nil))
	mustPublish(t, n, two)
	wantRepaired(t, n, true, productKey)
	s.answer(nodeAnswer("1", two, nil))
	mustPublish(t, n, two)
	wantRepaired(t, n, false)

	// One is taken: that is a conflict, and no repair when it is given back.
	s.answer(nodeAnswer("1", labels.Set{productKey: "NVIDIA-H200"}, labels.Set{countKey: "9"}))
	err := n.Publish(t.Context(), two)
	if _, ok := errors.AsType[*ConflictError](err); !ok {
		t.Errorf("error %v, want a conflict", err)
	}
	wantRepaired(t, n, false)
	s.answer(nodeAnswer("1", labels.Set{productKey: "NVIDIA-H200"}, nil), nodeAnswer("1", two, nil))
	mustPublish(t, n, two)
	wantRepaired(t, n, false)

	// The Node goes and comes.
	s.answer(status(404, "NotFound", "not found"))
	if err := n.Publish(t.Context(), two); !errors.Is(err, ErrNoNode) {
		t.Errorf("error %v, want ErrNoNode", err)
	}
	s.answer(nodeAnswer("1", nil, nil), nodeAnswer("1", two, nil))
	mustPublish(t, n, two)
	wantRepaired(t, n, false)

	// Other labels; a Node that was made anew meanwhile.
	s.answer(nodeAnswer("1", two, nil), nodeAnswer("1", seven, nil))
	mustPublish(t, n, seven)
	wantRepaired(t, n, false)
	s.answer(nodeAnswer("2", nil, nil), nodeAnswer("2", seven, nil))
	mustPublish(t, n, seven)
	wantRepaired(t, n, true, countKey)
}

func TestNodeFeatureRepaired(t *testing.T) {
	none := status(404, "NotFound", "not found")
	ok := answer{code: 200, body: "{}"}
	s, client := serve(t, none, ok)
	n := &NodeFeature{Client: client, Namespace: "ns", NodeName: "a"}
	mustPublish(t, n, two)
	wantRepaired(t, n, false)

	changed := func(change func(*nodeFeature)) answer {
		a := featureAnswer(two, "1")
		change(a.body.(*nodeFeature))
		return a
	}
	for name, test := range map[string]struct {
		found answer
		done  bool
		keys  []string
	}{
		"deleted":           {none, true, []string{countKey, productKey}},
		"another value":     {featureAnswer(with(two, countKey, "9"), "1"), true, []string{countKey}},
		"one more":          {featureAnswer(with(two, "a", "b"), "1"), true, nil},
		"without its label": {changed(func(o *nodeFeature) { o.Labels = nil }), true, nil},
		"features":          {changed(func(o *nodeFeature) { o.Spec.Features.Flags["a"] = map[string]any{} }), true, nil},
	} {
		s.answer(test.found, ok)
		mustPublish(t, n, two)
		if keys, done := n.Repaired(); done != test.done || !slices.Equal(keys, test.keys) {
			t.Errorf("%s: repaired: %v, %v; want %v, %v", name, keys, done, test.keys, test.done)
		}
	}

	// A write whose answer was lost, and that took place.
	s.answer(featureAnswer(two, "1"), answer{code: 200, body: "{}", delay: time.Second})
	limited, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	three := with(two, "a", "b")
	if err := n.Publish(limited, three); err == nil {
		t.Error("no error")
	}
	s.answer(featureAnswer(three, "2"))
	mustPublish(t, n, three)
	wantRepaired(t, n, false)

	// Other labels.
	s.answer(featureAnswer(three, "2"), ok)
	mustPublish(t, n, seven)
	wantRepaired(t, n, false)
}

// A write whose answer was lost may have taken place. Where others than its labels are
// wanted next, what it left is nobody else's change.
func TestUnansweredWriteIsNoRepair(t *testing.T) {
	lost := answer{code: 200, body: "{}", delay: time.Second}
	nine := with(two, countKey, "9")
	for name, test := range map[string]struct {
		sink   func(*Client) repairer
		before []answer // two is published
		after  answer   // and then nine
	}{
		"Node": {
			func(c *Client) repairer { return &Node{Client: c, Name: "a"} },
			[]answer{nodeAnswer("1", nil, nil), nodeAnswer("1", two, nil)}, nodeAnswer("1", nine, nil),
		},
		"NodeFeature": {
			func(c *Client) repairer { return &NodeFeature{Client: c, Namespace: "ns", NodeName: "a"} },
			[]answer{status(404, "NotFound", "not found"), {code: 200, body: "{}"}}, featureAnswer(with(nine, "a", "b"), "2"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, client := serve(t, test.before...)
			sink := test.sink(client)
			mustPublish(t, sink, two)
			s.answer(nodeAnswer("1", two, nil), lost)
			if name == "NodeFeature" {
				s.answer(featureAnswer(two, "1"), lost)
			}
			limited, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			err := sink.Publish(limited, with(nine, "a", "b"))
			if _, ok := errors.AsType[*UnansweredError](err); !ok {
				t.Fatalf("error %v, want that there is no answer", err)
			}
			s.answer(test.after, answer{code: 200, body: nodeMeta("1", two, nil)})
			mustPublish(t, sink, two)
			wantRepaired(t, sink, false)
		})
	}
}
