package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// Publisher is a Sink that can say what we have published there, in this process
// or an earlier one. It says so before the first Publish, to the same goroutine.
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

const (
	// sinkLimit is how long a sink may take.
	sinkLimit = 90 * time.Second
	// retryFirst and retryLast bound the time before a sink is tried again.
	retryFirst = time.Second
	retryLast  = 2 * time.Minute
	// repairFirst and repairLast bound the time between two repairs of labels
	// that others keep changing.
	repairFirst = time.Second
	repairLast  = time.Minute
)

// offer is the labels that a sink is to show.
type offer struct {
	set labels.Set
	// provisional: NVML was not asked yet. It is for a sink that shows nothing.
	provisional bool
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

	// What follows belongs to run.
	done       *offer
	seeded     bool
	seed       labels.Set // what was there before; nil if the sink cannot say
	failed     bool
	retries    backoff
	retryAt    time.Time
	repairs    int
	repairAt   time.Time
	resyncAt   time.Time
	lastResult string
	conflicts  map[publish.Conflict]bool
	watched    bool
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
	for ctx.Err() == nil {
		p.mu.Lock()
		o, changed := p.latest, p.changed
		p.mu.Unlock()
		why, wait := p.due(o, changed, time.Now())
		if why != nothing && wait <= 0 {
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
	case o != p.done:
		return newOffer, 0
	case changed:
		return repair, p.repairAt.Sub(now)
	case p.watching.Load() || p.resyncAt.IsZero():
		return nothing, 0
	}
	return resync, p.resyncAt.Sub(now)
}

// publish makes the sink show o.
func (p *publisher) publish(ctx context.Context, o *offer, why reason) {
	limited, cancel := context.WithTimeout(ctx, sinkLimit)
	defer cancel()
	if err := p.look(limited); err != nil && (o.provisional || o.blind != nil) {
		p.fail(ctx, err)
		return
	}
	_, canSay := p.sink.(Publisher)
	if o.provisional && (!canSay || len(p.seed) > 0) {
		p.done = o // there may be more there than this
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
	err := p.sink.Publish(limited, set)
	var conflict *publish.ConflictError
	if err != nil && !errors.As(err, &conflict) {
		p.fail(ctx, err)
		return
	}
	left := p.report(conflict)
	p.result(resultOf(err), err)
	p.failed = false
	p.retries.reset()
	p.resyncAt = time.Now().Add(jitter(p.config.Resync))
	p.seeded = true // what was there before is of no use any more
	p.show(o, set, left)
	p.done = o
	p.watch(ctx)
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
		p.seed = set
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

// show notes what the sink shows, and logs what is new about it. What is in
// conflict is not ours.
func (p *publisher) show(o *offer, set labels.Set, conflicts []publish.Conflict) {
	p.mu.Lock()
	was := p.shown
	p.shown = maps.Clone(set)
	if p.shown == nil {
		p.shown = labels.Set{}
	}
	p.mu.Unlock()
	p.settle(o)

	now := maps.Clone(p.shown)
	for _, c := range conflicts {
		delete(now, c.Key)
		was = maps.Clone(was)
		delete(was, c.Key)
	}
	if change := diff(was, now); len(change) > 0 {
		p.log.Info("labels published", append([]any{"sink", p.sink.String(), "labels", len(now)}, change...)...)
	}
	p.metrics.labels.set(float64(len(now)), p.name)
	p.metrics.published.set(unixSeconds(time.Now()), p.name)
	if !o.provisional {
		p.ready.Store(true)
	}
}

// diff gives the attributes added, removed and changed, those that are not empty.
func diff(was, now labels.Set) []any {
	var added, removed, changed []string
	for _, key := range slices.Sorted(maps.Keys(now)) {
		old, ok := was[key]
		switch value := now[key]; {
		case !ok:
			added = append(added, key+"="+redact(value))
		case old != value:
			changed = append(changed, key+"="+redact(value)+" (was "+redact(old)+")")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(was)) {
		if _, ok := now[key]; !ok {
			removed = append(removed, key+"="+redact(was[key]))
		}
	}
	var attributes []any
	if added != nil {
		attributes = append(attributes, "added", added)
	}
	if removed != nil {
		attributes = append(attributes, "removed", removed)
	}
	if changed != nil {
		attributes = append(attributes, "changed", changed)
	}
	return attributes
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
	wait := delay(&p.retries, err)
	p.retryAt = time.Now().Add(wait)
	if errors.Is(err, publish.ErrNoNode) {
		// The watch sees it come.
		p.watch(ctx)
	}
	p.result(resultOf(err), err)
}

// delay is how long to wait after an error: what the API server asks for, or
// longer each time.
func delay(b *backoff, err error) time.Duration {
	wait := b.next(retryFirst, retryLast)
	if asked := publish.RetryAfter(err); asked > wait {
		wait = asked + jitter(asked)/5
	}
	return wait
}

// result counts a call, and logs when its kind is another than the last one's.
func (p *publisher) result(result string, err error) {
	p.metrics.publishes.add(1, p.name, result)
	was := p.lastResult
	p.lastResult = result
	bad := func(r string) bool { return r != resultOK && r != resultConflict }
	switch {
	case bad(result) && result != was:
		p.log.Warn("labels could not be published; trying again: "+redact(err.Error()), "sink", p.sink.String())
	case !bad(result) && bad(was):
		p.log.Info("labels can be published again", "sink", p.sink.String())
	}
}

// report logs each conflict when it comes and when it goes, and gives those that
// there are.
func (p *publisher) report(err *publish.ConflictError) []publish.Conflict {
	var conflicts []publish.Conflict
	if err != nil {
		conflicts = err.Conflicts
	}
	now := make(map[publish.Conflict]bool, len(conflicts))
	values := map[string]float64{}
	for _, c := range conflicts {
		now[c] = true
		values[series(p.name, c.Key, c.Manager)] = 1
		if !p.conflicts[c] {
			p.log.Warn("label left alone: another field manager set it to another value; remove it there, or use --force-conflicts",
				"sink", p.sink.String(), "label", c.Key, "manager", c.Manager)
			p.event("LabelConflict", fmt.Sprintf("%v: label %s is left alone: it was set to another value by %s", p.sink, c.Key, c.Manager))
		}
	}
	for c := range p.conflicts {
		if !now[c] {
			p.log.Info("conflict over label is gone", "sink", p.sink.String(), "label", c.Key, "manager", c.Manager)
		}
	}
	p.conflicts = now
	p.metrics.conflicts.replaceFor(series(p.name), values)
	return conflicts
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
	p.repairAt = now.Add(gap)
}
