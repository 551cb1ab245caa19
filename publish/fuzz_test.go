package publish

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// parrot answers each request alike, and a few only.
type parrot struct {
	code int
	body []byte
	left int
}

func (p *parrot) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.left--; p.left < 0 {
		return nil, errors.New("enough")
	}
	return &http.Response{
		Request: r, StatusCode: p.code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(p.body)),
	}, nil
}

// FuzzAnswers has an API server answer anything to every sink. None may panic or
// go on for ever, and what is no answer is an error.
func FuzzAnswers(f *testing.F) {
	add := func(code int, body any) {
		text, err := json.Marshal(body)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(code, text)
	}
	ours := labels.Set{"nvidia.com/gpu.count": "8"}
	add(200, nodeMeta("1", ours, nil))
	add(200, nodeMeta("1", nil, labels.Set{"nvidia.com/gpu.count": "7"}))
	add(200, map[string]any{"type": "MODIFIED", "object": nodeMeta("1", ours, nil)})
	add(200, map[string]any{"type": "ERROR", "object": metav1.Status{Code: 410, Reason: metav1.StatusReasonExpired}})
	add(200, featureAnswer(ours, "1").body)
	for _, s := range []answer{
		status(409, metav1.StatusReasonConflict, "conflict", fieldConflict("nvidia.com/gpu.count", "kubectl")),
		status(422, metav1.StatusReasonInvalid, "ValidatingAdmissionPolicy 'p' with binding 'p' denied request: no"),
		status(403, metav1.StatusReasonForbidden, "no"), status(404, metav1.StatusReasonNotFound, "no"),
	} {
		add(s.code, s.body)
	}
	f.Add(200, []byte(`{"metadata":{"uid":"1","resourceVersion":"2","managedFields":[{"manager":"gpu-labeller","operation":"Apply","fieldsV1":{"f:spec":{"f:taints":{}}}}]},"spec":{"taints":[{"key":"nvidia.com/gpu","effect":"NoSchedule"},null,1]}}`))
	f.Add(429, []byte("later"))
	f.Add(200, []byte("null"))
	f.Fuzz(func(t *testing.T, code int, body []byte) {
		if code < 200 || code > 599 {
			return
		}
		p := &parrot{code: code, body: body}
		client, err := NewClient(&rest.Config{Host: "http://node.example", Transport: p, QPS: -1})
		check(t, err)
		taint, err := ParseTaint("nvidia.com/gpu=present:NoSchedule")
		check(t, err)
		node := &Node{Client: client, Name: "a", Taint: &NodeTaint{Taint: taint, Wanted: func(labels.Set) bool { return true }}}
		feature := &NodeFeature{Client: client, Namespace: "ns", NodeName: "a"}
		set := labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200"}
		for _, call := range []func() error{
			func() error { return node.Publish(t.Context(), set) },
			func() error { return node.Watch(t.Context(), func() {}) },
			func() error { _, err := node.Published(t.Context()); return err },
			func() error { return node.Publish(t.Context(), nil) },
			func() error { return feature.Publish(t.Context(), set) },
			func() error { _, err := feature.Published(t.Context()); return err },
			func() error { return feature.Publish(t.Context(), nil) },
			func() error { _, err := client.HasNodeFeatures(t.Context()); return err },
			func() error { _, err := client.NodeLabels(t.Context(), "a"); return err },
			func() error { return client.Event(t.Context(), "a", "r", "m") },
		} {
			p.left = siftLimit + 8
			err := call()
			if err == nil {
				continue
			}
			if err.Error() == "" {
				t.Error("an error without words")
			}
			if RetryAfter(err) < 0 {
				t.Errorf("again in %v", RetryAfter(err))
			}
		}
	})
}
