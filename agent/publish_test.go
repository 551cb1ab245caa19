package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// U48
func TestNodeRecreated(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := newWatching("Node \"a\"")
		b.start(nil, s)
		b.after(time.Hour)
		before := s.set()
		s.onPublish(func(context.Context, int) error { return fmt.Errorf("%v: %w", s, publish.ErrNoNode) })
		s.spoil() // deleted
		b.after(30 * time.Minute)
		b.wantLog(1, "no such Node")
		s.onPublish(nil)
		n := s.count()
		s.notify <- struct{}{} // it is there again
		b.after(time.Second)
		if got := s.set(); !maps.Equal(got, before) {
			b.Errorf("labels are %v, want %v", got, before)
		}
		if s.count() != n+1 {
			b.Errorf("%d calls, want 1", s.count()-n)
		}
		b.wantLog(1, "can be published again")
	})
}

func TestLabelRemovedByOthers(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := newWatching("s")
		b.start(nil, s)
		b.after(10 * time.Minute)
		before, n := s.set(), s.count()
		s.spoil()
		b.after(time.Second)
		if got := s.set(); !maps.Equal(got, before) || s.count() != n+1 {
			b.Errorf("labels are %v after %d calls", got, s.count()-n)
		}
		// Somebody keeps doing it.
		n = s.count()
		for range 3600 {
			s.spoil()
			b.after(time.Second)
		}
		if calls := s.count() - n; calls < 30 || calls > 80 {
			b.Errorf("%d repairs in an hour of fighting", calls)
		}
		b.after(10 * time.Minute)
		if got := s.set(); !maps.Equal(got, before) {
			b.Errorf("labels are %v, want %v", got, before)
		}
	})
}

// A sink that cannot watch is looked at every interval, and every ten minutes at
// least.
func TestResync(t *testing.T) {
	for _, tt := range []struct{ interval, resync time.Duration }{
		{time.Second, time.Second},
		{10 * time.Second, 10 * time.Second},
		{time.Minute, time.Minute},
		{DefaultInterval, 10 * time.Minute},
		{24 * time.Hour, 10 * time.Minute},
	} {
		t.Run(tt.interval.String(), func(t *testing.T) {
			virtual(t, oneA100, func(b *bench) {
				s := &telling{sink{name: "s"}}
				b.start(func(c *Config) { c.Interval = tt.interval }, s)
				b.after(5 * time.Minute)
				n := s.count()
				b.after(60 * tt.resync)
				if calls := s.count() - n; calls < 55 || calls > 66 {
					b.Errorf("%d calls in %v", calls, 60*tt.resync)
				}
				right := s.set()
				s.mu.Lock()
				s.has = labels.Set{}
				s.mu.Unlock()
				b.after(tt.resync + tt.resync/10)
				if got := s.set(); !maps.Equal(got, right) {
					b.Errorf("after %v there are %d labels, want %d", tt.resync, len(got), len(right))
				}
			})
		})
	}
}

// mending is a sink that tells what it puts right.
type mending struct {
	*watching
	last labels.Set
	keys []string
}

func (s *mending) Publish(ctx context.Context, set labels.Set) error {
	found := s.set()
	s.keys = nil
	for key := range s.last {
		if _, there := found[key]; !there && set[key] == s.last[key] {
			s.keys = append(s.keys, key)
		}
	}
	s.last = maps.Clone(set)
	return s.watching.Publish(ctx, set)
}

func (s *mending) Repaired() (keys []string, done bool) { return s.keys, len(s.keys) > 0 }

// lose has somebody else remove labels.
func (s *mending) lose(keys ...string) {
	s.mu.Lock()
	for _, key := range keys {
		delete(s.has, key)
	}
	s.mu.Unlock()
	s.notify <- struct{}{}
}

