package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// Publisher is a Sink that can say what we have published there, in this process
// or an earlier one. It is asked before the first Publish.
type Publisher interface {
	// Published reads the labels that are ours. An empty set means that there
	// are none.
	Published(context.Context) (labels.Set, error)
}

// Watcher is a Sink that notices when labels are not as it left them. Watch
// calls changed for each time, beside Publish, and returns nil when it has come
// to an end and is to be called again.
type Watcher interface {
	Watch(ctx context.Context, changed func()) error
}

// Toucher is a Sink whose reader may miss a change that comes on the heels of
// another, and looks again when it is touched a little later.
type Toucher interface {
	Touch() error
}

// Tainter is a Sink that keeps more than labels, by what they say. PublishLabels
// is Publish for labels that do not say it yet, since NVML was not asked.
type Tainter interface {
	PublishLabels(ctx context.Context, set labels.Set) error
}

// Repairer is a Sink that tells what the last Publish found otherwise than the one
// before had left it, and put right: the keys of the labels, if it is those.
type Repairer interface {
	Repaired() (keys []string, done bool)
}

const (
	// touchTime is when a sink is touched after a change; NFD's worker is deaf
	// for a second.
	touchTime = 1500 * time.Millisecond
	// provisionalTime is how long labels that NVML was not asked for wait for its
	// answer, of which most take less: it spares every node a write.
	provisionalTime = 400 * time.Millisecond
	// sinkLimit is how long a sink may take; sinkGrace is how long it then has to
	// give up before it counts as hung.
	sinkLimit = 90 * time.Second
	sinkGrace = 10 * time.Second
	// retryFirst and retryLast bound the time before a sink is tried again.
	retryFirst = time.Second
	retryLast  = 2 * time.Minute
	// askedLast bounds the time that an answer asks to be left alone; a random time
	// is added to it.
	askedLast = 5 * time.Minute
	// repairFirst and repairLast bound the time between two repairs of labels
	// that others keep changing.
	repairFirst = time.Second
	repairLast  = time.Minute
	// repairNewsTime is the least time between two lines of the log about repairs.
	repairNewsTime = 10 * time.Minute
	// refusedFirst and refusedLast bound the time before a label that admission
	// refused is tried again. All others are published.
	refusedFirst = 10 * time.Second
	refusedLast  = 10 * time.Minute
	// A write that got no answer may undo a later one: for lateTime a sink that
	// cannot watch is looked at every lateResync.
	lateTime   = 10 * time.Minute
	lateResync = 45 * time.Second
)

// offer is the labels that a sink is to show.
type offer struct {
	set labels.Set
	// provisional: NVML was not asked yet. It is for a sink that shows nothing.
	provisional bool
	made        time.Time // when the agent started, for one that is provisional
	// blind completes set by what is published; nil where set is whole.
	blind *blind
}

// publisher brings labels to one sink, and no other sink waits for it. Of several
// offers that came while the sink was slow, the newest counts.
type publisher struct {
	*Agent
	sink publish.Sink
	name string
	wake chan struct{}

	mu      sync.Mutex
	latest  *offer
	changed bool       // the watch says that the labels are not ours any more
	shown   labels.Set // nil while unknown
	whole   bool       // shown is the latest offer, and NVML was asked for it

	ready    atomic.Bool // something not provisional was published
	watching atomic.Bool
	// resyncFrom is when a resync may come at the earliest, since a watch that
	// worked ended: the next one begins with what is there.
	resyncFrom moment

	// What follows belongs to run.
	done       *offer
	seeded     bool
	seed       labels.Set // what was there before and may be ours; nil if the sink cannot say
	failed     bool
	retries    backoff
	retryAt    time.Time
	repairs    int
	repairAt   time.Time
	resyncAt   time.Time
	lateUntil  time.Time // a write that got no answer may be carried out until then
	touchAt    time.Time // zero if there is no need
	lastResult string
	conflicts  map[publish.Conflict]bool
	refused    map[string]bool // keys of labels that admission refuses
	refusals   backoff
	refusedAt  time.Time       // when they are tried again; zero if there are none
	taints     map[string]bool // left alone
	watched    bool
	news       repairNews
}

func newPublisher(a *Agent, sink publish.Sink) *publisher {
	return &publisher{Agent: a, sink: sink, name: sinkName(sink), wake: make(chan struct{}, 1), lastResult: resultOK}
}

// sinkName is the sink's name in metrics.
func sinkName(sink publish.Sink) string {
	switch sink.(type) {
	case *publish.Node:
		return "node"
	case *publish.FeatureFile:
		return "feature-file"
	case *publish.NodeFeature:
		return "node-feature"
	}
	return sink.String()
}

