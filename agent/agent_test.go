package agent

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/internal/logbuf"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

const (
	pciKey     = "feature.node.kubernetes.io/pci-10de.present"
	product    = "nvidia.com/gpu.product"
	stateOK    = stateKey + "=ok"
	a100Labels = product + "=NVIDIA-A100-SXM4-40GB"
)

func TestPCILabelsDoNotWaitForNVML(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		b.answers(hang)
		s, mute := &telling{sink{name: "s"}}, &sink{name: "mute"}
		a := b.start(nil, s, mute)
		b.after(500 * time.Millisecond)
		b.want(s.set(), pciKey+"=true", "!"+stateKey, "!"+onBusKey, "!"+failedKey)
		if mute.count() != 0 {
			b.Error("a sink that cannot say what it shows was given less than may be there")
		}
		if a.unready() == "" {
			b.Error("ready before NVML was asked")
		}
		b.after(25 * time.Second)
		b.want(s.set(), pciKey+"=true", stateKey+"=timeout", failedKey+"=1", "!"+product)
		b.want(mute.set(), pciKey+"=true", stateKey+"=timeout")
		if wrong := a.unready(); wrong != "" {
			b.Error(wrong)
		}
	})
}

// An answer within provisionalTime spares a write.
func TestQuickAnswerIsOneWrite(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		g := gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB")
		b.answers(func(context.Context) nvml.Answer {
			time.Sleep(300 * time.Millisecond)
			return nvml.Answer{Init: nvml.Success, DriverVersion: "580.95.05", GPUs: []nvml.GPU{g}}
		})
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(350 * time.Millisecond)
		b.want(s.set(), stateOK, a100Labels)
		b.after(time.Hour)
		if n := len(s.distinct()); n != 1 {
			b.Errorf("%d sets were published, want 1", n)
		}
	})
}

// U30
func TestDriverArrivesLater(t *testing.T) {
	virtual(t, newMachineWithoutDriver, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(8 * time.Minute)
		b.want(s.set(), pciKey+"=true", onBusKey+"=1", stateKey+"=no-driver", "!"+countKey, "!"+product)
		if n := b.asks(); n < 8 || n > 20 {
			b.Errorf("NVML was asked %d times in 8 minutes without a driver", n)
		}
		b.wantLog(1, "there is no NVIDIA driver")

		b.loadDriver("580.95.05")
		b.good(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"))
		b.after(5 * time.Second)
		b.want(s.set(), stateOK, a100Labels, countKey+"=1")
	})
}

func newMachineWithoutDriver(t testing.TB) *machine {
	m := newMachine(t)
	m.function("0000:1f:00.0", a100, "")
	return m
}

// The library comes some seconds after the module, and nothing on the host shows
// it.
func TestLibraryArrivesAfterTheModule(t *testing.T) {
	virtual(t, newMachineWithoutDriver, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(time.Hour)
		b.loadDriver("580.95.05")
		b.after(10 * time.Second)
		b.want(s.set(), stateKey+"=no-driver")
		b.good(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"))
		b.after(5 * time.Second)
		b.want(s.set(), stateOK, a100Labels)
	})
}

// U31
func TestInitFailsThreeTimes(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		n := 0
		b.answers(func(context.Context) nvml.Answer {
			if n++; n <= 3 {
				return nvml.Answer{Init: nvml.Unknown}
			}
			g := gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB")
			return nvml.Answer{Init: nvml.Success, DriverVersion: "580.95.05", GPUs: []nvml.GPU{g}}
		})
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(time.Second)
		b.want(s.set(), stateKey+"=error", "!"+product)
		b.after(20 * time.Second)
		b.want(s.set(), stateOK, a100Labels)
		if n != 4 {
			b.Errorf("asked %d times, want 4", n)
		}
	})
}