// The log tells at once of labels that others removed, and of a fight every ten
// minutes.
func TestRepairsAreLogged(t *testing.T) {
	const line = "level=INFO msg=\"labels were removed or changed, and are put right\" sink=s"
	virtual(t, oneA100, func(b *bench) {
		s := &mending{watching: newWatching("s")}
		b.start(nil, s)
		b.after(10 * time.Minute)
		b.wantLog(0, line)
		s.lose(product)
		b.after(time.Second)
		b.wantLog(1, line+" times=1 labels=1 keys=[nvidia.com/gpu.product]")

		for range 2 {
			s.lose("nvidia.com/gpu.count")
			b.after(2 * time.Minute)
			s.lose(product)
			b.after(2 * time.Minute)
		}
		b.wantLog(1, line)
		b.after(2 * time.Minute)
		b.wantLog(1, line+" times=4 labels=2 keys=\"[nvidia.com/gpu.count nvidia.com/gpu.product]\"")
		b.after(15 * time.Minute)
		b.wantLog(2, line)

		s.spoil()
		b.after(time.Minute)
		b.wantLog(1, line+" times=1 labels=37 keys=\"[feature.node.kubernetes.io/pci-0302_10de.present ")
		b.wantLog(1, " 27 more]")
		s.lose(product) // the agent ends before the time has come
		b.after(2 * time.Minute)
		b.wantLog(3, line)
		b.stop()
		b.wantLog(4, line)
	})
}

// What a look finds that no watch told of is counted as what a watch tells.
func TestRepairsAreCounted(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &mending{watching: newWatching("s")}
		deaf := struct {
			publish.Sink
			Publisher
			Repairer
		}{s, s, s} // without Watch
		a := b.start(nil, deaf)
		b.after(10 * time.Minute)
		s.mu.Lock()
		delete(s.has, product)
		s.mu.Unlock()
		b.after(2 * time.Minute)
		b.wantLog(1, "are put right")
		if got := a.metrics.moved.values["s"]; got != 1 {
			b.Errorf("counted %v times, want 1", got)
		}
	})
}

func everyTenMinutes(c *Config) { c.Resync = LongestResync }

// After a write without an answer it is looked at again soon, for that may be
// carried out late, and then as ever.
func TestResyncAfterAnUnansweredWrite(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(everyTenMinutes, s)
		b.after(time.Hour)
		s.onPublish(func(context.Context, int) error { return &publish.UnansweredError{Err: context.DeadlineExceeded} })
		b.good(gpu("0000:1f:00.0", "NVIDIA H100"))
		b.after(2 * time.Minute)
		s.onPublish(nil)
		b.after(2 * time.Minute)
		right := s.set()
		s.mu.Lock()
		s.has = labels.Set{}
		s.mu.Unlock()
		b.after(time.Minute)
		if got := s.set(); !maps.Equal(got, right) {
			b.Errorf("after a minute the labels are %v, want %v", got, right)
		}
		b.after(15 * time.Minute)
		n := s.count()
		b.after(10 * time.Hour)
		if calls := s.count() - n; calls < 55 || calls > 66 {
			b.Errorf("%d calls in ten hours", calls)
		}
	})
}

// So is one whose watch fails.
type unwatchable struct{ telling }

func (s *unwatchable) Watch(context.Context, func()) error {
	return fmt.Errorf("%v: %w", s, &publish.ForbiddenError{Verb: "watch", Resource: "nodes", Err: errors.New("forbidden")})
}

func TestWatchForbidden(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &unwatchable{telling{sink{name: "s"}}}
		b.start(everyTenMinutes, s)
		b.after(5 * time.Minute)
		n := s.count()
		b.after(10 * time.Hour)
		if calls := s.count() - n; calls < 55 || calls > 66 {
			b.Errorf("%d calls in ten hours", calls)
		}
		b.wantLog(1, "not allowed to watch nodes")
	})
}

// ending is a sink whose watch ends after a while, as the API server's does.
type ending struct {
	telling
	watches []time.Time
}

func (s *ending) Watch(ctx context.Context, _ func()) error {
	s.mu.Lock()
	s.watches = append(s.watches, time.Now())
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Minute):
	}
	return nil
}

// The end of a watch is no reason to look at the labels: the next one begins
// with what is there. With two watches an hour that is all an idle node costs.
func TestWatchEnds(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &ending{telling: telling{sink{name: "s"}}}
		b.start(nil, s)
		b.after(5 * time.Minute)
		n := s.count()
		b.after(10 * time.Hour)
		s.mu.Lock()
		defer s.mu.Unlock()
		if calls := len(s.calls) - n; calls != 0 {
			b.Errorf("%d calls in ten hours", calls)
		}
		if watches := len(s.watches); watches < 19 || watches > 21 {
			b.Errorf("%d watches in ten hours", watches)
		}
	})
}

