package agent

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/publish"
)

// The time of day is set at boot, often by years. What is measured goes by the
// monotonic clock, which every time that is kept has to have a reading of.
func TestClockJumps(t *testing.T) {
	host := oneA100(t).host()
	sink := newWatching("s")
	a := New(Config{Host: host, Sinks: []publish.Sink{sink}, Interval: time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx) }()
	for a.unready() != "" {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-done
	p := a.publishers[0]
	for name, at := range map[string]time.Time{
		"the start": a.started.get(), "the next scan": a.due.get(), "the next resync": p.resyncAt, "the next repair": p.repairAt, "the next touch": p.touchAt, "the next line about repairs": p.news.at,
	} {
		if !at.IsZero() && at == at.Round(0) {
			t.Errorf("%s is %v: it goes by the time of day", name, at)
		}
	}
	if p.resyncAt.IsZero() || a.started.get().IsZero() {
		t.Error("nothing was measured")
	}
}

// A sink whose labels have an expiry is looked at once the time of day was set.
func TestClockJumpIsARepair(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		var drift atomic.Int64
		s := newWatching("s")
		b.start(func(c *Config) { c.drift = func() time.Duration { return time.Duration(drift.Load()) } }, s)
		b.after(5 * time.Minute)
		n := s.count()
		drift.Store(int64(30 * time.Second))
		b.after(3 * time.Minute)
		if s.count() != n {
			b.Errorf("%d calls for half a minute", s.count()-n)
		}
		for i, set := range []time.Duration{40 * 365 * 24 * time.Hour, -time.Hour} {
			drift.Store(int64(set))
			b.after(3 * time.Minute)
			if got := s.count() - n; got != i+1 {
				b.Errorf("%d calls after %d jumps", got, i+1)
			}
		}
	})
}
