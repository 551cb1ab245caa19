package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
	"github.com/gpu-labeller/gpu-labeller/internal/logbuf"
	"github.com/gpu-labeller/gpu-labeller/internal/redact"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// machine is a host in a folder, whose NVML is a function: scans and
// fingerprints of it are real ones.
type machine struct {
	t    testing.TB
	root string

	mu     sync.Mutex
	nvml   func(context.Context) nvml.Answer
	asked  []time.Time
	asking int
	most   int // that asked at a time
}

func newMachine(t testing.TB) *machine {
	m := &machine{t: t, root: t.TempDir()}
	for _, dir := range []string{"sys/bus/pci/devices", "proc/driver", "dev"} {
		m.mkdir(dir)
	}
	m.write("proc/meminfo", "MemTotal:       16000000 kB\n")
	m.nvml = func(context.Context) nvml.Answer { return nvml.Answer{Init: nvml.LibraryNotFound} }
	return m
}

func (m *machine) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) path(name string) string { return filepath.Join(m.root, name) }

func (m *machine) mkdir(name string) {
	m.t.Helper()
	m.check(os.MkdirAll(m.path(name), 0o755))
}

func (m *machine) write(name, content string) {
	m.t.Helper()
	m.mkdir(filepath.Dir(name))
	m.check(os.WriteFile(m.path(name), []byte(content), 0o644))
}

func (m *machine) remove(name string) {
	m.t.Helper()
	m.check(os.RemoveAll(m.path(name)))
}

const (
	a100 = "10de:20b0:030200"
	t4   = "10de:1eb8:030200"
	bmc  = "1a03:2000:030000"
	nic  = "15b3:101d:020000"
	mi3  = "1002:74a1:120000"
)

// function plugs a device in: ids are vendor, device and class.
func (m *machine) function(address, ids, driver string) {
	m.t.Helper()
	var vendor, device uint16
	var class uint32
	_, err := fmt.Sscanf(ids, "%x:%x:%x", &vendor, &device, &class)
	m.check(err)
	// Put in place as a whole, as sysfs does.
	staged := "staged-" + address
	for name, content := range map[string]string{
		"vendor": fmt.Sprintf("%#04x\n", vendor), "device": fmt.Sprintf("%#04x\n", device), "class": fmt.Sprintf("%#06x\n", class),
		"revision": "0xa1\n", "config": strings.Repeat("\x00", 256),
		"modalias": fmt.Sprintf("pci:v%08Xd%08Xsv00000000sd00000000bc%02Xsc%02Xi%02X\n", vendor, device, class>>16, class>>8&0xff, class&0xff),
	} {
		m.write(staged+"/"+name, content)
	}
	if driver != "" {
		m.check(os.Symlink("../../../bus/pci/drivers/"+driver, m.path(staged+"/driver")))
	}
	m.check(os.Rename(m.path(staged), m.path("sys/bus/pci/devices/"+address)))
}

func (m *machine) unplug(address string) { m.remove("sys/bus/pci/devices/" + address) }

// loadDriver loads NVIDIA's kernel module.
func (m *machine) loadDriver(version string) {
	m.write("sys/module/nvidia/initstate", "live\n")
	m.write("sys/module/nvidia/version", version+"\n")
	m.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+version+"  Tue Jun  6 2026\n")
}

// answers sets what NVML does.
func (m *machine) answers(f func(context.Context) nvml.Answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nvml = f
}

// good has NVML answer for these GPUs.
func (m *machine) good(gpus ...nvml.GPU) {
	for i := range gpus {
		gpus[i].Index = i
	}
	m.answers(func(context.Context) nvml.Answer {
		return nvml.Answer{Init: nvml.Success, DriverVersion: "580.95.05", CUDADriverVersion: 13000, GPUs: gpus}
	})
}

func (m *machine) bad(a nvml.Answer) {
	m.answers(func(context.Context) nvml.Answer { return a })
}

// ask is Host.NVML.
func (m *machine) ask(ctx context.Context) nvml.Answer {
	m.mu.Lock()
	m.asked = append(m.asked, time.Now())
	m.asking++
	m.most = max(m.most, m.asking)
	f := m.nvml
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.asking--
		m.mu.Unlock()
	}()
	return f(ctx)
}

func (m *machine) asks() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.asked)
}

func (m *machine) askedAt() []time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]time.Time(nil), m.asked...)
}

func (m *machine) host() discover.Host {
	return discover.Host{Root: hostfs.Root(m.root), NVML: m.ask}
}

func gpu(address, name string) nvml.GPU {
	g := nvml.GPU{Name: name, UUID: "GPU-5a1b2c3d-0000-1111-2222-333344445555", MemoryBytes: 40 << 30, ComputeCapability: &nvml.ComputeCapability{Major: 8}}
	if address != "" {
		a, err := pci.ParseAddress(address)
		if err != nil {
			panic(err)
		}
		g.PCIAddress = &a
	}
	return g
}

