//go:build faults

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// history is every set of labels that a place has shown.
type history struct {
	mu     sync.Mutex
	sets   []labels.Set
	writes int // by the agent
	fields map[string]bool
	time   string
	reader func() labels.Set
	brief  bool // keeps the newest set alone
}

func newHistory() *history { return &history{} }

func (h *history) add(set labels.Set) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.sets); n == 0 || !maps.Equal(h.sets[n-1], set) {
		if h.brief {
			h.sets = nil
		}
		h.sets = append(h.sets, set)
	}
}

// keepNewest forgets all sets but the newest from now on, or an hour of them would
// be taken for a leak.
func (h *history) keepNewest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.brief = true
}

func (h *history) newest() labels.Set {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.sets) == 0 {
		return nil
	}
	return h.sets[len(h.sets)-1]
}

func (h *history) since(n int) []labels.Set {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]labels.Set{}, h.sets[n:]...)
}

// owned takes in what the agent owns of a Node, and when it last wrote. It wrote if
// the time is another, or it owns more: what others take, it only loses.
func (h *history) owned(fields map[string]bool, time string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	more := false
	for f := range fields {
		more = more || !h.fields[f]
	}
	if time != h.time || more {
		h.writes++
	}
	h.fields, h.time = fields, time
}

// ours is how often the agent wrote to the Node.
func (h *history) ours() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.writes
}

func (h *history) await(set labels.Set, limit time.Duration) bool {
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if got := h.newest(); got != nil && maps.Equal(got, set) {
			return true
		}
		if time.Since(begin) > limit {
			return false
		}
	}
}

// read looks every few milliseconds until the test ends.
func (h *history) read(t *testing.T, reader func() labels.Set) {
	h.reader = reader
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			h.add(reader())
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-stopped
	})
}

// nodes watches all Nodes, or the NodeFeatures for them.
type nodes struct {
	mu   sync.Mutex
	all  map[string]*history
	read func(*object) (node string, set labels.Set)
}

func (n *nodes) of(name string) *history {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all[name] == nil {
		n.all[name] = newHistory()
	}
	return n.all[name]
}

// object is what is of interest of a Node or NodeFeature.
type object struct {
	Metadata struct {
		Name   string     `json:"name"`
		Labels labels.Set `json:"labels"`

		Fields []struct {
			Manager string `json:"manager"`
			Time    string `json:"time"`
			Fields  struct {
				Metadata struct {
					Labels map[string]any `json:"f:labels"`
				} `json:"f:metadata"`
				Spec struct {
					Labels map[string]any `json:"f:labels"`
				} `json:"f:spec"`
			} `json:"fieldsV1"`
		} `json:"managedFields"`
	} `json:"metadata"`
	Spec struct {
		Labels   labels.Set `json:"labels"`
		Features struct {
			Flags, Attributes, Instances map[string]any
		} `json:"features"`
	} `json:"spec"`
}

// nodeLabels is what is published on a Node.
func nodeLabels(o *object) (string, labels.Set) {
	set := labels.Set{}
	for key, value := range o.Metadata.Labels {
		switch {
		case strings.HasPrefix(key, "kubernetes.io/"), strings.HasPrefix(key, "beta.kubernetes.io/"):
		case key == foreignKey && value == foreignValue:
		default:
			set[key] = value
		}
	}
	if o.Metadata.Labels[foreignKey] != foreignValue {
		set["lost"] = "a label that is not ours" // no row wants this
	}
	return o.Metadata.Name, set
}

const nodeFeaturesPath = "/apis/nfd.k8s-sigs.io/v1alpha1/nodefeatures"

// nodeFeatureLabels is what NFD makes labels of. It passes over an object that does
// not say for which Node it is; then its name does here.
func nodeFeatureLabels(o *object) (string, labels.Set) {
	node, ours := strings.CutPrefix(o.Metadata.Name, "gpu-labeller-features-for-")
	set := labels.Set{}
	if !ours || o.Metadata.Labels["nfd.node.kubernetes.io/node-name"] != node {
		return node, set
	}
	maps.Copy(set, o.Spec.Labels)
	if f := o.Spec.Features; len(f.Flags)+len(f.Attributes)+len(f.Instances) > 0 {
		set["x/features"] = "some"
	}
	return node, set
}

// watch notes each version of each object at path.
func watch(t *testing.T, config *rest.Config, path string, read func(*object) (string, labels.Set)) *nodes {
	t.Helper()
	n := &nodes{all: map[string]*history{}, read: read}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := n.follow(ctx, client, config.Host+path); err != nil && ctx.Err() == nil {
				t.Errorf("watching %s: %v", path, err)
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return n
}

// follow lists and watches, until the resource itself is gone.
func (n *nodes) follow(ctx context.Context, client *http.Client, url string) error {
	body, err := get(ctx, client, url)
	if body == nil {
		return err
	}
	defer body.Close()
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []object `json:"items"`
	}
	if err := json.NewDecoder(body).Decode(&list); err != nil {
		return err
	}
	for i := range list.Items {
		n.note(&list.Items[i], false)
	}
	stream, err := get(ctx, client, url+"?watch=true&timeoutSeconds=3600&resourceVersion="+list.Metadata.ResourceVersion)
	if stream == nil {
		return err
	}
	defer stream.Close()
	events := json.NewDecoder(stream)
	for {
		var event struct {
			Type   string `json:"type"`
			Object object `json:"object"`
		}
		switch err := events.Decode(&event); {
		case errors.Is(err, io.EOF), err == nil && event.Type == "ERROR":
			return nil // again, with a list
		case err != nil:
			return err
		}
		n.note(&event.Object, event.Type == "DELETED")
	}
}

// get returns nothing while there is no such resource, or it is being made.
func get(ctx context.Context, client *http.Client, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return resp.Body, nil
	case http.StatusNotFound, http.StatusTooManyRequests:
		resp.Body.Close()
		return nil, nil
	}
	resp.Body.Close()
	return nil, fmt.Errorf("%s", resp.Status)
}

func (n *nodes) note(o *object, deleted bool) {
	name, set := n.read(o)
	if deleted {
		set = labels.Set{}
	}
	history := n.of(name)
	for _, m := range o.Metadata.Fields {
		if m.Manager != "gpu-labeller" {
			continue
		}
		fields := map[string]bool{}
		for _, some := range []map[string]any{m.Fields.Metadata.Labels, m.Fields.Spec.Labels} {
			for f := range some {
				fields[f] = true
			}
		}
		history.owned(fields, m.Time)
	}
	history.add(set)
}