// U32: the child is stuck in the kernel for hours.
func TestNVMLHangs(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		a := b.start(nil, s)
		b.after(time.Hour)
		good := s.set()
		b.want(good, stateOK, a100Labels)

		stuck := false
		b.answers(func(ctx context.Context) nvml.Answer {
			if !stuck {
				stuck = true
				return hang(ctx)
			}
			return nvml.Answer{Failure: &nvml.Failure{Kind: nvml.Stuck, Text: fmt.Sprintf("the NVML child process %d was killed and has still not ended: the driver holds it", 4711)}}
		})
		b.after(3 * time.Minute)
		held := s.set()
		b.want(held, stateKey+"=timeout")
		held[stateKey] = "ok"
		if !maps.Equal(held, good) {
			b.Errorf("held labels differ:\n%v\n%v", held, good)
		}
		if wrong := a.unhealthy(); wrong != "" {
			b.Error(wrong)
		}
		// PCI labels go on.
		b.function("0000:02:00.0", bmc, "ast")
		b.after(5 * time.Second)
		b.want(s.set(), "feature.node.kubernetes.io/pci-0300_1a03.present=true", a100Labels, stateKey+"=timeout")
		b.after(2 * time.Hour)
		if wrong := a.unhealthy(); wrong != "" {
			b.Error(wrong)
		}
		if b.most != 1 {
			b.Errorf("%d asked NVML at a time", b.most)
		}
		b.wantLog(1, "has still not ended")

		b.good(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"))
		b.after(70 * time.Second)
		b.want(s.set(), stateOK, a100Labels)
		b.wantLog(1, "no longer: the NVML child process")
	})
}

// A device is plugged in and another goes while NVML is waited for.
func TestPCIChangesWhileNVMLHangs(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		b.function("0000:02:00.0", bmc, "ast")
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(10 * time.Second)
		b.answers(func(ctx context.Context) nvml.Answer { <-ctx.Done(); return nvml.Answer{} })
		b.after(2 * time.Minute)
		b.function("0000:03:00.0", mi3, "amdgpu")
		b.unplug("0000:02:00.0")
		b.after(5 * time.Second)
		b.want(s.set(), "feature.node.kubernetes.io/pci-1200_1002.present=true", a100Labels, stateOK)
		b.want(s.set(), "!feature.node.kubernetes.io/pci-0300_1a03.present")
	})
}

var mismatch = nvml.Answer{Init: nvml.VersionMismatch, Library: "/usr/lib64/libnvidia-ml.so.580.178.04"}

// U33
func TestDriverMismatch(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		b.loadDriver("580.173.02")
		s := &telling{sink{name: "s"}}
		var events []string
		var mu sync.Mutex
		event := func(reason, message string) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, reason+": "+message)
		}
		b.start(func(c *Config) { c.Event = event }, s)
		b.after(time.Minute)
		b.bad(mismatch)
		b.after(2 * time.Minute)
		b.want(s.set(), stateKey+"=driver-mismatch", a100Labels, countKey+"=1", "!"+failedKey)
		mu.Lock()
		if len(events) != 1 || !strings.Contains(events[0], "580.173.02") || !strings.Contains(events[0], "580.178.04") {
			b.Errorf("events are %q", events)
		}
		mu.Unlock()

		// A restart holds what is on the Node.
		b.stop()
		before := s.set()
		b.start(nil, s)
		b.after(5 * time.Minute)
		if got := s.set(); !maps.Equal(got, before) {
			b.Errorf("a restart changed labels:\n%v\n%v", got, before)
		}
		for _, c := range s.all() {
			b.want(c.set, pciKey+"=true")
		}
		b.stop()

		// So does one that does not happen to be the first to know.
		cold := &telling{sink{name: "cold"}}
		b.start(nil, cold)
		b.after(time.Minute)
		b.want(cold.set(), stateKey+"=driver-mismatch", onBusKey+"=1", "!"+product)
	})
}

