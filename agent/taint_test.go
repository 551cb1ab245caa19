package agent

import (
	"context"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// tainting is a sink with a taint. The taint is set while there are usable GPUs.
type tainting struct {
	telling
	taint  bool
	writes int // of the taint
}

func (s *tainting) PublishLabels(ctx context.Context, set labels.Set) error {
	return s.sink.Publish(ctx, set)
}

func (s *tainting) Publish(ctx context.Context, set labels.Set) error {
	s.mu.Lock()
	if want := set[countKey] != ""; want != s.taint {
		s.taint = want
		s.writes++
	}
	s.mu.Unlock()
	return s.sink.Publish(ctx, set)
}

func (s *tainting) want(b *bench, when string, taint bool, writes int) {
	b.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taint != taint || s.writes != writes {
		b.Errorf("%s: taint is %v after %d writes, want %v after %d", when, s.taint, s.writes, taint, writes)
	}
}

// The first labels do not say whether there are usable GPUs: a taint that is
// there already stays.
func TestTaintWaitsForNVML(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		good := b.nvml
		b.answers(hang)
		s := &tainting{telling: telling{sink{name: "s"}}, taint: true}
		b.start(nil, s)
		b.after(5 * time.Second)
		if s.count() == 0 {
			b.Error("not called before NVML was asked")
		}
		s.want(b, "before NVML was asked", true, 0)
		b.stop()
		b.answers(good)
		b.start(nil, s)
		b.after(time.Minute)
		b.want(s.set(), countKey+"=1")
		s.want(b, "labelled", true, 0)

		// Held, in this process and the next.
		b.answers(hang)
		b.after(time.Hour)
		b.stop()
		b.start(nil, s)
		b.after(time.Hour)
		s.want(b, "while NVML hangs", true, 0)

		b.unplug("0000:1f:00.0")
		b.after(10 * time.Minute)
		s.want(b, "without a GPU", false, 1)
	})
}

func TestTaintConflictsAreLoggedOnce(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := newWatching("s")
		conflict := &publish.ConflictError{Taints: []string{"nvidia.com/gpu=true:NoSchedule"}}
		s.onPublish(func(context.Context, int) error { return conflict })
		events := make(chan string, 9)
		b.start(func(c *Config) {
			c.Event = func(reason, message string) { events <- reason + ": " + message }
		}, s)
		b.after(time.Minute)
		for range 3 {
			s.spoil()
			b.after(10 * time.Minute)
		}
		b.wantLog(1, "taint left alone")
		b.wantLog(1, `taint="nvidia.com/gpu=true:NoSchedule"`)
		const want = "TaintConflict: s: taint nvidia.com/gpu=true:NoSchedule is left alone: it has the key of the one that --taint keeps, and another value or effect"
		if len(events) != 1 {
			b.Errorf("%d events, want 1", len(events))
		} else if got := <-events; got != want {
			b.Errorf("event is %q, want %q", got, want)
		}
		s.onPublish(nil)
		s.spoil()
		b.after(10 * time.Minute)
		b.wantLog(1, "conflict over taint is gone")
		b.wantLog(1, "labels published")
	})
}
