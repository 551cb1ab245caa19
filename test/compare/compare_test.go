//go:build compare

package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/internal/cluster"
	"github.com/gpu-labeller/gpu-labeller/internal/standin"
)

var (
	binary  = flag.String("binary", "../../bin/gpu-labeller", "the binary that is measured, as make build makes it")
	gfd     = flag.String("gfd", "", "the binary of NVIDIA's GPU Feature Discovery, stripped")
	runs    = flag.Int("runs", 60, "one-shot runs of each")
	idle    = flag.Duration("idle", 40*time.Second, "how long to look on while nothing changes: three times between two scans, or once many minutes")
	madeUp  = flag.Bool("standin", false, "the agent's host is made up, and NVML a library that stands in for it")
	scans   = flag.Int("scans", 10, "scans of a running agent")
	changes = flag.Int("changes", 120, "changes of the hardware, of all hosts together")
	hosts   = flag.Int("hosts", 10, "made-up hosts that change, each with an agent")
)

// The figures are named as in docs/performance.md.
func TestCompare(t *testing.T) {
	t.Run("one-shot", oneShot)
	c := cluster.Start(t)
	c.ApplyNodeFeatures()
	var ours, theirs float64
	t.Run("agent", func(t *testing.T) { ours = steady(t, c) })
	if *gfd != "" {
		t.Run("GFD", func(t *testing.T) { theirs = steadyGFD(t, c) })
		figure(t, "CPU for an hour", "s", ours, theirs)
		must(t, "CPU for an hour", ours, theirs/10)
	}
	t.Run("change to label", func(t *testing.T) { latency(t, c) })
}

// figure prints a line of the table.
func figure(t *testing.T, what, unit string, ours, theirs float64) {
	t.Helper()
	if theirs == 0 {
		t.Logf("| %s | %.4g %s | | |", what, ours, unit)
		return
	}
	t.Logf("| %s | %.4g %s | %.4g %s | %.3f |", what, ours, unit, theirs, unit, ours/theirs)
}

// must fails where a figure is more than was promised, on a machine with GFD and so
// with NVML.
func must(t *testing.T, what string, got, most float64) {
	t.Helper()
	if *gfd != "" && got > most {
		t.Errorf("%s: %.4g, want %.4g at most", what, got, most)
	}
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// oneShot runs both in turn, so that what else the machine does hits both.
func oneShot(t *testing.T) {
	out := filepath.Join(t.TempDir(), "gfd")
	commands := [][]string{{*binary, "--print"}}
	if *gfd != "" {
		commands = append(commands, []string{*gfd, "--oneshot", "--no-timestamp", "--use-node-feature-api=false", "--output-file=" + out})
	}
	figures := make([][3][]float64, 2)
	var printed [2][]byte
	for i := range *runs + 1 {
		for j, args := range commands {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Env = append(os.Environ(), "NODE_NAME=node", "NAMESPACE=default")
			begin := time.Now()
			stdout, err := cmd.Output()
			wall := time.Since(begin)
			if err != nil && j == 1 {
				t.Fatalf("%v: %v", args, err)
			}
			printed[j] = stdout
			if i == 0 {
				continue // to warm up
			}
			usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
			f := &figures[j]
			f[0] = append(f[0], float64(wall.Microseconds())/1e3)
			f[1] = append(f[1], float64((cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()).Microseconds())/1e3)
			f[2] = append(f[2], float64(usage.Maxrss)/1024)
		}
	}
	var theirs [3]float64
	if *gfd != "" {
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if ours, theirs := nvidiaLabels(printed[0]), nvidiaLabels(text); !slices.Equal(ours, theirs) {
			t.Errorf("labels differ:\n%s\n\n%s", strings.Join(ours, "\n"), strings.Join(theirs, "\n"))
		} else {
			t.Logf("%d labels below nvidia.com/, equal", len(ours))
		}
		for i := range theirs {
			theirs[i] = median(figures[1][i])
		}
	}
	figure(t, "one-shot, wall", "ms", median(figures[0][0]), theirs[0])
	figure(t, "one-shot, CPU", "ms", median(figures[0][1]), theirs[1])
	figure(t, "one-shot, peak of the largest process", "MiB", median(figures[0][2]), theirs[2])
	figure(t, "binary", "MB", size(t, *binary), size(t, *gfd))
	must(t, "one-shot, wall", median(figures[0][0]), 40)
	must(t, "binary", size(t, *binary), 20)
}

func nvidiaLabels(text []byte) (lines []string) {
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "nvidia.com/") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	slices.Sort(lines)
	return lines
}

