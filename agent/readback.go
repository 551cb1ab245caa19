package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// readBack looks whether what was published has become the Node's labels, where
// it takes another, such as NFD, to make it so.
type readBack struct {
	alarm   *alarm
	results chan missing
	running bool
	warned  bool
	misses  int // one after the other
}

// missing is what the Node lacks of the labels.
type missing struct {
	keys  []string
	total int
	err   error
}

func newReadBack() readBack {
	return readBack{alarm: newAlarm(), results: make(chan missing)}
}

// readBackAfter is how long others have at least to label the Node.
func (c Config) readBackAfter() time.Duration { return min(3*c.Interval, 3*time.Minute) }

// readBackLast is how long it takes in the end from one look to the next, and a fifth
// more at most.
const readBackLast = 10 * time.Minute

func (r *readBack) restart(c Config) {
	r.misses = 0
	r.again(c)
}

// again looks once more, later and later while nothing comes of it.
func (r *readBack) again(c Config) {
	if c.ReadBack == nil {
		return
	}
	after := c.readBackAfter()
	for i := 0; i < r.misses && after < readBackLast; i++ {
		after = min(2*after, readBackLast)
	}
	r.alarm.set(after + rand.N(after/5+1)) // not all agents of a rollout at once
}

func (l *loop) startReadBack() {
	if l.readBack.running {
		return
	}
	set, whole := l.shown()
	if !whole || len(set) == 0 {
		l.readBack.again(l.config) // nothing to look for yet
		return
	}
	l.readBack.running = true
	go func() {
		ctx, cancel := context.WithTimeout(l.ctx, sinkLimit)
		defer cancel()
		keys, err := l.config.ReadBack(ctx, set)
		slices.Sort(keys)
		deliver(l.ctx, l.readBack.results, missing{keys, len(set), err})
	}()
}

// shown is what the first sink shows, if every sink shows what it should.
func (l *loop) shown() (set labels.Set, whole bool) {
	whole = len(l.publishers) > 0
	for i, p := range l.publishers {
		shows, all := p.showing()
		whole = whole && all
		if i == 0 {
			set = shows
		}
	}
	return set, whole
}

func (l *loop) haveReadBack(m missing) {
	l.readBack.running = false
	switch {
	case m.err != nil:
		l.log.Debug("reading the Node's labels back: " + m.err.Error())
	case len(m.keys) == 0:
		l.metrics.missing.set(0)
		if l.readBack.warned {
			l.log.Info("the labels are on the Node")
		}
		l.readBack.warned = false
		return // until they change
	default:
		l.metrics.missing.set(float64(len(m.keys)))
		for _, p := range l.publishers {
			p.moved() // what we published may be gone, too
		}
		if !l.readBack.warned {
			l.readBack.warned = true
			text := m.text(l.config.readBackAfter())
			l.log.Warn(text, "missing", m.keys)
			l.event("LabelsMissing", text)
		}
	}
	l.readBack.misses++
	l.readBack.again(l.config)
}

// text says what is missing and why that may be.
func (m missing) text(after time.Duration) string {
	if len(m.keys) == m.total {
		return fmt.Sprintf("labels were published, and after %v the Node has none of them: are Node Feature Discovery's master, and for feature files its worker on this node, running? was the file or object of ours removed? or publish to the Node directly (--sink=node)", after)
	}
	namespaces := map[string]bool{}
	for _, key := range m.keys {
		namespace, _, _ := strings.Cut(key, "/")
		namespaces[namespace] = true
	}
	return fmt.Sprintf("labels were published, and after %v the Node has only %d of %d as they are: is Node Feature Discovery's master stopped or slow, does it refuse %s (--deny-label-ns, --label-whitelist), or does another source set them to other values?",
		after, m.total-len(m.keys), m.total, strings.Join(sorted(namespaces), ", "))
}
