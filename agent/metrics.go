package agent

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-labeller/gpu-labeller/publish"
)

// metrics are the agent's, in Prometheus' text format. Writing it takes this
// file; client_golang would take a seventh of all the memory that the agent has.
type metrics struct {
	mu       sync.Mutex // guards the values of all families
	families []*family

	scans, nvmlFailures, publishes, moved, reloads                       *family
	scanDuration                                                         *family
	held, state, problems, gpus, lastSuccess, labels, published          *family
	conflicts, refused, missing, reloaded, build, cpu, memory, startTime *family
	requests                                                             *family
}

// family is the series of one name. Its values are by label values, as series
// joins them.
type family struct {
	mu         *sync.Mutex
	name, help string
	kind       string // counter, gauge, summary
	labels     []string
	values     map[string]float64 // of a summary, the sums
	counts     map[string]uint64  // of a summary
}

func newMetrics(version string) *metrics {
	m := &metrics{}
	add := func(kind, name, help string, labels ...string) *family {
		f := &family{mu: &m.mu, name: name, help: help, kind: kind, labels: labels, values: map[string]float64{}, counts: map[string]uint64{}}
		m.families = append(m.families, f)
		return f
	}
	m.scanDuration = add("summary", "gpu_labeller_scan_duration_seconds", "Time that scans took: of all of the host, of NVML therein, and of quick scans, which read PCI only.", "source")
	m.scans = add("counter", "gpu_labeller_scans_total", "Scans that asked NVML, by what they were for.", "cause")
	m.lastSuccess = add("gauge", "gpu_labeller_last_success_timestamp_seconds", "When a scan last ended in which nothing had to be held.")
	m.nvmlFailures = add("counter", "gpu_labeller_nvml_failures_total", "Times that NVML gave no answer: its process was killed after a timeout, is stuck in the kernel, or crashed.", "kind")
	m.held = add("gauge", "gpu_labeller_held", "1 while labels are held from an earlier scan.")
	m.state = add("gauge", "gpu_labeller_state", "1 for the state of the node's GPUs, as in the label.", "state")
	m.gpus = add("gauge", "gpu_labeller_gpus", "GPUs of the node.", "vendor", "condition")
	m.problems = add("gauge", "gpu_labeller_problems", "Problems that the last scan found.", "source")
	m.labels = add("gauge", "gpu_labeller_published_labels", "Labels that are published.", "sink")
	m.publishes = add("counter", "gpu_labeller_publishes_total", "Times that a sink was called to look at its labels, and write where they differ.", "sink", "result")
	m.published = add("gauge", "gpu_labeller_publish_last_success_timestamp_seconds", "When a sink was last called with success. It is not called while nothing changes.", "sink")
	m.moved = add("counter", "gpu_labeller_labels_moved_total", "Times that a sink noticed that others changed its labels.", "sink")
	m.conflicts = add("gauge", "gpu_labeller_conflicts", "1 for each label that was left alone, since another field manager set it to another value, and for each taint.", "sink", "label", "manager")
	m.refused = add("gauge", "gpu_labeller_refused_labels", "1 for each label that stays as it is, since an admission webhook or policy refuses it.", "sink", "label")
	m.missing = add("gauge", "gpu_labeller_missing_labels", "Labels that were published and are not on the Node after three intervals.")
	m.reloads = add("counter", "gpu_labeller_config_reloads_total", "Reloads of the configuration.", "result")
	m.reloaded = add("gauge", "gpu_labeller_config_last_reload_successful", "0 when the configuration file could not be used and the one before it is in force.")
	m.build = add("gauge", "gpu_labeller_build_info", "Always 1: the version of the agent is in the label.", "version")
	m.requests = add("counter", "rest_client_requests_total", "Requests to the API server, by status code, method and host.", "code", "method", "host")
	m.cpu = add("counter", "process_cpu_seconds_total", "CPU time of the process, user and system, its children's included.")
	m.memory = add("gauge", "process_resident_memory_bytes", "Resident memory of the process.")
	m.startTime = add("gauge", "process_start_time_seconds", "When the process started.")

	m.held.set(0)
	m.reloaded.set(1)
	m.build.set(1, version)
	m.startTime.set(unixSeconds(time.Now()))
	return m
}

