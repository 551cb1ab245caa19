package agent

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// TestAlertGPUFailed: the alert is for GPUs that fail while the driver works, and not
// for a driver that is missing or does not answer, though no GPU does then.
func TestAlertGPUFailed(t *testing.T) {
	rules, err := os.ReadFile("../manifests/chart/gpu-labeller/files/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	expr := regexp.MustCompile(`expr: gpu_labeller_gpus\{condition="failed"\} > 0 and on \(job, instance\) gpu_labeller_state\{state=~"([a-z|-]+)"\} == 1\n`).FindSubmatch(rules)
	if expr == nil {
		t.Fatal("the expression of GPULabellerGPUFailed is not as this test knows it")
	}
	states := strings.Split(string(expr[1]), "|")
	fires := func(values map[string]float64) bool {
		for _, state := range states {
			if values[`gpu_labeller_state{state="`+state+`"}`] == 1 {
				return values[`gpu_labeller_gpus{vendor="nvidia",condition="failed"}`] > 0
			}
		}
		return false
	}

	lost := nvml.GPU{Handle: nvml.GPUIsLost}
	one, two := gpu("0000:1f:00.0", "NVIDIA A100-SXM4-40GB"), gpu("0000:2f:00.0", "NVIDIA A100-SXM4-40GB")
	answers := func(a nvml.Answer) func(context.Context) nvml.Answer {
		return func(context.Context) nvml.Answer { return a }
	}
	gpus := func(all ...nvml.GPU) func(context.Context) nvml.Answer {
		for i := range all {
			all[i].Index = i
		}
		return answers(nvml.Answer{Init: nvml.Success, DriverVersion: "580.95.05", GPUs: all})
	}
	for name, c := range map[string]struct {
		nvml func(context.Context) nvml.Answer
		want bool
	}{
		"all is well":       {gpus(one, two), false},
		"one GPU is lost":   {gpus(one, lost), true},
		"all GPUs are lost": {gpus(lost, lost), true},
		"no library":        {answers(nvml.Answer{Init: nvml.LibraryNotFound}), false},
		"no driver":         {answers(nvml.Answer{Init: nvml.DriverNotLoaded}), false},
		"driver mismatch":   {answers(mismatch), false},
		"no permission":     {answers(nvml.Answer{Init: nvml.NoPermission}), false},
		"NVML hangs":        {hang, false},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t testing.TB) *machine {
				m := oneA100(t)
				m.function("0000:2f:00.0", a100, "nvidia")
				return m
			}, func(b *bench) {
				// From the start, when nothing of before is held; and after the GPUs had answered.
				b.answers(c.nvml)
				a := b.start(nil, &telling{sink{name: "s"}})
				b.after(10 * time.Minute)
				if got := fires(scrape(b, a)); got != c.want {
					b.Errorf("from the start: the alert fires: %v, want %v; %v", got, c.want, scrape(b, a))
				}
				b.answers(gpus(one, two))
				b.after(10 * time.Minute)
				if fires(scrape(b, a)) {
					b.Error("the alert fires while all GPUs answer")
				}
				b.answers(c.nvml)
				b.after(10 * time.Minute)
				if got := fires(scrape(b, a)); got != c.want {
					b.Errorf("later: the alert fires: %v, want %v; %v", got, c.want, scrape(b, a))
				}
			})
		})
	}
}
