package agent

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// A driver that is replaced is away for a moment, on each node of a cluster.
func TestStateIsToldIfItLasts(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		var mu sync.Mutex
		var events []string
		told := func(want ...string) {
			b.Helper()
			mu.Lock()
			defer mu.Unlock()
			ok := len(events) == len(want)
			for i := range min(len(events), len(want)) {
				ok = ok && strings.HasPrefix(events[i], want[i])
			}
			if !ok {
				b.Errorf("events %q, want %q", events, want)
			}
		}
		s := &telling{sink{name: "s"}}
		b.start(func(c *Config) {
			c.Event = func(reason, message string) {
				mu.Lock()
				defer mu.Unlock()
				events = append(events, reason+": "+message)
			}
		}, s)
		away := func(d time.Duration) {
			b.remove("proc/driver/nvidia")
			b.bad(nvml.Answer{Init: nvml.DriverNotLoaded})
			b.after(5 * time.Second)
			b.want(s.set(), stateKey+"=no-driver")
			b.after(d)
			b.good(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"))
			b.loadDriver("590.1.2")
			b.after(time.Minute)
			b.want(s.set(), stateOK)
		}
		b.after(time.Minute)
		away(5 * time.Second)
		told()
		away(time.Minute)
		told("GPUState: The state of the node's GPUs is no-driver, and was ok", "GPUState: The state of the node's GPUs is ok, and was no-driver")
	})
}

// What a nudge tells of may have come too late for a fingerprint under way.
func TestNudgeDuringAFingerprint(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		var taken atomic.Int32
		slow := make(chan struct{})
		a := b.start(func(c *Config) {
			c.Poll = time.Hour
			take := NewFingerprinter(c.Host.Root).Take
			c.Fingerprint = func() (Fingerprint, error) {
				if taken.Add(1) == 2 {
					<-slow
				}
				return take()
			}
		}, &telling{sink{name: "s"}})
		b.after(time.Minute)
		signal(a.nudges)
		b.after(time.Second)
		if n := taken.Load(); n != 2 {
			b.Fatalf("%d fingerprints, want the second to be under way", n)
		}
		signal(a.nudges)
		b.after(time.Second)
		close(slow)
		b.after(time.Second)
		if n := taken.Load(); n != 3 {
			b.Errorf("%d fingerprints, want a third", n)
		}
		b.after(10 * time.Minute)
		if n := taken.Load(); n != 3 {
			b.Errorf("%d fingerprints, want no more", n)
		}
	})
}

// fingerprintsBesideASentry counts those that an agent takes in a time, each of
// which ends with err. Its sentry sees nothing.
func fingerprintsBesideASentry(t *testing.T, d time.Duration, err error) (n int32) {
	m := oneA100(t)
	synctest.Test(t, func(t *testing.T) {
		m.t = t
		var taken atomic.Int32
		a := New(Config{Host: m.host(), Fingerprint: func() (Fingerprint, error) { taken.Add(1); return Fingerprint{}, err }})
		s, err := newSentry(a.config.Poll, a.nudges)
		m.check(err)
		defer s.close()
		a.sentry, a.watched = s, func() Watched { return Watched{} }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { newLoop(ctx, a).run(); close(done) }()
		time.Sleep(d)
		cancel()
		<-done
		n = taken.Load()
	})
	return n
}

// With a sentry that sees nothing, the Go runtime sleeps.
func TestFingerprintsBesideASentry(t *testing.T) {
	if n := fingerprintsBesideASentry(t, time.Hour, nil); n < 10 || n > 14 {
		t.Errorf("%d fingerprints in an hour, want one each five minutes", n)
	}
}

// One that fails is tried again soon, also beside a sentry, which knows no files
// without it.
func TestFailedFingerprintIsTriedAgain(t *testing.T) {
	if n := fingerprintsBesideASentry(t, time.Minute, errors.New("no")); n < 20 {
		t.Errorf("%d fingerprints in a minute", n)
	}
}

// A container runtime mounts a copy of the driver's files, in which MIG layouts do
// not change.
func TestDriverCopied(t *testing.T) {
	m := oneA100(t)
	var here, there unix.Stat_t
	m.check(unix.Stat(m.root, &here))
	if unix.Stat("/dev/shm", &there) != nil || here.Dev == there.Dev {
		t.Skip("needs another file system at /dev/shm")
	}
	elsewhere, err := os.MkdirTemp("/dev/shm", "")
	m.check(err)
	defer os.RemoveAll(elsewhere)
	m.remove("proc/driver/nvidia")
	m.check(os.Symlink(elsewhere, m.path("proc/driver/nvidia")))
	for _, copied := range []bool{true, false} {
		virtual(t, func(testing.TB) *machine { return m }, func(b *bench) {
			b.start(func(c *Config) { c.Interval = 10 * time.Minute }, &telling{sink{name: "s"}})
			b.after(time.Hour)
			n := b.asks()
			b.after(time.Hour)
			if n = b.asks() - n; copied && n < 50 || !copied && n > 8 {
				b.Errorf("copied %v: NVML was asked %d times in an hour", copied, n)
			}
		})
		m.remove("proc/driver/nvidia")
		m.loadDriver("580.95.05")
	}
}
