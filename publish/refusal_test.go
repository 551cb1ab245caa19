package publish

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// admission is an API server with one Node, of which nobody but us has labels, or
// nobody at all. It refuses to have some of them changed. What it counts and how it
// says so is as in a real one: TestFaults has that.
type admission struct {
	node     labels.Set
	orphans  labels.Set // of which nobody knows who set them
	refuses  map[string]bool
	always   bool // whatever the change
	requests int
	writes   int
}

func (a *admission) RoundTrip(r *http.Request) (*http.Response, error) {
	a.requests++
	if r.Method == http.MethodPatch {
		var object metav1.PartialObjectMetadata
		var removal struct {
			Metadata struct {
				Labels map[string]*string
			}
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		node, orphans := maps.Clone(a.node), maps.Clone(a.orphans)
		if r.Header.Get("Content-Type") == string(types.MergePatchType) {
			if err := json.Unmarshal(body, &removal); err != nil {
				return nil, err
			}
			for key := range removal.Metadata.Labels {
				delete(node, key)
				delete(orphans, key)
			}
		} else {
			if err := json.Unmarshal(body, &object); err != nil {
				return nil, err
			}
			node = object.Labels
			for key, value := range node {
				if was, ok := orphans[key]; ok && was != value && r.URL.Query().Get("force") != "true" {
					return nil, fmt.Errorf("conflict over %s", key)
				}
				delete(orphans, key)
			}
		}
		for _, key := range changed(union(a.node, a.orphans), union(node, orphans)) {
			if a.refuses[key] {
				return respond(status(422, metav1.StatusReasonInvalid, "nodes \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: no "+key))
			}
		}
		if a.always {
			return respond(status(403, metav1.StatusReasonForbidden, "admission webhook \"w\" denied the request: not you"))
		}
		if r.URL.Query().Get("dryRun") == "" {
			a.node, a.orphans = node, orphans
			a.writes++
		}
	}
	return respond(answer{code: 200, body: a.meta()})
}

func union(a, b labels.Set) labels.Set {
	all := labels.Set{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

func (a *admission) meta() *metav1.PartialObjectMetadata {
	meta := nodeMeta("1", a.node, nil)
	maps.Copy(meta.Labels, a.orphans)
	for i := range meta.ManagedFields {
		meta.ManagedFields[i].Time = &metav1.Time{Time: time.Unix(int64(a.writes), 0)}
	}
	return meta
}

func respond(a answer) (*http.Response, error) {
	body, err := json.Marshal(a.body)
	return &http.Response{StatusCode: a.code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body))}, err
}

func (a *admission) sink(t rapid.TB) *Node {
	client, err := NewClient(&rest.Config{Host: "http://node.example", Transport: a, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return &Node{Client: client, Name: "a"}
}

// Whatever admission refuses, the other labels are published, in one write and a
// bounded number of requests, and what is refused is named.
func TestNodeRefused(t *testing.T) {
	keys := make([]string, 60)
	for i := range keys {
		keys[i] = fmt.Sprintf("n/%02d", i)
	}
	set := func(t *rapid.T, label string) labels.Set {
		return rapid.MapOfN(rapid.SampledFrom(keys), rapid.SampledFrom([]string{"1", "2"}), 1, 60).Draw(t, label)
	}
	rapid.Check(t, func(t *rapid.T) {
		was, want := labels.Set(set(t, "was")), labels.Set(set(t, "want"))
		refuses := rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 0, 3, rapid.ID).Draw(t, "refuses")
		a := &admission{node: maps.Clone(was), refuses: map[string]bool{}}
		for _, key := range refuses {
			a.refuses[key] = true
		}
		n := a.sink(t)
		expect := maps.Clone(want)
		var refused []string
		changes := changed(was, want)
		for _, key := range changes {
			if !a.refuses[key] {
				continue
			}
			refused = append(refused, key)
			if value, ok := was[key]; ok {
				expect[key] = value
			} else {
				delete(expect, key)
			}
		}
		if len(refused) == len(changes) {
			return // TestNodeRefusedWhole
		}
		err := n.Publish(t.Context(), want)
		conflict, _ := errors.AsType[*ConflictError](err)
		switch {
		case len(refused) == 0 && err != nil:
			t.Fatalf("error %v", err)
		case len(refused) > 0 && (conflict == nil || len(conflict.Refused) != len(refused)):
			t.Fatalf("error %v, want %v to be refused", err, refused)
		}
		for i, key := range refused {
			if r := conflict.Refused[i]; r.Key != key || !strings.HasSuffix(r.Reason, "no "+key) {
				t.Errorf("refused %v, want %s", r, key)
			}
		}
		if !maps.Equal(a.node, expect) {
			t.Errorf("the Node has %v, want %v", a.node, expect)
		}
		if a.writes != 1 || a.requests > siftLimit+4 {
			t.Errorf("%d writes, %d requests", a.writes, a.requests)
		}
		if again, err := n.moved(event(t, a.meta())); again || err != nil {
			t.Errorf("the watch says that the Node moved: %v %v", again, err)
		}

		// From then on it takes a read, and a write that is refused.
		a.requests = 0
		err = n.Publish(t.Context(), want)
		if a.requests > 2 || a.writes != 1 || (err != nil) != (len(refused) > 0) {
			t.Errorf("%d requests, %d writes: %v", a.requests, a.writes, err)
		}
		a.refuses = nil
		if err := n.Publish(t.Context(), want); err != nil || !maps.Equal(a.node, want) {
			t.Errorf("not refused any more: %v", err)
		}
		if n.refused != nil {
			t.Errorf("%v is still said to be refused", n.refused)
		}
	})
}

func event(t rapid.TB, live *metav1.PartialObjectMetadata) metav1.WatchEvent {
	raw, err := json.Marshal(live)
	if err != nil {
		t.Fatal(err)
	}
	e := metav1.WatchEvent{Type: "MODIFIED"}
	e.Object.Raw = raw
	return e
}

// Where all is refused, or so much that it would take too long to tell, nothing
// that may not be published is.
func TestNodeRefusedWhole(t *testing.T) {
	want := labels.Set{}
	for i := range 60 {
		want[fmt.Sprintf("n/%02d", i)] = "1"
	}
	all := map[string]bool{}
	for key := range want {
		all[key] = true
	}
	for name, test := range map[string]struct {
		admission
		requests int
	}{
		"the agent":   {admission{always: true}, 3}, // a read, the write, and no change at all
		"each label":  {admission{refuses: all}, siftLimit + 2},
		"some labels": {admission{refuses: map[string]bool{"n/01": true}, always: true}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			a := test.admission
			err := a.sink(t).Publish(t.Context(), want)
			conflict, _ := errors.AsType[*ConflictError](err)
			if err == nil || conflict != nil || len(a.node) > 0 || a.writes > 0 {
				t.Errorf("error %v; the Node has %v", err, a.node)
			}
			if a.requests > test.requests {
				t.Errorf("%d requests, want %d at most", a.requests, test.requests)
			}
		})
	}
	t.Run("half", func(t *testing.T) {
		a := &admission{refuses: map[string]bool{}}
		for i := range 30 {
			a.refuses[fmt.Sprintf("n/%02d", 2*i)] = true
		}
		err := a.sink(t).Publish(t.Context(), want)
		if err == nil || a.requests > siftLimit+4 {
			t.Errorf("%d requests: %v", a.requests, err)
		}
		for key := range a.node {
			if a.refuses[key] {
				t.Errorf("%s is there", key)
			}
		}
	})
	t.Run("a range", func(t *testing.T) { // such as a policy about a prefix
		a := &admission{refuses: map[string]bool{}}
		for i := range 30 {
			a.refuses[fmt.Sprintf("n/%02d", i)] = true
		}
		err := a.sink(t).Publish(t.Context(), want)
		if conflict, ok := errors.AsType[*ConflictError](err); !ok || len(conflict.Refused) != 30 || len(a.node) != 30 {
			t.Errorf("%d labels are there: %v", len(a.node), err)
		}
	})
}

// Labels of which nobody is known to be the owner are removed by one write and
// taken over by another: what admission refuses of either stays, is named, and
// does not keep the rest back.
func TestNodeRefusedOrphans(t *testing.T) {
	var keys []string
	for _, k := range labels.Keys {
		if !strings.ContainsAny(k.Pattern, "<*{") && !labels.OthersToo(k.Pattern) && labels.Known(k.Pattern) {
			keys = append(keys, k.Pattern)
		}
	}
	keys = keys[:min(len(keys), 40)]
	set := func(t *rapid.T, label string, least int) labels.Set {
		return rapid.MapOfN(rapid.SampledFrom(keys), rapid.SampledFrom([]string{"1", "2"}), least, len(keys)).Draw(t, label)
	}
	rapid.Check(t, func(t *rapid.T) {
		was, orphans, want := set(t, "was", 0), set(t, "orphans", 0), set(t, "want", 1)
		maps.DeleteFunc(orphans, func(key, _ string) bool { _, ours := was[key]; return ours })
		before := union(was, orphans)
		a := &admission{node: maps.Clone(was), orphans: maps.Clone(orphans), refuses: map[string]bool{}}
		for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 0, 2, rapid.ID).Draw(t, "refuses") {
			a.refuses[key] = true
		}
		expect := maps.Clone(want)
		var refused []string
		changes := changed(before, want)
		for _, key := range changes {
			if !a.refuses[key] {
				continue
			}
			refused = append(refused, key)
			if value, ok := before[key]; ok {
				expect[key] = value
			} else {
				delete(expect, key)
			}
		}
		n := a.sink(t)
		err := n.Publish(t.Context(), want)
		conflict, _ := errors.AsType[*ConflictError](err)
		if got := union(a.node, a.orphans); !maps.Equal(got, expect) {
			t.Fatalf("the Node has %v, want %v: %v", got, expect, err)
		}
		if a.writes > 2 || a.requests > siftLimit+6 {
			t.Errorf("%d writes, %d requests", a.writes, a.requests)
		}
		switch {
		case a.writes == 0 && len(refused) > 0:
			if err == nil || conflict != nil {
				t.Fatalf("error %v though nothing was written", err)
			}
			return
		case len(refused) == 0 && err != nil:
			t.Fatalf("error %v", err)
		case len(refused) > 0 && (conflict == nil || !slices.EqualFunc(conflict.Refused, refused, func(r Refusal, key string) bool { return r.Key == key })):
			t.Fatalf("error %v, want %v to be refused", err, refused)
		case conflict != nil && len(conflict.Conflicts)+len(conflict.Stale) > 0:
			t.Errorf("also said to be in conflict: %v", err)
		}
		if again, err := n.moved(event(t, a.meta())); again || err != nil {
			t.Errorf("the watch says that the Node moved: %v %v", again, err)
		}

		// From then on it takes a read, and two writes that are refused.
		writes := a.writes
		a.requests = 0
		err = n.Publish(t.Context(), want)
		if a.requests > 3 || a.writes != writes || (err != nil) != (len(refused) > 0) {
			t.Errorf("%d requests, %d writes: %v", a.requests, a.writes-writes, err)
		}
		a.refuses = nil
		if err := n.Publish(t.Context(), want); err != nil || !maps.Equal(union(a.node, a.orphans), want) {
			t.Errorf("not refused any more: %v", err)
		}
		if n.refused != nil {
			t.Errorf("%v is still said to be refused", n.refused)
		}
	})
}