func withMIG(g nvml.GPU, profiles ...string) nvml.GPU {
	g.MIG = &nvml.MIG{Enabled: len(profiles) > 0, Pending: len(profiles) > 0}
	for i, p := range profiles {
		g.MIG.Devices = append(g.MIG.Devices, nvml.MIGDevice{Profile: p, GPUInstance: i + 1, MemoryMB: 4864, Multiprocessors: 14, GPUInstanceSlices: 1, ComputeInstanceSlices: 1})
	}
	return g
}

// oneA100 is a node with a GPU that is well.
func oneA100(t testing.TB) *machine {
	m := newMachine(t)
	m.function("0000:1f:00.0", a100, "nvidia")
	m.loadDriver("580.95.05")
	m.good(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"))
	return m
}

// sink records what it is given.
type sink struct {
	name string

	mu     sync.Mutex
	has    labels.Set
	calls  []call
	during func(ctx context.Context, n int) error // before it is done; n counts from 1
}

type call struct {
	at  time.Time
	set labels.Set
}

func (s *sink) String() string { return s.name }

func (s *sink) Publish(ctx context.Context, set labels.Set) error {
	s.mu.Lock()
	s.calls = append(s.calls, call{time.Now(), maps.Clone(set)})
	n, during := len(s.calls), s.during
	s.mu.Unlock()
	var err error
	if during != nil {
		err = during(ctx, n)
	}
	var conflict *publish.ConflictError
	if err != nil && !errors.As(err, &conflict) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has = labels.Set{}
	maps.Copy(s.has, set)
	return err
}

func (s *sink) set() labels.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.has)
}

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// all gives every set that was asked for.
func (s *sink) all() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.calls...)
}

// distinct gives the sets that differ from the one before.
func (s *sink) distinct() (sets []labels.Set) {
	for _, c := range s.all() {
		if len(sets) == 0 || !maps.Equal(sets[len(sets)-1], c.set) {
			sets = append(sets, c.set)
		}
	}
	return sets
}

func (s *sink) onPublish(f func(ctx context.Context, n int) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.during = f
}

// telling is a sink that can say what it shows.
type telling struct{ sink }

func (s *telling) Published(context.Context) (labels.Set, error) { return s.set(), nil }

// watching is a telling sink that notices changes.
type watching struct {
	telling
	notify chan struct{}
}

func newWatching(name string) *watching {
	return &watching{telling: telling{sink{name: name}}, notify: make(chan struct{}, 8)}
}

func (s *watching) Watch(ctx context.Context, changed func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.notify:
			changed()
		}
	}
}

// spoil has somebody else remove the labels.
func (s *watching) spoil() {
	s.mu.Lock()
	s.has = labels.Set{}
	s.mu.Unlock()
	s.notify <- struct{}{}
}

// bench runs agents on a machine, in virtual time.
type bench struct {
	*testing.T
	*machine
	logs *logbuf.Buffer
	stop func()
}

// virtual runs f in a bubble of synctest, and stops the agents at its end.
func virtual(t *testing.T, m func(testing.TB) *machine, f func(*bench)) {
	t.Helper()
	host := m(t)
	synctest.Test(t, func(t *testing.T) {
		host.t = t
		b := &bench{T: t, machine: host, logs: &logbuf.Buffer{}, stop: func() {}}
		defer func() { // also after a Fatal
			b.stop()
			time.Sleep(time.Hour) // what is deaf to the agent's end comes to its own
			if t.Failed() {
				t.Logf("log:\n%s", b.logs)
			}
		}()
		f(b)
	})
}

// start runs an agent until stop or the end of the test.
func (b *bench) start(change func(*Config), sinks ...publish.Sink) *Agent {
	b.Helper()
	config := Config{
		Host:     b.host(),
		Sinks:    sinks,
		Interval: time.Minute,
		Logger:   slog.New(redact.Handler(slog.NewTextHandler(b.logs, nil))),
	}
	if change != nil {
		change(&config)
	}
	a := New(config)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		a.Run(ctx)
		close(done)
	}()
	before := b.stop
	b.stop = func() {
		cancel()
		<-done
		before()
		b.stop = func() {}
	}
	return a
}

// after lets time pass.
func (b *bench) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// want checks labels; a key that begins with ! is to be absent.
func (b *bench) want(set labels.Set, pairs ...string) {
	b.Helper()
	for _, pair := range pairs {
		if key, absent := strings.CutPrefix(pair, "!"); absent {
			if value, ok := set[key]; ok {
				b.Errorf("label %s=%s is there", key, value)
			}
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		if set[key] != value {
			b.Errorf("label %s is %q, want %q", key, set[key], value)
		}
	}
}

func (b *bench) wantLog(n int, text string) {
	b.Helper()
	if got := b.logs.Count(text); got != n {
		b.Errorf("%q is in the log %d times, want %d", text, got, n)
	}
}

// hang is an NVML that does not answer before the deadline.
func hang(ctx context.Context) nvml.Answer {
	select {
	case <-ctx.Done():
		return nvml.Answer{Failure: &nvml.Failure{Kind: nvml.Crash, Text: "asking NVML was cancelled"}}
	case <-time.After(22 * time.Second):
		return nvml.Answer{Failure: &nvml.Failure{Kind: nvml.Timeout, Text: "NVML did not answer within 20s"}}
	}
}
