// Package agent keeps the labels of a node true: it decides when to look, what
// to hold and when to publish, and it is the only place with time and retries.
//
// Files of /sys and /proc are looked at every few seconds, and a fingerprint is
// taken of all that matters when they changed. NVML is asked only when that moved
// or the interval is over, so an idle node costs next to nothing and a new driver
// or MIG layout shows within seconds. Nothing that fails ends the agent, and
// nothing is given up: what did not work is tried again, later and later, for ever.
//
// # What a restart changes
//
// Nothing. A sink that can say what it holds (see Publisher) is asked first. If
// it holds nothing, the PCI labels go out at once, before NVML has answered. If
// it holds labels of an earlier process, they stay until NVML has been asked;
// and if NVML does not answer, those that only NVML can tell stay on for as long
// as the count of GPUs on the bus is theirs. A sink that cannot say is given
// nothing before NVML has been asked, and then what is known.
package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/internal/redact"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// The defaults of Config.
const (
	DefaultInterval  = 10 * time.Minute
	DefaultPoll      = 2 * time.Second
	DefaultScanLimit = 30 * time.Second
)

// longest bounds the times that are computed with multiples of.
const longest = 10 * 365 * 24 * time.Hour

// LongestResync is how long labels that nobody watches wait to be looked at, where
// Config.Interval is longer.
const LongestResync = 10 * time.Minute

// Config is what an Agent needs. The zero value of a field is its default.
type Config struct {
	// Host is scanned, with NVML and, to be quick, without. Its Class is set
	// from the options.
	Host discover.Host
	// Options say which labels to compute, until a reload.
	Options labels.Options
	// Sinks each get the labels, whatever becomes of the others.
	Sinks []publish.Sink

	// Interval is the time between two scans of a host that does not change; a
	// tenth more or less, so that nodes do not keep step. For ten minutes after the
	// start, and after a change, it is a minute at most: not all that belongs to a
	// change, such as a fabric's state, is seen in the kernel's files.
	Interval time.Duration
	// Poll is the time between two looks at whether the host changed.
	Poll time.Duration
	// ScanLimit is how long a scan may take: NVML's timeout and a little more.
	// Only /healthz goes by it.
	ScanLimit time.Duration
	// Resync is how often a sink that cannot watch, or whose watch fails, is
	// given labels that have not changed, so that it can see whether they are
	// still there, and renew an expiry; a tenth more or less. Default Interval, and
	// LongestResync at most.
	Resync time.Duration

	// Reload gives new options, when Agent.Reload is called or ConfigFile
	// changes. When it fails the old ones stay in force. It must not wait for the
	// network.
	Reload func() (labels.Options, error)
	// ConfigFile is read with each fingerprint; empty for none.
	ConfigFile string

	// ReadBack tells which labels of the set the Node does not have. It is asked
	// when three intervals, or three minutes, have passed since the labels were
	// published; nil where what is published is the Node's labels.
	ReadBack func(context.Context, labels.Set) (missing []string, err error)
	// Event is told what an operator should hear of; nil for no one. It is called
	// by one goroutine, and may take its time.
	Event func(reason, message string)

	// Requests counts what was sent to the API server, for the metrics; nil where
	// nothing is.
	Requests func() map[publish.Request]uint64

	// Idle is called a while after each scan, when there is nothing to do until the
	// host changes or the interval is over. It must not take long.
	Idle func()

	// Sentry has a thread of its own look every Poll, and a fingerprint taken when
	// that sees a change, and every five minutes. Otherwise one is taken every Poll.
	Sentry bool
	// Uevents makes the kernel's announcements a reason for a fingerprint, where
	// they can be received.
	Uevents bool

	// Logger is where errors end. Default slog.Default(). What NVML and the API server
	// say is passed on as it is: see redact.Handler.
	Logger *slog.Logger
	// Version is for the metrics.
	Version string

	// Scan is discover.Scan, unless a test has another.
	Scan func(context.Context, discover.Host) (*discover.Inventory, error)
	// Fingerprint is that of a Fingerprinter for the host's root, unless a test
	// has another. It is not called twice at a time.
	Fingerprint func() (Fingerprint, error)
	// drift is the clock's, unless a test has another.
	drift func() time.Duration
}

