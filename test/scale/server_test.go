//go:build scale

package scale

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// traffic counts what the agents send.
type traffic struct {
	watchLife time.Duration // at least; 0 for what the API server gives
	watches   atomic.Int64  // open now
	conns     sync.Map      // net.Conn, as long as they are open to us

	mu    sync.Mutex
	since time.Time
	count map[string]int // by verb
	fails map[string]int // by verb and status or error
	peak  map[string]map[int64]int
}

func (t *traffic) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since, t.count, t.fails = time.Now(), map[string]int{}, map[string]int{}
	t.peak = map[string]map[int64]int{}
}

// of is how many requests of a verb there were in this phase.
func (t *traffic) of(verb string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count[verb]
}

func (t *traffic) note(verb string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count[verb]++
	if t.peak[verb] == nil {
		t.peak[verb] = map[int64]int{}
	}
	t.peak[verb][int64(time.Since(t.since)/time.Second)]++
}

func (t *traffic) failed(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fails[what]++
}

// busiest is the most requests of a verb within a second.
func (t *traffic) busiest(verb string) (most int) {
	for _, n := range t.peak[verb] {
		most = max(most, n)
	}
	return most
}

// client is the configuration of one agent, with a connection of its own.
func (t *traffic) client(base *rest.Config, shared bool) *rest.Config {
	config := rest.CopyConfig(base)
	if !shared {
		dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
		config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) { // one more than in the cache of transports
			conn, err := dialer.DialContext(ctx, network, address)
			if err == nil {
				t.conns.Store(conn, true)
			}
			return conn, err
		}
	}
	config.Wrap(transport.WrapperFunc(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper{t, next}
	}))
	return config
}

// hangUp closes all connections, as the end of the agents' processes would.
func (t *traffic) hangUp() {
	t.conns.Range(func(conn, _ any) bool {
		_ = conn.(net.Conn).Close()
		t.conns.Delete(conn)
		return true
	})
}

type roundTripper struct {
	*traffic
	next http.RoundTripper
}

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	verb := req.Method
	query := req.URL.Query()
	watch := query.Get("watch") == "true"
	if watch {
		verb = "WATCH"
		if r.watchLife > 0 {
			query.Set("timeoutSeconds", strconv.Itoa(randomSeconds(r.watchLife)))
			req = req.Clone(req.Context())
			req.URL.RawQuery = query.Encode()
		}
	}
	r.note(verb)
	resp, err := r.next.RoundTrip(req)
	switch {
	case err != nil:
		r.failed(verb + " no answer")
	case resp.StatusCode >= 300:
		r.failed(fmt.Sprintf("%s %d", verb, resp.StatusCode))
	case watch:
		r.watches.Add(1)
		resp.Body = &counted{ReadCloser: resp.Body, done: func() { r.watches.Add(-1) }}
	}
	return resp, err
}

type counted struct {
	io.ReadCloser
	once sync.Once
	done func()
}

func (c *counted) Close() error {
	c.once.Do(c.done)
	return c.ReadCloser.Close()
}

// usage is what a process has used.
type usage struct {
	cpu   time.Duration
	bytes int64 // resident
}

func usageOf(pid int) (u usage) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, i := range []int{11, 12} { // utime, stime, in hundredths of a second
		ticks, _ := strconv.Atoi(fields[i])
		u.cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	pages, _ := strconv.ParseInt(fields[21], 10, 64)
	u.bytes = pages * int64(os.Getpagesize())
	return u
}

// find gives the process whose command line begins with program and has arg.
func find(t *testing.T, program, arg string) int {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		line, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		args := strings.Split(string(line), "\x00")
		if filepath.Base(args[0]) == program && strings.Contains(string(line), arg) {
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			return pid
		}
	}
	t.Fatalf("%s is not running", program)
	return 0
}

var metricLine = regexp.MustCompile(`^(apiserver_request_total|apiserver_flowcontrol_rejected_requests_total|apiserver_flowcontrol_dispatched_requests_total)\{([^}]*)\} (\S+)$`)
var metricLabel = regexp.MustCompile(`(\w+)="([^"]*)"`)

// metrics are the API server's counts: requests for Nodes by verb and code, and
// what priority and fairness did by priority level.
func metrics(ctx context.Context, t *testing.T, client *http.Client, host string) map[string]float64 {
	sums := map[string]float64{}
	body, err := get(ctx, client, host+"/metrics", "text/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := metricLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		label := map[string]string{}
		for _, l := range metricLabel.FindAllStringSubmatch(m[2], -1) {
			label[l[1]] = l[2]
		}
		value, _ := strconv.ParseFloat(m[3], 64)
		switch m[1] {
		case "apiserver_request_total":
			if label["resource"] == "nodes" && label["subresource"] == "" {
				sums[label["verb"]+" "+label["code"]] += value
			}
		case "apiserver_flowcontrol_rejected_requests_total":
			sums["rejected in "+label["priority_level"]] += value
		case "apiserver_flowcontrol_dispatched_requests_total":
			if label["flow_schema"] == "service-accounts" || label["flow_schema"] == "gpu-labeller" {
				sums["dispatched in "+label["priority_level"]] += value
			}
		}
	}
	return sums
}

func get(ctx context.Context, client *http.Client, url, accept string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return resp.Body, nil
}

// observer notes when Nodes get the labels that they should have.
type observer struct {
	mu   sync.Mutex
	want map[string]string // of every Node
	seen map[string]time.Time
}

func (o *observer) expect(want map[string]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.want, o.seen = want, map[string]time.Time{}
}

func (o *observer) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.seen)
}

func (o *observer) since(start func(node string) time.Time) (all latencies) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for node, at := range o.seen {
		all = append(all, at.Sub(start(node)))
	}
	return all
}

// watch follows all Nodes, through restarts of the API server.
func (o *observer) watch(ctx context.Context, client *http.Client, host string) {
	for ctx.Err() == nil {
		body, err := get(ctx, client, host+"/api/v1/nodes?watch=true&resourceVersion=0",
			"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
		if err != nil {
			time.Sleep(200 * time.Millisecond)
			continue
		}
		events := json.NewDecoder(body)
		for {
			var event struct{ Object metav1.PartialObjectMetadata }
			if events.Decode(&event) != nil {
				break
			}
			o.event(&event.Object.ObjectMeta)
		}
		body.Close()
	}
}

func (o *observer) event(node *metav1.ObjectMeta) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.seen[node.Name]; ok || o.want == nil {
		return
	}
	for key, value := range o.want {
		if node.Labels[key] != value {
			return
		}
	}
	o.seen[node.Name] = time.Now()
}

// post sends an object and wants it created.
func post(ctx context.Context, client *http.Client, url string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s: %s", url, resp.Status, answer)
	}
	return nil
}