// U43
func TestRestartChangesNothing(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(time.Hour)
		before := s.set()
		b.stop()
		if got := s.set(); !maps.Equal(got, before) {
			b.Errorf("stopping changed labels to %v", got)
		}
		b.after(90 * time.Second)
		n := s.count()
		b.logs = &logbuf.Buffer{}
		b.answers(func(ctx context.Context) nvml.Answer { // slow, but well
			pause(ctx, 15*time.Second)
			return nvml.Answer{Init: nvml.Success, DriverVersion: "580.95.05", CUDADriverVersion: 13000, GPUs: []nvml.GPU{gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB")}}
		})
		b.start(nil, s)
		b.after(time.Hour)
		for _, c := range s.all()[n:] {
			if !maps.Equal(c.set, before) {
				b.Errorf("published %v, want %v", c.set, before)
			}
		}
		b.wantLog(0, "labels published")
	})
}

// While NVML does not answer, what somebody wrote into a file or an object of ours is
// not held: a value that is not legal would cost all others.
func TestRestartWithTamperedLabels(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(time.Minute)
		b.stop()
		s.mu.Lock()
		s.has[product] += " "
		s.has["nvidia.com/gpu.deploy.client"] = "true"
		s.has["nvidia.com/mig-{a b}.count"] = "1"
		s.mu.Unlock()
		b.answers(hang)
		b.start(nil, s)
		b.after(time.Hour)
		b.want(s.set(), stateKey+"=timeout", "nvidia.com/gpu.count=1", "!"+product, "!nvidia.com/gpu.deploy.client", "!nvidia.com/mig-{a b}.count")
	})
}

// The GPU was taken out while no agent ran.
func TestRestartWithoutTheGPU(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		b.function("0000:8b:00.0", t4, "nvidia")
		b.good(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"), gpu("0000:8b:00.0", "Tesla T4"))
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(time.Minute)
		b.stop()
		b.unplug("0000:1f:00.0")
		b.bad(nvml.Answer{Init: nvml.Unknown})
		b.start(nil, s)
		b.after(time.Minute)
		// Which labels are the T4's nobody knows.
		b.want(s.set(), pciKey+"=true", stateKey+"=error", onBusKey+"=1", "!"+product)
		b.good(gpu("0000:8b:00.0", "Tesla T4"))
		b.after(time.Minute)
		b.want(s.set(), stateOK, product+"=Tesla-T4")
	})
}

// No GPU at all is to be seen twice, too, before what another process published
// goes.
func TestRestartWithoutAnyGPU(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(time.Minute)
		b.stop()
		before := s.set()

		b.unplug("0000:1f:00.0")
		b.good()
		b.start(nil, s)
		b.after(settleTime - 100*time.Millisecond)
		if got := s.set(); !maps.Equal(got, before) {
			b.Errorf("labels went at the first look: %v", got)
		}
		b.function("0000:1f:00.0", a100, "nvidia") // it was the bus that was late
		b.good(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"))
		b.after(time.Minute)
		if got := s.set(); !maps.Equal(got, before) {
			b.Errorf("labels are %v, want %v", got, before)
		}
		for i, c := range s.all() {
			if len(c.set) == 0 {
				b.Errorf("call %d withdrew all labels", i)
			}
		}
		b.stop()

		b.unplug("0000:1f:00.0")
		b.good()
		b.start(nil, s)
		b.after(5 * time.Second)
		if got := s.set(); len(got) != 0 {
			b.Errorf("labels of a GPU that is gone stay: %v", got)
		}
	})
}

