package agent

import (
	"sync/atomic"
	"time"
)

// moment is a time, or none yet. It keeps the reading of the monotonic clock: a
// node's time of day jumps, mostly at boot, when it is first set.
type moment struct{ at atomic.Pointer[time.Time] }

func (m *moment) set(t time.Time) { m.at.Store(&t) }

// get is the zero Time before set.
func (m *moment) get() time.Time {
	if t := m.at.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

// jumpTime is how far the time of day has to be set to be a jump.
const jumpTime = time.Minute

// drift measures by how much the time of day was set since now.
func drift() func() time.Duration {
	start := time.Now()
	return func() time.Duration {
		now := time.Now()
		return now.Round(0).Sub(start.Round(0)) - now.Sub(start) // Round drops the monotonic reading
	}
}

// jumped tells whether the time of day was set since it was last asked. What
// sinks wrote may have an expiry that is over now, or is years away.
func (l *loop) jumped() bool {
	now := l.config.drift()
	moved := now - l.drifted
	l.drifted = now
	return moved.Abs() > jumpTime
}
