package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/internal/reads"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// It looks every few milliseconds here, in real time: its thread is not Go's.
func TestSentry(t *testing.T) {
	m := eightGPUs(t)
	m.function("0000:60:00.0", mi3, "amdgpu")
	amd := "sys/bus/pci/devices/0000:60:00.0/"
	m.write(amd+"current_compute_partition", "SPX\n")
	lost := "sys/bus/pci/devices/0000:46:00.0/"
	m.write(amd+"current_memory_partition", "NPS1\n")
	f := NewFingerprinter(hostfs.Root(m.root))
	nudges := make(chan struct{}, 1)
	s, err := newSentry(2*time.Millisecond, nudges)
	m.check(err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.run(ctx) }()

	nudged := func(what string) {
		t.Helper()
		select {
		case <-nudges:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: not seen", what)
		}
	}
	// settle has it look at what is there now, and takes the nudges for that.
	settle := func() {
		t.Helper()
		if _, err := f.Take(); err != nil {
			t.Fatal(err)
		}
		s.watch(f.Watched())
		for quiet := false; !quiet; {
			select {
			case <-nudges:
			case <-time.After(150 * time.Millisecond): // many periods
				quiet = true
			}
		}
	}
	nudged("the start")
	for _, step := range []struct {
		what   string
		change func()
	}{
		{"a GPU goes", func() { m.unplug("0000:47:00.0") }},
		{"a GPU comes", func() { m.function("0000:47:00.0", a100, "") }},
		{"its driver is bound", func() {
			m.check(os.Symlink("../../../bus/pci/drivers/nvidia", m.path("sys/bus/pci/devices/0000:47:00.0/driver")))
		}},
		{"the module is unloaded", func() { m.remove("sys/module/nvidia"); m.remove("proc/driver/nvidia") }},
		{"it is being loaded", func() { m.write("sys/module/nvidia/initstate", "coming\n") }},
		{"it is loaded", func() { m.loadDriver("590.1.2") }},
		{"the device node comes", func() { m.write("dev/nvidiactl", "") }},
		{"the driver lists a GPU", func() { m.mkdir("proc/driver/nvidia/gpus/0000:40:00.0") }},
		{"the driver is another", func() { m.loadDriver("590.1.3") }},
		{"MIG is to be had", func() { m.mkdir("proc/driver/nvidia/capabilities/gpu0/mig") }},
		{"a GPU instance comes", func() { m.mkdir("proc/driver/nvidia/capabilities/gpu0/mig/gi1") }},
		{"a compute instance comes", func() { m.mkdir("proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0") }},
		{"a compute instance goes", func() { m.remove("proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0") }},
		{"the module is loaded again", func() {
			m.check(os.Rename(m.path("sys/module/nvidia"), m.path("before")))
			m.loadDriver("590.1.3")
		}},
		{"the module is another", func() { m.write("sys/module/nvidia/version", "590.1.4\n") }},
		{"a GPU falls off the bus", func() { m.write(lost+"config", strings.Repeat("\xff", 64)) }},
		{"it sleeps", func() { m.write(lost+"power/runtime_status", "suspended\n") }},
		{"AMD's partitions change", func() { m.write(amd+"current_compute_partition", "DPX\n") }},
		{"AMD's memory partitions change", func() { m.write(amd+"current_memory_partition", "NPS4\n") }},
		{"a GPU goes to a guest", func() {
			m.remove("sys/bus/pci/devices/0000:47:00.0/driver")
			m.check(os.Symlink("../../../bus/pci/drivers/nvgrace_gpu_vfio_pci", m.path("sys/bus/pci/devices/0000:47:00.0/driver")))
		}},
	} {
		settle()
		before, _ := f.Take()
		step.change()
		nudged(step.what)
		if after, _ := f.Take(); after == before {
			t.Errorf("%s: the fingerprint has not changed", step.what)
		}
	}

	// An interruption that comes when there is no list is none of the next waits.
	settle()
	s.interrupt()
	nudged("an interruption")
	select {
	case <-nudges:
		t.Error("it ends every wait")
	case <-time.After(100 * time.Millisecond):
	}

	settle()
	s.watch(f.Watched()) // the same
	select {
	case <-nudges:
		t.Error("a nudge, though nothing changed")
	case <-time.After(100 * time.Millisecond):
	}
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	s.interrupt() // its descriptor may be another file's by now
	if s.stop != -1 {
		t.Error("its descriptor stays open")
	}
}