func size(t *testing.T, path string) float64 {
	if path == "" {
		return 0
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return float64(info.Size()) / 1e6
}

// youth is how long an agent scans more often after its start.
const youth = 10 * time.Minute

// steady measures an agent with the sink node.
func steady(t *testing.T, c *cluster.Cluster) (hour float64) {
	c.CreateNode("steady")
	api := newAPI(t, c)
	port := freePort(t)
	args := []string{"--sink=node", "--node-name=steady", "--force-node-name", "--kubeconfig=" + c.Kubeconfig(), "--listen=127.0.0.1:" + port}
	if *madeUp {
		h := newHost(t)
		h.load("580.1")
		args = append(args, "--root="+h.root, "--driver-root="+h.driver)
	}
	p := start(t, nil, *binary, args...)
	metric := func(name string) float64 { return scrape(t, "http://127.0.0.1:"+port+"/metrics", name) }
	scanned := func() float64 { return metric("gpu_labeller_scans_total") }
	sent := func() float64 { return metric("rest_client_requests_total") }
	waitFor(t, "labels", func() bool {
		resp, err := http.Get("http://127.0.0.1:" + port + "/readyz")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	time.Sleep(10 * time.Second)
	before := api.requests()
	// window looks on while nothing changes: right after a scan, so that the next
	// one is a minute away.
	window := func() (own, children, scans, requests float64) {
		k := scanned()
		p.signal(syscall.SIGHUP)
		waitFor(t, "a scan", func() bool { return scanned() > k })
		time.Sleep(6 * time.Second)
		scans, requests = scanned(), sent()
		time.Sleep(2 * time.Second) // what the question for metrics costs
		own, children = p.cpu(), p.children()
		time.Sleep(*idle)
		return p.cpu() - own, p.children() - children, scanned() - scans, sent() - requests
	}
	if *idle > youth {
		time.Sleep(youth)
		own, children, scans, requests := window()
		t.Logf("in %v: %v scans, %.1f ms of the agent, %.0f ms of its children", *idle, scans, own*1e3, children*1e3)
		figure(t, "agent and children, CPU in an hour, as many scans as there were", "s", (own+children)/idle.Hours(), 0)
		t.Logf("| API requests of the agent, in %v | %v | | |", *idle, requests)
		for what, n := range api.requests() {
			if d := n - before[what]; d > 0 {
				t.Logf("| %s of anybody, in that time | %v | | |", what, d)
			}
		}
		return 0
	}
	var rates []float64
	for range 3 {
		own, _, scans, requests := window()
		t.Logf("in %v: %v scans, %v API requests, %.2f ms of the agent", *idle, scans, requests, own*1e3)
		if scans == 0 {
			rates = append(rates, own/idle.Seconds())
		}
	}
	if len(rates) == 0 {
		t.Fatal("a scan fell into each window")
	}
	rate := median(rates)
	figure(t, "agent, CPU while nothing is scanned, in an hour", "s", rate*3600, 0)
	figure(t, "agent, resident memory, steady", "MiB", p.memory("VmRSS"), 0)
	figure(t, "agent, anonymous memory, steady", "MiB", p.memory("RssAnon"), 0)
	must(t, "agent, resident memory", p.memory("VmRSS"), 20e6/(1<<20))

	peak := p.watchPeak()
	before = api.requests()
	cpu, children, n, begin := p.cpu(), p.children(), scanned(), time.Now()
	for range *scans {
		p.signal(syscall.SIGHUP)
		time.Sleep(5 * time.Second) // in which it gives memory back, as after any scan
	}
	k := scanned() - n
	own, asked := p.cpu()-cpu-rate*time.Since(begin).Seconds(), p.children()-children
	each := (own + asked) / k
	both := peak()
	figure(t, "a scan of a running agent, CPU, child included", "ms", each*1e3, 0)
	figure(t, "a scan, CPU of the agent itself", "ms", own/k*1e3, 0)
	figure(t, "agent and child, peak, shared pages once", "MiB", both, 0)
	figure(t, "agent, peak resident memory", "MiB", p.memory("VmHWM"), 0)
	// An hour is what it costs to be there, and six scans.
	hour = rate*3600 + 6*each
	figure(t, "agent, CPU for an hour of an unchanged node", "s", hour, 0)
	must(t, "agent and child, peak", both, 45e6/(1<<20))
	after := api.requests()
	for verb, n := range after {
		if d := n - before[verb]; d > 0 && (verb == "PATCH nodes" || verb == "GET nodes" || verb == "APPLY nodes") {
			t.Errorf("%v × %s while nothing changed, %v scans", d, verb, k)
		}
	}
	t.Logf("%.0f scans of an unchanged node, and no read or write of it", k)
	return hour
}

// steadyGFD measures GFD's daemon, which writes NodeFeature objects.
func steadyGFD(t *testing.T, c *cluster.Cluster) (hour float64) {
	c.CreateNode("gfd")
	api := newAPI(t, c)
	env := []string{"NODE_NAME=gfd", "NAMESPACE=default", "KUBECONFIG=" + c.Kubeconfig()}
	p := start(t, env, *gfd, "--use-node-feature-api=true", "--sleep-interval=1s")
	waitFor(t, "its object", func() bool { return strings.Contains(c.Kubectl("get", "nodefeatures", "-A"), "gfd") })
	time.Sleep(10 * time.Second)
	passes := func() float64 { return float64(p.log.Count("Sleeping for")) }
	before, cpu, n := api.requests(), p.cpu()+p.children(), passes()
	time.Sleep(*idle)
	k := passes() - n
	each := (p.cpu() + p.children() - cpu) / k
	t.Logf("%.0f passes", k)
	figure(t, "GFD's daemon, resident memory", "MiB", p.memory("VmRSS"), 0)
	figure(t, "GFD's daemon, peak resident memory", "MiB", p.memory("VmHWM"), 0)
	figure(t, "GFD's daemon, CPU of a pass", "ms", each*1e3, 0)
	figure(t, "GFD's daemon, CPU for an hour, 60 passes", "s", each*60, 0)
	after := api.requests()
	for verb, n := range after {
		if d := n - before[verb]; d > 0 && strings.Contains(verb, "nodefeatures") {
			t.Logf("| GFD's daemon, %s a pass | %.2f | | |", verb, d/k)
		}
	}
	return each * 60
}

// latency measures the time from a change of the host to the label on the Node.
func latency(t *testing.T, c *cluster.Cluster) {
	found := make([]delays, *hosts)
	t.Run("hosts", func(t *testing.T) {
		for i := range *hosts {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				found[i] = changingHost(t, c, fmt.Sprintf("changing-%d", i))
			})
		}
	})
	var all delays
	for _, d := range found {
		all.driver, all.mig = append(all.driver, d.driver...), append(all.mig, d.mig...)
	}
	for _, row := range []struct {
		what  string
		times []float64
	}{{"new driver to label", all.driver}, {"MIG layout to label", all.mig}, {"both", slices.Concat(all.driver, all.mig)}} {
		slices.Sort(row.times)
		at := func(q float64) float64 { return row.times[min(len(row.times)-1, int(q*float64(len(row.times))))] }
		t.Logf("| %s, %d changes: p50, p99, max | %.2f, %.2f, %.2f s | | |", row.what, len(row.times), at(0.5), at(0.99), at(1))
		must(t, row.what, at(0.99), 3)
	}
}

// delays are in seconds.
type delays struct{ driver, mig []float64 }

// host is made up, with one GPU.
type host struct {
	t            *testing.T
	root, driver string // folders
}

const gpu = "driver %s\ncuda 13000\ngpu bus=00000000:10:00.0 dev=0x20b010de name=NVIDIA~A100-SXM4-40GB mem=40960 cc=8.0 mig=1\n"

func newHost(t *testing.T) *host {
	h := &host{t, t.TempDir(), standin.DriverRoot(t, fmt.Sprintf(gpu, "580.1"))}
	for name, content := range map[string]string{"vendor": "0x10de", "device": "0x20b0", "revision": "0xa1", "class": "0x030200", "config": strings.Repeat("\x00", 64)} {
		h.write(filepath.Join(h.root, "sys/bus/pci/devices/0000:10:00.0", name), content)
	}
	return h
}

func (h *host) write(path, content string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		h.t.Fatal(err)
	}
}

