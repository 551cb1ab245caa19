package agent

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// #include "sentry.h"
import "C"

// sentryFingerprint is the time between two fingerprints that nothing asked for,
// where there is a sentry.
const sentryFingerprint = 5 * time.Minute

// Watched are the files whose change may be a change of a fingerprint, as absolute
// paths. It may miss some: a fingerprint is taken now and then whatever they do.
type Watched struct {
	Often  pathList // for which the kernel has no uevents: with each look
	Seldom pathList // with every 5th look
	Rarely pathList // with every 30th
}

func (w Watched) equal(v Watched) bool {
	return bytes.Equal(w.Often, v.Often) && bytes.Equal(w.Seldom, v.Seldom) && bytes.Equal(w.Rarely, v.Rarely)
}

// wait looks on until something changes, or stop can be read. It calls begun when
// it has had its first look.
func (w Watched) wait(period time.Duration, stop int, begun func()) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	var lists []C.struct_sentry_list
	for _, l := range []struct {
		paths pathList
		every int
	}{{w.Often, 1}, {w.Seldom, 5}, {w.Rarely, 30}} {
		if len(l.paths) == 0 {
			continue
		}
		pinner.Pin(&l.paths[0])
		entries, length := l.paths.c()
		lists = append(lists, C.struct_sentry_list{entries: entries, length: length, sum: C.uint64_t(l.paths.sum()), every: C.int(l.every)})
	}
	begun()
	if n := C.sentry_wait(unsafe.SliceData(lists), C.int(len(lists)), C.long(period.Milliseconds()), C.int(stop)); n < 0 {
		return os.NewSyscallError("ppoll", unix.Errno(-n))
	}
	return nil
}

// pathList is what the thread reads: for each path its kind, the path, a NUL.
type pathList []byte

func (l *pathList) file(path string)     { l.add(C.sentry_file, path) }
func (l *pathList) folder(path string)   { l.add(C.sentry_folder, path) }
func (l *pathList) link(path string)     { l.add(C.sentry_link, path) }
func (l *pathList) function(path string) { l.add(C.sentry_function, path) }

func (l *pathList) add(kind byte, path string) {
	*l = append(append(append(*l, kind), path...), 0)
}

// sum stands for what is at the paths.
func (l pathList) sum() uint64 { return uint64(C.sentry_look(l.c())) }

func (l pathList) c() (*C.char, C.long) {
	return (*C.char)(unsafe.Pointer(unsafe.SliceData(l))), C.long(len(l))
}

// watch starts the sentry, if it can be had.
func (a *Agent) watch(ctx context.Context) {
	s, err := newSentry(a.config.Poll, a.nudges)
	if err != nil {
		a.log.Warn("no sentry: " + err.Error())
		return
	}
	a.sentry = s
	go func() {
		if err := s.run(ctx); ctx.Err() == nil {
			a.log.Warn("the sentry ended, and looking takes more CPU now: " + err.Error())
			signal(a.nudges) // the next fingerprint is due sooner
		}
	}()
}

// A sentry looks every few seconds whether files changed, in a thread of which
// the Go runtime knows nothing: to wake that for each look costs several times
// what the look does, and was most of what an agent costs on an idle node.
//
// A thread that hangs in a file of a hung driver has no other effect than that a
// change is seen by the next fingerprint.
type sentry struct {
	period time.Duration
	nudges chan<- struct{} // told of a change, and when the watch of new files begins
	lists  chan Watched
	last   Watched

	mu   sync.Mutex
	stop int // an eventfd that ends a wait; -1 when run has ended
}

func newSentry(period time.Duration, nudges chan<- struct{}) (*sentry, error) {
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &sentry{period: period, nudges: nudges, lists: make(chan Watched, 1), stop: stop}, nil
}

// watch has it look at these files from now on. It does not wait, and is for one
// goroutine at a time.
func (s *sentry) watch(w Watched) {
	if w.equal(s.last) {
		return
	}
	s.last = w
	select {
	case <-s.lists: // not taken up yet, and out of date
	default:
	}
	s.lists <- w
	s.interrupt()
}

// interrupt ends a wait.
func (s *sentry) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop >= 0 {
		_, _ = unix.Write(s.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails when it is full, which is as good
	}
}

// running tells whether changes can be expected to be seen.
func (s *sentry) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop >= 0
}

func (s *sentry) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = unix.Close(s.stop)
	s.stop = -1
}

// run watches until ctx is done. It is called once.
func (s *sentry) run(ctx context.Context) error {
	defer s.close()
	stop := context.AfterFunc(ctx, s.interrupt)
	defer stop()
	var w Watched
	for ctx.Err() == nil {
		// Before the list is taken, so that no interruption for a list is lost, and
		// each time, or one that came late would end every wait at once.
		var count [8]byte
		_, _ = unix.Read(s.stop, count[:])
		if ctx.Err() != nil {
			break // that interruption may just have been read
		}
		select {
		case w = <-s.lists:
		default:
		}
		// What changed until the nudge is in the next fingerprint, and what changes
		// from then on is seen here.
		if err := w.wait(s.period, s.stop, func() { signal(s.nudges) }); err != nil {
			return err
		}
	}
	return ctx.Err()
}
