package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// These tests are about answers that a real API server does not give on demand.

// server answers requests in turn, and fails the test if there are more.
type server struct {
	t       *testing.T
	answers []answer

	mu   sync.Mutex
	seen []string // method and path
	sent []string // bodies
}

type answer struct {
	code   int
	body   any // string, or to be JSON
	header string
	delay  time.Duration
}

func serve(t *testing.T, answers ...answer) (*server, *Client) {
	t.Helper()
	s := &server{t: t, answers: answers}
	hs := httptest.NewServer(s)
	t.Cleanup(hs.Close)
	client, err := NewClient(&rest.Config{Host: hs.URL})
	check(t, err)
	return s, client
}

// answer sets what is answered from now on.
func (s *server) answer(answers ...answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = answers
}

// requests returns the requests so far, as method and path, and their bodies.
func (s *server) requests() (seen, sent []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen), slices.Clone(s.sent)
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	s.seen = append(s.seen, r.Method+" "+r.URL.Path)
	s.sent = append(s.sent, string(body))
	if len(s.answers) == 0 {
		s.t.Errorf("one request too many: %s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusTeapot)
		return
	}
	a := s.answers[0]
	s.answers = s.answers[1:]
	select {
	case <-time.After(a.delay):
	case <-r.Context().Done():
	}
	data, ok := a.body.(string)
	if !ok {
		b, err := json.Marshal(a.body)
		if err != nil {
			s.t.Error(err)
		}
		data = string(b)
		w.Header().Set("Content-Type", "application/json")
	}
	if name, value, ok := strings.Cut(a.header, ": "); ok {
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.code)
	_, _ = io.WriteString(w, data)
}

func status(code int, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) answer {
	return answer{code: code, body: metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
		Details: &metav1.StatusDetails{Causes: causes},
	}}
}

// nodeAnswer is a Node with labels of ours, applied, and of kubectl label.
func nodeAnswer(uid string, ours, others labels.Set) answer {
	return answer{code: 200, body: nodeMeta(uid, ours, others)}
}

func nodeMeta(uid string, ours, others labels.Set) *metav1.PartialObjectMetadata {
	now := metav1.Now()
	meta := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID(uid), Labels: map[string]string{}},
	}
	for _, m := range []struct {
		manager   string
		operation metav1.ManagedFieldsOperationType
		set       labels.Set
	}{{FieldManager, metav1.ManagedFieldsOperationApply, ours}, {"kubectl-label", metav1.ManagedFieldsOperationUpdate, others}} {
		if len(m.set) == 0 {
			continue
		}
		fields := map[string]any{".": map[string]any{}}
		for key := range m.set {
			fields["f:"+key] = map[string]any{}
		}
		raw, _ := json.Marshal(map[string]any{"f:metadata": map[string]any{"f:labels": fields}})
		meta.ManagedFields = append(meta.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: m.manager, Operation: m.operation, APIVersion: "v1", Time: &now,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(raw)),
		})
		maps.Copy(meta.Labels, m.set)
	}
	return meta
}

func fieldConflict(key, manager string) metav1.StatusCause {
	return metav1.StatusCause{
		Type: metav1.CauseTypeFieldManagerConflict, Field: ".metadata.labels." + key,
		Message: fmt.Sprintf("conflict with %q using v1", manager),
	}
}

var eight = labels.Set{"nvidia.com/gpu.count": "8"}