func (p *publisher) offer(o offer) {
	p.mu.Lock()
	p.latest = &o
	p.mu.Unlock()
	signal(p.wake)
}

// showing is what the sink shows, if it is all that was offered.
func (p *publisher) showing() (labels.Set, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown, p.whole
}

func (p *publisher) run(ctx context.Context) {
	alarm := newAlarm()
	defer alarm.Stop()
	defer p.tellRepairs()
	for ctx.Err() == nil {
		p.mu.Lock()
		o, changed := p.latest, p.changed
		p.mu.Unlock()
		why, wait := p.due(o, changed, time.Now())
		if left := time.Until(p.touchAt); !p.touchAt.IsZero() && (why == nothing || left < wait) {
			why, wait = touch, left
		}
		if left := time.Until(p.news.at); p.news.times > 0 && (why == nothing || left < wait) {
			why, wait = tell, left
		}
		switch {
		case wait > 0 || why == nothing:
		case why == touch:
			p.touch()
			continue
		case why == tell:
			p.tellRepairs()
			continue
		default:
			p.publish(ctx, o, why)
			continue
		}
		alarm.Stop()
		if why != nothing {
			alarm.set(wait)
		}
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-alarm.C:
		}
	}
}

// reason is why a sink is called.
type reason int

const (
	nothing reason = iota
	newOffer
	retry
	repair // the labels are not as the sink left them
	resync
	touch
	tell // of repairs
)

// due tells what there is to do, and in how long.
func (p *publisher) due(o *offer, changed bool, now time.Time) (reason, time.Duration) {
	switch {
	case o == nil:
		return nothing, 0
	case p.failed:
		wait := p.retryAt.Sub(now)
		if early := p.repairAt.Sub(now); changed && p.lastResult == resultNoNode && early < wait {
			return repair, early // it has come
		}
		return retry, wait
	case o != p.done && o.provisional:
		return newOffer, o.made.Add(provisionalTime).Sub(now)
	case o != p.done:
		return newOffer, 0
	case changed:
		return repair, p.repairAt.Sub(now)
	case !p.refusedAt.IsZero():
		return retry, p.refusedAt.Sub(now)
	case p.watching.Load() || p.resyncAt.IsZero():
		return nothing, 0
	}
	return resync, max(p.resyncAt.Sub(now), p.resyncFrom.get().Sub(now))
}

// publish makes the sink show o.
func (p *publisher) publish(ctx context.Context, o *offer, why reason) {
	limited, cancel := context.WithTimeout(ctx, sinkLimit)
	defer cancel()
	defer p.watchOver()()
	if err := p.look(limited); err != nil && (o.provisional || o.blind != nil) {
		p.fail(ctx, err)
		return
	}
	_, canSay := p.sink.(Publisher)
	if o.provisional && (!canSay || len(p.seed) > 0) {
		p.done = o // there may be more there than this
		p.failed = false
		p.retries.reset()
		return
	}
	set := o.blind.over(p.seed, o.set)
	p.mu.Lock()
	shown := p.shown != nil && maps.Equal(p.shown, set)
	p.mu.Unlock()
	if why == newOffer && shown && p.ready.Load() {
		p.done = o
		p.settle(o)
		return
	}

	p.mu.Lock()
	p.changed = false // what changes from now on counts again
	p.mu.Unlock()
	if why == repair {
		p.repaired(time.Now())
	}
	put := p.sink.Publish
	if sink, ok := p.sink.(Tainter); ok && o.provisional {
		put = sink.PublishLabels
	}
	err := put(limited, set)
	p.lookForRepairs(why)
	var conflict *publish.ConflictError
	if err != nil && !errors.As(err, &conflict) {
		p.fail(ctx, err)
		return
	}
	left := p.report(conflict, set)
	p.result(resultOf(err), err)
	p.failed = false
	p.retries.reset()
	p.resyncAt = time.Now().Add(jitter(p.resync()))
	p.seeded = true // what was there before is of no use any more
	p.show(o, set, left)
	p.done = o
	p.watch(ctx)
}

// watchOver reports a call of the sink that does not end at its limit: one in a file
// system, or in the kernel, cannot be told to. It is counted again and again, as
// tries would be, until the function that it returns is called.
func (p *publisher) watchOver() (ended func()) {
	began := time.Now()
	done := make(chan struct{})
	go func() {
		wait := time.NewTimer(sinkLimit + sinkGrace)
		defer wait.Stop()
		for hung := false; ; hung = true {
			select {
			case <-done:
				if hung {
					p.log.Info("the call of the sink has ended", "sink", p.sink.String(), "took", time.Since(began).Round(time.Second))
				}
				return
			case <-wait.C:
			}
			if !hung {
				p.log.Warn("labels are not published: the call of the sink has not ended at its limit, and is waited for; "+
					"look at what is in its place, and in the kernel log", "sink", p.sink.String(), "limit", sinkLimit)
			}
			p.metrics.publishes.add(1, p.name, resultHung)
			wait.Reset(sinkLimit)
		}
	}()
	return func() { close(done) }
}