// A FIFO, a folder without permission and a loop of links are no reason to hang,
// or to see a change each time.
func TestSentryOddFiles(t *testing.T) {
	m := newMachine(t)
	m.check(unix.Mkfifo(m.path("fifo"), 0o600))
	m.mkdir("folder")
	m.check(os.Symlink("loop", m.path("loop")))
	m.write("big", string(make([]byte, 3<<20)))
	var l pathList
	for _, name := range []string{"fifo", "folder", "loop", "missing", "big", ""} {
		l.file(m.path(name))
		l.folder(m.path(name))
		l.link(m.path(name))
	}
	first := l.sum()
	if first != l.sum() {
		t.Error("it is not the same twice")
	}
	m.write("missing", "now there")
	if first == l.sum() {
		t.Error("a file that came was not seen")
	}
}

// With a sentry the Go runtime sleeps: a fingerprint now and then, and one
// for a change.
func TestAgentWithSentry(t *testing.T) {
	m := oneA100(t)
	s := &telling{sink{name: "s"}}
	config := Config{Host: m.host(), Logger: slog.New(slog.DiscardHandler), Sentry: true, Poll: 10 * time.Millisecond}
	a := New(config)
	a.publishers = append(a.publishers, newPublisher(a, s))
	var taken atomic.Int64
	take := a.config.Fingerprint
	a.config.Fingerprint = func() (Fingerprint, error) { taken.Add(1); return take() }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { a.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()

	wait := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not seen", what)
			}
		}
	}
	wait("the labels", func() bool { return s.set()[stateKey] == "ok" })
	// The start takes some: the first, and for the sentry's first look.
	var n int64
	wait("quiet", func() bool { n = taken.Load(); time.Sleep(500 * time.Millisecond); return taken.Load() == n })

	m.good(withMIG(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"), "1g.5gb"))
	m.mkdir("proc/driver/nvidia/capabilities/gpu0/mig/gi7/ci0")
	wait("a MIG device", func() bool { return s.set()[labels.ExtraPrefix+"mig.devices"] == "1" })
}

// What is looked at seldom and rarely costs as much less: a change is not seen
// before it is due.
func TestSentryLooksSeldom(t *testing.T) {
	const period = 10 * time.Millisecond
	for _, test := range []struct {
		rounds int
		list   func(w *Watched) *pathList
	}{
		{1, func(w *Watched) *pathList { return &w.Often }},
		{5, func(w *Watched) *pathList { return &w.Seldom }},
		{30, func(w *Watched) *pathList { return &w.Rarely }},
	} {
		m := newMachine(t)
		m.write("file", "1")
		var w Watched
		test.list(&w).file(m.path("file"))
		stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		m.check(err)
		defer unix.Close(stop)
		var begin time.Time
		m.check(w.wait(period, stop, func() { m.write("file", "2"); begin = time.Now() }))
		// The runtime's signals may end a few periods early.
		if took, least := time.Since(begin), time.Duration(test.rounds-1)*period/2; took < least {
			t.Errorf("a change in a list for every %d rounds was seen after %v", test.rounds, took)
		}
	}
}

// A short file is read once, by the sentry and by a fingerprint.
func TestReadsOfALook(t *testing.T) {
	m := eightGPUs(t)
	f := NewFingerprinter(hostfs.Root(m.root))
	_, err := f.Take()
	m.check(err)
	w := f.Watched()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := -reads.OfThread(t) + reads.OfThread(t) // what it takes to ask
	count := func(what string, want int, look func()) {
		t.Helper()
		before := reads.OfThread(t)
		look()
		if n := reads.OfThread(t) - before - own; n != want {
			t.Errorf("%s: %d reads, want %d", what, n, want)
		}
	}
	count("often", 1, func() { w.Often.sum() })     // the driver's version
	count("seldom", 1, func() { w.Seldom.sum() })   // the module's state
	count("rarely", 1+8, func() { w.Rarely.sum() }) // the module's version, and which GPUs answer
	count("a fingerprint", 3+8, func() { _, err = f.Take() })
	m.check(err)
}
