package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/dra"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

func TestDiffCompared(t *testing.T) {
	tests := map[string]bool{
		"nvidia.com/gpu.product":                true,
		"nvidia.com/gpu.future-key":             true, // what a newer GFD may publish
		"nvidia.com/mig-1g.5gb.count":           true,
		"nvidia.com/mig.strategy":               true,
		"nvidia.com/cuda.driver.major":          true,
		"nvidia.com/vgpu.present":               true,
		"nvidia.com/mps.capable":                true,
		"nvidia.com/gfd.timestamp":              false,
		"nvidia.com/gpu.deploy.driver":          false,
		"nvidia.com/gpu.present":                false,
		"nvidia.com/gpu.workload.config":        false,
		"nvidia.com/gpu-driver-upgrade-state":   false,
		"nvidia.com/mig.config":                 false,
		"nvidia.com/mig.config.state":           false,
		"nvidia.com/vgpu.config.state":          false,
		"nvidia.com/device-plugin.config":       false,
		"feature.node.kubernetes.io/cpu-cpuid":  false,
		"gpu.feature.node.kubernetes.io/state":  false,
		"kubernetes.io/hostname":                false,
		"nvidia.com/gdrcopy.capable":            false,
		"feature.node.kubernetes.io/pci-10de.x": false,
	}
	for key, want := range tests {
		if got := (&diffFlags{gfd: true}).compared(key, nil, labelSource{}); got != want {
			t.Errorf("%s: %v, want %v", key, got, want)
		}
	}
	// Without --gfd: what would be published, and what is known to be ours.
	here := labels.Set{"feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/gfd.timestamp": "1", "amd.com/gpu.count": "8"}
	for key, want := range map[string]bool{
		"nvidia.com/gpu.product":                      true,
		"nvidia.com/gpu.future-key":                   true,
		"nvidia.com/gpu.deploy.driver":                false,
		"nvidia.com/gpu.present":                      false,
		"nvidia.com/gfd.timestamp":                    false,
		"gpu.feature.node.kubernetes.io/state":        true,
		"amd.com/gpu.count":                           true,
		"amd.com/gpu.family":                          true,
		"kubernetes.io/hostname":                      false,
		"feature.node.kubernetes.io/pci-10de.present": true,
		"feature.node.kubernetes.io/pci-8086.present": false, // NFD's
	} {
		if got := new(diffFlags).compared(key, here, labelSource{pci: true}); got != want {
			t.Errorf("all: %s: %v, want %v", key, got, want)
		}
	}
	if new(diffFlags).compared("feature.node.kubernetes.io/pci-10de.present", here, labelSource{}) {
		t.Error("NFD sees to PCI labels")
	}
}

// TestCompareDRAWithMIG: in static MIG a GPU that is split is listed by its MIG
// devices only, and none of them tells the whole GPU's memory.
func TestCompareDRAWithMIG(t *testing.T) {
	device := func(memoryMiB string, attributes ...string) dra.Device {
		d := dra.Device{Attributes: map[string]dra.Attribute{"productName": {String: "NVIDIA H100"}}, Capacity: map[string]dra.Capacity{"memory": {Value: memoryMiB}}}
		for _, a := range attributes {
			name, value, _ := strings.Cut(a, "=")
			d.Attributes[name] = dra.Attribute{String: value}
		}
		return d
	}
	gpu := func(index int, profiles ...string) discover.GPU {
		g := &nvml.GPU{Index: index, Name: "NVIDIA H100", MIG: &nvml.MIG{Enabled: len(profiles) > 0}}
		for _, p := range profiles {
			g.MIG.Devices = append(g.MIG.Devices, nvml.MIGDevice{Profile: p})
		}
		return discover.GPU{Vendor: discover.NVIDIA, Condition: discover.Usable, Product: "NVIDIA H100", NVML: g, MemoryBytes: 80 << 30}
	}
	inv := &discover.Inventory{GPUs: []discover.GPU{gpu(0, "1g.10gb", "1g.10gb", "1g.10gb+me"), gpu(1, "3g.40gb")}}
	static := []dra.Device{
		device("9728Mi", "type=mig", "uuid=MIG-1", "parentUUID=GPU-0", "profile=1g.10gb"),
		device("9728Mi", "type=mig", "uuid=MIG-2", "parentUUID=GPU-0", "profile=1g.10gb"),
		device("9728Mi", "type=mig", "uuid=MIG-3", "parentUUID=GPU-0", "profile=1g.10gb+me"),
		device("40192Mi", "type=mig", "uuid=MIG-4", "parentUUID=GPU-1", "profile=3g.40gb"),
	}
	for _, r := range compareDRA(inv, static) {
		if r.Verdict != isSame {
			t.Errorf("%s: %v", r.Key, r.Verdict)
		}
	}
	rows := compareDRA(inv, static[1:])
	differ := 0
	for _, r := range rows {
		if r.Verdict != isSame {
			differ++
			if r.Key != "nvidia.com/mig-1g.10gb.count" || *r.Here != "2" || *r.There != "1" {
				t.Errorf("%s: %v", r.Key, r.Verdict)
			}
		}
	}
	if differ != 1 || len(rows) != 5 { // product, count, three profiles
		t.Errorf("%d of %d rows differ, want 1 of 5", differ, len(rows))
	}
	// Dynamic MIG lists each device that could be made.
	dynamic := []dra.Device{device("80Gi", "type=gpu", "uuid=GPU-0"), device("80Gi", "type=gpu", "uuid=GPU-1"), device("10Gi", "type=mig", "profile=7g.80gb")}
	for _, r := range compareDRA(inv, dynamic) {
		if strings.Contains(r.Key, "mig-") || strings.HasSuffix(r.Key, ".count") && r.Verdict != isSame {
			t.Errorf("dynamic MIG: %s: %v", r.Key, r.Verdict)
		}
	}
}