// U44
func TestGPURemovedAndBack(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		b.function("0000:8b:00.0", t4, "nvidia")
		both := func() { b.good(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"), gpu("0000:8b:00.0", "Tesla T4")) }
		both()
		s := &telling{sink{name: "s"}}
		b.start(func(c *Config) { c.Interval = time.Hour }, s)
		b.after(youth + 5*time.Minute + 500*time.Millisecond) // between two polls, and with no scan due for long
		model := labels.ExtraPrefix + "model.nvidia-a100-sxm4-40gb.count"
		b.want(s.set(), model+"=1", countKey+"=2")
		before := s.set()

		b.unplug("0000:1f:00.0")
		b.good(gpu("0000:8b:00.0", "Tesla T4"))
		b.after(1900 * time.Millisecond)
		b.want(s.set(), model+"=1", countKey+"=2") // seen gone once
		b.after(4 * time.Second)
		b.want(s.set(), product+"=Tesla-T4", "nvidia.com/gpu.count=1", "!"+model, onBusKey+"=1", stateOK)

		b.function("0000:1f:00.0", a100, "nvidia")
		both()
		b.after(3 * time.Second)
		if got := s.set(); !maps.Equal(got, before) {
			b.Errorf("labels are %v, want %v", got, before)
		}
	})
}

// A GPU is gone in one scan, and back in the next: a reset.
func TestGPUGoneForAMoment(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(func(c *Config) { c.Interval = time.Hour }, s)
		b.after(youth + 5*time.Minute + 500*time.Millisecond) // between two polls, and with no scan due for long
		before, n := s.set(), s.count()
		b.unplug("0000:1f:00.0")
		b.bad(nvml.Answer{Init: nvml.Success})
		b.after(1700 * time.Millisecond)
		b.function("0000:1f:00.0", a100, "nvidia")
		b.good(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"))
		b.after(time.Hour)
		if got := s.set(); !maps.Equal(got, before) {
			b.Errorf("labels are %v, want %v", got, before)
		}
		for _, c := range s.all()[n:] {
			b.want(c.set, a100Labels, stateOK)
		}
	})
}

// U45
func TestLastGPURemoved(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(time.Minute)
		b.want(s.set(), stateOK)
		b.unplug("0000:1f:00.0")
		b.bad(nvml.Answer{Init: nvml.Success})
		b.after(8 * time.Second)
		if got := s.set(); len(got) != 0 {
			b.Errorf("labels are %v", got)
		}
	})
}

// A driver that fails when its last GPU goes does not hold the labels.
func TestLastGPURemovedAndDriverFails(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(time.Minute)
		b.unplug("0000:1f:00.0")
		b.bad(nvml.Answer{Failure: &nvml.Failure{Kind: nvml.Crash, Text: "the NVML child process was ended by signal segmentation fault"}})
		b.after(10 * time.Second)
		if got := s.set(); len(got) != 0 {
			b.Errorf("labels are %v", got)
		}
	})
}

func TestSysUnreadable(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		a := b.start(nil, s)
		b.after(5 * time.Minute)
		before, n := s.set(), s.count()
		b.check(os.Rename(b.path("sys"), b.path("away")))
		b.after(time.Hour)
		for _, c := range s.all()[n:] {
			if !maps.Equal(c.set, before) {
				b.Errorf("labels are %v, want %v", c.set, before)
			}
		}
		b.wantLog(1, "is /sys mounted")
		b.wantLog(1, "what is published stays as it is")
		if wrong := a.unhealthy(); wrong != "" {
			b.Error(wrong)
		}
		b.check(os.Rename(b.path("away"), b.path("sys")))
		b.after(2 * time.Minute)
		b.wantLog(3, "no longer: ") // PCI's, the fingerprint's, and that labels stay
	})
}

// U34: it is not held, but counted.
func TestOneGPULost(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		b.function("0000:8b:00.0", a100, "nvidia")
		one, two := gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"), gpu("0000:8b:00.0", "NVIDIA A100-SXM4-40GB")
		b.good(one, two)
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(5 * time.Minute)
		b.want(s.set(), countKey+"=2", stateOK)
		b.good(one, nvml.GPU{Handle: nvml.GPUIsLost})
		b.after(70 * time.Second)
		degraded := []string{countKey + "=1", onBusKey + "=2", failedKey + "=1", stateKey + "=degraded", "nvidia.com/gpu.count=1"}
		b.want(s.set(), degraded...)
		// It stays lost when NVML fails altogether.
		b.answers(hang)
		b.after(5 * time.Minute)
		degraded[3] = stateKey + "=timeout"
		b.want(s.set(), degraded...)
	})
}