// All agents of a cluster lose their watches at once, or are sent away together
// and told the same second to come back.
func TestAgentsComeBackOneByOne(t *testing.T) {
	throttled := &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonTooManyRequests, Code: 429, Details: &metav1.StatusDetails{RetryAfterSeconds: 1}}}
	tenths := map[time.Duration]int{}
	for range 1000 {
		var b backoff
		d := delay(&b, throttled)
		if d < time.Second || d > 4*time.Second {
			t.Fatalf("back in %v", d)
		}
		tenths[d/(100*time.Millisecond)]++
	}
	for tenth, n := range tenths {
		if n > 200 {
			t.Errorf("%d of 1000 agents come back within the same tenth of a second, after %v", n, tenth*100*time.Millisecond)
		}
	}
}

// What stands before an API server may ask for a week, which is no time for labels to
// be wrong.
func TestRetryAfterIsBounded(t *testing.T) {
	week := &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonTooManyRequests, Code: 429, Details: &metav1.StatusDetails{RetryAfterSeconds: 7 * 24 * 3600}}}
	for range 100 {
		var b backoff
		if d := delay(&b, week); d < 5*time.Minute || d > 5*time.Minute+3*time.Second {
			t.Fatalf("back in %v", d)
		}
	}
}

// touched is a sink that has to be touched after a change.
type touched struct {
	telling
	at []time.Time
}

func (s *touched) Touch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, time.Now())
	return nil
}

func TestTouchAfterAChange(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &touched{telling: telling{sink{name: "s"}}}
		b.start(nil, s)
		b.after(5 * time.Hour) // with resyncs
		s.mu.Lock()
		defer s.mu.Unlock()
		last := s.calls[0].at
		if len(s.at) != 1 || s.at[0].Sub(last) != touchTime {
			b.Errorf("touched at %v, after changes until %v", s.at, last)
		}
	})
}

// The sinks of package publish can do what the agent makes use of.
var (
	_ Publisher = (*publish.Node)(nil)
	_ Publisher = (*publish.NodeFeature)(nil)
	_ Publisher = (*publish.FeatureFile)(nil)
	_ Watcher   = (*publish.Node)(nil)
	_ Repairer  = (*publish.Node)(nil)
	_ Repairer  = (*publish.FeatureFile)(nil)
	_ Repairer  = (*publish.NodeFeature)(nil)
	_ Toucher   = (*publish.FeatureFile)(nil)
)

// U50
func TestAPIErrors(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	tooMany := apierrors.NewTooManyRequests("busy", 7)
	virtual(t, oneA100, func(b *bench) {
		failures := []error{
			apierrors.NewConflict(nodes, "a", errors.New("modified")),
			tooMany,
			apierrors.NewInternalError(errors.New("etcd")),
			&publish.ForbiddenError{Verb: "patch", Resource: "nodes", Err: errors.New("forbidden")},
			apierrors.NewUnauthorized("token expired"),
			context.DeadlineExceeded,
		}
		s := newWatching("s")
		s.onPublish(func(_ context.Context, n int) error {
			if n <= len(failures) {
				return failures[n-1]
			}
			return nil
		})
		file := &telling{sink{name: "file"}}
		a := b.start(nil, s, file)
		b.after(time.Second / 2)
		b.want(file.set(), stateOK)
		if a.unready() == "" {
			b.Error("ready before the first publish")
		}
		b.after(5 * time.Minute)
		b.want(s.set(), stateOK, a100Labels)
		b.wantLog(1, "not allowed to patch nodes")
		if wrong := a.unready(); wrong != "" {
			b.Error(wrong)
		}
		calls := s.all()
		if len(calls) != len(failures)+1 {
			b.Fatalf("%d calls, want %d", len(calls), len(failures)+1)
		}
		if gap := calls[2].at.Sub(calls[1].at); gap < 7*time.Second || gap > 11*time.Second { // and twice the back-off, which is two seconds at most by then
			b.Errorf("tried again %v after a 429 that asks for 7 s", gap)
		}
	})
}

func TestAPIServerAwayForADay(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := newWatching("s")
		b.start(nil, s)
		b.after(time.Hour)
		s.onPublish(func(context.Context, int) error { return errors.New("dial tcp: connection refused") })
		n := s.count()
		s.spoil()
		for range 24 * 60 {
			b.after(time.Minute)
			s.notify <- struct{}{} // must not make it try more often
		}
		if calls := s.count() - n; calls < 24*30 || calls > 24*60+20 {
			b.Errorf("%d calls in a day", calls)
		}
		b.wantLog(1, "connection refused")
		s.onPublish(nil)
		b.after(2 * time.Minute)
		b.want(s.set(), stateOK, a100Labels)
	})
}