func TestNodeErrors(t *testing.T) {
	found := nodeAnswer("1", nil, nil)
	tests := map[string]struct {
		answers []answer
		is      func(error) bool
		says    string
		after   time.Duration
	}{
		"401": {
			answers: []answer{status(401, metav1.StatusReasonUnauthorized, "Unauthorized")},
			is:      apierrors.IsUnauthorized, says: "token",
		},
		"403 on patch": {
			answers: []answer{found, status(403, metav1.StatusReasonForbidden, `nodes "a" is forbidden`)},
			is: func(err error) bool {
				f, ok := errors.AsType[*ForbiddenError](err)
				return ok && f.Verb == "patch" && f.Resource == "nodes" && apierrors.IsForbidden(err)
			},
			says: "grant the verb patch",
		},
		"404 on get": {
			answers: []answer{status(404, metav1.StatusReasonNotFound, `nodes "a" not found`)},
			is:      func(err error) bool { return errors.Is(err, ErrNoNode) }, says: `Node "a": no such Node`,
		},
		"404 on patch": {
			answers: []answer{found, status(404, metav1.StatusReasonNotFound, `nodes "a" not found`)},
			is:      func(err error) bool { return errors.Is(err, ErrNoNode) },
		},
		"409 that names no label of ours": {
			answers: []answer{found, status(409, metav1.StatusReasonConflict, "conflict", fieldConflict("other.com/x", "m"))},
			is:      apierrors.IsConflict,
		},
		"422": {
			answers: []answer{found, status(422, metav1.StatusReasonInvalid, "is invalid", metav1.StatusCause{Field: "metadata.labels"})},
			is:      apierrors.IsInvalid,
		},
		"429 with a header": {
			answers: []answer{{code: 429, body: "Too many requests, please try again later.", header: "Retry-After: 7"}},
			is:      apierrors.IsTooManyRequests, after: 7 * time.Second,
		},
		"429 with a body": {
			answers: []answer{found, {code: 429, body: metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: 429,
				Reason: metav1.StatusReasonTooManyRequests, Details: &metav1.StatusDetails{RetryAfterSeconds: 9},
			}}},
			is: apierrors.IsTooManyRequests, after: 9 * time.Second,
		},
		"500": {
			answers: []answer{status(500, metav1.StatusReasonInternalError, "etcdserver: no leader")},
			is:      apierrors.IsInternalError, says: "no leader",
		},
		"503 from a load balancer": {
			answers: []answer{{code: 503, body: "<html>no server</html>", header: "Retry-After: 3"}},
			is:      apierrors.IsServiceUnavailable, after: 3 * time.Second,
		},
		"a web page": {answers: []answer{{code: 200, body: "<html>log in</html>"}}, says: "the API server's answer"},
		"nothing":    {answers: []answer{{code: 200, body: ""}}, says: "the API server's answer"},
		"a Status":   {answers: []answer{{code: 200, body: metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status"}}}}, says: "is a Status without a UID"},
		"slow": {
			answers: []answer{{code: 200, body: "", delay: 10 * time.Second}},
			is:      func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }, says: "no answer from the API server in 200ms",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, client := serve(t, test.answers...)
			client.Timeout = 200 * time.Millisecond
			n := &Node{Client: client, Name: "a"}
			begin := time.Now()
			err := n.Publish(t.Context(), eight)
			if err == nil {
				t.Fatal("no error")
			}
			t.Log(err)
			if took := time.Since(begin); took > time.Second {
				t.Errorf("took %v: it waits", took)
			}
			if test.is != nil && !test.is(err) {
				t.Errorf("error %v is of another kind", err)
			}
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("error lacks %q", test.says)
			}
			if got := RetryAfter(err); got != test.after {
				t.Errorf("RetryAfter %v, want %v", got, test.after)
			}
			if got, _ := s.requests(); len(got) != len(test.answers) {
				t.Errorf("requests %v, want %d", got, len(test.answers))
			}

			// All is retried.
			client.Timeout = 0
			s.answer(found, nodeAnswer("1", eight, nil))
			mustPublish(t, n, eight)
			_, sent := s.requests()
			if want := `"labels":{"nvidia.com/gpu.count":"8"}`; !strings.Contains(sent[len(sent)-1], want) {
				t.Errorf("sent %s", sent)
			}
		})
	}
}

func TestNodeNoServer(t *testing.T) {
	client, err := NewClient(&rest.Config{Host: "http://127.0.0.1:1"})
	check(t, err)
	n := &Node{Client: client, Name: "a"}
	ctx, cancel := context.WithCancel(t.Context())
	for _, f := range []func() error{
		func() error { return n.Publish(ctx, eight) },
		func() error { return n.Watch(ctx, func() {}) },
	} {
		err := f()
		if err == nil || RetryAfter(err) != 0 {
			t.Errorf("error %v", err)
		}
		t.Log(err)
	}
	cancel()
	if err := n.Publish(ctx, eight); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if err := n.Watch(ctx, func() {}); err != nil {
		t.Errorf("Watch with a context that is done: %v", err)
	}
}

