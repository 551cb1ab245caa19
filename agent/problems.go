package agent

import (
	"log/slog"
	"regexp"

	"github.com/gpu-labeller/gpu-labeller/discover"
)

// problemLog logs a problem when it comes and when it goes.
type problemLog struct {
	known map[discover.Problem]bool
}

func (l *problemLog) update(log *slog.Logger, problems []discover.Problem) {
	now := make(map[discover.Problem]bool, len(problems))
	for _, p := range problems {
		id := identity(p)
		if !now[id] && !l.known[id] {
			log.Warn(p.Text, attributes(p)...)
		}
		now[id] = true
	}
	for id := range l.known {
		if !now[id] {
			log.Info("no longer: "+id.Text, attributes(discover.Problem{Source: id.Source, Device: id.Device})...)
		}
	}
	l.known = now
}

func attributes(p discover.Problem) []any {
	a := []any{"source", p.Source}
	if p.Device != "" {
		a = append(a, "device", p.Device)
	}
	if p.Cure != "" {
		a = append(a, "cure", p.Cure)
	}
	return a
}

var processID = regexp.MustCompile(`process \d+`)

// identity is what stays of a problem from scan to scan.
func identity(p discover.Problem) discover.Problem {
	p.Text = processID.ReplaceAllString(p.Text, "process")
	return p
}
