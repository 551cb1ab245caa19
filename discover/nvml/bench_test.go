package nvml

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/internal/standin"
)

// partitioned describes GPUs that are split into seven MIG devices each.
func partitioned(gpus int) string {
	var text strings.Builder
	text.WriteString("driver 550.107.02\ncuda 12050\n")
	for i := range gpus {
		fmt.Fprintf(&text, "gpu bus=00000000:%02x:00.0 dev=0x20b010de name=NVIDIA~A100-SXM4-40GB mem=40960 cc=8.0 mig=1\n", 0x10+i)
	}
	for i := range gpus {
		for gi := range 7 {
			fmt.Fprintf(&text, "mig gpu=%d gi=%d ci=0 gprof=0 cprof=0 slices=1 cslices=1 sm=14 mem=4864 ce=1\n", i, 7+gi)
		}
	}
	return text.String()
}

// BenchmarkAsk asks a library in a child process; what a driver takes is not in
// it.
func BenchmarkAsk(b *testing.B) {
	for _, gpus := range []int{1, 4, 8, 16} {
		b.Run(fmt.Sprintf("%d MIG devices", 7*gpus), func(b *testing.B) {
			p := Prober{DriverRoot: standin.DriverRoot(b, partitioned(gpus)), Timeout: 20 * time.Second}
			for b.Loop() {
				a := p.Ask(context.Background())
				if a.Failure != nil || a.Init != Success || len(a.GPUs) != gpus || len(a.GPUs[gpus-1].MIG.Devices) != 7 {
					b.Fatalf("%+v", a)
				}
			}
		})
	}
}
