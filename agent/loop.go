package agent

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

const (
	// settleTime is the least time between two scans of a host that changes, and
	// between the two that see a device gone.
	settleTime = time.Second
	// A host that was scanned restless times for its changes, without a quiet
	// minute, is scanned every restlessTime at most.
	restless     = 30
	restlessTime = 5 * time.Second
	// idleTime is how long after a scan what follows from it is done.
	idleTime = 3 * time.Second
	// stateTime is how long a state must last to be told of.
	stateTime = 15 * time.Second
	// ueventTime is how long a uevent waits for others.
	ueventTime = 200 * time.Millisecond
	// youth is how long after a change a host is scanned every youngInterval.
	youth         = 10 * time.Minute
	youngInterval = time.Minute
	// pollLimit is how long a fingerprint may take before it is a problem.
	pollLimit = 30 * time.Second
)

// loop decides. All of it runs in one goroutine that never waits for hardware,
// files or the network; what may take long runs beside it, one of each kind.
type loop struct {
	*Agent
	ctx      context.Context
	opts     labels.Options
	hold     hold
	problems problemLog
	file     configFile
	offered  offer

	scanAlarm  *alarm
	cause      string // of the scan that scanAlarm starts
	scanning   bool
	scanStart  time.Time
	again      bool // the host changed while it was scanned
	retries    backoff
	idleAlarm  *alarm
	looks      chan look
	quick      bool // a quick scan is under way
	quickAgain bool
	quickAlarm *alarm

	pollAlarm  *alarm
	polling    bool
	pollAgain  bool // there is a reason for another, which this one may not see
	pollStart  time.Time
	polls      chan polled
	print      Fingerprint
	printed    bool // there is a fingerprint to compare with
	printErr   error
	changes    int // scans for changes, without a quiet minute in between
	lastChange time.Time

	copied   bool // see driverCopied: MIG layouts change unseen
	readBack readBack
	drifted  time.Duration // of the time of day, at the last scan
	states   stateNews
}

// look is what one scan found.
type look struct {
	full    bool // NVML was asked
	inv     *discover.Inventory
	err     error
	answer  *nvml.Answer // NVML's, nil without one
	started time.Time
	took    time.Duration
	asking  time.Duration // of that, NVML
}

// polled is a fingerprint and what was seen of the configuration file.
type polled struct {
	print  Fingerprint
	err    error
	config content
}

func newLoop(ctx context.Context, a *Agent) *loop {
	return &loop{
		Agent:      a,
		ctx:        ctx,
		opts:       a.config.Options,
		file:       configFile{path: a.config.ConfigFile},
		scanAlarm:  newAlarm(),
		quickAlarm: newAlarm(),
		idleAlarm:  newAlarm(),
		pollAlarm:  newAlarm(),
		looks:      make(chan look),
		polls:      make(chan polled),
		copied:     driverCopied(a.config.Host.Root),
		readBack:   newReadBack(),
		states:     stateNews{alarm: newAlarm()},
	}
}

func (l *loop) run() {
	if l.copied {
		l.log.Info("NVML is asked every " + youngInterval.String() + ", since MIG layouts change unseen: /proc/driver/nvidia is a copy that the container runtime made")
	}
	l.log.Debug("starting", "version", l.config.Version, "interval", l.config.Interval, "poll", l.config.Poll)
	l.startQuick()
	l.pollAlarm.set(0)
	// The first scan comes after the first fingerprint, or a change in between
	// would go unseen; but it does not wait for ever.
	l.scanIn(time.Second, "start")
	for {
		select {
		case <-l.ctx.Done():
			l.log.Info("stopping; the labels stay")
			return
		case <-l.pollAlarm.C:
			l.startPoll()
		case p := <-l.polls:
			l.polled(p)
		case <-l.nudges:
			l.pollSoon()
		case <-l.scanAlarm.C:
			l.startScan()
		case <-l.quickAlarm.C:
			l.startQuick()
		case k := <-l.looks:
			l.looked(k)
			if l.config.Idle != nil {
				l.idleAlarm.set(idleTime)
			}
		case <-l.idleAlarm.C:
			l.config.Idle()
		case <-l.reloads:
			l.reload()
		case <-l.states.alarm.C:
			l.tellState()
		case <-l.readBack.alarm.C:
			l.startReadBack()
		case r := <-l.readBack.results:
			l.haveReadBack(r)
		}
	}
}

// startPoll takes a fingerprint, and looks at the configuration file.
func (l *loop) startPoll() {
	if l.polling {
		return
	}
	l.polling, l.pollStart = true, time.Now()
	last, known := l.print, l.printed
	go func() {
		var p polled
		p.print, p.err = l.config.Fingerprint()
		if l.sentry != nil && p.err == nil && !(known && p.print == last) {
			w := l.watched()
			if l.file.path != "" {
				w.Seldom.file(l.file.path)
			}
			l.sentry.watch(w)
		}
		p.config = l.file.read()
		deliver(l.ctx, l.polls, p)
	}()
}

