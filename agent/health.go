package agent

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Handler serves /healthz, /readyz and /metrics.
//
// /healthz fails when no scan has ended for three times as long as the longest
// that all may be well: a driver that hangs is no reason, since NVML is not
// waited for. /readyz fails until each sink has shown labels for which NVML was
// asked.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.unhealthy(time.Now())) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.unready()) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = a.metrics.WriteTo(w) // who asked is gone
	})
	return mux
}

func answer(w http.ResponseWriter, wrong string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if wrong != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, wrong)
		return
	}
	fmt.Fprintln(w, "ok")
}

// unhealthy says what is wrong, if anything is.
func (a *Agent) unhealthy(now time.Time) string {
	since := a.turned.get()
	if since.IsZero() {
		since = a.started.get()
	}
	if since.IsZero() {
		return "" // not run yet
	}
	limit := 3 * (a.config.Interval + a.config.Interval/10 + a.config.ScanLimit)
	if idle := now.Sub(since); idle > limit {
		return fmt.Sprintf("no scan has ended for %v: reading /sys or /proc hangs; look in the kernel log", idle.Round(time.Second))
	}
	return ""
}

// unready names the sinks that have nothing to show yet.
func (a *Agent) unready() string {
	var waiting []string
	for _, p := range a.publishers {
		if !p.ready.Load() {
			waiting = append(waiting, p.sink.String())
		}
	}
	if len(waiting) > 0 {
		return "nothing is published yet on: " + strings.Join(waiting, ", ")
	}
	return ""
}
