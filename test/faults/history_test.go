//go:build faults

package faults

import (
	"context"
	"encoding/json"
	"fmt"
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
}

func newHistory() *history { return &history{} }

func (h *history) add(set labels.Set) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.sets); n == 0 || !maps.Equal(h.sets[n-1], set) {
		h.sets = append(h.sets, set)
	}
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

// nodes watches all Nodes.
type nodes struct {
	mu  sync.Mutex
	all map[string]*history
}

func (n *nodes) of(name string) *history {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all[name] == nil {
		n.all[name] = newHistory()
	}
	return n.all[name]
}

// watch notes each version of each Node.
func watch(t *testing.T, config *rest.Config) *nodes {
	t.Helper()
	n := &nodes{all: map[string]*history{}}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := n.follow(ctx, client, config.Host); err != nil && ctx.Err() == nil {
			t.Errorf("watching the Nodes: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return n
}

func (n *nodes) follow(ctx context.Context, client *http.Client, server string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/api/v1/nodes?watch=true&timeoutSeconds=3600", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", resp.Status)
	}
	events := json.NewDecoder(resp.Body)
	for {
		var event struct {
			Type   string `json:"type"`
			Object struct {
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
						} `json:"fieldsV1"`
					} `json:"managedFields"`
				} `json:"metadata"`
			} `json:"object"`
		}
		if err := events.Decode(&event); err != nil {
			return err
		}
		set := labels.Set{}
		for key, value := range event.Object.Metadata.Labels {
			switch {
			case event.Type == "DELETED", strings.HasPrefix(key, "kubernetes.io/"), strings.HasPrefix(key, "beta.kubernetes.io/"):
			case key == foreignKey && value == foreignValue:
			default:
				set[key] = value
			}
		}
		if event.Type != "DELETED" && event.Object.Metadata.Labels[foreignKey] != foreignValue {
			set["lost"] = "a label that is not ours" // no row wants this
		}
		history := n.of(event.Object.Metadata.Name)
		for _, m := range event.Object.Metadata.Fields {
			if m.Manager != "gpu-labeller" {
				continue
			}
			fields := map[string]bool{}
			for f := range m.Fields.Metadata.Labels {
				fields[f] = true
			}
			history.owned(fields, m.Time)
		}
		history.add(set)
	}
}
