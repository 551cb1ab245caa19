package agent

import (
	"log/slog"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// What an idle node costs is bounded by allocations, which are the same on every
// machine, and not by time. The bounds have room for the race detector's.
func TestAllocationsOfAFingerprint(t *testing.T) {
	f := NewFingerprinter(hostfs.Root(eightGPUs(t).root))
	take := func() {
		if _, err := f.Take(); err != nil {
			t.Fatal(err)
		}
	}
	take()
	if n := testing.AllocsPerRun(20, take); n > 220 {
		t.Errorf("%v allocations for 8 GPUs, 56 MIG devices and 100 other functions, want 220 at most", n)
	}
}

func TestAllocationsOfAnUnchangedPass(t *testing.T) {
	m := newMachine(t)
	var gpus []nvml.GPU
	for _, address := range []string{"0000:1f:00.0", "0000:20:00.0", "0000:21:00.0", "0000:22:00.0"} {
		m.function(address, a100, "nvidia")
		gpus = append(gpus, withMIG(gpu(address, "NVIDIA A100-SXM4-40GB"), "1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"))
	}
	m.loadDriver("580.95.05")
	m.good(gpus...)
	s := &telling{sink{name: "s"}}
	a := New(Config{Host: m.host(), Logger: slog.New(slog.DiscardHandler), Sinks: nil})
	a.publishers = append(a.publishers, newPublisher(a, s))
	l := newLoop(t.Context(), a)
	pass := func() { l.looked(l.look(l.opts, true)) }
	pass()
	if set := l.offered.set; set[stateKey] != "ok" {
		t.Fatalf("labels are %v", set)
	}
	if n := testing.AllocsPerRun(20, pass); n > 450 {
		t.Errorf("%v allocations for 4 GPUs with 4 MIG devices each, want 450 at most", n)
	}
}