// pollSoon has a fingerprint taken soon, after the one that is under way.
func (l *loop) pollSoon() {
	if l.polling {
		l.pollAgain = true
		return
	}
	l.pollAlarm.sooner(ueventTime)
}

func (l *loop) polled(p polled) {
	l.polling = false
	l.printErr = p.err
	first := !l.printed
	switch {
	case p.err != nil: // nothing is known, least of all that something changed
	case first:
		l.print, l.printed = p.print, true
	case p.print != l.print:
		l.log.Debug("the host changed", "what", p.print.diff(l.print))
		l.print = p.print
		l.changed()
	}
	if l.file.changed(p.config) {
		l.reload()
	}
	if first && l.cause == "start" && !l.scanning {
		l.scanIn(0, "start")
	}
	next := l.config.Poll
	if p.err == nil && l.sentry != nil && l.sentry.running() {
		next = max(next, sentryFingerprint)
	}
	if !l.lastChange.IsZero() && time.Since(l.lastChange) < 5*time.Second {
		next = min(next, settleTime) // more may follow
	}
	if l.pollAgain {
		next = min(next, ueventTime)
	}
	l.pollAgain = false
	l.pollAlarm.set(next)
}

// changed has the host scanned at once, unless it was just now.
func (l *loop) changed() {
	if time.Since(l.lastChange) > time.Minute {
		l.changes = 0
	}
	l.lastChange = time.Now()
	l.retries.reset()
	l.scanSoon("change")
}

// scanSoon starts a scan as soon as may be. What the bus shows does not wait for
// a scan that is under way.
func (l *loop) scanSoon(cause string) {
	if l.scanning {
		l.again = true
		l.startQuick()
		return
	}
	gap := settleTime
	if l.changes > restless {
		gap = restlessTime
	}
	l.scanIn(max(0, gap-time.Since(l.scanStart)), cause)
}

func (l *loop) scanIn(d time.Duration, cause string) {
	l.cause = cause
	l.scanAlarm.set(d)
	l.due.set(l.scanAlarm.at)
}

func (l *loop) startScan() {
	if l.scanning {
		return
	}
	l.scanning, l.again, l.scanStart = true, false, time.Now()
	if l.cause == "change" {
		l.changes++
	}
	l.metrics.scans.add(1, l.cause)
	opts := l.opts
	go func() { deliver(l.ctx, l.looks, l.look(opts, true)) }()
}

// startQuick scans without NVML.
func (l *loop) startQuick() {
	if l.quick {
		l.quickAgain = true
		return
	}
	l.quick, l.quickAgain = true, false
	opts := l.opts
	go func() { deliver(l.ctx, l.looks, l.look(opts, false)) }()
}

// look scans the host.
func (l *loop) look(opts labels.Options, full bool) look {
	k := look{full: full, started: time.Now()}
	host := l.config.Host
	host.Class = opts.WantsClass
	ask := host.NVML
	switch {
	case !full:
		host.NVML = nil
	case ask != nil:
		host.NVML = func(ctx context.Context) nvml.Answer {
			start := time.Now()
			answer := ask(ctx)
			k.answer, k.asking = &answer, time.Since(start)
			return answer
		}
	}
	k.inv, k.err = l.config.Scan(l.ctx, host)
	k.took = time.Since(k.started)
	return k
}

// looked takes in what a scan found and publishes what follows from it.
func (l *loop) looked(k look) {
	if !k.full {
		l.quickLooked(k)
		return
	}
	l.scanning = false
	l.metrics.scanned(k)
	if l.jumped() {
		for _, p := range l.publishers {
			p.moved()
		}
	}
	if k.inv == nil {
		k.inv = &discover.Inventory{}
		if k.err != nil {
			k.inv.Problems = []discover.Problem{{Source: "scan", Text: k.err.Error()}}
		}
	}
	problems := append(k.inv.Problems[:len(k.inv.Problems):len(k.inv.Problems)], l.ownProblems()...)
	if k.err != nil {
		// Nothing is known of the bus.
		l.report(append(problems, discover.Problem{Source: "scan", Text: "the PCI bus cannot be read: what is published stays as it is"}))
		l.metrics.held.set(1)
		l.scanAfter(false, true)
		return
	}
	m := l.hold.merge(k)
	set, rejected := labels.Compute(m.inv, l.opts)
	for _, r := range rejected {
		problems = append(problems, discover.Problem{Source: "labels", Device: r.Key, Text: r.String()})
	}
	l.report(problems)
	l.metrics.looked(m, k)
	l.newState(m.inv)
	l.offer(offer{set: set, blind: l.hold.blind(m.inv, k.answer, l.opts)})
	l.scanAfter(m.unsettled, failing(m.inv.NVIDIA.State))
}