func TestNVMLListsNoneOnce(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(5 * time.Minute)
		b.bad(nvml.Answer{Init: nvml.Success, DriverVersion: "580.95.05"})
		b.after(70 * time.Second)
		b.want(s.set(), a100Labels, countKey+"=1", stateKey+"=error")
		b.good(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"))
		b.after(70 * time.Second)
		b.want(s.set(), a100Labels, stateOK)
	})
}

func TestGPUGoesToAGuest(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(5 * time.Minute)
		b.unplug("0000:1f:00.0")
		b.function("0000:1f:00.0", a100, "vfio-pci")
		b.bad(nvml.Answer{Init: nvml.DriverNotLoaded})
		b.after(5 * time.Second)
		b.want(s.set(), stateKey+"=passthrough", guestsKey+"=1", "!"+product, "!"+countKey)
	})
}

// U42: GPUs that are on no PCI bus.
func TestGPUsOffPCI(t *testing.T) {
	virtual(t, newMachine, func(b *bench) {
		two := func() { b.good(gpu("", "NVIDIA RTX A4000"), gpu("", "NVIDIA RTX A4000")) }
		two()
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(5 * time.Minute)
		b.want(s.set(), countKey+"=2", stateOK, "!"+onBusKey)
		good := s.set()
		for state, answer := range map[string]nvml.Answer{
			"no-driver":       {Init: nvml.LibraryNotFound},
			"no-permission":   {Init: nvml.NoPermission},
			"driver-mismatch": mismatch,
			"error":           {Init: nvml.Unknown},
			"timeout":         {Failure: &nvml.Failure{Kind: nvml.Timeout, Text: "NVML did not answer within 20s"}},
		} {
			b.bad(answer)
			b.after(5 * time.Minute)
			held := s.set()
			b.want(held, stateKey+"="+state)
			held[stateKey] = "ok"
			if !maps.Equal(held, good) {
				b.Errorf("%s: labels are %v", state, held)
			}
			if state == "timeout" { // over a restart, too
				b.stop()
				b.start(nil, s)
				b.after(5 * time.Minute)
				b.want(s.set(), countKey+"=2", stateKey+"=timeout", "nvidia.com/gpu.count=2")
			}
			two()
			b.after(2 * time.Minute)
			b.want(s.set(), stateOK)
		}
		b.good()
		b.after(3 * time.Minute)
		if got := s.set(); len(got) != 0 {
			b.Errorf("labels are %v", got)
		}
	})
}

