package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// A line of the text format, version 0.0.4, and one label in it.
var (
	metricLine  = regexp.MustCompile(`^([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)$`)
	metricLabel = regexp.MustCompile(`([a-z]+)="((?:[^"\\]|\\.)*)"`)
)

// scrape reads the metrics, and sees that each has a help and a type before it,
// and a name that says its unit.
func scrape(t testing.TB, a *Agent) map[string]float64 {
	t.Helper()
	response := httptest.NewRecorder()
	a.Handler().ServeHTTP(response, httptest.NewRequest("GET", "/metrics", nil))
	if response.Code != http.StatusOK {
		t.Fatalf("status %d", response.Code)
	}
	values := map[string]float64{}
	var name, kind string
	for line := range strings.Lines(response.Body.String()) {
		line = strings.TrimSuffix(line, "\n")
		if fields := strings.SplitN(line, " ", 4); fields[0] == "#" {
			if fields[1] == "TYPE" {
				if name != fields[2] {
					t.Errorf("%s has no help", fields[2])
				}
				kind = fields[3]
			} else if !strings.HasSuffix(fields[3], ".") || !strings.Contains(fields[3], " ") {
				t.Errorf("%s: want a sentence, got %s", fields[2], fields[3])
			}
			name = fields[2]
			continue
		}
		parts := metricLine.FindStringSubmatch(line)
		if parts == nil {
			t.Errorf("line %q is not in the format", line)
			continue
		}
		key := parts[1]
		base := strings.TrimSuffix(strings.TrimSuffix(key, "_sum"), "_count")
		if base != name || kind != "summary" && key != name || kind == "counter" != strings.HasSuffix(name, "_total") {
			t.Errorf("line %q after name %s, type %s", line, name, kind)
		}
		var pairs []string
		for _, l := range metricLabel.FindAllStringSubmatch(parts[2], -1) {
			pairs = append(pairs, l[0])
		}
		if len(pairs) > 0 {
			key += "{" + strings.Join(pairs, ",") + "}"
		}
		if _, twice := values[key]; twice {
			t.Errorf("%s is there twice", key)
		}
		value, err := strconv.ParseFloat(parts[3], 64)
		if err != nil {
			t.Error(err)
		}
		values[key] = value
	}
	return values
}

func TestMetrics(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		b.function("0000:8b:00.0", mi3, "amdgpu")
		s := &telling{sink{name: `s "quoted\` + "\n"}}
		a := b.start(func(c *Config) {
			c.Version = "1.2.3"
			c.Requests = func() map[publish.Request]uint64 {
				return map[publish.Request]uint64{{Method: "PATCH", Code: "200", Host: "10.0.0.1:443"}: 3}
			}
		}, s)
		b.after(10 * time.Minute)
		now := float64(time.Now().Unix())
		got := scrape(b, a)
		for key, want := range map[string]float64{
			`gpu_labeller_build_info{version="1.2.3"}`:                                  1,
			`gpu_labeller_held`:                                                         0,
			`gpu_labeller_state{state="ok"}`:                                            1,
			`gpu_labeller_gpus{vendor="nvidia",condition="usable"}`:                     1,
			`gpu_labeller_gpus{vendor="amd",condition="usable"}`:                        1,
			`gpu_labeller_scans_total{cause="start"}`:                                   1,
			`gpu_labeller_scan_duration_seconds_count{source="nvml"}`:                   float64(b.asks()),
			`gpu_labeller_scan_duration_seconds_count{source="host"}`:                   float64(b.asks()),
			`gpu_labeller_scan_duration_seconds_count{source="pci"}`:                    1,
			`gpu_labeller_published_labels{sink="s \"quoted\\\n"}`:                      float64(len(s.set())),
			`gpu_labeller_publishes_total{sink="s \"quoted\\\n",result="ok"}`:           float64(s.count()),
			`gpu_labeller_config_last_reload_successful`:                                1,
			`rest_client_requests_total{code="200",method="PATCH",host="10.0.0.1:443"}`: 3,
		} {
			if v, ok := got[key]; !ok || v != want {
				b.Errorf("%s is %v, want %v", key, v, want)
			}
		}
		if age := now - got["gpu_labeller_last_success_timestamp_seconds"]; age < 0 || age > 66 {
			b.Errorf("last success was %v s ago", age)
		}
		if got["process_resident_memory_bytes"] == 0 || got["process_cpu_seconds_total"] == 0 {
			b.Error("nothing is said of the process")
		}

		success := got["gpu_labeller_last_success_timestamp_seconds"]
		b.answers(hang)
		b.after(10 * time.Minute)
		b.bad(nvml.Answer{Failure: &nvml.Failure{Kind: nvml.Stuck, Text: "stuck"}})
		b.after(10 * time.Minute)
		got = scrape(b, a)
		if got["gpu_labeller_held"] != 1 || got[`gpu_labeller_state{state="timeout"}`] != 1 || got[`gpu_labeller_problems{source="nvml"}`] != 1 {
			b.Errorf("held metrics are wrong: %v", got)
		}
		if _, ok := got[`gpu_labeller_state{state="ok"}`]; ok {
			b.Error("two states at a time")
		}
		if got[`gpu_labeller_nvml_failures_total{kind="timeout"}`] == 0 || got[`gpu_labeller_nvml_failures_total{kind="stuck"}`] == 0 {
			b.Errorf("failures are not counted: %v", got)
		}
		if got["gpu_labeller_last_success_timestamp_seconds"] > success+66 {
			b.Error("a success while NVML hangs")
		}
	})
}

func TestHandler(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		release := make(chan struct{})
		s.onPublish(func(context.Context, int) error { <-release; return nil })
		a := b.start(nil, s)
		b.after(time.Second)
		status := func(path string) int {
			r := httptest.NewRecorder()
			a.Handler().ServeHTTP(r, httptest.NewRequest("GET", path, nil))
			return r.Code
		}
		if got := status("/healthz"); got != 200 {
			b.Errorf("/healthz: %d", got)
		}
		if got := status("/readyz"); got != 503 {
			b.Errorf("/readyz: %d", got)
		}
		close(release)
		b.after(time.Second)
		if got := status("/readyz"); got != 200 {
			b.Errorf("/readyz: %d", got)
		}
		if got := status("/"); got != 404 {
			b.Errorf("/: %d", got)
		}
		b.after(time.Minute)
	})
}
