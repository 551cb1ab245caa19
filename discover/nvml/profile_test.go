package nvml

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-labeller/gpu-labeller/internal/standin"
)

// The profiles are go-nvlib's, for every pair of a GPU instance's and a compute
// instance's profile, and in whatever order they come.
func TestProfilesAreAsGoNVLibHasThem(t *testing.T) {
	var text strings.Builder
	text.WriteString("driver 580.95.05\ncuda 13000\n")
	const gpuProfiles, computeProfiles = 18, 9
	for i, mem := range []int{40960, 143771} {
		fmt.Fprintf(&text, "gpu bus=00000000:%02x:00.0 dev=0x233510de name=NVIDIA~H200 mem=%d cc=9.0 mig=1\n", 0x10+i, mem)
	}
	n := 0
	for _, order := range []int{1, -1} {
		for i := range gpuProfiles * computeProfiles {
			k := i
			if order < 0 {
				k = gpuProfiles*computeProfiles - 1 - i
			}
			n++
			fmt.Fprintf(&text, "mig gpu=%d gi=%d ci=0 gprof=%d cprof=%d slices=1 cslices=1 sm=14 mem=%d ce=1\n", (1-order)/2, n, k/computeProfiles, k%computeProfiles, 4864*(1+k%4))
		}
	}
	root := standin.DriverRoot(t, text.String())
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(root, "usr", "lib64", "libnvidia-ml.so.1")))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	devices := device.New(lib)
	p := prober{lib: lib, profiles: devices}
	names := map[string]bool{}
	for i := range 2 {
		h, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		memory, _ := h.GetMemoryInfo()
		known := profileTable{gpu: h, memory: memory.Total}
		for j := range gpuProfiles * computeProfiles {
			d, ret := h.GetMigDeviceHandleByIndex(j)
			if ret != nvml.SUCCESS {
				t.Fatal(j, ret)
			}
			theirs, err := devices.NewMigDevice(d)
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			if profile, err := theirs.GetProfile(); err == nil {
				want = profile.String()
			}
			got, code := p.migDevice(d, &known)
			if got.Profile != want || (want == "") != (code != Success) {
				t.Errorf("GPU %d, MIG device %d: %q (%s), go-nvlib has %q", i, j, got.Profile, code, want)
			}
			names[got.Profile] = true
		}
	}
	if len(names) < 30 {
		t.Errorf("only %d profiles were compared", len(names))
	}
}

// What a scan asks of a driver grows with the MIG devices, each of which costs
// some calls, and not with the profiles that there could be.
func TestCallsGrowWithMIGDevices(t *testing.T) {
	// The last profiles, for which all others are asked about first.
	last := strings.NewReplacer("gprof=0", "gprof=9", "cprof=0", "cprof=7")
	calls := func(gpus int) int {
		log := filepath.Join(t.TempDir(), "calls")
		p := Prober{DriverRoot: standin.DriverRoot(t, "log "+log+"\n"+last.Replace(partitioned(gpus))), Timeout: 20 * time.Second}
		mustAnswer(t, p.Ask(context.Background()))
		content, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(content, []byte("\n"))
	}
	one, two, sixteen := calls(1), calls(2), calls(16)
	t.Logf("calls for 7, 14 and 112 MIG devices: %d, %d, %d", one, two, sixteen)
	// Each pair of GPUs is one call more.
	if each := two - one; each > 100 || sixteen > one+15*each+16*15/2 {
		t.Errorf("%d calls for 7 MIG devices, %d for 14, %d for 112", one, two, sixteen)
	}
}