// U60, and U55's MIG part: seen at once, though no NVML is asked in between.
func TestRepartition(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		whole := withMIG(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"))
		b.good(whole)
		s := &telling{sink{name: "s"}}
		b.start(func(c *Config) { c.Options.MIGStrategy = labels.MIGMixed }, s)
		b.after(5 * time.Minute)
		b.want(s.set(), labels.ExtraPrefix+"mig.state=disabled", "!nvidia.com/mig-1g.5gb.count")

		var profiles []string
		for i := range 7 {
			b.mkdir(fmt.Sprintf("proc/driver/nvidia/capabilities/gpu0/mig/gi%d/ci0", i+7))
			profiles = append(profiles, "1g.5gb")
			b.good(withMIG(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"), profiles...))
			b.after(300 * time.Millisecond)
		}
		b.after(4 * time.Second)
		b.want(s.set(), labels.ExtraPrefix+"mig.state=enabled", "nvidia.com/mig-1g.5gb.count=7")

		b.remove("proc/driver/nvidia/capabilities/gpu0/mig")
		b.good(whole)
		b.after(5 * time.Second)
		b.want(s.set(), labels.ExtraPrefix+"mig.state=disabled", "!nvidia.com/mig-1g.5gb.count")
	})
}

// U60's other half.
func TestRepartitionAMD(t *testing.T) {
	virtual(t, newMachine, func(b *bench) {
		b.function("0000:8b:00.0", mi3, "amdgpu")
		partition := func(compute string) {
			b.write("sys/bus/pci/devices/0000:8b:00.0/current_compute_partition", compute+"\n")
			b.write("sys/bus/pci/devices/0000:8b:00.0/current_memory_partition", "NPS1\n")
		}
		partition("SPX")
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(time.Minute)
		for _, compute := range []string{"DPX", "SPX"} {
			partition(compute)
			b.after(5 * time.Second)
			b.want(s.set(), "amd.com/gpu.compute-memory-partition="+strings.ToLower(compute)+"_nps1")
		}
	})
}

// U49, U55: between intervals nothing is asked and nothing is written.
func TestQuiet(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := newWatching("s")
		b.start(func(c *Config) {
			c.Poll = 20 * time.Second // for the test's sake
		}, s)
		b.after(time.Minute + 10*time.Second)
		asked, published := b.asks(), s.count()
		lines := b.logs.Count("\n")
		b.after(1000 * time.Minute)
		if n := b.asks() - asked; n < 950 || n > 1050 {
			b.Errorf("NVML was asked %d times in 1000 intervals", n)
		}
		if n := s.count() - published; n != 0 {
			b.Errorf("the sink was called %d times", n)
		}
		if n := b.logs.Count("\n") - lines; n != 0 {
			b.Errorf("%d lines were logged", n)
		}
		var least, most time.Duration = time.Hour, 0
		at := b.askedAt()[asked:]
		for i := range at[1:] {
			gap := at[i+1].Sub(at[i])
			least, most = min(least, gap), max(most, gap)
		}
		if least < 54*time.Second || most > 66*time.Second || most-least < 8*time.Second {
			b.Errorf("intervals of %v to %v", least, most)
		}
	})
}

func TestFlappingHost(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(func(c *Config) { c.Poll = 100 * time.Millisecond }, s)
		b.after(5 * time.Minute)
		asked := b.asks()
		for i := range 100 {
			b.loadDriver(fmt.Sprintf("580.95.%d", i))
			b.after(100 * time.Millisecond)
		}
		if n := b.asks() - asked; n < 8 || n > 11 {
			b.Errorf("NVML was asked %d times in 10 s of changes", n)
		}
		b.after(2 * time.Second)
		asked = b.asks()
		b.after(20 * time.Second)
		if n := b.asks() - asked; n != 0 {
			b.Errorf("NVML was asked %d times after the last change", n)
		}
		// For ever.
		asked = b.asks()
		for i := range 6000 {
			b.write("sys/module/nvidia/version", fmt.Sprint(i))
			b.after(100 * time.Millisecond)
		}
		if n := b.asks() - asked; n > 160 {
			b.Errorf("NVML was asked %d times in 10 minutes of changes", n)
		}
	})
}

// The last change comes while a scan is under way.
func TestChangeDuringAScan(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(5 * time.Minute)
		name := "NVIDIA A100-SXM4-40GB"
		slow := func() {
			was := name
			b.answers(func(ctx context.Context) nvml.Answer {
				pause(ctx, 8*time.Second)
				return nvml.Answer{Init: nvml.Success, DriverVersion: "580.95.05", GPUs: []nvml.GPU{gpu("0000:1f:00.0", was)}}
			})
		}
		slow()
		b.loadDriver("590.1")
		b.after(3 * time.Second)
		name = "NVIDIA A100 renamed"
		slow()
		b.loadDriver("590.2")
		b.after(16 * time.Second)
		b.want(s.set(), product+"=NVIDIA-A100-renamed")
	})
}

