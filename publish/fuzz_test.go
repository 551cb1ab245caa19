package publish

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

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
	f.Add(200, []byte(`{"metadata":{"continue":"more"},"items":[{"metadata":{"name":"a","labels":{"nvidia.com/gpu.count":"8"}},"spec":{"taints":[{"key":"nvidia.com/gpu","value":"present","effect":"NoSchedule"}]}}]}`))
	f.Add(200, []byte(`{"items":[{"metadata":{"name":"gpu-labeller-features-for-a","namespace":"ns","labels":{"nfd.node.kubernetes.io/node-name":"a"}}},{"spec":{"taints":[1]}},null]}`))
	f.Add(200, []byte(`{"metadata":{"uid":"1","labels":{"kubernetes.io/hostname":"a"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"DaemonSet","name":"d","uid":"2"},{"kind":"Job"}]},"status":{"nodeInfo":{"bootID":"b","machineID":"m","systemUUID":"s"}}}`))
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
			func() error { _, err := client.NodeIdentity(t.Context(), "a"); return err },
			func() error {
				owners, err := PodOwners(t.Context(), client, "ns", "p")
				for i, o := range owners {
					if last := i == len(owners)-1; last != (o.Kind == "Pod") || !last && o.Kind != "DaemonSet" || len(owners) == 1 {
						t.Errorf("owners %v", owners)
					}
				}
				return err
			},
			func() error {
				live, err := client.NodeTaints(t.Context(), "a")
				if (live == nil) != (err != nil) {
					t.Errorf("taints %v, and error %v", live, err)
				}
				return err
			},
			func() error {
				all, err := client.Tainted(t.Context(), taint)
				for _, n := range all {
					if !n.Has(taint) {
						t.Errorf("%q has the taints %v", n.Node, n.Taints)
					}
				}
				return err
			},
			func() error {
				names, err := client.Owned(t.Context(), "")
				if len(names) > 0 && !json.Valid(body) {
					t.Errorf("Nodes %q of no answer", names)
				}
				return err
			},
			func() error { _, err := node.Owned(t.Context()); return err },
			func() error {
				all, err := client.NodeFeatures(t.Context(), "ns")
				for _, n := range all {
					if n.NodeName == "" || n.Client != client {
						t.Errorf("NodeFeature %v", n)
					}
				}
				return err
			},
		} {
			p.left = siftLimit + 8
			err := call()
			if p.left < -1 {
				t.Errorf("it asks on after an error: %d times", -p.left)
			}
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

// FuzzForeignFeatureFile has anything in the file's place, which others may write.
// It is told for what it is, and stays only where it is ours and lasts for another
// half hour.
func FuzzForeignFeatureFile(f *testing.F) {
	set := labels.Set{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200"}
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, left := range []time.Duration{0, time.Second, 30 * time.Minute, 1801 * time.Second, time.Hour, 3601 * time.Second, 1 << 62} {
		f.Add(render(set, now.Add(left)))
	}
	f.Add(render(set, time.Time{}))
	f.Add(render(labels.Set{"a": ""}, now))
	for _, text := range []string{
		"", "\n", firstLine, firstLine + expiryLine, firstLine + expiryLine + "\n", firstLine + expiryLine + "soon\na=b\n", firstLine + "=\n=a\na\n#b=c\r\nd=e=f",
		firstLine + expiryLine + "2026-11-30T13:00:00+01:00\na=b\n", firstLine + expiryLine + "9999-12-31T23:59:59Z\n",
		firstLine + expiryLine + "2026-11-30T13:00:00.5Z\n", expiryLine + "2026-11-30T13:00:00Z\n" + firstLine,
		"a=b\n", firstLine + " a = b \n", firstLine + strings.Repeat("a=b\n", maxFeatureFile/4),
	} {
		f.Add([]byte(text))
	}
	current := map[string]bool{} // for an expiry after an hour
	for seconds := 1801; seconds <= 3600; seconds++ {
		current[string(render(set, now.Add(time.Duration(seconds)*time.Second)))] = true
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		expiry, told := expiryIn(content), parse(content)
		if ours := bytes.HasPrefix(content, []byte(firstLine)); !ours && (!expiry.IsZero() || len(told) > 0) {
			t.Errorf("of a file that is not ours: %v, %q", expiry, told)
		}
		if !expiry.IsZero() && !bytes.HasPrefix(content, []byte(firstLine+expiryLine)) {
			t.Errorf("expiry %v without its line", expiry)
		}
		for key, value := range told {
			if strings.ContainsAny(key, "=\n") || strings.HasPrefix(key, "#") || strings.Contains(value, "\n") {
				t.Errorf("label %q=%q", key, value)
			}
		}
		if checkLines(told) == nil && !maps.Equal(parse(render(told, expiry)), told) {
			t.Errorf("%q is written as %q", told, render(told, expiry))
		}

		file := folder(t)
		file.Expiry, file.now = time.Hour, func() time.Time { return now }
		check(t, os.WriteFile(file.Path, content, 0o644))
		check(t, os.Chmod(file.Path, 0o644)) // whatever the umask
		held, err := file.Published(t.Context())
		if len(content) > maxFeatureFile {
			told = nil
		}
		if err != nil || !maps.Equal(held, told) {
			t.Errorf("published %q, %v; want %q", held, err, told)
		}
		dir, err := file.openFolder()
		check(t, err)
		defer dir.Close()
		old, err := file.read(dir, 0o644)
		if got := err == nil && file.says(old, set); got != current[string(content)] {
			t.Errorf("taken for what it should be: %v, %q", got, content)
		}
	})
}
