package discover

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// tree writes files below a new folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func t4(address string) map[string]string {
	dir := "sys/bus/pci/devices/" + address + "/"
	return map[string]string{
		dir + "class": "0x030200\n", dir + "vendor": "0x10de\n", dir + "device": "0x1eb8\n",
		dir + "revision": "0xa1\n", dir + "config": strings.Repeat("\x00", 64),
	}
}

func scan(t *testing.T, root string, answer nvml.Answer) (*Inventory, error) {
	t.Helper()
	return Scan(context.Background(), Host{
		Root:        hostfs.Root(root),
		MachineFile: DefaultMachineFile,
		NVML:        func(context.Context) nvml.Answer { return answer },
	})
}

var noLibrary = nvml.Answer{Init: nvml.LibraryNotFound}

func TestUnreadableBusIsNotNoGPU(t *testing.T) {
	inv, err := scan(t, t.TempDir(), noLibrary)
	if !errors.Is(err, fs.ErrNotExist) || len(inv.Problems) == 0 {
		t.Errorf("error %v, problems %v", err, inv.Problems)
	}
}

// What NVML says counts even where the bus cannot be read.
func TestUnreadableBusKeepsNVML(t *testing.T) {
	answer := nvml.Answer{Init: nvml.Success, GPUs: []nvml.GPU{{Name: "Tesla T4", MemoryBytes: 1 << 30}}}
	inv, err := scan(t, t.TempDir(), answer)
	if err == nil || len(inv.GPUs) != 1 || inv.GPUs[0].Condition != Usable {
		t.Errorf("error %v, GPUs %+v", err, inv.GPUs)
	}
}

// Whatever stands in a file's place, the rest is found, and there is a problem
// that names it.
func TestHostileFiles(t *testing.T) {
	tests := []struct {
		name, file, want string
		make             func(path string) error
	}{
		{"10 MB machine name", "sys/class/dmi/id/product_name", "machine name: reading /sys/class/dmi/id/product_name: longer than", func(path string) error {
			return os.WriteFile(path, make([]byte, 10<<20), 0o644)
		}},
		{"FIFO for a machine name", "sys/class/dmi/id/product_name", "machine name: reading /sys/class/dmi/id/product_name: not a regular file", func(path string) error {
			return unix.Mkfifo(path, 0o644)
		}},
		{"link loop for a machine name", "sys/class/dmi/id/product_name", "too many levels of symbolic links", func(path string) error {
			return os.Symlink("product_name", path)
		}},
		{"garbage for a driver version", "proc/driver/nvidia/version", "/proc/driver/nvidia/version: no line NVRM version", func(path string) error {
			return os.WriteFile(path, []byte("\x00\xff\xfe"), 0o644)
		}},
		{"endless driver version", "proc/driver/nvidia/version", "/proc/driver/nvidia/version: longer than", func(path string) error {
			return os.WriteFile(path, make([]byte, 1<<20), 0o644)
		}},
		{"folder for meminfo", "proc/meminfo", "/proc/meminfo: not a regular file", func(path string) error {
			return os.Mkdir(path, 0o755)
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := tree(t, t4("0000:01:00.0"))
			path := filepath.Join(root, test.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := test.make(path); err != nil {
				t.Fatal(err)
			}
			inv, err := scan(t, root, noLibrary)
			if err != nil || len(inv.GPUs) != 1 {
				t.Fatalf("error %v, GPUs %+v", err, inv.GPUs)
			}
			found := false
			for _, p := range inv.Problems {
				found = found || strings.Contains(p.Text, test.want)
			}
			if !found {
				t.Errorf("problems %v, want one with %q", inv.Problems, test.want)
			}
		})
	}
}

// A number that no GPU's memory has is none.
func TestTooMuchMemory(t *testing.T) {
	answer := nvml.Answer{Init: nvml.Success, GPUs: []nvml.GPU{{Name: "a", MemoryBytes: 1 << 63}, {Index: 1, Name: "b", MemoryBytes: 1 << 34}}}
	for range 2 {
		inv, _ := scan(t, t.TempDir(), answer)
		problems := 0
		for _, p := range inv.Problems {
			if strings.Contains(p.Text, "memory_bytes: 9223372036854775808 is more than any GPU has") {
				problems++
			}
		}
		if problems != 1 {
			t.Errorf("problems %v", inv.Problems)
		}
		for _, g := range inv.GPUs {
			if want := answer.GPUs[g.NVML.Index].MemoryBytes & (1<<50 - 1); g.MemoryBytes != want || g.NVML.MemoryBytes != want || g.Condition != Usable {
				t.Errorf("GPU %s: memory %d, %s", g.Product, g.MemoryBytes, g.Condition)
			}
		}
	}
}

func TestParseMemTotal(t *testing.T) {
	tests := []struct {
		text string
		want uint64
		bad  bool
	}{
		{text: "MemTotal:       127600748 kB\nMemFree: 1 kB\n", want: 124610},
		{text: "MemFree: 1 kB\nMemTotal: 2048 kB\n", want: 2},
		{text: "MemTotal: 2048 MB\n", bad: true},
		{text: "MemTotal: many kB\n", bad: true},
		{text: "", bad: true},
	}
	for _, test := range tests {
		got, err := parseMemTotal([]byte(test.text))
		if got != test.want || (err != nil) != test.bad {
			t.Errorf("%q: %d, %v", test.text, got, err)
		}
	}
}

func TestParseDriverVersion(t *testing.T) {
	tests := []struct{ text, want string }{
		{"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\nGCC version:  gcc 11\n", "535.54.03"},
		{"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@y)\n", "580.159.04"},
		{"NVRM version: NVIDIA UNIX Kernel Module  470.57  Mon\n", "470.57"},
		{"NVRM version: NVIDIA UNIX x86_64 Kernel Module\n", ""},
		{"GCC version: 11.1\n", ""},
		{"", ""},
	}
	for _, test := range tests {
		got, err := parseDriverVersion([]byte(test.text))
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%q: %q, %v", test.text, got, err)
		}
	}
}

func FuzzParseMemTotal(f *testing.F) {
	f.Add([]byte("MemTotal:       127600748 kB\n"))
	f.Add([]byte("MemTotal: -1 kB"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if n, err := parseMemTotal(text); err != nil && n != 0 {
			t.Errorf("%d with error %v", n, err)
		}
	})
}

func FuzzParseDriverVersion(f *testing.F) {
	f.Add([]byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6\n"))
	f.Add([]byte("NVRM version:\n535.54.03"))
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := parseDriverVersion(text)
		if err == nil && !driverVersion.MatchString(v) {
			t.Errorf("version %q", v)
		}
	})
}
