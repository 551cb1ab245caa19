//go:build faults

package faults

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/gpu-labeller/gpu-labeller/agent"
	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// soakVariable is how long TestSoak takes, such as 10m.
const soakVariable = "GPU_LABELLER_SOAK"

// soakRound is after how many faults all must be as it was.
const soakRound = 150

// TestSoak has an agent live fast under random faults: a pass every few
// milliseconds, each with a real NVML process, and all three sinks. Whenever the
// faults pause, the labels must be right, and no more in use than at the start. The
// feature file must be right after each fault.
func TestSoak(t *testing.T) {
	duration := 5 * time.Second
	if text := os.Getenv(soakVariable); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // as the command does
	w := newWorld(t)
	h := newHost(t, w, &row{name: "soak", gpus: 2})
	h.folder, h.namespace = t.TempDir(), "default"
	objects := w.objects.of(h.name)
	h.history.keepNewest()
	objects.keepNewest()
	h.viaProxy()
	config, err := clientcmd.BuildConfigFromFlags("", h.kubeconfig)
	h.must(err)
	client, err := publish.NewClient(config)
	h.must(err)
	client.Timeout = 2 * time.Second

	prober := &nvml.Prober{Executable: w.binary, DriverRoot: h.driver, Timeout: 500 * time.Millisecond}
	var passes, failures atomic.Int64
	a := agent.New(agent.Config{
		Host:     discover.Host{Root: hostfs.Root(h.root), MachineFile: discover.DefaultMachineFile, NVML: prober.Ask},
		Options:  labels.Options{MIGStrategy: labels.MIGMixed},
		Sinks:    []publish.Sink{&publish.Node{Client: client, Name: h.name}, &publish.FeatureFile{Path: h.folder + "/gpu-labeller"}, &publish.NodeFeature{Client: client, Namespace: h.namespace, NodeName: h.name}},
		Interval: 5 * time.Millisecond, Poll: 20 * time.Millisecond, Resync: 100 * time.Millisecond, Sentry: true,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Scan: func(ctx context.Context, host discover.Host) (*discover.Inventory, error) {
			inv, err := discover.Scan(ctx, host)
			if host.NVML != nil {
				passes.Add(1)
				if err != nil || inv.NVIDIA.State != discover.StateOK {
					failures.Add(1)
				}
			}
			return inv, err
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.Run(ctx)
	}()
	fileRight := func() bool {
		text, err := os.ReadFile(h.file())
		return err == nil && maps.Equal(parse(text), h.sets[all])
	}
	right := func() bool {
		return fileRight() && maps.Equal(h.history.newest(), h.sets[all]) && maps.Equal(objects.newest(), h.sets[all])
	}
	settled := func(when string) usage {
		h.until(when+": the labels are right", 4*time.Minute, right)
		from := passes.Load()
		h.until(when+": passes", time.Minute, func() bool { return passes.Load() > from+20 })
		// A write that the API server answered too late for the agent may come later
		// still: that is put right, too.
		if !right() {
			text, _ := os.ReadFile(h.file())
			for place, set := range map[string]labels.Set{"file": parse(text), "Node": h.history.newest(), "object": objects.newest()} {
				if d := difference(set, h.sets[all]); d != "" {
					t.Logf("%s: for a moment the %s is not right:\n%s", when, place, d)
				}
			}
		}
		h.until(when+": the labels are right still, or again", time.Minute, right)
		http.DefaultClient.CloseIdleConnections()
		return measure()
	}
	before := settled("at the start")

	faults := soakFaults(h)
	counts := map[string]int{}
	random := rand.New(rand.NewPCG(1, 2))
	begin := time.Now()
	rounds, after := 0, before
	// A scan that is under way has a few of each.
	compare := func() {
		if after.goroutines > before.goroutines+6 {
			stacks := make([]byte, 1<<20)
			t.Errorf("%d goroutines, and %d before:\n%s", after.goroutines, before.goroutines, stacks[:runtime.Stack(stacks, true)])
		}
		if after.descriptors > before.descriptors+4 {
			t.Errorf("%d descriptors, and %d before", after.descriptors, before.descriptors)
		}
		if after.heap > before.heap+1<<20 {
			t.Errorf("heap of %d KiB, and %d before", after.heap>>10, before.heap>>10)
		}
		// In the first few faults memory is still touched for the first time, the race
		// detector's most of all.
		if rounds > 0 && after.resident > before.resident+8<<20 {
			t.Errorf("resident %d KiB, and %d before", after.resident>>10, before.resident>>10)
		}
		if n := len(h.children()); n > 1 {
			t.Errorf("%d NVML processes", n)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	total, waited := 0, time.Duration(0)
	for time.Since(begin) < duration {
		if total > 0 && total%soakRound == 0 {
			rounds++
			after = settled(fmt.Sprintf("after %d faults", total))
			t.Logf("%v, after %d faults: %v", time.Since(begin).Round(time.Second), total, after)
			compare()
		}
		total++
		f := faults[random.IntN(len(faults))]
		counts[f.name]++
		f.begin()
		time.Sleep(time.Duration(20+random.IntN(300)) * time.Millisecond)
		f.end()
		ended := time.Now()
		h.until(fmt.Sprintf("after the fault %q, the %dth: the feature file is right", f.name, total), time.Minute, fileRight)
		waited += time.Since(ended)
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
	}
	after = settled("at the end")
	t.Logf("%v: %d passes, %d of them without NVML, %d faults of %d kinds; writes to the Node: %d; the labels were right %d times in between", duration, passes.Load(), failures.Load(), total, len(counts), h.history.ours(), rounds)
	t.Logf("the feature file was right %v after a fault, on average", (waited / time.Duration(max(total, 1))).Round(time.Millisecond))
	t.Logf("before: %v", before)
	t.Logf("after:  %v", after)
	compare()
	cancel()
	<-ended
	h.until("the last child ends", 5*time.Second, func() bool { return len(h.children()) == 0 })
	if zombies := childrenOf(os.Getpid(), "Z"); zombies > 0 {
		t.Errorf("%d processes were not reaped", zombies)
	}
}

// soakFault is a fault that comes and goes.
type soakFault struct {
	name       string
	begin, end func()
}

func soakFaults(h *host) []soakFault {
	good := gpus(oldGPU, 2)
	says := func(name, line string) soakFault {
		return soakFault{name, func() { h.says(good + line + "\n") }, func() { h.says(good) }}
	}
	api := func(name string, f fault) soakFault {
		return soakFault{name, func() { h.proxy.set(f) }, func() { h.proxy.set(nil) }}
	}
	moved := func(name, path string) soakFault {
		return soakFault{name, func() { h.must(os.Rename(path, path+".aside")) }, func() { h.must(os.Rename(path+".aside", path)) }}
	}
	fewer := gpus(oldGPU, 1)
	return []soakFault{
		says("init fails", "init UNKNOWN"), says("mismatch", "init LIB_RM_VERSION_MISMATCH"), says("not loaded", "init DRIVER_NOT_LOADED"),
		says("hang", "hang nvmlInit"), says("hang at a question", "hang nvmlDeviceGetName gpu=1"), says("crash", "crash nvmlDeviceGetName"),
		says("exit", "exit nvmlInit 3"), says("flood", "flood nvmlInit"), says("garbage", "garbage nvmlInit"), says("lost", "lost 1"),
		says("no handle", "handle 0 GPU_IS_LOST"), says("no memory size", "error nvmlDeviceGetMemoryInfo gpu=1 UNKNOWN"), says("none listed", "count 0"),
		{"GPU removed", func() { h.says(fewer); h.unplug(1) }, func() { h.says(good); h.plug(1) }},
		{"GPU gone for a moment", func() { h.unplug(0) }, func() { h.plug(0) }},
		moved("no library", h.library()), moved("no sysfs", filepath.Join(h.root, "sys/bus")), moved("no procfs", filepath.Join(h.root, "proc")),
		{"driver reloaded", func() { h.driverVersion("550.107.03") }, func() { h.driverVersion("550.107.02") }},
		{"folder removed", func() { h.removeFolder() }, func() { h.must(os.MkdirAll(h.folder, 0o755)) }},
		{"file removed", func() { _ = os.Remove(h.file()) }, func() {}},
		{"label removed", func() { h.label("somebody", map[string]any{"nvidia.com/gpu.product": nil}) }, func() {}},
		{"label taken", func() { h.label("rival", map[string]any{"nvidia.com/gpu.product": "theirs"}) }, func() { h.label("rival", map[string]any{"nvidia.com/gpu.product": nil}) }},
		{"object deleted", func() { h.w.api(h.T, http.MethodDelete, h.objectPath(), "application/json", nil) }, func() {}},
		{"object edited", func() {
			h.w.api(h.T, http.MethodPatch, h.objectPath(), "application/merge-patch+json", map[string]any{"spec": map[string]any{"labels": map[string]string{"nvidia.com/gpu.product": "theirs"}}})
		}, func() {}},
		{"child killed", func() {
			for _, pid := range h.children() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}, func() {}},
		api("500", status(500, "InternalError")), api("401", status(401, "Unauthorized")), api("reset", reset), api("cut", cut),
		api("silent", silent), api("409", only(method(http.MethodPatch), status(409, "Conflict"))), api("410", only(isWatch, status(410, "Gone"))),
	}
}

// usage is what this process has in use.
type usage struct {
	goroutines, descriptors, children int
	heap, resident                    uint64
}

func (u usage) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors, %d children, heap %d KiB, resident %d KiB", u.goroutines, u.descriptors, u.children, u.heap>>10, u.resident>>10)
}

// measure takes the least of a few looks, since a scan comes and goes meanwhile.
func measure() usage {
	least := usage{goroutines: 1 << 30, descriptors: 1 << 30, children: 1 << 30, heap: 1 << 62, resident: 1 << 62}
	for range 20 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fds, _ := os.ReadDir("/proc/self/fd")
		status, _ := os.ReadFile("/proc/self/status")
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				kB, _ := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
				least.resident = min(least.resident, kB<<10)
			}
		}
		least.goroutines = min(least.goroutines, runtime.NumGoroutine())
		least.descriptors = min(least.descriptors, len(fds))
		least.children = min(least.children, childrenOf(os.Getpid(), ""))
		least.heap = min(least.heap, m.HeapAlloc)
		time.Sleep(25 * time.Millisecond)
	}
	return least
}

// childrenOf counts a process' children, those in a state alone if one is given.
func childrenOf(pid int, state string) (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	parent := strconv.Itoa(pid)
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		words := strings.Fields(rest)
		if len(words) > 1 && words[1] == parent && (state == "" || words[0] == state) {
			n++
		}
	}
	return n
}