// Agent labels a node. Its methods may be called by any goroutine.
type Agent struct {
	config     Config
	log        *slog.Logger
	metrics    *metrics
	publishers []*publisher

	reloads chan struct{}
	nudges  chan struct{} // reasons for a fingerprint
	events  chan event
	watched func() Watched // what the sentry is to look at; nil without one
	sentry  *sentry

	started moment // when Run was called
	due     moment // when the next scan begins, or the one under way should have begun
}

type event struct{ reason, message string }

// New makes an agent. It does nothing before Run.
func New(config Config) *Agent {
	setDefault(&config.Interval, DefaultInterval)
	setDefault(&config.Poll, DefaultPoll)
	setDefault(&config.ScanLimit, DefaultScanLimit)
	config.Interval, config.ScanLimit = min(config.Interval, longest), min(config.ScanLimit, longest)
	setDefault(&config.Resync, min(config.Interval, LongestResync))
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if config.Scan == nil {
		config.Scan = discover.Scan
	}
	var watched func() Watched
	if config.Fingerprint == nil {
		f := NewFingerprinter(config.Host.Root)
		config.Fingerprint = f.Take
		if config.Sentry {
			watched = f.Watched
		}
	}
	if config.drift == nil {
		config.drift = drift()
	}
	a := &Agent{
		config:  config,
		log:     config.Logger,
		metrics: newMetrics(config.Version),
		reloads: make(chan struct{}, 1),
		nudges:  make(chan struct{}, 1),
		events:  make(chan event, 16),
		watched: watched,
	}
	for _, sink := range config.Sinks {
		a.publishers = append(a.publishers, newPublisher(a, sink))
	}
	return a
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d <= 0 {
		*d = value
	}
}

// Run labels the node until ctx is done. Then it withdraws nothing, abandons a
// scan that is under way (its child process is killed) and returns within a
// second. It is called once.
func (a *Agent) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.started.set(time.Now())

	var publishers sync.WaitGroup
	for _, p := range a.publishers {
		publishers.Go(func() { p.run(ctx) })
	}
	if a.config.Event != nil {
		go a.tell(ctx)
	}
	if a.config.Uevents {
		go a.listen(ctx)
	}
	if a.watched != nil {
		a.watch(ctx)
	}
	newLoop(ctx, a).run()

	cancel()
	stopped := make(chan struct{})
	go func() {
		publishers.Wait()
		close(stopped)
	}()
	grace := time.NewTimer(time.Second)
	defer grace.Stop()
	select {
	case <-stopped:
	case <-grace.C:
	}
}

// Reload asks for new options, as SIGHUP does.
func (a *Agent) Reload() { signal(a.reloads) }

// tell passes events on.
func (a *Agent) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-a.events:
			a.config.Event(e.reason, e.message)
		}
	}
}

// event is dropped when nobody listens, or has fallen behind.
func (a *Agent) event(reason, message string) {
	if a.config.Event == nil {
		return
	}
	select {
	case a.events <- event{reason, redact.UUIDs(message)}:
	default:
	}
}

// signal leaves a note in a channel that holds one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// jitter is d, a tenth more or less.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// backoff doubles from first to last, a random part of a half less each time.
type backoff struct{ failures int }

func (b *backoff) next(first, last time.Duration) time.Duration {
	d := min(first, last)
	for i := 0; i < b.failures && d < last; i++ {
		d = min(2*d, last)
	}
	b.failures++
	return d/2 + rand.N(d/2+1)
}

func (b *backoff) reset() { b.failures = 0 }
