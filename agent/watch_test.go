package agent

import (
	"context"
	"testing"
	"time"
)

// forgotten is a sink whose watch never ends and never says anything.
type forgotten struct {
	telling
	watches []time.Time
}

func (s *forgotten) Watch(ctx context.Context, _ func()) error {
	s.mu.Lock()
	s.watches = append(s.watches, time.Now())
	s.mu.Unlock()
	<-ctx.Done()
	return nil
}

func TestWatchIsForgotten(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &forgotten{telling: telling{sink{name: "s"}}}
		b.start(nil, s)
		b.after(10 * time.Hour)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.watches); n < 7 || n > 9 {
			b.Errorf("%d watches in ten hours, want a new one every 75 minutes", n)
		}
	})
}

// expiring is a sink whose watch ends after a while, as those of an API server do.
type expiring struct {
	forgotten
	ends []time.Time
}

func (s *expiring) Watch(ctx context.Context, _ func()) error {
	s.mu.Lock()
	s.watches = append(s.watches, time.Now())
	s.mu.Unlock()
	pause(ctx, 2*time.Minute)
	s.mu.Lock()
	s.ends = append(s.ends, time.Now())
	s.mu.Unlock()
	return nil
}

// An API server that restarts ends all watches of a cluster at once.
func TestWatchesBeginApart(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &expiring{forgotten: forgotten{telling: telling{sink{name: "s"}}}}
		b.start(nil, s)
		b.after(4 * time.Hour)
		s.mu.Lock()
		defer s.mu.Unlock()
		least, most := time.Hour, time.Duration(0)
		for i, end := range s.ends[:len(s.watches)-1] {
			gap := s.watches[i+1].Sub(end)
			least, most = min(least, gap), max(most, gap)
		}
		if least > 3*time.Second || most < 8*time.Second || most > 12*time.Second {
			b.Errorf("the next watch begins after %v to %v, want anything up to 11 s", least, most)
		}
	})
}
