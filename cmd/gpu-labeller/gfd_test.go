package main

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// TestGFDHosts runs the command under GFD's name on every host on which GFD was
// run: it prints what GFD does, byte for byte, but for the order.
func TestGFDHosts(t *testing.T) {
	files, err := filepath.Glob("../../testdata/hosts/gfd-*.txtar")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d hosts: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			section := map[string]string{}
			for _, f := range archive.Files {
				section[f.Name] = string(f.Data)
			}
			root, err := extract(t.Context(), file)
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(root)
			args := []string{"--oneshot", "--no-timestamp", "-o", "", "--use-node-feature-api=false", "--root", root}
			args = append(args, strings.Fields(section["args"])...)
			if text, ok := section["config.yaml"]; ok {
				config := filepath.Join(t.TempDir(), "config.yaml")
				if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--config-file", config)
			}
			var stdout, stderr bytes.Buffer
			if code := runGFD(args, &stdout, &stderr); code != 0 {
				t.Fatalf("exit code %d\n%s", code, &stderr)
			}
			want := slices.Sorted(strings.Lines(section["gfd.labels"]))
			got := slices.Collect(strings.Lines(stdout.String()))
			if !slices.IsSorted(got) {
				t.Error("not sorted")
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("labels differ from GFD's:\n%s", diff(want, got))
			}
		})
	}
}

// TestGFDKeysOnly: whatever GPUs a node has, and whatever becomes of them, under
// GFD's name there are keys of nvidia.com/ and no others.
func TestGFDKeysOnly(t *testing.T) {
	files, _ := filepath.Glob("../../testdata/hosts/*.txtar")
	for _, file := range files {
		root, err := extract(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		runGFD([]string{"--oneshot", "-o", "", "--use-node-feature-api=false", "--fail-on-init-error=false", "--root", root}, &stdout, &stderr)
		os.RemoveAll(root)
		for line := range strings.Lines(stdout.String()) {
			if !strings.HasPrefix(line, "nvidia.com/") {
				t.Errorf("%s: %s", file, line)
			}
		}
	}
}

// TestGFDHeld: while the configuration file cannot be read, what it decides stays
// as it was published, and is never guessed.
func TestGFDHeld(t *testing.T) {
	set := labels.Set{
		"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none",
		"nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "143771", "nvidia.com/gpu.family": "hopper",
		"nvidia.com/mps.capable": "false", "nvidia.com/mig.capable": "true",
	}
	shared := labels.Set{
		"nvidia.com/gpu.product": "NVIDIA-H200-SHARED", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing",
		"nvidia.com/gpu.count": "7", "nvidia.com/gpu.memory": "143771", "nvidia.com/gpu.family": "hopper",
		"nvidia.com/mps.capable": "false", "nvidia.com/mig.capable": "true", "nvidia.com/mig-1g.18gb.count": "3",
		"nvidia.com/cuda.driver.major": "550",
	}
	tests := []struct {
		name     string
		strategy bool // given on the command line or in the environment
		was, set labels.Set
		want     labels.Set
	}{
		{"a new node", true, nil, set, labels.Set{
			"nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "143771", "nvidia.com/gpu.family": "hopper", "nvidia.com/mig.capable": "true",
		}},
		{"a new node, and the MIG strategy is the file's", false, nil, set, labels.Set{
			"nvidia.com/gpu.family": "hopper", "nvidia.com/mig.capable": "true",
		}},
		{"a node with labels", true, shared, set, labels.Set{
			"nvidia.com/gpu.product": "NVIDIA-H200-SHARED", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing",
			"nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "143771", "nvidia.com/gpu.family": "hopper",
			"nvidia.com/mps.capable": "false", "nvidia.com/mig.capable": "true",
		}},
		{"a node with labels, and the MIG strategy is the file's", false, shared, set, labels.Set{
			"nvidia.com/gpu.product": "NVIDIA-H200-SHARED", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing",
			"nvidia.com/gpu.count": "7", "nvidia.com/gpu.memory": "143771", "nvidia.com/gpu.family": "hopper",
			"nvidia.com/mps.capable": "false", "nvidia.com/mig.capable": "true", "nvidia.com/mig-1g.18gb.count": "3",
		}},
		{"the GPUs are gone", true, shared, labels.Set{}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "gfd")
			if test.was != nil { // as GFD writes it
				var b bytes.Buffer
				_, _ = test.was.WriteTo(&b)
				if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			s := &gfdSettings{gfdFlags: gfdFlags{outputFile: file, given: map[string]bool{"mig-strategy": test.strategy}}, unread: true}
			out, err := s.open(nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := out.sink.Publish(context.Background(), test.set); err != nil {
				t.Fatal(err)
			}
			got, err := (&publish.FeatureFile{Path: file}).Published(context.Background())
			if err != nil || !maps.Equal(got, test.want) {
				t.Errorf("%v, %v\nwant %v", got, err, test.want)
			}
		})
	}
}

func TestGFDStdout(t *testing.T) {
	var b bytes.Buffer
	s := &gfdStdout{w: &b}
	for _, set := range []labels.Set{{}, {"b": "1", "a": "2"}, {"b": "1", "a": "2"}, {"a": "3"}} {
		if err := s.Publish(context.Background(), set); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := b.String(), "a=2\nb=1\na=3\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestScanNVIDIA: of other vendors' GPUs GFD says nothing, and so nothing that is
// wrong with them.
func TestScanNVIDIA(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"0000:03:00.0/class": "0x120000", "0000:03:00.0/vendor": "0x1002", "0000:03:00.0/device": "0x740f", "0000:03:00.0/revision": "0x02", "0000:03:00.0/mem_info_vram_total": "much",
		"0000:04:00.0/class": "0x038000", "0000:04:00.0/vendor": "0x8086", "0000:04:00.0/device": "0x0bd5", "0000:04:00.0/revision": "0x02", "0000:04:00.0/drm/card0/lmem_total_bytes": "much",
	} {
		path := filepath.Join(root, "sys/bus/pci/devices", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for address, driver := range map[string]string{"0000:03:00.0": "amdgpu", "0000:04:00.0": "i915"} {
		if err := os.Symlink("../../../bus/pci/drivers/"+driver, filepath.Join(root, "sys/bus/pci/devices", address, "driver")); err != nil {
			t.Fatal(err)
		}
	}
	host := discover.Host{Root: hostfs.Root(root)}
	all, err := discover.Scan(t.Context(), host)
	if err != nil || len(all.GPUs) != 2 || len(all.Problems) != 2 {
		t.Fatalf("%d GPUs, problems %v, %v", len(all.GPUs), all.Problems, err)
	}
	inv, err := scanNVIDIA(t.Context(), host)
	if err != nil || len(inv.GPUs) != 0 || len(inv.Problems) != 0 {
		t.Errorf("%d GPUs, problems %v, %v", len(inv.GPUs), inv.Problems, err)
	}
}