// TestNodeConflictOvertaken has others set labels between our read and our write.
func TestNodeConflictOvertaken(t *testing.T) {
	set := labels.Set{"n/a": "1", "n/b": "1", "n/c": "1"}
	s, client := serve(t,
		nodeAnswer("1", nil, nil),
		status(409, metav1.StatusReasonConflict, "conflict", fieldConflict("n/b", "x \"y\"")),
		status(409, metav1.StatusReasonConflict, "conflict", fieldConflict("n/a", "z")),
		nodeAnswer("1", labels.Set{"n/c": "1"}, nil),
	)
	n := &Node{Client: client, Name: "a"}
	got := conflicts(t, n.Publish(t.Context(), set))
	if want := []Conflict{{"n/a", "z", ""}, {"n/b", `x "y"`, ""}}; !slices.Equal(got, want) {
		t.Errorf("conflicts %v, want %v", got, want)
	}
	_, sent := s.requests()
	if want := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"a","uid":"1","labels":{"n/c":"1"}}}`; sent[3] != want {
		t.Errorf("sent %s, want %s", sent[3], want)
	}
	if len(set) != 3 {
		t.Errorf("the caller's set is now %v", set)
	}
}

// TestNodeAfterUnknownWrite loses the answer to a write that took place: that is
// no other agent.
func TestNodeAfterUnknownWrite(t *testing.T) {
	_, client := serve(t,
		nodeAnswer("1", nil, nil), nodeAnswer("1", eight, nil),
		nodeAnswer("1", eight, nil), answer{code: 200, body: "cut off"},
		nodeAnswer("1", labels.Set{"nvidia.com/gpu.count": "7"}, nil), nodeAnswer("1", eight, nil),
	)
	n := &Node{Client: client, Name: "a"}
	mustPublish(t, n, eight)
	if err := n.Publish(t.Context(), labels.Set{"nvidia.com/gpu.count": "7"}); err == nil {
		t.Error("no error")
	}
	mustPublish(t, n, eight)
}

var seven = labels.Set{"nvidia.com/gpu.count": "7"}

// late publishes eight on a Node, then seven with an answer that says nothing, and
// eight again.
func late(t *testing.T, lost answer) (*server, *Node) {
	t.Helper()
	s, client := serve(t,
		nodeAnswer("1", nil, nil), nodeAnswer("1", eight, nil),
		nodeAnswer("1", eight, nil), lost,
		nodeAnswer("1", eight, nil),
	)
	client.Timeout = 200 * time.Millisecond
	n := &Node{Client: client, Name: "a"}
	mustPublish(t, n, eight)
	if err := n.Publish(t.Context(), seven); err == nil {
		t.Fatal("no error")
	}
	mustPublish(t, n, eight)
	return s, n
}

// TestNodeLateWrite has a write carried out after the agent gave up on it, and on
// top of a later one. That is no other agent, and again it may be.
func TestNodeLateWrite(t *testing.T) {
	for name, lost := range map[string]answer{
		"no answer": {code: 200, body: nodeMeta("1", seven, nil), delay: time.Second},
		"cut off":   {code: 200, body: "cut off"},
		"504":       status(504, metav1.StatusReasonTimeout, "request did not complete within the allotted timeout"),
	} {
		t.Run(name, func(t *testing.T) {
			s, n := late(t, lost)
			for range 2 { // the second one is of an agent before us
				s.answer(nodeAnswer("1", seven, nil), nodeAnswer("1", eight, nil))
				mustPublish(t, n, eight)
			}
			s.answer(nodeAnswer("1", seven, nil))
			if err := n.Publish(t.Context(), eight); !errors.Is(err, ErrTwoAgents) {
				t.Errorf("error %v, want ErrTwoAgents", err)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		_, n := late(t, status(429, metav1.StatusReasonTooManyRequests, "later"))
		if len(n.rivalry.lost) > 0 {
			t.Error("what was refused is expected")
		}
	})
}

// TestNodeRival has another agent write over what was corrected, for hours.
func TestNodeRival(t *testing.T) {
	s, client := serve(t, nodeAnswer("1", nil, nil), nodeAnswer("1", eight, nil))
	n := &Node{Client: client, Name: "a"}
	mustPublish(t, n, eight)
	correct := func() {
		t.Helper()
		s.answer(nodeAnswer("1", seven, nil), nodeAnswer("1", eight, nil))
		mustPublish(t, n, eight)
	}
	correct()
	for i, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 32 * time.Minute, time.Hour, time.Hour} {
		for range 3 {
			s.answer(nodeAnswer("1", seven, nil))
			if err := n.Publish(t.Context(), eight); !errors.Is(err, ErrTwoAgents) {
				t.Fatalf("error %v, want ErrTwoAgents", err)
			}
		}
		if wait := time.Until(n.rivalry.until); wait > want || wait < want-10*time.Second {
			t.Errorf("the Node is left to it for %v the %dth time, want %v", wait, i+1, want)
		}
		n.rivalry.until = time.Now()
		correct()
	}
	// It is gone; and much later there is another.
	n.rivalry.corrected = n.rivalry.corrected.Add(-rivalTime)
	correct()
	s.answer(nodeAnswer("1", seven, nil))
	if err := n.Publish(t.Context(), eight); !errors.Is(err, ErrTwoAgents) || time.Until(n.rivalry.until) > yieldFirst {
		t.Errorf("error %v, and left until %v", err, n.rivalry.until)
	}
}

func TestNodeWatchErrors(t *testing.T) {
	event := func(kind string, object any) string {
		data, _ := json.Marshal(map[string]any{"type": kind, "object": object})
		return string(data)
	}
	expired := status(410, metav1.StatusReasonExpired, "too old resource version").body
	tests := map[string]struct {
		answer answer
		is     func(error) bool
		says   string
		after  time.Duration
		calls  int
	}{
		"ended":            {answer: answer{code: 200, body: event("ADDED", nodeMeta("1", eight, nil))}},
		"another Node":     {answer: answer{code: 200, body: event("ADDED", nodeMeta("2", eight, nil))}, calls: 1},
		"labels gone":      {answer: answer{code: 200, body: event("MODIFIED", nodeMeta("1", nil, nil))}, calls: 1},
		"deleted":          {answer: answer{code: 200, body: event("DELETED", nodeMeta("1", eight, nil))}, calls: 1},
		"an old one ended": {answer: answer{code: 200, body: event("DELETED", nodeMeta("2", eight, nil))}},
		"an error":         {answer: answer{code: 200, body: event("ERROR", expired)}, is: apierrors.IsResourceExpired},
		"garbage":          {answer: answer{code: 200, body: "<html>"}, says: "invalid character"},
		"garbage in it":    {answer: answer{code: 200, body: event("ADDED", 7)}, says: "the API server's answer"},
		"cut off":          {answer: answer{code: 200, body: event("ADDED", 7)[:10]}, says: "unexpected EOF"},
		"403": {
			answer: status(403, metav1.StatusReasonForbidden, "no"),
			is: func(err error) bool {
				f, ok := errors.AsType[*ForbiddenError](err)
				return ok && f.Verb == "watch"
			},
		},
		"429": {answer: answer{code: 429, body: "later", header: "Retry-After: 5"}, after: 5 * time.Second, is: apierrors.IsTooManyRequests},
		"500": {answer: status(500, metav1.StatusReasonInternalError, "no"), is: apierrors.IsInternalError},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, client := serve(t, nodeAnswer("1", eight, nil), test.answer)
			n := &Node{Client: client, Name: "a"}
			mustPublish(t, n, eight)
			calls := 0
			err := n.Watch(t.Context(), func() { calls++ })
			if wanted := test.is != nil || test.says != ""; (err != nil) != wanted {
				t.Errorf("error %v, wanted: %v", err, wanted)
			}
			if test.is != nil && !test.is(err) {
				t.Errorf("error %v is of another kind", err)
			}
			if err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v lacks %q", err, test.says)
			}
			if got := RetryAfter(err); got != test.after {
				t.Errorf("RetryAfter %v, want %v", got, test.after)
			}
			if calls != test.calls {
				t.Errorf("%d calls, want %d", calls, test.calls)
			}
		})
	}
}

func featureAnswer(set labels.Set, version string) answer {
	n := &NodeFeature{Namespace: "ns", NodeName: "a"}
	object := n.want(&nodeFeature{}, set)
	object.UID, object.ResourceVersion = "1", version
	return answer{code: 200, body: object}
}

func TestNodeFeatureAnswers(t *testing.T) {
	none := status(404, metav1.StatusReasonNotFound, `nodefeatures.nfd.k8s-sigs.io "gpu-labeller-features-for-a" not found`)
	conflict := status(409, metav1.StatusReasonConflict, "the object has been modified")
	exists := status(409, metav1.StatusReasonAlreadyExists, "already exists")
	forbidden := status(403, metav1.StatusReasonForbidden, "no")
	ok := answer{code: 200, body: "{}"}
	tests := map[string]struct {
		set     labels.Set
		answers []answer
		want    string // methods
		is      func(error) bool
	}{
		"created":              {eight, []answer{none, ok}, "GET POST", nil},
		"there":                {eight, []answer{featureAnswer(eight, "1")}, "GET", nil},
		"updated":              {eight, []answer{featureAnswer(seven, "1"), ok}, "GET PUT", nil},
		"overtaken":            {eight, []answer{featureAnswer(seven, "1"), conflict, featureAnswer(seven, "2"), ok}, "GET PUT GET PUT", nil},
		"overtaken by us":      {eight, []answer{none, exists, featureAnswer(eight, "1")}, "GET POST GET", nil},
		"overtaken for ever":   {eight, slices.Repeat([]answer{featureAnswer(seven, "1"), conflict}, 4), "GET PUT GET PUT GET PUT GET PUT", apierrors.IsConflict},
		"withdrawn":            {nil, []answer{featureAnswer(seven, "1"), ok}, "GET DELETE", nil},
		"withdrawn, overtaken": {nil, []answer{featureAnswer(seven, "1"), none}, "GET DELETE", nil},
		"withdrawn, another":   {nil, []answer{featureAnswer(seven, "1"), conflict, none}, "GET DELETE GET", nil},
		"withdrawn by update":  {nil, []answer{featureAnswer(seven, "1"), forbidden, ok}, "GET DELETE PUT", nil},
		"withdrawn before":     {nil, []answer{featureAnswer(nil, "1"), forbidden}, "GET DELETE", nil},
		"nothing to withdraw":  {nil, []answer{none}, "GET", nil},
		"may not create": {eight, []answer{none, forbidden}, "GET POST", func(err error) bool {
			f, ok := errors.AsType[*ForbiddenError](err)
			return ok && f.Verb == "create" && f.Resource == "nodefeatures.nfd.k8s-sigs.io"
		}},
		"no CRD": {eight, []answer{{code: 404, body: "404 page not found\n"}}, "GET", func(err error) bool {
			return errors.Is(err, ErrNoNodeFeatures) && strings.HasSuffix(err.Error(), "with its CRDs; or elsewhere")
		}},
		"namespace is being deleted": {eight, []answer{none, status(403, metav1.StatusReasonForbidden, "unable to create new content", metav1.StatusCause{Type: "NamespaceTerminating"})}, "GET POST", func(err error) bool {
			_, forbidden := errors.AsType[*ForbiddenError](err)
			return !forbidden && strings.Contains(err.Error(), "the namespace is being deleted")
		}},
		"a web page": {eight, []answer{{code: 200, body: "<html>"}}, "GET", func(err error) bool { return strings.Contains(err.Error(), "answer") }},
		"busy":       {eight, []answer{{code: 429, body: "later", header: "Retry-After: 5"}}, "GET", func(err error) bool { return RetryAfter(err) == 5*time.Second }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, client := serve(t, test.answers...)
			n := &NodeFeature{Client: client, Namespace: "ns", NodeName: "a", Instead: "; or elsewhere"}
			err := n.Publish(t.Context(), test.set)
			if (err != nil) != (test.is != nil) || err != nil && !test.is(err) {
				t.Errorf("error %v", err)
			}
			var methods []string
			seen, _ := s.requests()
			for _, request := range seen {
				method, _, _ := strings.Cut(request, " ")
				methods = append(methods, method)
			}
			if got := strings.Join(methods, " "); got != test.want {
				t.Errorf("requests %s, want %s", got, test.want)
			}
		})
	}
}

// TestNodeFeatureOwners asks for the owners until there is an answer, and again when
// the object has others. The labels do not wait for it.
func TestNodeFeatureOwners(t *testing.T) {
	owner := func(uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: uid}}
	}
	live := func(owners []metav1.OwnerReference) answer {
		a := featureAnswer(eight, "1")
		a.body.(*nodeFeature).OwnerReferences = owners
		return a
	}
	none, ok := status(404, metav1.StatusReasonNotFound, "not found"), answer{code: 200, body: "{}"}
	away := errors.New("etcdserver: no leader")
	for _, test := range []struct {
		name  string
		steps []ownersStep
	}{
		{"asked later", []ownersStep{
			{[]answer{none, ok}, nil, away, 1, ""},
			{[]answer{live(nil)}, nil, away, 1, ""},
			{[]answer{live(nil), ok}, owner("new"), nil, 1, "new"},
			{[]answer{live(owner("new"))}, nil, away, 0, ""},
		}},
		{"a dead owner", []ownersStep{
			{[]answer{live(owner("old"))}, nil, away, 1, ""},
			{[]answer{live(owner("old")), ok}, owner("new"), nil, 1, "new"},
		}},
		{"the DaemonSet is replaced, and the pod stays", []ownersStep{
			{[]answer{none, ok}, owner("old"), nil, 1, "old"},
			{[]answer{live(owner("old"))}, nil, away, 0, ""},
			{[]answer{live(nil), ok}, owner("new"), nil, 1, "new"}, // the garbage collector took the old one away
		}},
		{"a pod of no DaemonSet", []ownersStep{
			{[]answer{live(owner("old"))}, nil, nil, 1, ""},
			{[]answer{live(owner("old"))}, nil, nil, 0, ""},
		}},
		{"the answer hangs", []ownersStep{
			{[]answer{none, ok}, nil, context.DeadlineExceeded, 1, ""},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, client := serve(t)
			n := &NodeFeature{Client: client, Namespace: "ns", NodeName: "a"}
			for i, step := range test.steps {
				asked := 0
				n.AskOwners = func(ctx context.Context) ([]metav1.OwnerReference, error) {
					asked++
					if errors.Is(step.err, context.DeadlineExceeded) {
						<-ctx.Done()
					}
					return step.owners, step.err
				}
				s.answer(step.answers...)
				mustPublish(t, n, eight)
				_, sent := s.requests()
				written := ""
				for _, uid := range []string{"old", "new"} {
					if strings.Contains(sent[len(sent)-1], `"uid":"`+uid+`"`) {
						written = uid
					}
				}
				if asked != step.asked || written != step.written {
					t.Errorf("step %d: asked %d times and wrote the owner %q, want %d and %q", i+1, asked, written, step.asked, step.written)
				}
			}
		})
	}
}

// ownersStep is one Publish: what the API server answers, what AskOwners does and how
// often, and the UID of the owner in what is written last.
type ownersStep struct {
	answers []answer
	owners  []metav1.OwnerReference
	err     error
	asked   int
	written string
}

func TestDaemonSets(t *testing.T) {
	got := daemonSets([]metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: "static-pod"},
		{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "7", Controller: new(bool), BlockOwnerDeletion: new(bool)},
		{APIVersion: "apps.example.com/v1", Kind: "DaemonSet", Name: "other"},
	})
	if len(got) != 1 || got[0] != (metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "7"}) {
		t.Errorf("owners are %v", got)
	}
}

// TestEventLength: a message is cut between characters, since half of one would
// become three bytes.
func TestEventLength(t *testing.T) {
	s, client := serve(t, answer{code: http.StatusCreated, body: "{}"})
	check(t, client.Event(t.Context(), "a", "Reason", strings.Repeat("x", 1023)+"…"))
	_, sent := s.requests()
	var event struct{ Message string }
	check(t, json.Unmarshal([]byte(sent[0]), &event))
	if want := strings.Repeat("x", 1023); event.Message != want {
		t.Errorf("%d bytes, ending in %q", len(event.Message), event.Message[1020:])
	}
}
