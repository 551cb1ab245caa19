package agent

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Handler serves /healthz, /readyz and /metrics.
//
// /healthz fails when a scan should have ended long ago. A driver that hangs is no
// reason, since NVML is not waited for. /readyz fails until each sink has shown
// labels for which NVML was asked.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.unhealthy()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.unready()) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		a.metrics.requested(a.config.Requests)
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
func (a *Agent) unhealthy() string {
	due := a.due.get()
	if due.IsZero() {
		return "" // not run yet
	}
	if late := time.Since(due); late > 3*a.config.ScanLimit {
		return fmt.Sprintf("a scan was due %v ago and has not ended: reading /sys or /proc hangs; look in the kernel log", late.Round(time.Second))
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