func TestBackoffSpreads(t *testing.T) {
	var waits []time.Duration
	for range 1000 {
		b := backoff{failures: 3}
		waits = append(waits, b.next(time.Second, time.Minute))
	}
	if least, most := slices.Min(waits), slices.Max(waits); least < 4*time.Second || most > 8*time.Second || most-least < 3*time.Second {
		t.Errorf("waits of %v to %v", least, most)
	}
	for _, first := range []time.Duration{time.Second, time.Minute, math.MaxInt64} {
		var b backoff
		for range 100 {
			b.next(first, time.Minute)
		}
		if d := b.next(first, time.Minute); d > time.Minute || d < 30*time.Second {
			t.Errorf("from %v on: waits %v", first, d)
		}
	}
}

// A slow sink gets the newest labels, not all of them, and holds nobody up.
func TestSlowSink(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		slow, fast := &telling{sink{name: "slow"}}, &telling{sink{name: "fast"}}
		b.start(nil, slow, fast)
		b.after(5 * time.Minute)
		slow.onPublish(func(context.Context, int) error { time.Sleep(10 * time.Minute); return nil })
		n := slow.count()
		for i := range 9 {
			b.good(gpu("0000:1f:00.0", fmt.Sprintf("NVIDIA A10%d", i)))
			b.after(70 * time.Second)
			b.want(fast.set(), product+fmt.Sprintf("=NVIDIA-A10%d", i))
		}
		b.after(30 * time.Minute)
		b.want(slow.set(), product+"=NVIDIA-A108")
		if calls := slow.count() - n; calls > 4 {
			b.Errorf("%d calls for nine changes", calls)
		}
		slow.onPublish(nil)
		b.after(10 * time.Minute)
	})
}

// A sink that does not return keeps none of the others.
func TestSinkHangs(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		hung, well := &telling{sink{name: "hung"}}, &telling{sink{name: "well"}}
		hung.onPublish(func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() })
		a := b.start(nil, hung, well)
		b.after(5 * time.Minute)
		b.want(well.set(), stateOK)
		b.wantLog(1, "could not be published")
		if wrong := a.unready(); wrong != "nothing is published yet on: hung" {
			b.Errorf("unready: %q", wrong)
		}
	})
}

// One that does not even end at its limit, as in a file system that hangs, is told
// once in the log, and counted for as long as it lasts.
func TestSinkOutlastsItsLimit(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		hung := &telling{sink{name: "hung"}}
		hung.onPublish(func(context.Context, int) error { time.Sleep(30 * time.Minute); return nil })
		a := b.start(nil, hung)
		b.after(95 * time.Second)
		b.wantLog(0, "has not ended")
		b.after(10 * time.Minute)
		b.wantLog(1, "has not ended at its limit")
		if got := scrape(b, a)[`gpu_labeller_publishes_total{sink="hung",result="hung"}`]; got < 6 || got > 8 {
			b.Errorf("counted %v times in ten minutes", got)
		}
		hung.onPublish(nil)
		b.after(30 * time.Minute)
		b.wantLog(1, "the call of the sink has ended")
		before := scrape(b, a)
		b.after(time.Hour)
		if name := `gpu_labeller_publishes_total{sink="hung",result="hung"}`; scrape(b, a)[name] != before[name] {
			b.Error("counted though it has ended")
		}
		b.want(hung.set(), stateOK, a100Labels)
	})
}

