package agent

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
)

// eightGPUs is a host of 8 GPUs, each with 7 MIG devices, and 100 other
// functions.
func eightGPUs(t testing.TB) *machine {
	m := newMachine(t)
	m.loadDriver("580.95.05")
	for i := range 8 {
		m.function(fmt.Sprintf("0000:%02x:00.0", 0x40+i), a100, "nvidia")
		m.mkdir(fmt.Sprintf("proc/driver/nvidia/gpus/0000:%02x:00.0", 0x40+i))
		for j := range 7 {
			m.mkdir(fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig/gi%d/ci0", i, j+7))
		}
	}
	for i := range 100 {
		m.function(fmt.Sprintf("0001:%02x:00.0", i), nic, "mlx5_core")
	}
	return m
}

func TestFingerprint(t *testing.T) {
	m := eightGPUs(t)
	m.function("0000:60:00.0", mi3, "amdgpu")
	device := "sys/bus/pci/devices/0000:60:00.0/"
	m.write(device+"current_compute_partition", "SPX\n")
	m.write(device+"current_memory_partition", "NPS1\n")
	f := NewFingerprinter(hostfs.Root(m.root))
	take := func() Fingerprint {
		t.Helper()
		p, err := f.Take()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	last := take()
	if again := take(); again != last {
		t.Errorf("an unchanged host has fingerprints %v and %v", last, again)
	}
	if fresh, err := NewFingerprinter(hostfs.Root(m.root)).Take(); err != nil || fresh == last {
		t.Errorf("two have the same seed: %v", err)
	}
	for _, step := range []struct {
		what   string
		change func()
		parts  string
	}{
		{"a NIC goes", func() { m.unplug("0001:05:00.0") }, ""},
		{"a GPU goes", func() { m.unplug("0000:47:00.0") }, "PCI"},
		{"a GPU comes", func() { m.function("0000:47:00.0", a100, "") }, "PCI"},
		{"its driver is bound", func() {
			m.check(os.Symlink("../../../bus/pci/drivers/nvidia", m.path("sys/bus/pci/devices/0000:47:00.0/driver")))
		}, "PCI"},
		{"a BMC's graphics come", func() { m.function("0000:02:00.0", bmc, "ast") }, "PCI"},
		{"NVIDIA's audio function comes", func() { m.function("0000:47:00.1", "10de:1aef:040300", "snd_hda_intel") }, "PCI"},
		{"a function cannot be read", func() { m.mkdir("sys/bus/pci/devices/0002:00:00.0") }, ""},
		{"it can now", func() {
			m.write("sys/bus/pci/devices/0002:00:00.0/vendor", "0x10de\n")
			m.write("sys/bus/pci/devices/0002:00:00.0/class", "0x030200\n")
		}, "PCI"},
		{"a GPU falls off the bus", func() { m.write("sys/bus/pci/devices/0000:46:00.0/config", strings.Repeat("\xff", 64)) }, "PCI"},
		{"it sleeps, and is not read", func() { m.write("sys/bus/pci/devices/0000:46:00.0/power/runtime_status", "suspended\n") }, "PCI"},
		{"it answers", func() {
			m.write("sys/bus/pci/devices/0000:46:00.0/config", "\xde\x10\xb0\x20"+strings.Repeat("\xff", 60))
		}, ""},
		{"it wakes", func() { m.write("sys/bus/pci/devices/0000:46:00.0/power/runtime_status", "active\n") }, ""},
		{"the module is unloaded", func() { m.remove("sys/module/nvidia"); m.remove("proc/driver/nvidia") }, "driver, MIG"},
		{"it is being loaded", func() { m.write("sys/module/nvidia/initstate", "coming\n") }, "driver"},
		{"it is loaded", func() { m.loadDriver("590.1.2") }, "driver"},
		{"the device node comes", func() { m.write("dev/nvidiactl", "") }, "driver"},
		{"the driver lists a GPU", func() { m.mkdir("proc/driver/nvidia/gpus/0000:40:00.0") }, "driver"},
		{"a GPU instance comes", func() { m.mkdir("proc/driver/nvidia/capabilities/gpu0/mig/gi1") }, "MIG"},
		{"a compute instance comes", func() { m.mkdir("proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0") }, "MIG"},
		{"it moves to another GPU instance", func() {
			m.mkdir("proc/driver/nvidia/capabilities/gpu0/mig/gi2")
			m.check(os.Rename(m.path("proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0"), m.path("proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0")))
		}, "MIG"},
		{"files beside them come", func() { m.write("proc/driver/nvidia/capabilities/gpu0/mig/gi2/access", "") }, ""},
		{"AMD's partitions change", func() { m.write(device+"current_compute_partition", "DPX\n") }, "partition"},
		{"AMD's memory partitions change", func() { m.write(device+"current_memory_partition", "NPS4\n") }, "partition"},
	} {
		step.change()
		now := take()
		if parts := now.diff(last); parts != step.parts {
			t.Errorf("%s: %q changed, want %q", step.what, parts, step.parts)
		}
		if again := take(); again != now {
			t.Errorf("%s: it changed again without a reason: %q", step.what, again.diff(now))
		}
		last = now
	}
}

func TestFingerprintWithoutPCI(t *testing.T) {
	root := t.TempDir()
	f := NewFingerprinter(hostfs.Root(root))
	if _, err := f.Take(); err == nil || strings.Count(err.Error(), root) != 1 {
		t.Errorf("without /sys: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(root, "sys/bus/usb"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Take(); err != nil {
		t.Errorf("without a PCI bus: %v", err)
	}
}

// A FIFO in a file's place, or a device node that nobody may open, does not hang
// it.
func TestFingerprintDoesNotHang(t *testing.T) {
	m := oneA100(t)
	for _, name := range []string{"proc/driver/nvidia/version", "sys/bus/pci/devices/0000:1f:00.0/vendor", "dev/nvidiactl"} {
		m.remove(name)
		m.check(unix.Mkfifo(m.path(name), 0o600))
	}
	if _, err := NewFingerprinter(hostfs.Root(m.root)).Take(); err != nil {
		t.Error(err)
	}
}

func TestFingerprintOfThisHost(t *testing.T) {
	f := NewFingerprinter("")
	p, err := f.Take()
	if err != nil {
		t.Skip(err)
	}
	t.Logf("%+v, %d functions", p, len(f.functions))
	if again, err := f.Take(); err != nil || again != p {
		t.Errorf("it changed: %q %v", again.diff(p), err)
	}
}

func FuzzParseDirents(f *testing.F) {
	record := func(inode uint64, name string) []byte {
		b := binary.NativeEndian.AppendUint64(nil, inode)
		b = binary.NativeEndian.AppendUint64(b, 1)
		length := (19 + len(name) + 1 + 7) &^ 7
		b = binary.NativeEndian.AppendUint16(b, uint16(length))
		b = append(append(b, 10), name...)
		return append(b, make([]byte, length-len(b))...)
	}
	f.Add(append(record(7, "."), record(8, "0000:1f:00.0")...))
	f.Add(append(record(7, "gi1"), make([]byte, 24)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseDirents(b, func(_ uint64, name []byte) {
			if len(name) == 0 || len(name) > len(b) {
				t.Errorf("name %q", name)
			}
		})
	})
}

func FuzzRelevant(f *testing.F) {
	f.Add([]byte("add@/devices/pci0000:00/0000:00:01.0\x00ACTION=add\x00DEVPATH=/devices/pci0000:00/0000:00:01.0\x00SUBSYSTEM=pci\x00SEQNUM=4\x00"))
	f.Add([]byte("change@/devices/virtual/block/dm-0\x00SUBSYSTEM=block\x00"))
	f.Add([]byte("SUBSYSTEM=accel\x00SUBSYSTEM=drm"))
	f.Add([]byte("SUBSYSTEM=pcie\x00XSUBSYSTEM=pci\x00SUBSYSTEM=module\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		want := false
		for _, subsystem := range []string{"pci", "drm", "module", "accel"} {
			want = want || bytes.Contains(slices.Concat([]byte{0}, b, []byte{0}), []byte("\x00SUBSYSTEM="+subsystem+"\x00"))
		}
		if got := relevant(b); got != want {
			t.Errorf("%q: %v", b, got)
		}
	})
}

func TestRelevant(t *testing.T) {
	for uevent, want := range map[string]bool{
		"add@/devices/pci0000:00/0000:00:01.0\x00ACTION=add\x00SUBSYSTEM=pci\x00": true,
		"add@/module/nvidia\x00ACTION=add\x00SUBSYSTEM=module\x00":                true,
		"add@/class/net\x00ACTION=add\x00SUBSYSTEM=net\x00":                       false,
		"libudev\x00":               false,
		"":                          false,
		"x@y\x00XSUBSYSTEM=pci\x00": false,
	} {
		if got := relevant([]byte(uevent)); got != want {
			t.Errorf("%q: %v", uevent, got)
		}
	}
}

func BenchmarkFingerprint(b *testing.B) {
	m := eightGPUs(b)
	f := NewFingerprinter(hostfs.Root(m.root))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Take(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFingerprintOfThisHost(b *testing.B) {
	f := NewFingerprinter("")
	if _, err := f.Take(); err != nil {
		b.Skip(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Take(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(f.functions)), "functions")
}
