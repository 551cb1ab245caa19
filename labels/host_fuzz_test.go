package labels

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfile"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// FuzzHost goes all the way from the files of a host and what NVML says there to
// its labels: they are legal, and the same the second time.
func FuzzHost(f *testing.F) {
	hosts, err := filepath.Glob("../testdata/hosts/*.txtar")
	if err != nil || len(hosts) == 0 {
		f.Fatal("no hosts", err)
	}
	for _, name := range hosts {
		if text, err := os.ReadFile(name); err == nil && len(text) < 3<<10 {
			f.Add(text, uint8(0))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, how uint8) {
		file, err := hostfile.Parse(text)
		if err != nil {
			return
		}
		dir := t.TempDir()
		if err := file.Extract(t.Context(), dir); err != nil {
			return
		}
		host := discover.Host{Root: hostfs.Root(dir), MachineFile: discover.DefaultMachineFile}
		if file.NVML != nil {
			host.NVML = func(context.Context) nvml.Answer { return *file.NVML }
		}
		opts := Options{
			MIGStrategy:   []MIGStrategy{MIGNone, MIGSingle, MIGMixed}[how%3],
			MixedGPUs:     []MixedGPUs{Majority, Omit}[how/3%2],
			UnifiedMemory: []UnifiedMemory{UnifiedNone, UnifiedSystem, UnifiedSystemGiB}[how/6%3],
			AMDBeta:       how/18%2 == 1,
		}
		scan := func() Set {
			inv, err := discover.Scan(t.Context(), host)
			if inv == nil {
				if err == nil {
					t.Fatal("neither an inventory nor an error")
				}
				return Set{}
			}
			set, _ := Compute(inv, opts)
			return set
		}
		set := scan()
		for key, value := range set {
			if wrong := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(wrong) > 0 {
				t.Errorf("%s=%s: %v", key, value, wrong)
			}
			if err := documented(key, value); err != nil {
				t.Error(err)
			}
		}
		if again := scan(); !maps.Equal(again, set) {
			t.Errorf("first\n%v\nthen\n%v", set, again)
		}
	})
}