func TestConflictsAreLoggedOnce(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := newWatching("s")
		conflict := &publish.ConflictError{Conflicts: []publish.Conflict{{Key: product, Manager: "kubectl", Value: "Fake"}}}
		s.onPublish(func(context.Context, int) error { return fmt.Errorf("%v: %w", s, conflict) })
		a := b.start(nil, s)
		for i := range 10 {
			b.after(10 * time.Minute)
			b.good(gpu("0000:1f:00.0", fmt.Sprintf("NVIDIA A%d", i)))
		}
		b.wantLog(1, "label left alone")
		b.wantLog(1, `theirs=Fake ours=NVIDIA-A100-SXM4-40GB manager=kubectl cure="end who sets it`)
		b.wantLog(0, "could not be published")
		if wrong := a.unready(); wrong != "" {
			b.Error(wrong)
		}
		if got := scrape(b, a)[`gpu_labeller_conflicts{sink="s",label="nvidia.com/gpu.product",manager="kubectl"}`]; got != 1 {
			b.Errorf("metric is %v", got)
		}
		s.onPublish(nil)
		s.notify <- struct{}{}
		b.after(time.Minute)
		b.wantLog(1, "conflict over label is gone")
		if got := scrape(b, a)[`gpu_labeller_conflicts{sink="s",label="nvidia.com/gpu.product",manager="kubectl"}`]; got != 0 {
			b.Errorf("metric is %v", got)
		}
	})
}

func TestRefusedLabelsAreTriedAgain(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := newWatching("s")
		refused := &publish.ConflictError{Refused: []publish.Refusal{{Key: product, Reason: "not yours"}}}
		s.onPublish(func(context.Context, int) error { return fmt.Errorf("%v: %w", s, refused) })
		a := b.start(nil, s)
		b.after(24 * time.Hour)
		b.wantLog(1, "admission refuses it")
		b.wantLog(1, "not yours")
		b.wantLog(0, "could not be published")
		if calls := s.count(); calls < 24*60/10 || calls > 24*60/5+20 {
			b.Errorf("%d calls in a day", calls)
		}
		if wrong := a.unready(); wrong != "" {
			b.Error(wrong)
		}
		metrics := scrape(b, a)
		if got := metrics[`gpu_labeller_refused_labels{sink="s",label="nvidia.com/gpu.product"}`]; got != 1 {
			b.Errorf("metric is %v", got)
		}
		if shown := metrics[`gpu_labeller_published_labels{sink="s"}`]; shown != float64(len(s.set())-1) {
			b.Errorf("%v labels are said to be published, of %d", shown, len(s.set()))
		}
		s.onPublish(nil)
		b.after(15 * time.Minute)
		b.wantLog(1, "label is not refused any more")
		if got := scrape(b, a)[`gpu_labeller_refused_labels{sink="s",label="nvidia.com/gpu.product"}`]; got != 0 {
			b.Errorf("metric is %v", got)
		}
		n := s.count()
		b.after(24 * time.Hour)
		if s.count() != n {
			b.Errorf("%d calls though nothing is refused", s.count()-n)
		}
	})
}

// A label that is withdrawn and stays, since somebody else set it, too, is none
// that was removed.
func TestLabelsThatStay(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := newWatching("s")
		a := b.start(nil, s)
		b.after(time.Minute)
		stays := &publish.ConflictError{Stale: []publish.Conflict{{Key: product, Manager: "kubectl-create"}}}
		s.onPublish(func(context.Context, int) error { return fmt.Errorf("%v: %w", s, stays) })
		b.unplug("0000:1f:00.0")
		b.good()
		b.after(10 * time.Minute)
		b.wantLog(1, "label left alone that does not hold")
		b.wantLog(1, "added=37")
		b.wantLog(1, "removed=36")
		if got := scrape(b, a)[`gpu_labeller_conflicts{sink="s",label="nvidia.com/gpu.product",manager="kubectl-create"}`]; got != 1 {
			b.Errorf("metric is %v", got)
		}
	})
}

// mute cannot say what it shows for as long as err is set.
type mute struct {
	telling
	err error
}

func (s *mute) Published(ctx context.Context) (labels.Set, error) {
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.telling.Published(ctx)
}

func (s *mute) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// The agent restarts while the API server is away and NVML hangs.
func TestRestartWhileAllIsAway(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &mute{telling: telling{sink{name: "s"}}}
		b.start(nil, s)
		b.after(5 * time.Minute)
		b.stop()
		before, n := s.set(), s.count()
		s.fail(errors.New("dial tcp: connection refused"))
		b.answers(hang)
		b.start(nil, s)
		b.after(30 * time.Minute)
		if s.count() != n {
			b.Error("labels were published without knowing what there is")
		}
		s.fail(nil)
		b.after(5 * time.Minute)
		got := s.set()
		b.want(got, stateKey+"=timeout")
		got[stateKey] = "ok"
		if !maps.Equal(got, before) {
			b.Errorf("labels are %v, want %v", got, before)
		}
	})
}