// nvml is what NVML answers from now on.
func (h *host) nvml(version string, devices int) {
	h.write(filepath.Join(h.driver, "usr/lib64/nvml.txt"), fmt.Sprintf(gpu, version)+partition(devices))
}

// load has the kernel say that a driver is loaded.
func (h *host) load(version string) {
	h.write(filepath.Join(h.root, "proc/driver/nvidia/version"), "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+version+"  x\n")
}

// changingHost has the driver and the MIG layout of a host change in turn.
func changingHost(t *testing.T, c *cluster.Cluster, node string) (found delays) {
	h := newHost(t)
	h.load("580.1")
	c.CreateNode(node)
	seen := newAPI(t, c).follow(t.Context(), node)
	start(t, nil, *binary, "--sink=node", "--node-name="+node, "--force-node-name", "--kubeconfig="+c.Kubeconfig(), "--listen=off",
		"--mig-strategy=mixed", "--root="+h.root, "--driver-root="+h.driver)
	until := func(key, value string, since time.Time) float64 {
		t.Helper()
		deadline := time.After(30 * time.Second)
		for {
			select {
			case labels := <-seen:
				if labels[key] == value {
					return time.Since(since).Seconds()
				}
			case <-deadline:
				t.Fatalf("no %s=%s within 30 s", key, value)
			}
		}
	}
	until("nvidia.com/cuda.driver-version.full", "580.1", time.Now())
	capabilities := filepath.Join(h.root, "proc/driver/nvidia/capabilities/gpu0/mig")
	devices := 0
	for i := range *changes / *hosts / 2 {
		// Anywhere between two looks, and not so soon that one is due anyhow.
		pause := func() { time.Sleep(6*time.Second + rand.N(2*time.Second)) }
		pause()
		version := fmt.Sprintf("580.%d", i+2)
		h.nvml(version, devices)
		begin := time.Now()
		h.load(version)
		found.driver = append(found.driver, until("nvidia.com/cuda.driver-version.full", version, begin))

		pause()
		devices = devices%7 + 1
		h.nvml(version, devices)
		begin = time.Now()
		if devices == 1 {
			_ = os.RemoveAll(capabilities)
		}
		for j := range devices {
			if err := os.MkdirAll(fmt.Sprintf("%s/gi%d/ci0", capabilities, j+7), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		found.mig = append(found.mig, until("nvidia.com/mig-1g.5gb.count", fmt.Sprint(devices), begin))
	}
	return found
}

// partition is what NVML says of n MIG devices.
func partition(n int) (text string) {
	for i := range n {
		text += fmt.Sprintf("mig gpu=0 gi=%d ci=0 gprof=0 cprof=0 slices=1 cslices=1 sm=14 mem=4864 ce=1\n", i+7)
	}
	return text
}

// api is the API server, as its administrator sees it.
type api struct {
	t      *testing.T
	client *http.Client
	host   string
}

func newAPI(t *testing.T, c *cluster.Cluster) *api {
	config := c.Config()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &api{t, client, config.Host}
}

func (a *api) get(ctx context.Context, path, accept string) io.ReadCloser {
	a.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.host+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := a.client.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	return resp.Body
}

const metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// follow gives the labels of a Node as they change.
func (a *api) follow(ctx context.Context, node string) <-chan map[string]string {
	seen := make(chan map[string]string, 1000)
	body := a.get(ctx, "/api/v1/nodes?watch=true&fieldSelector=metadata.name%3D"+node, metadata)
	go func() {
		defer body.Close()
		events := json.NewDecoder(body)
		for {
			var event struct{ Object metav1.PartialObjectMetadata }
			if events.Decode(&event) != nil {
				return
			}
			seen <- event.Object.Labels
		}
	}()
	return seen
}

// requests are the API server's counts for Nodes and NodeFeatures. Reading them
// counts for neither.
func (a *api) requests() map[string]float64 {
	body := a.get(a.t.Context(), "/metrics", "text/plain")
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		a.t.Fatal(err)
	}
	sums := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		labels, ok := strings.CutPrefix(line, "apiserver_request_total{")
		if !ok || strings.Contains(labels, `verb="LIST"`) {
			continue
		}
		for _, resource := range []string{"nodes", "nodefeatures"} {
			if strings.Contains(labels, `resource="`+resource+`"`) && strings.Contains(labels, `subresource=""`) {
				verb := labels[strings.Index(labels, `verb="`)+6:]
				var n float64
				_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &n)
				sums[verb[:strings.IndexByte(verb, '"')]+" "+resource] += n
			}
		}
	}
	return sums
}

// scrape sums a metric over its labels.
func scrape(t *testing.T, url, name string) (sum float64) {
	resp, err := http.Get(url)
	if err != nil {
		return 0 // not up yet
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte(name)) {
			var n float64
			_, _ = fmt.Sscan(string(line[bytes.LastIndexByte(bytes.TrimSpace(line), ' '):]), &n)
			sum += n
		}
	}
	return sum
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for begin := time.Now(); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("%s: not after a minute", what)
		}
	}
}
