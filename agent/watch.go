package agent

import (
	"context"
	"math/rand/v2"
	"time"
)

// watchSpread is how long the agents of a cluster take to watch again, when an
// API server has ended all their watches at once. Publishing does not wait for
// it, and what others changed meanwhile is in the first event.
const watchSpread = 10 * time.Second

// watchLimit ends a watch that the API server has not, as it does within an hour:
// what stands between may have forgotten it, and a watch that says nothing looks
// like one of a Node on which nothing happens.
const watchLimit = 75 * time.Minute

// watch starts watching, once, if the sink can.
func (p *publisher) watch(ctx context.Context) {
	sink, ok := p.sink.(Watcher)
	if !ok || p.watched {
		return
	}
	p.watched = true
	go p.keepWatching(ctx, sink)
}

// keepWatching watches again whenever a watch has come to an end. While it
// cannot, the sink is looked at every now and then (Config.Resync).
func (p *publisher) keepWatching(ctx context.Context, sink Watcher) {
	var retries backoff
	last := resultOK
	for ctx.Err() == nil {
		p.watching.Store(true)
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, watchLimit)
		err := sink.Watch(limited, p.moved)
		cancel()
		if time.Since(began) > time.Minute {
			retries.reset()
			p.resyncFrom.set(time.Now().Add(jitter(p.config.Resync)))
		}
		p.watching.Store(false)
		if ctx.Err() != nil {
			return
		}
		signal(p.wake) // the next resync is to be thought of
		result := resultOf(err)
		if result != last {
			if err != nil {
				p.log.Warn("the watch failed; trying again: "+err.Error(), "sink", p.sink.String())
			} else {
				p.log.Info("the watch works again", "sink", p.sink.String())
			}
			last = result
		}
		pause(ctx, delay(&retries, err)+rand.N(watchSpread))
	}
}

// moved notes that the labels are not as the sink left them.
func (p *publisher) moved() {
	p.mu.Lock()
	p.changed = true
	p.mu.Unlock()
	p.metrics.moved.add(1, p.name)
	signal(p.wake)
}

// pause waits, unless ctx is done.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