// U52
func TestReadBack(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		node := labels.Set{}
		var asked atomic.Int32
		var mu sync.Mutex
		read := func(_ context.Context, set labels.Set) (missing []string, err error) {
			mu.Lock()
			defer mu.Unlock()
			asked.Add(1)
			for key, value := range set {
				if node[key] != value {
					missing = append(missing, key)
				}
			}
			return missing, nil
		}
		var events []string
		event := func(reason, _ string) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, reason)
		}
		a := b.start(func(c *Config) { c.ReadBack, c.Event = read, event }, s)
		b.after(2*time.Minute + 50*time.Second)
		if asked.Load() != 0 {
			b.Error("read back before three intervals")
		}
		b.after(time.Hour)
		b.wantLog(1, "the Node has none of them")
		mu.Lock()
		if len(events) != 1 || events[0] != "LabelsMissing" {
			b.Errorf("events are %v", events)
		}
		mu.Unlock()
		if got := scrape(b, a)["gpu_labeller_missing_labels"]; got != 37 {
			b.Errorf("metric is %v", got)
		}
		if n := asked.Load(); n < 6 || n > 9 {
			b.Errorf("read back %d times in an hour, want each ten minutes in the end", n)
		}
		mu.Lock()
		node = s.set()
		mu.Unlock()
		b.after(12 * time.Minute)
		b.wantLog(1, "the labels are on the Node")
		n := asked.Load()
		b.after(10 * time.Hour)
		if asked.Load() != n {
			b.Error("read back though nothing changed")
		}

		b.good(gpu("0000:1f:00.0", "NVIDIA H100")) // and nothing writes the Node
		b.after(time.Hour)
		b.wantLog(1, "refuse gpu.feature.node.kubernetes.io, nvidia.com")
	})
}

func TestResultOf(t *testing.T) {
	for want, err := range map[string]error{
		resultOK:        nil,
		resultConflict:  fmt.Errorf("x: %w", &publish.ConflictError{}),
		resultToken:     fmt.Errorf("x: %w", apierrors.NewUnauthorized("expired")),
		resultRefused:   fmt.Errorf("x: %w", &publish.ConflictError{Refused: []publish.Refusal{{}}}),
		resultForbidden: fmt.Errorf("x: %w", &publish.ForbiddenError{Err: errors.New("no")}),
		resultNoNode:    fmt.Errorf("x: %w", publish.ErrNoNode),
		resultTwoAgents: fmt.Errorf("x: %w", publish.ErrTwoAgents),
		resultNoFolder:  fmt.Errorf("x: %w", publish.ErrNoFolder),
		resultTooLarge:  fmt.Errorf("x: %w", publish.ErrTooLarge),
		resultNoNFD:     fmt.Errorf("x: %w", publish.ErrNoNodeFeatures),
		resultThrottled: &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonTooManyRequests, Code: 429, Details: &metav1.StatusDetails{RetryAfterSeconds: 3}}},
		resultTimeout:   fmt.Errorf("x: %w", context.DeadlineExceeded),
		resultError:     errors.New("x"),
	} {
		if got := resultOf(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}

// What was published could not be read at first, and NVML takes its time: there is
// nothing to do until it answers.
func TestNothingToDoIsDoneOnce(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		first := &telling{sink{name: "first"}}
		b.start(nil, first)
		b.after(time.Minute)
		b.stop()

		s := &untold{telling: telling{sink{name: "s", has: first.set()}}}
		b.answers(func(ctx context.Context) nvml.Answer {
			pause(ctx, 15*time.Second)
			return nvml.Answer{Init: nvml.Success, DriverVersion: "580.95.05", CUDADriverVersion: 13000, GPUs: []nvml.GPU{gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB")}}
		})
		b.start(nil, s)
		b.after(time.Minute)
		b.want(s.set(), a100Labels, stateOK)
		if n := s.reads.Load(); n > 10 {
			b.Errorf("the sink was asked %d times what it shows", n)
		}
	})
}

// untold is a sink that does not tell what it shows when it is asked first.
type untold struct {
	telling
	reads atomic.Int32
}

func (s *untold) Published(ctx context.Context) (labels.Set, error) {
	if s.reads.Add(1) == 1 {
		return nil, errors.New("not yet")
	}
	return s.telling.Published(ctx)
}