func TestStopDuringAScan(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		cancelled := false
		b.answers(func(ctx context.Context) nvml.Answer {
			<-ctx.Done()
			cancelled = true
			time.Sleep(2 * time.Second) // as long as a child is waited for
			return nvml.Answer{}
		})
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(10 * time.Second)
		before, n := s.set(), s.count()
		start := time.Now()
		b.stop()
		if took := time.Since(start); took > time.Second {
			b.Errorf("stopping took %v", took)
		}
		b.after(time.Minute)
		if !cancelled {
			b.Error("the scan was not cancelled")
		}
		if !maps.Equal(s.set(), before) || s.count() != n {
			b.Error("labels were published at the end")
		}
	})
}

func TestHealth(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		forever := make(chan struct{})
		s := &telling{sink{name: "s"}}
		a := b.start(nil, s)
		b.after(time.Hour)
		if wrong := a.unhealthy(); wrong != "" {
			b.Error(wrong)
		}
		b.answers(func(context.Context) nvml.Answer { <-forever; return nvml.Answer{} })
		b.after(90 * time.Second)
		if wrong := a.unhealthy(); wrong != "" {
			b.Error(wrong)
		}
		b.after(2 * time.Minute)
		if a.unhealthy() == "" {
			b.Error("healthy, though no scan ends")
		}
		close(forever)
		b.after(time.Second)
		if wrong := a.unhealthy(); wrong != "" {
			b.Error(wrong)
		}
	})
}

// A host that changed a while ago is scanned less often.
func TestIntervals(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		b.start(func(c *Config) { c.Interval, c.Poll = DefaultInterval, 10*time.Second }, &telling{sink{name: "s"}})
		b.after(10 * time.Minute)
		if n := b.asks(); n < 9 || n > 12 {
			b.Errorf("NVML was asked %d times in the first ten minutes", n)
		}
		b.after(time.Hour)
		before := b.asks()
		b.after(5 * time.Hour)
		if n := b.asks() - before; n < 27 || n > 34 {
			b.Errorf("NVML was asked %d times in five hours", n)
		}
		before = b.asks()
		b.mkdir("proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0")
		b.after(5 * time.Minute)
		if n := b.asks() - before; n < 5 || n > 7 {
			b.Errorf("NVML was asked %d times in five minutes after a change", n)
		}
	})
}

func TestReload(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		b.good(withMIG(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"), "1g.5gb"))
		// As a ConfigMap is mounted.
		b.write("config/..1/config.yaml", "none")
		b.check(os.Symlink("..1", b.path("config/..data")))
		b.check(os.Symlink("..data/config.yaml", b.path("config/config.yaml")))
		file := b.path("config/config.yaml")
		swap := func(to, content string) {
			b.write("config/"+to+"/config.yaml", content)
			b.check(os.Symlink(to, b.path("config/..tmp")))
			b.check(os.Rename(b.path("config/..tmp"), b.path("config/..data")))
		}
		s := &telling{sink{name: "s"}}
		reload := func() (labels.Options, error) {
			text, err := os.ReadFile(file)
			if err == nil && string(text) != "none" && string(text) != "mixed" {
				err = fmt.Errorf("%s: migStrategy: want none, single or mixed, not %q", filepath.Base(file), text)
			}
			return labels.Options{MIGStrategy: labels.MIGStrategy(text)}, err
		}
		a := b.start(func(c *Config) { c.Reload, c.ConfigFile = reload, file }, s)
		b.after(5 * time.Minute)
		b.want(s.set(), "!nvidia.com/mig-1g.5gb.count")

		swap("..2", "mixed")
		b.after(5 * time.Second)
		b.want(s.set(), "nvidia.com/mig-1g.5gb.count=1")

		swap("..3", "mxied")
		b.after(5 * time.Minute)
		b.want(s.set(), "nvidia.com/mig-1g.5gb.count=1")
		b.wantLog(1, "the old one stays in force")
		b.check(os.Remove(b.path("config/..data")))
		b.after(5 * time.Minute)
		b.want(s.set(), "nvidia.com/mig-1g.5gb.count=1")

		swap("..4", "none")
		b.after(5 * time.Second)
		b.want(s.set(), "!nvidia.com/mig-1g.5gb.count")

		reloads := b.logs.Count("configuration reloaded")
		a.Reload() // SIGHUP
		b.after(5 * time.Second)
		b.wantLog(reloads+1, "configuration reloaded")
	})
}

