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