// Other refusals are not admission's, and cost no more than a request.
func TestNodeRefusedByOthers(t *testing.T) {
	for _, wrong := range []answer{
		status(403, metav1.StatusReasonForbidden, `nodes "a" is forbidden: User "x" cannot patch resource "nodes"`),
		status(422, metav1.StatusReasonInvalid, `Node "a" is invalid`),
		status(500, metav1.StatusReasonInternalError, `failed calling webhook "w": no endpoints available`),
	} {
		s, client := serve(t, nodeAnswer("1", nil, nil), wrong)
		n := &Node{Client: client, Name: "a"}
		if err := n.Publish(t.Context(), labels.Set{"n/a": "1", "n/b": "2"}); err == nil {
			t.Errorf("no error for %v", wrong)
		}
		if seen, _ := s.requests(); !slices.Equal(seen, []string{"GET /api/v1/nodes/a", "PATCH /api/v1/nodes/a"}) {
			t.Errorf("requests %v", seen)
		}
	}
}

// A webhook may say all labels, and be cut within a UUID.
func TestReasonTellsNoPartOfAUUID(t *testing.T) {
	const uuid = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"
	for n := range len(uuid) + 1 {
		begin := `admission webhook "w" denied the request: `
		message := begin + strings.Repeat(".", reasonLimit-len(begin)-n) + uuid
		reason, refused := reasonOf(&apierrors.StatusError{ErrStatus: metav1.Status{Message: message}})
		if !refused || strings.Contains(reason, uuid[:1]) {
			t.Errorf("%t, %q", refused, reason)
		}
	}
}