// series joins label values to a key.
func series(values ...string) string { return strings.Join(values, "\xff") }

func (f *family) set(v float64, labels ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.values[series(labels...)] = v
}

func (f *family) add(v float64, labels ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.values[series(labels...)] += v
}

func (f *family) observe(d time.Duration, labels ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := series(labels...)
	f.values[key] += d.Seconds()
	f.counts[key]++
}

// replace makes values all that there are.
func (f *family) replace(values map[string]float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.values = values
}

// replaceFor makes values all that there are of those that begin with prefix.
func (f *family) replaceFor(prefix string, values map[string]float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.values, func(key string, _ float64) bool { return strings.HasPrefix(key, prefix+"\xff") })
	maps.Copy(f.values, values)
}

// scanned counts a full scan.
func (m *metrics) scanned(k look) {
	m.scanDuration.observe(k.took, "host")
	if k.answer == nil {
		return
	}
	m.scanDuration.observe(k.asking, "nvml")
	if k.answer.Failure != nil {
		m.nvmlFailures.add(1, string(k.answer.Failure.Kind))
	}
}

// looked takes over what became of a full scan.
func (m *metrics) looked(d merged, k look) {
	held := 0.0
	if d.held || d.unsettled {
		held = 1
	}
	m.held.set(held)
	if held == 0 && !failing(d.inv.NVIDIA.State) {
		m.lastSuccess.set(unixSeconds(time.Now()))
	}
	gpus := map[string]float64{}
	for _, g := range d.inv.GPUs {
		gpus[series(string(g.Vendor), string(g.Condition))]++
	}
	m.gpus.replace(gpus)
	states := map[string]float64{}
	if state := d.inv.State(); state != "" {
		states[string(state)] = 1
	}
	m.state.replace(states)
}

// requested takes over the counts of requests, if there are any.
func (m *metrics) requested(counts func() map[publish.Request]uint64) {
	if counts == nil {
		return
	}
	values := map[string]float64{}
	for r, n := range counts() {
		values[series(r.Code, r.Method, r.Host)] = float64(n)
	}
	m.requests.replace(values)
}

// process reads what is true of the process now.
func (m *metrics) process() {
	var self, children syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &self) == nil && syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children) == nil {
		total := self.Utime.Nano() + self.Stime.Nano() + children.Utime.Nano() + children.Stime.Nano()
		m.cpu.set(time.Duration(total).Seconds())
	}
	var size, resident float64
	if statm, err := os.ReadFile("/proc/self/statm"); err == nil {
		if _, err := fmt.Sscan(string(statm), &size, &resident); err == nil {
			m.memory.set(resident * float64(os.Getpagesize()))
		}
	}
}

// WriteTo writes all series, in an order that does not change.
func (m *metrics) WriteTo(w io.Writer) (int64, error) {
	m.process()
	var b bytes.Buffer // the network is not waited for with the lock held
	m.mu.Lock()
	for _, f := range m.families {
		f.write(&b)
	}
	m.mu.Unlock()
	return b.WriteTo(w)
}

func (f *family) write(w *bytes.Buffer) {
	if len(f.values) == 0 {
		return
	}
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
	for _, key := range sorted(f.values) {
		labels := f.render(key)
		value := strconv.FormatFloat(f.values[key], 'g', -1, 64)
		if f.kind == "summary" {
			fmt.Fprintf(w, "%s_sum%s %s\n%s_count%s %d\n", f.name, labels, value, f.name, labels, f.counts[key])
			continue
		}
		fmt.Fprintf(w, "%s%s %s\n", f.name, labels, value)
	}
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// render writes {name="value",...}, nothing without labels.
func (f *family) render(key string) string {
	if len(f.labels) == 0 {
		return ""
	}
	values := strings.Split(key, "\xff")
	pairs := make([]string, len(f.labels))
	for i, name := range f.labels {
		pairs[i] = name + `="` + escape.Replace(strings.ToValidUTF8(values[i], "")) + `"`
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