// NVML does not answer; what the new options say of the rest is seen at once.
func TestReloadWhileNVMLHangs(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		b.function("0000:02:00.0", nic, "mlx5_core")
		s := &telling{sink{name: "s"}}
		opts := labels.Options{PCIClasses: []string{"02", "03"}}
		a := b.start(func(c *Config) { c.Reload = func() (labels.Options, error) { return opts, nil } }, s)
		b.after(10 * time.Second)
		b.answers(func(ctx context.Context) nvml.Answer { <-ctx.Done(); return nvml.Answer{} })
		b.after(2 * time.Minute)
		a.Reload()
		b.after(time.Second)
		b.want(s.set(), "feature.node.kubernetes.io/pci-0200_15b3.present=true", a100Labels, stateOK)
	})
}

func TestUUIDsAreNotLogged(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		g := gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB")
		cluster := "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"
		g.Fabric = &nvml.Fabric{State: nvml.FabricCompleted, Status: nvml.Success, ClusterUUID: cluster, CliqueID: 1}
		b.good(g)
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(time.Minute)
		b.bad(nvml.Answer{Failure: &nvml.Failure{Kind: nvml.Crash, Text: "the NVML child process ended with exit status 2 (" + g.UUID + ")"}})
		b.after(time.Hour)
		b.want(s.set(), "nvidia.com/gpu.clique="+cluster+".1")
		b.wantLog(0, cluster)
		b.wantLog(0, strings.TrimPrefix(g.UUID, "GPU-"))
		b.wantLog(1, "exit status 2")
	})
}

func TestProblemsAreLoggedOnce(t *testing.T) {
	virtual(t, oneA100, func(b *bench) {
		s := &telling{sink{name: "s"}}
		b.start(nil, s)
		b.after(5 * time.Minute)
		n := 0
		b.answers(func(context.Context) nvml.Answer {
			n++
			return nvml.Answer{Failure: &nvml.Failure{Kind: nvml.Stuck, Text: fmt.Sprintf("the NVML child process %d was killed and has still not ended: the driver holds it", n)}}
		})
		b.after(24 * time.Hour)
		b.wantLog(1, "level=WARN")
		b.good(gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"))
		b.after(24 * time.Hour)
		b.wantLog(1, "no longer: ")
		b.wantLog(3, "labels published") // all, timeout, ok
		b.wantLog(1, "changedLabels=\"[gpu.feature.node.kubernetes.io/state=timeout (was ok)]\"")
		b.wantLog(0, "gpu.feature.node.kubernetes.io/count=") // one of many
	})
}

func TestZeroConfig(t *testing.T) {
	c := New(Config{}).config
	if c.Interval != 10*time.Minute || c.Poll != 2*time.Second || c.Resync != 10*time.Minute || c.Scan == nil || c.Fingerprint == nil || c.Logger == nil {
		t.Errorf("defaults are %+v", reflect.ValueOf(c).Interface())
	}
}

// Times without end are as good as very long ones.
func TestLongestTimes(t *testing.T) {
	a := New(Config{Interval: math.MaxInt64, ScanLimit: math.MaxInt64})
	if a.config.Resync != 10*time.Minute || a.config.readBackAfter() != 3*time.Minute {
		t.Errorf("resync %v, read back %v", a.config.Resync, a.config.readBackAfter())
	}
	a.due.set(time.Now().Add(time.Hour))
	if wrong := a.unhealthy(); wrong != "" {
		t.Error(wrong)
	}
}
