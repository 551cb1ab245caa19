package doctor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfile"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// hostFiles are the recorded and made-up hosts, by name.
func hostFiles(t *testing.T) map[string]*hostfile.File {
	t.Helper()
	all, err := readHostFiles()
	if err != nil || len(all) == 0 {
		t.Fatalf("no hosts: %v", err)
	}
	return all
}

var readHostFiles = sync.OnceValues(func() (map[string]*hostfile.File, error) {
	paths, err := filepath.Glob("../testdata/hosts/*.txtar")
	all := map[string]*hostfile.File{}
	for _, path := range paths {
		f, err := hostfile.Read(context.Background(), path)
		if err != nil {
			return nil, err
		}
		all[strings.TrimSuffix(filepath.Base(path), ".txtar")] = f
	}
	return all, err
})

// healthy tells the hosts that --print finds nothing wrong with.
func healthy(f *hostfile.File) bool {
	_, exit := f.Files["want.exit"]
	return !exit && (strings.Contains(string(f.Files["want.labels"]), "/state=ok\n"))
}

// onHost is a Config for a host file, laid out in a folder of its own.
func onHost(t *testing.T, f *hostfile.File) Config {
	t.Helper()
	dir := t.TempDir()
	if err := f.Extract(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	answer := nvml.Answer{Init: nvml.LibraryNotFound, Detail: "no nvml.yaml"}
	if f.NVML != nil {
		answer = *f.NVML
	}
	return Config{
		Host: discover.Host{
			Root: hostfs.Root(dir), MachineFile: discover.DefaultMachineFile,
			NVML: func(context.Context) nvml.Answer { return answer },
		},
		Recorded: true,
		Labels:   labels.Options{OmitPCI: true},
	}
}

// put writes a file below the host's root.
func put(t *testing.T, c *Config, name, content string) {
	t.Helper()
	path := c.Host.Root.Path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// blamed lists what a report blames, as step/check.
func blamed(r *Report) []string {
	all := []string{}
	for _, s := range r.Steps {
		for _, c := range s.Faults() {
			all = append(all, s.Name+"/"+c.Name)
		}
	}
	return all
}

func find(t *testing.T, r *Report, name string) Check {
	t.Helper()
	for _, s := range r.Steps {
		for _, c := range s.Checks {
			if c.Name == name {
				return c
			}
		}
	}
	t.Fatalf("no check %s in %+v", name, r)
	return Check{}
}

// wantBlamed checks that a report blames exactly what is wrong, with evidence and
// cure, and that nothing else is a fault.
func wantBlamed(t *testing.T, r *Report, want ...string) {
	t.Helper()
	if got := blamed(r); !slices.Equal(got, want) && len(got)+len(want) > 0 {
		t.Errorf("blames %q, want %q", got, want)
		for _, s := range r.Steps {
			t.Logf("%d %s %s %s", s.Number, s.Name, s.Result, s.Note)
			for _, c := range s.Checks {
				t.Logf("   %s %s: %s %q cure: %s", c.Result, c.Name, c.Text, c.Evidence, c.Cure)
			}
		}
	}
	faults := 0
	for _, s := range r.Steps {
		for _, c := range s.Checks {
			if c.Text == "" {
				t.Errorf("%s: no text", c.Name)
			}
			if c.Result == Fault {
				faults++
				if len(c.Evidence) == 0 && !strings.Contains(c.Text, "/") && c.Name != "test-pod" {
					t.Logf("%s: no evidence", c.Name)
				}
				if c.Cure == "" {
					t.Errorf("%s: a fault without a cure: %s", c.Name, c.Text)
				}
			}
		}
	}
	if faults != len(want) {
		t.Errorf("%d faults, want %d", faults, len(want))
	}
}

// unbind takes the kernel drivers off all PCI functions of a host.
func unbind(t *testing.T, c *Config) {
	t.Helper()
	names, err := c.Host.Root.ReadDir("sys/bus/pci/devices")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.Remove(c.Host.Root.Path("sys/bus/pci/devices", name, "driver")); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}
