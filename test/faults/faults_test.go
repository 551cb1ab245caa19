//go:build faults

// Package faults breaks one thing at a time under the real agent and looks at what
// becomes of its labels: the real binary, a real API server, a library that stands
// in for NVML, a real file system. The rows are the table in docs/reliability.md.
package faults

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/internal/cluster"
)

var update = flag.Bool("update", false, "write the tables of docs/reliability.md")

// atOnce is how many hosts there are at a time.
const atOnce = 12

const (
	ownPrefix    = "gpu.feature.node.kubernetes.io/"
	foreignKey   = "example.com/rack"
	foreignValue = "7"
)

// row is one fault.
type row struct {
	area  string // a heading of the document
	name  string // of the test
	fault string // for the document; %s is item
	item  string // rows with the same fault, and the same labels, are one line

	gpus   int    // 0 is 1
	offBus bool   // NVML knows them, PCI does not
	sink   string // as --sink; empty is the Node
	alone  bool   // no other row may run beside it
	flags  []string

	questions []string // to NVML, that fail

	chooses bool        // no sink is given
	setup   func(*host) // before the agent starts
	before  want        // zero is all
	through []want      // what else may be seen before that
	during  []step
	after   []step
}

// step is something that happens, and what is published then.
type step struct {
	do      func(*host)
	want    want
	through []want // what else may be seen on the way
	says    string // in the log by then
	quiet   bool   // no scan ends meanwhile
}

// base is a set of labels by what it is of.
type base int

const (
	all         base = iota // of the whole hardware
	other                   // of the hardware that took its place
	pciOnly                 // of a host whose NVML does not answer, from the start
	provisional             // of the bus alone, before NVML has answered
	none
)

var baseNames = map[base]string{all: "all", other: "those of the new hardware", pciOnly: "what the bus tells", provisional: "what the bus tells, without ours", none: "none"}

// want is the labels of base, but for those named; without a slash, our own.
// Empty stands for a label that is not there.
type want struct {
	of  base
	but map[string]string
	as  string // how the document puts it, if not by listing them
}

func (w want) called(text string) want {
	w.as = text
	return w
}

func but(of base, pairs ...string) want {
	w := want{of: of, but: map[string]string{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		w.but[pairs[i]] = pairs[i+1]
	}
	return w
}

// world is what all rows share.
type world struct {
	cluster *cluster.Cluster
	binary  string
	nodes   *nodes
	objects *nodes // the NodeFeatures for them
	client  *http.Client
}

func newWorld(t *testing.T) *world {
	w := &world{cluster: cluster.Start(t), binary: build(t)}
	client, err := rest.HTTPClientFor(w.cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	w.client = client
	w.nodes = watch(t, w.cluster.Config(), "/api/v1/nodes", nodeLabels)
	w.installNFD(t)
	w.objects = watch(t, w.cluster.Config(), nodeFeaturesPath, nodeFeatureLabels)
	return w
}

// build builds the command as a release has it.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "gpu-labeller")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "github.com/gpu-labeller/gpu-labeller/cmd/gpu-labeller")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the command: %v\n%s", err, out)
	}
	return binary
}

// api calls the API server with all rights.
func (w *world) api(t *testing.T, method, path, contentType string, body any) (int, []byte) {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(method, w.cluster.Config().Host+path, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

func (w *world) createNode(t *testing.T, name string) {
	t.Helper()
	code, answer := w.api(t, http.MethodPost, "/api/v1/nodes", "application/json", map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": name, "labels": map[string]string{foreignKey: foreignValue}},
	})
	if code != http.StatusCreated {
		t.Fatalf("creating Node %s: %d %s", name, code, answer)
	}
}

// label sets labels as another field manager; null removes.
func (h *host) label(manager string, set map[string]any) {
	h.Helper()
	code, answer := h.w.api(h.T, http.MethodPatch, "/api/v1/nodes/"+h.name+"?fieldManager="+manager, "application/merge-patch+json",
		map[string]any{"metadata": map[string]any{"labels": set}})
	if code != http.StatusOK {
		h.Fatalf("labelling %s: %d %s", h.name, code, answer)
	}
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// nodeName makes a Node's name of a test's.
func nodeName(s string) string {
	return strings.Trim(notInName.ReplaceAllString(strings.ToLower(s), "-"), "-")
}

func TestFaults(t *testing.T) {
	w := newWorld(t)
	begin := time.Now()
	next := make(chan *row)
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for r := range next {
				t.Run(r.name, func(t *testing.T) { r.run(t, w) })
			}
		})
	}
	all := rows()
	// Those with the API server first, which take longest.
	slices.SortStableFunc(all, func(a, b row) int {
		return strings.Compare(strconv.FormatBool(b.proxied()), strconv.FormatBool(a.proxied()))
	})
	for i := range all {
		if !all[i].alone {
			next <- &all[i]
		}
	}
	close(next)
	workers.Wait()
	for i := range all {
		if all[i].alone {
			t.Run(all[i].name, func(t *testing.T) { all[i].run(t, w) })
		}
	}
	t.Logf("%d rows in %.0f s", len(all), time.Since(begin).Seconds())
}

func (r *row) proxied() bool { return strings.HasPrefix(r.name, "API: ") }

func (r *row) run(t *testing.T, w *world) {
	h := newHost(t, w, r)
	h.last = want{of: none}
	if r.setup != nil {
		r.setup(h)
	}
	h.start()
	h.await("before", r.before, append([]want{{of: provisional}}, r.through...)...)
	if !r.chooses { // else it does not scan before it knows where to
		h.until("the first scan", time.Minute, func() bool { return h.agent.scans() > 0 })
	}
	if r.before.of != none { // the answer to the write that was seen comes a little later
		h.until("/readyz", time.Minute, func() bool { _, err := h.agent.get("/readyz"); return err == nil })
	}
	for _, phase := range []struct {
		name  string
		steps []step
	}{{"during", r.during}, {"after", r.after}} {
		for i := range phase.steps {
			h.step(phase.name, &phase.steps[i])
			if t.Failed() {
				t.Fatalf("in step %d of %s", i+1, phase.name)
			}
		}
	}
	if h.agent.cmd.ProcessState == nil {
		h.end(syscall.SIGTERM)
	}
	for line := range strings.Lines(h.agent.String()) {
		if !strings.HasPrefix(line, "time=") {
			t.Errorf("a line of the log is not the agent's: %s", line)
		}
	}
	if h.mounts == "" { // else it is gone with the agent
		h.await("at the end", h.last)
	}
}

func (h *host) step(phase string, s *step) {
	h.Helper()
	agent, said := h.agent, len(h.agent.String())
	h.Logf("%s: begins", phase)
	s.do(h)
	if s.says != "" {
		log := func() string {
			if h.agent != agent {
				return h.agent.String() // another one's
			}
			return agent.String()[said:]
		}
		h.until("the log says "+s.says, time.Minute, func() bool { return strings.Contains(log(), s.says) })
	}
	if !s.quiet {
		h.awaitScans(2)
	}
	h.await(phase, s.want, s.through...)
	time.Sleep(300 * time.Millisecond)
	h.await(phase+", a little later", s.want)
	if !s.quiet {
		if _, err := h.agent.get("/healthz"); err != nil {
			h.Errorf("%s: %v", phase, err)
		}
		if n := childrenOf(h.agent.cmd.Process.Pid, ""); n > 1 {
			h.Errorf("%s: %d NVML children at a time", phase, n)
		}
	}
}
