package hostfile

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

const hosts = "../../testdata/hosts"

func TestParseErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"link without target", "symlink sys/a\n", "want symlink PATH -> TARGET"},
		{"link outside sys and proc", "symlink etc/a -> b\n", "below sys or proc"},
		{"link above the root", "symlink sys/../../a -> b\n", "below sys or proc"},
		{"absolute target", "symlink sys/a -> /etc\n", "outside the host"},
		{"target above the root", "symlink sys/a -> ../../etc\n", "outside the host"},
		{"folder outside", "dir etc\n", "below sys or proc"},
		{"no hexadecimal", "-- sys/a.hex --\nzz\n", "sys/a.hex"},
		{"the same file twice", "-- sys/a --\n-- sys/a --\n", "sys/a stands there twice"},
		{"the same file twice, once in hexadecimal", "-- sys/a --\n-- sys/a.hex --\n00\n", "sys/a stands there twice"},
		{"nvml.yaml is not YAML", "-- nvml.yaml --\n\t{\n", "nvml.yaml"},
		{"nvml.yaml with a typing error", "-- nvml.yaml --\ninit: SUCCESS\ngpu: []\n", `unknown field "gpu"`},
		{"nvml.yaml with a bad address", "-- nvml.yaml --\ngpus: [{index: 0, pci_address: x}]\n", "parsing PCI address"},
		{"nvml.yaml with keys that are no text", "-- nvml.yaml --\n1: 2\n", "nvml.yaml"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// Links that are each inside may lead out together.
func TestExtractStaysInside(t *testing.T) {
	f, err := Parse([]byte("symlink sys/p/q -> ../../sys\nsymlink sys/a -> p/q/../../etc\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Extract(t.TempDir()); err == nil {
		t.Error("extracted")
	}
}

func TestExtractIgnoresOtherFiles(t *testing.T) {
	f, err := Parse([]byte("a comment\n-- want.labels --\na=b\n-- ../evil --\nx\n-- /etc/evil --\nx\n-- sys/../evil --\nx\n-- proc/version --\nLinux\n"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := f.Extract(dir); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 1 || entries[0].Name() != "proc" {
		t.Errorf("extracted %v", entries)
	}
	if f.Comment != "a comment\n" {
		t.Errorf("comment %q", f.Comment)
	}
}

// Every host reads the same after it has been written.
func TestFormat(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(hosts, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatal("no hosts", err)
	}
	for _, name := range files {
		f, err := Read(name)
		if err != nil {
			t.Error(err)
			continue
		}
		text, err := f.Format()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		again, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !reflect.DeepEqual(f, again) {
			t.Errorf("%s reads otherwise once written", name)
		}
	}
}

// A scan of what was recorded finds what the scan of the host found.
func TestRecord(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(hosts, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatal("no hosts", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			original, err := Read(name)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := original.Extract(dir); err != nil {
				t.Fatal(err)
			}
			host := hostIn(dir, original.NVML)
			recorded, err := Record(host, original.NVML)
			if err != nil {
				t.Fatal(err)
			}
			copied := t.TempDir()
			if err := recorded.Extract(copied); err != nil {
				t.Fatal(err)
			}
			want, err := discover.Scan(context.Background(), host)
			if err != nil {
				t.Fatal(err)
			}
			got, err := discover.Scan(context.Background(), hostIn(copied, recorded.NVML))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("recorded:\n%+v\nhost:\n%+v", got, want)
			}
		})
	}
}

func hostIn(dir string, answer *nvml.Answer) discover.Host {
	h := discover.Host{Root: hostfs.Root(dir), MachineFile: discover.DefaultMachineFile, Class: func(uint32) bool { return true }}
	if answer != nil {
		h.NVML = func(context.Context) nvml.Answer { return *answer }
	}
	return h
}

func TestRecordHidesUUIDs(t *testing.T) {
	a := &nvml.Answer{Init: nvml.Success, GPUs: []nvml.GPU{{UUID: "GPU-deadbeef"}, {Index: 1}}}
	f, err := Record(discover.Host{Root: hostfs.Root(t.TempDir())}, a)
	if err != nil {
		t.Fatal(err)
	}
	text, err := f.Format()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("deadbeef")) || !bytes.Contains(text, []byte("GPU-00000000-0000-0000-0000-000000000000")) {
		t.Errorf("recorded:\n%s", text)
	}
	if a.GPUs[0].UUID != "GPU-deadbeef" {
		t.Error("the answer itself was changed")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("symlink sys/a -> b\ndir sys/c\n-- nvml.yaml --\ninit: SUCCESS\ngpus:\n  - index: 0\n    name: x\n-- sys/b.hex --\n00ff\n"))
	f.Add([]byte("-- nvml.yaml --\nfailure: {kind: timeout, text: late}\n"))
	f.Add([]byte("symlink sys/a -> ../sys/b\n-- sys/b --\ntext\n"))
	f.Add([]byte("-- nvml.yaml --\na: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			return
		}
		text, err := file.Format()
		if err != nil {
			return // a name that no text can hold
		}
		if _, err := Parse(text); err != nil {
			t.Errorf("refuses what it wrote: %v\n%s", err, text)
		}
	})
}