func (l *loop) quickLooked(k look) {
	l.quick = false
	if l.quickAgain {
		l.startQuick()
	}
	l.metrics.scanDuration.observe(k.took, "pci")
	if k.err != nil || k.inv == nil {
		return // the full scan will say so
	}
	m := l.hold.merge(k)
	if m.unsettled && l.scanning {
		l.quickAlarm.set(l.config.Poll)
	}
	if l.hold.asked {
		set, _ := labels.Compute(m.inv, l.opts)
		l.offer(offer{set: set, blind: l.hold.blind(m.inv, nil, l.opts)})
		return
	}
	opts := l.opts
	opts.OmitExtra = true // no count and no state before NVML was asked
	set, _ := labels.Compute(m.inv, opts)
	l.offer(offer{set: set, provisional: true, made: l.started.get()})
}

// scanAfter says when to scan again, after a scan that has just ended.
func (l *loop) scanAfter(unsettled, failed bool) {
	if !failed {
		l.retries.reset()
	}
	switch {
	case l.again:
		l.scanSoon("change")
	case unsettled:
		l.scanIn(l.config.Poll, "removal")
	case failed:
		// Later and later; and soon for a while after a change, such as a module
		// for which a library will come.
		last := min(l.config.Interval, youngInterval)
		if !l.lastChange.IsZero() && time.Since(l.lastChange) < time.Minute {
			last = min(last, restlessTime)
		}
		l.scanIn(l.retries.next(l.config.Poll, last), "retry")
	default:
		l.scanIn(jitter(l.interval()), "interval")
	}
}

// interval is the time to the next scan of a host with which all is well.
func (l *loop) interval() time.Duration {
	if l.copied || time.Since(l.started.get()) < youth || !l.lastChange.IsZero() && time.Since(l.lastChange) < youth {
		return min(l.config.Interval, youngInterval)
	}
	return l.config.Interval
}

// ownProblems are those of the fingerprint.
func (l *loop) ownProblems() []discover.Problem {
	switch {
	case l.printErr != nil:
		return []discover.Problem{{
			Source: "fingerprint",
			Text:   fmt.Sprintf("changes are seen after an interval only: %v", l.printErr),
			Cure:   "are /sys and /proc mounted, and readable?",
		}}
	case l.polling && time.Since(l.pollStart) > pollLimit:
		return []discover.Problem{{
			Source: "fingerprint",
			Text:   "changes are seen after an interval only: reading /sys and /proc takes more than " + pollLimit.String(),
			Cure:   "is a driver hung? look in the kernel log",
		}}
	}
	return nil
}

func (l *loop) report(problems []discover.Problem) {
	l.problems.update(l.log, problems)
	counts := map[string]float64{}
	for _, p := range problems {
		counts[p.Source]++
	}
	l.metrics.problems.replace(counts)
}

// stateNews is the state of the node's GPUs, of which an event tells.
type stateNews struct {
	alarm     *alarm
	now, told discover.State
	known     bool   // there was a state, so that it can change
	why       string // NVML's problems
}

// newState has an event tell of a state that lasts. A driver that is replaced is
// away for a moment on each node of a cluster, and nobody needs to hear of that.
func (l *loop) newState(inv *discover.Inventory) {
	s := &l.states
	var why []string
	for _, p := range inv.Problems {
		if p.Source == "nvml" {
			why = append(why, p.String())
		}
	}
	s.why = strings.Join(why, "; ")
	state := inv.State()
	if !s.known {
		s.known = true
		if state == discover.StateOK {
			s.told = state
		}
	}
	if state == "" {
		s.told = state // that labels are withdrawn is an event of its own
	}
	switch {
	case state == s.told:
		s.alarm.Stop()
	case state != s.now:
		s.alarm.set(jitter(stateTime))
	}
	s.now = state
}

func (l *loop) tellState() {
	s := &l.states
	message := "The state of the node's GPUs is " + string(s.now)
	if s.told != "" {
		message += ", and was " + string(s.told)
	}
	if s.why != "" {
		message += ": " + s.why
	}
	s.told = s.now
	l.event("GPUState", message)
}

// offer gives the labels to all sinks.
func (l *loop) offer(o offer) {
	if l.offered.set == nil || !maps.Equal(l.offered.set, o.set) {
		l.readBack.restart(l.config)
	}
	l.offered = o
	for _, p := range l.publishers {
		p.offer(o)
	}
}

// deliver sends unless the agent stops.
func deliver[T any](ctx context.Context, c chan<- T, v T) {
	select {
	case c <- v:
	case <-ctx.Done():
	}
}

// alarm is a timer that knows when it goes off.
type alarm struct {
	*time.Timer
	at time.Time
}

func newAlarm() *alarm {
	a := &alarm{Timer: time.NewTimer(time.Hour)}
	a.Stop()
	return a
}

func (a *alarm) set(d time.Duration) {
	a.at = time.Now().Add(d)
	a.Reset(d)
}

// sooner has it go off in d at the latest, if it is set.
func (a *alarm) sooner(d time.Duration) {
	if left := time.Until(a.at); left > d {
		a.set(d)
	}
}