func FuzzLabelsIn(f *testing.F) {
	f.Add([]byte("a=b\n"), "")
	f.Add([]byte(`{"kind": "Node", "metadata": {"name": "a", "labels": {"a": "b"}}}`), "a")
	f.Add([]byte(`{"kind": "List", "items": [{"kind": "Node"}, {"kind": "ResourceSlice", "spec": {"driver": "gpu.nvidia.com", "devices": [{}]}}]}`), "")
	f.Add([]byte("# a=b\n =c\nd e=f\ng=h=i\r\n"), "")
	f.Add([]byte("kind: NodeFeature\nmetadata: {name: gpu-labeller-features-for-a}\nspec: {labels: {a: b}}\n"), "a")
	f.Fuzz(func(t *testing.T, content []byte, name string) {
		source, err := labelsIn(content, name)
		switch {
		case err != nil && (source.set != nil || source.name != "" || err.Error() == ""):
			t.Errorf("%+v, and error %q", source, err)
		case err == nil && source.name == "": // lines
			if len(source.set) == 0 {
				t.Error("no lines, and no error")
			}
			for key, value := range source.set {
				if key == "" || strings.ContainsAny(key, "= \t\n") || strings.HasPrefix(key, "#") || !bytes.Contains(content, []byte(key+"="+value)) {
					t.Errorf("label %q=%q", key, value)
				}
			}
		case err == nil && name != "" && !strings.HasSuffix(source.name, name):
			t.Errorf("%s was read, and %q named", source.name, name)
		}
		if all, err := dra.Parse(content); err == nil {
			compareDRA(&discover.Inventory{}, dra.Devices(all, dra.NVIDIA))
		}
	})
}

// A FIFO that nobody writes to is empty.
func TestDiffFIFO(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	p := command(t, "diff", "--root", t.TempDir(), fifo)
	select {
	case <-begin(t, p):
		if code := p.cmd.ProcessState.ExitCode(); code != exitUsage {
			t.Errorf("it ends with %d\n%s", code, p)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for a writer")
	}
	content := "nvidia.com/gpu.count=8\n"
	read, write, err := os.Pipe() // as of <(…) in a shell
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	go func() {
		time.Sleep(100 * time.Millisecond)
		_, _ = write.WriteString(content)
		_ = write.Close()
	}()
	if got, err := readInput(nil, fmt.Sprintf("/proc/self/fd/%d", read.Fd())); err != nil || string(got) != content {
		t.Errorf("read %q: %v", got, err)
	}
}

func TestWriteYAML(t *testing.T) {
	in := map[string]string{"a": "x\u202ey\u009bz\x7f\U000e0001é<\n", "b\u202e": "é", "c": "1"}
	var out bytes.Buffer
	if err := writeYAML(&out, in); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }) {
		t.Errorf("got %q", out.String())
	}
	var back map[string]string
	if err := yaml.Unmarshal(out.Bytes(), &back); err != nil || !maps.Equal(back, in) {
		t.Errorf("read back %q, %v, from %s", back, err, out.String())
	}
}