// touch has the sink's reader look again.
func (p *publisher) touch() {
	p.touchAt = time.Time{}
	defer p.watchOver()()
	if sink, ok := p.sink.(Toucher); ok {
		if err := sink.Touch(); err != nil {
			p.log.Debug("touching it: "+err.Error(), "sink", p.sink.String())
		}
	}
}

// look asks the sink, once, what it shows.
func (p *publisher) look(ctx context.Context) error {
	if p.seeded {
		return nil
	}
	if sink, ok := p.sink.(Publisher); ok {
		set, err := sink.Published(ctx)
		if err != nil {
			return err
		}
		p.seed = set.Ours()
		p.mu.Lock()
		p.shown = labels.Set{}
		maps.Copy(p.shown, set)
		p.mu.Unlock()
	}
	p.seeded = true
	return nil
}

// settle notes whether the sink shows the latest offer.
func (p *publisher) settle(o *offer) {
	p.mu.Lock()
	p.whole = p.latest == o && !o.provisional
	p.mu.Unlock()
}

// show notes what the sink shows, and logs what is new about it, but for the keys
// that were left alone.
func (p *publisher) show(o *offer, set labels.Set, left []string) {
	p.mu.Lock()
	was := p.shown
	p.shown = maps.Clone(set)
	if p.shown == nil {
		p.shown = labels.Set{}
	}
	p.mu.Unlock()
	p.settle(o)

	now := maps.Clone(p.shown)
	was = maps.Clone(was)
	for _, key := range left {
		delete(now, key)
		delete(was, key)
	}
	if change := diff(was, now); len(change) > 0 {
		p.touchAt = time.Now().Add(touchTime)
		attributes := append([]any{"sink", p.sink.String(), "labels", len(now)}, brief(change)...)
		if len(set) == 0 {
			p.log.Warn("all labels are withdrawn: this host has no GPU any more", attributes...)
			p.event("LabelsWithdrawn", fmt.Sprintf("%v: all %d labels are withdrawn, since the host has no GPU any more", p.sink, len(was)))
		} else {
			p.log.Info("labels published", attributes...)
		}
		p.log.Debug("labels published, by name", append([]any{"sink", p.sink.String()}, change...)...)
	}
	if !o.provisional && !p.ready.Load() && len(was) > 0 && maps.Equal(was, now) {
		p.log.Info("labels are as they should be", "sink", p.sink.String(), "labels", len(now))
	}
	p.metrics.labels.set(float64(len(now)), p.name)
	p.metrics.published.set(unixSeconds(time.Now()), p.name)
	if !o.provisional {
		p.ready.Store(true)
	}
}

// fail has the sink tried again later.
func (p *publisher) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // the agent stops
	}
	p.mu.Lock()
	p.whole = false
	p.mu.Unlock()
	p.failed = true
	if _, lost := errors.AsType[*publish.UnansweredError](err); lost {
		p.lateUntil = time.Now().Add(lateTime)
	}
	wait := delay(&p.retries, err)
	p.retryAt = time.Now().Add(wait)
	if errors.Is(err, publish.ErrNoNode) {
		// The watch sees it come.
		p.watch(ctx)
	}
	p.result(resultOf(err), err)
}

// resync is in how long a sink that cannot watch is looked at.
func (p *publisher) resync() time.Duration {
	if time.Now().Before(p.lateUntil) {
		return min(p.config.Resync, lateResync)
	}
	return p.config.Resync
}

// delay is how long to wait after an error: longer each time, and not less than
// the API server asks for, within reason: new labels wait, too. It asks all agents
// for the same second, so they must not come back together.
func delay(b *backoff, err error) time.Duration {
	wait := b.next(retryFirst, retryLast)
	if asked := publish.RetryAfter(err); asked > 0 {
		wait = min(asked, askedLast) + rand.N(2*wait)
	}
	return wait
}

// repaired says when labels that others changed may be put right again: later
// each time while it goes on.
func (p *publisher) repaired(now time.Time) {
	if now.Sub(p.repairAt) > 5*repairLast {
		p.repairs = 0
	}
	gap := repairLast
	if p.repairs < 6 {
		gap = repairFirst << p.repairs
	}
	p.repairs++
	p.repairAt = now.Add(jitter(gap))
}
