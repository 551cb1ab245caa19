package hostfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

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
	if err := f.Extract(t.Context(), t.TempDir()); err == nil {
		t.Error("extracted")
	}
}

// A file that is within the limits is read in a time that grows with its size,
// and what is beyond them is refused.
func TestLargeHosts(t *testing.T) {
	begin := time.Now()
	f, err := Parse([]byte(strings.Repeat("x\n", 2<<20) + "dir sys/bus\n"))
	if err != nil || len(f.Comment) != 4<<20 {
		t.Errorf("%v", err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("a long comment took %v", took)
	}
	var many strings.Builder
	for i := range maxEntries + 1 {
		fmt.Fprintf(&many, "dir sys/%d\n", i)
	}
	deep := "sys" + strings.Repeat("/d", maxDepth)
	for name, text := range map[string]string{
		"many":        many.String(),
		"deep":        "dir " + deep + "\n",
		"deep file":   "-- " + deep + " --\n",
		"long target": "symlink sys/a -> " + strings.Repeat("x", maxPath+1) + "\n",
	} {
		f, err := Parse([]byte(text))
		if err == nil && name == "deep file" {
			err = errors.New("passed over")
			dir := t.TempDir()
			if e := f.Extract(t.Context(), dir); e != nil {
				t.Error(e)
			}
			if entries, _ := os.ReadDir(dir); len(entries) > 0 {
				t.Errorf("%s: extracted", name)
			}
		}
		if err == nil || len(err.Error()) > 300 {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestExtractInterrupted(t *testing.T) {
	f, err := Parse([]byte("symlink sys/l -> a\n-- sys/a --\n-- sys/b --\n"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Extract(ctx, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	r, _, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readFrom(ctx, r, "a pipe"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestExtractIgnoresOtherFiles(t *testing.T) {
	f, err := Parse([]byte("a comment\n-- want.labels --\na=b\n-- ../evil --\nx\n-- /etc/evil --\nx\n-- sys/../evil --\nx\n-- proc/version --\nLinux\n"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := f.Extract(t.Context(), dir); err != nil {
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
		f, err := Read(t.Context(), name)
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
			original, err := Read(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := original.Extract(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
			host := hostIn(dir, original.NVML)
			recorded, err := Record(host, original.NVML)
			if err != nil {
				t.Fatal(err)
			}
			copied := t.TempDir()
			if err := recorded.Extract(t.Context(), copied); err != nil {
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
	said := &nvml.Answer{Failure: &nvml.Failure{Kind: nvml.Crash, Text: "GPU-5a1b2c3d-0000-1111-2222-333344445555 serial 1652923033445"}}
	said.Detail = said.Failure.Text
	if f, err = Record(discover.Host{Root: hostfs.Root(t.TempDir())}, said); err != nil {
		t.Fatal(err)
	}
	want := "GPU-(UUID) serial (number)"
	if f.NVML.Detail != want || f.NVML.Failure.Text != want || said.Failure.Text == want {
		t.Errorf("recorded: %+v %+v", f.NVML, f.NVML.Failure)
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

// A name that would end its line, or steer the terminal of who reads the file,
// is not recorded.
func TestRecordHostileNames(t *testing.T) {
	dir := t.TempDir()
	device := filepath.Join(dir, pciDevices, "0000:01:00.0")
	for _, name := range []string{device, filepath.Join(dir, pciDevices, "0000:02:00.0\n-- sys/evil --\nx")} {
		if err := os.MkdirAll(name, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{"vendor": "0x1002\n", "class": "0x030000\n", "product_name": "MI300X SN:12AB-34\n"} {
			if err := os.WriteFile(filepath.Join(name, file), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for link, target := range map[string]string{"driver": "x\n-- sys/evil --\nhello", "iommu_group": "a\x1b[31m", "physfn": "../0000:01:00.1"} {
		if err := os.Symlink(target, filepath.Join(device, link)); err != nil {
			t.Fatal(err)
		}
	}
	answer := nvml.Answer{Init: nvml.Success, GPUs: []nvml.GPU{{Name: "Board S/N: 0324518\x1b[1m"}}}
	f, err := Record(discover.Host{Root: hostfs.Root(dir)}, &answer)
	if err != nil {
		t.Fatal(err)
	}
	text, err := f.Format()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"evil", "\x1b", "0324518", "12AB"} {
		if bytes.Contains(text, []byte(wrong)) {
			t.Errorf("%q is in the file:\n%s", wrong, text)
		}
	}
	if !bytes.Contains(text, []byte("physfn -> ../0000:01:00.1\n")) || !bytes.Contains(text, []byte("SN:0000-00\n")) {
		t.Errorf("file:\n%s", text)
	}
	for _, f := range []*File{
		{Links: map[string]string{"sys/a": "b\nc"}},
		{Links: map[string]string{"sys/\x1ba": "b"}},
		{Dirs: []string{"sys/a\rb"}},
		{Files: map[string][]byte{"sys/a --\n": nil}},
	} {
		if text, err := f.Format(); err == nil {
			t.Errorf("formatted: %q", text)
		}
	}
}
