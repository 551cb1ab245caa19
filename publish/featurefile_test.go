package publish

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// killEnv makes the test binary publish to the file killPathEnv and kill itself
// after that many steps, see TestFeatureFileKilled.
const (
	killEnv     = "GPU_LABELLER_TEST_KILL_AFTER"
	killPathEnv = "GPU_LABELLER_TEST_KILL_PATH"
)

func TestMain(m *testing.M) {
	if after := os.Getenv(killEnv); after != "" {
		publishAndDie(os.Getenv(killPathEnv), after)
	}
	os.Exit(m.Run())
}

func publishAndDie(path, after string) {
	left, err := strconv.Atoi(after)
	if err != nil {
		panic(err)
	}
	f := &FeatureFile{Path: path, step: func(step string) {
		if left--; left < 0 {
			fmt.Println(step)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}}
	if err := f.Publish(context.Background(), labels.Set{"nvidia.com/gpu.count": "8"}); err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	os.Exit(0)
}

// folder returns a feature file in a folder as NFD's.
func folder(t testing.TB) *FeatureFile {
	return &FeatureFile{Path: filepath.Join(t.TempDir(), "gpu-labeller")}
}

func mustPublish(t testing.TB, sink Sink, set labels.Set) {
	t.Helper()
	if err := sink.Publish(t.Context(), set); err != nil {
		t.Fatal(err)
	}
}

func content(t testing.TB, f *FeatureFile) string {
	t.Helper()
	data, err := os.ReadFile(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func inode(t testing.TB, path string) uint64 {
	t.Helper()
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Sys().(*syscall.Stat_t).Ino
}

// staged returns the names in the stage.
func staged(t testing.TB, f *FeatureFile) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(filepath.Dir(f.Path), stageName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestFeatureFile(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	f := folder(t)
	mustPublish(t, f, labels.Set{"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.count": "8", "a.example/empty": ""})
	want := firstLine + "a.example/empty=\nnvidia.com/gpu.count=8\nnvidia.com/gpu.product=NVIDIA-H200\n"
	if got := content(t, f); got != want {
		t.Errorf("file:\n%s\nwant:\n%s", got, want)
	}
	fi, err := os.Stat(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode() != 0o644 {
		t.Errorf("mode %v, want 0644: NFD's worker runs as nobody", fi.Mode())
	}
	if names := staged(t, f); len(names) != 0 {
		t.Errorf("left in the stage: %v", names)
	}
}

func TestFeatureFileRewrites(t *testing.T) {
	set := labels.Set{"nvidia.com/gpu.count": "8"}
	tests := map[string]struct {
		between func(t *testing.T, f *FeatureFile)
		want    bool // that the file is another one afterwards
	}{
		"nothing changed": {func(t *testing.T, f *FeatureFile) {}, false},
		"touched":         {func(t *testing.T, f *FeatureFile) { check(t, f.Touch()) }, false},
		"someone edited it": {func(t *testing.T, f *FeatureFile) {
			check(t, os.WriteFile(f.Path, []byte("nvidia.com/gpu.count=80\n"), 0o644))
		}, true},
		"someone removed it":      {func(t *testing.T, f *FeatureFile) { check(t, os.Remove(f.Path)) }, true},
		"unreadable for NFD":      {func(t *testing.T, f *FeatureFile) { check(t, os.Chmod(f.Path, 0o600)) }, true},
		"had an expiry before":    {func(t *testing.T, f *FeatureFile) { write(t, f, render(set, time.Now().Add(time.Hour))) }, true},
		"expiry is not in line 2": {func(t *testing.T, f *FeatureFile) { write(t, f, append(render(set, time.Time{}), expiryLine...)) }, true},
		"grew without bound":      {func(t *testing.T, f *FeatureFile) { check(t, os.Truncate(f.Path, 1<<40)) }, true},
		"a FIFO": {func(t *testing.T, f *FeatureFile) {
			check(t, os.Remove(f.Path))
			check(t, unix.Mkfifo(f.Path, 0o644))
		}, true},
		"the folder was removed and remade": {func(t *testing.T, f *FeatureFile) {
			check(t, os.RemoveAll(filepath.Dir(f.Path)))
			check(t, os.Mkdir(filepath.Dir(f.Path), 0o755))
		}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := folder(t)
			mustPublish(t, f, set)
			// Held open, so that the inode is not used again.
			old, err := os.Open(f.Path)
			check(t, err)
			defer old.Close()
			before := inode(t, f.Path)
			test.between(t, f)
			mustPublish(t, f, set)
			if got := inode(t, f.Path) != before; got != test.want {
				t.Errorf("replaced: %v, want %v", got, test.want)
			}
			if got := content(t, f); got != string(render(set, time.Time{})) {
				t.Errorf("file:\n%s", got)
			}
		})
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, f *FeatureFile, data []byte) {
	t.Helper()
	check(t, os.WriteFile(f.Path, data, 0o644))
}

func TestFeatureFileExpiry(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 500e6, time.UTC)
	f := folder(t)
	f.Expiry = 10 * time.Minute
	f.now = func() time.Time { return now }
	set := labels.Set{"nvidia.com/gpu.count": "8"}
	mustPublish(t, f, set)
	want := firstLine + "# +expiry-time=2026-01-01T12:10:00Z\nnvidia.com/gpu.count=8\n"
	if got := content(t, f); got != want {
		t.Errorf("file:\n%s\nwant:\n%s", got, want)
	}
	for _, step := range []struct {
		pass   time.Duration
		expiry string
	}{
		{4 * time.Minute, "12:10:00"}, // more than half is left
		{1 * time.Minute, "12:15:00"}, // half is over
		{-time.Hour, "11:15:00"},      // the clock was set back
		{48 * time.Hour, "11:15:00"},  // it has expired; two days on
	} {
		now = now.Add(step.pass)
		mustPublish(t, f, set)
		if got := content(t, f); !strings.Contains(got, "T"+step.expiry+"Z\n") {
			t.Errorf("at %v the file is\n%s\nwant expiry %s", now, got, step.expiry)
		}
	}
}

func TestFeatureFileWithdraw(t *testing.T) {
	f := folder(t)
	mustPublish(t, f, nil) // nothing there
	mustPublish(t, f, labels.Set{"nvidia.com/gpu.count": "8"})
	mustPublish(t, f, labels.Set{})
	mustPublish(t, f, labels.Set{})
	entries, err := os.ReadDir(filepath.Dir(f.Path))
	check(t, err)
	if len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
	check(t, os.Remove(filepath.Dir(f.Path)))
	mustPublish(t, f, labels.Set{})
}

func TestFeatureFileErrors(t *testing.T) {
	one := labels.Set{"nvidia.com/gpu.count": "8"}
	tests := map[string]struct {
		prepare func(t *testing.T, f *FeatureFile)
		set     labels.Set
		is      error
		says    string
	}{
		"no folder": {
			prepare: func(t *testing.T, f *FeatureFile) { check(t, os.Remove(filepath.Dir(f.Path))) },
			is:      ErrNoFolder, says: "hostPath",
		},
		"folder is a file": {
			prepare: func(t *testing.T, f *FeatureFile) {
				dir := filepath.Dir(f.Path)
				check(t, os.Remove(dir))
				check(t, os.WriteFile(dir, nil, 0o644))
			},
			says: "not a directory",
		},
		"folder is a named pipe": {
			prepare: func(t *testing.T, f *FeatureFile) {
				check(t, os.Remove(filepath.Dir(f.Path)))
				check(t, unix.Mkfifo(filepath.Dir(f.Path), 0o666))
			},
			says: "not a directory",
		},
		"a folder of that name": {
			prepare: func(t *testing.T, f *FeatureFile) { check(t, os.Mkdir(f.Path, 0o755)) },
			says:    "there is a folder of that name",
		},
		"the stage is a file": {
			prepare: func(t *testing.T, f *FeatureFile) {
				check(t, os.WriteFile(filepath.Join(filepath.Dir(f.Path), stageName), nil, 0o644))
			},
			is: syscall.ENOTDIR, says: "remove it",
		},
		"the stage is a named pipe": {
			prepare: func(t *testing.T, f *FeatureFile) {
				check(t, unix.Mkfifo(filepath.Join(filepath.Dir(f.Path), stageName), 0o666))
			},
			is: syscall.ENOTDIR, says: "remove it",
		},
		"the stage is locked": {
			prepare: func(t *testing.T, f *FeatureFile) {
				dir := filepath.Join(filepath.Dir(f.Path), stageName)
				check(t, os.Mkdir(dir, 0o777))
				lock, err := os.Open(dir)
				check(t, err)
				t.Cleanup(func() { lock.Close() })
				check(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
			},
			says: "another process holds it",
		},
		"the stage leads elsewhere": {
			prepare: func(t *testing.T, f *FeatureFile) {
				check(t, os.Symlink(t.TempDir(), filepath.Join(filepath.Dir(f.Path), stageName)))
			},
			says: "escapes",
		},
		"too large":           {set: large(maxFeatureFile), is: ErrTooLarge, says: "65536"},
		"a line break":        {set: labels.Set{"nvidia.com/gpu.machine": "X\n# +no-label"}, says: "cannot be written as a line"},
		"a directive as key":  {set: labels.Set{"# +no-label": ""}, says: "cannot be written as a line"},
		"an equals sign":      {set: labels.Set{"a=b": "c"}, says: "cannot be written as a line"},
		"blanks at the end":   {set: labels.Set{"a": "c "}, says: "cannot be written as a line"},
		"an empty key":        {set: labels.Set{"": "c"}, says: "cannot be written as a line"},
		"a context that ends": {is: context.Canceled},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := folder(t)
			if test.prepare != nil {
				test.prepare(t, f)
			}
			if test.set == nil {
				test.set = one
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.is == context.Canceled {
				cancel()
			}
			err := f.Publish(ctx, test.set)
			if err == nil {
				t.Fatal("no error")
			}
			t.Log(err)
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("error is not %v", test.is)
			}
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("error lacks %q", test.says)
			}
		})
	}
}

// large returns a set that makes a file of more than size bytes.
func large(size int) labels.Set {
	set := labels.Set{}
	for i := 0; i < size; i += 100 {
		set[fmt.Sprintf("example.com/%05d", i)] = strings.Repeat("x", 63)
		set[fmt.Sprintf("example.org/%05d", i)] = strings.Repeat("x", 63)
	}
	return set
}

func TestFeatureFileSizeLimit(t *testing.T) {
	f := folder(t)
	set := labels.Set{}
	const line = len("e/00000=1\n")
	size := len(firstLine)
	for i := 0; size+line <= maxFeatureFile; i++ {
		set[fmt.Sprintf("e/%05d", i)] = "1"
		size += line
	}
	set["e/00000"] += strings.Repeat("1", maxFeatureFile-size)
	mustPublish(t, f, set)
	if got := len(content(t, f)); got != maxFeatureFile {
		t.Fatalf("%d bytes, want exactly %d", got, maxFeatureFile)
	}
	before := inode(t, f.Path)
	mustPublish(t, f, set)
	if inode(t, f.Path) != before {
		t.Error("an unchanged file of the largest size is rewritten")
	}
	set["e/00000"] += "1"
	if err := f.Publish(t.Context(), set); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte more: error %v, want ErrTooLarge", err)
	}
	if inode(t, f.Path) != before {
		t.Error("the old file is gone")
	}
}

func TestFeatureFileSymlink(t *testing.T) {
	f := folder(t)
	target := filepath.Join(t.TempDir(), "passwd")
	set := labels.Set{"nvidia.com/gpu.count": "8"}
	for _, there := range []string{"secret\n", string(render(set, time.Time{}))} {
		check(t, os.WriteFile(target, []byte(there), 0o644))
		_ = os.Remove(f.Path)
		check(t, os.Symlink(target, f.Path))
		mustPublish(t, f, set)
		if fi, err := os.Lstat(f.Path); err != nil || !fi.Mode().IsRegular() {
			t.Errorf("file: %v, %v; want a regular one", fi.Mode(), err)
		}
		if got, _ := os.ReadFile(target); string(got) != there {
			t.Errorf("target: %q, want %q", got, there)
		}
		// Withdrawing removes a link, not what it leads to.
		check(t, os.Remove(f.Path))
		check(t, os.Symlink(target, f.Path))
		mustPublish(t, f, nil)
		if _, err := os.Stat(target); err != nil {
			t.Error(err)
		}
	}
}

// A device is no file of ours: as root, --feature-file=/dev/null would be the end of
// it for the whole system.
func TestFeatureFileDevice(t *testing.T) {
	f := folder(t)
	if err := unix.Mknod(f.Path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Skip("making a device: ", err)
	}
	for _, set := range []labels.Set{{"nvidia.com/gpu.count": "8"}, nil} {
		if err := f.Publish(t.Context(), set); err == nil {
			t.Errorf("%v: no error", set)
		}
		if fi, err := os.Lstat(f.Path); err != nil || fi.Mode()&fs.ModeDevice == 0 {
			t.Errorf("%v: the device is gone: %v", set, err)
		}
	}
}

// TestFeatureFileKilled kills a process after each step of a write: the file is
// the old or the new one, and the next process clears the stage.
func TestFeatureFileKilled(t *testing.T) {
	self, err := os.Executable()
	check(t, err)
	older := labels.Set{"nvidia.com/gpu.count": "7"}
	newer := labels.Set{"nvidia.com/gpu.count": "8"}
	steps, renamed := 0, false
	for ; ; steps++ {
		f := folder(t)
		mustPublish(t, f, older)
		strange := filepath.Join(filepath.Dir(f.Path), stageName, "gpu-labeller.txt")
		check(t, os.WriteFile(strange, nil, 0o644))

		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), killEnv+"="+strconv.Itoa(steps), killPathEnv+"="+f.Path)
		out, err := cmd.Output()
		step := strings.TrimSpace(string(out))
		if err == nil {
			break
		}
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("after %d steps: %v: %s", steps, err, step)
		}
		renamed = renamed || step == "renamed"
		want := older
		if renamed {
			want = newer
		}
		if got := content(t, f); got != string(render(want, time.Time{})) {
			t.Errorf("killed when it had %s, the file is\n%s", step, got)
		}
		t.Logf("killed when it had %s: stage %v", step, staged(t, f))

		restarted := &FeatureFile{Path: f.Path}
		mustPublish(t, restarted, want) // nothing to write, but to clear
		if names := staged(t, f); len(names) != 1 || names[0] != filepath.Base(strange) {
			t.Errorf("killed when it had %s, then restarted: stage holds %v, want only what is not ours", step, names)
		}
	}
	if !renamed || steps < 8 {
		t.Errorf("only %d steps seen, renamed: %v", steps, renamed)
	}
}

// TestFeatureFileDiskFull fills a small file system of its own.
func TestFeatureFileDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() { check(t, unix.Unmount(dir, 0)) })
	f := &FeatureFile{Path: filepath.Join(dir, "gpu-labeller")}
	mustPublish(t, f, labels.Set{"nvidia.com/gpu.count": "8"})
	old := content(t, f)

	filler := filepath.Join(dir, ".filler")
	err := os.WriteFile(filler, make([]byte, 1<<20), 0o644)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling: %v", err)
	}
	for range 2 {
		err = f.Publish(t.Context(), large(10000))
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("error %v, want ENOSPC", err)
		}
		t.Log(err)
		if got := content(t, f); got != old {
			t.Errorf("the file is\n%s", got)
		}
		if names := staged(t, f); len(names) != 0 {
			t.Errorf("left in the stage: %v", names)
		}
	}
	check(t, os.Remove(filler))
	mustPublish(t, f, large(10000))
}

// TestFeatureFileTwoAgents publishes from several goroutines to one file: each
// look finds a whole one, and none is in another's way.
func TestFeatureFileTwoAgents(t *testing.T) {
	path := folder(t).Path
	whole := map[string]bool{}
	sets := []labels.Set{large(5000), large(50), {"nvidia.com/gpu.count": "8"}}
	for _, set := range sets {
		whole[string(render(set, time.Time{}))] = true
	}
	mustPublish(t, &FeatureFile{Path: path}, sets[0])
	var writers, reader sync.WaitGroup
	done := make(chan struct{})
	reader.Go(func() {
		for {
			data, err := os.ReadFile(path)
			if err != nil || !whole[string(data)] {
				t.Errorf("torn file of %d bytes, error %v", len(data), err)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for _, set := range sets {
		writers.Go(func() {
			for range 50 {
				if err := (&FeatureFile{Path: path}).Publish(t.Context(), set); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(done)
	reader.Wait()
	if names := staged(t, &FeatureFile{Path: path}); len(names) != 0 {
		t.Errorf("left in the stage: %v", names)
	}
}

// TestFeatureFileReadOnly needs a mount: root writes where modes forbid it.
func TestFeatureFileReadOnly(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "size=64k"); err != nil {
		t.Skipf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() { check(t, unix.Unmount(dir, 0)) })
	err := (&FeatureFile{Path: filepath.Join(dir, "gpu-labeller")}).Publish(t.Context(), labels.Set{"a": "b"})
	if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "mounted read-write") {
		t.Errorf("error %v, want EROFS and the cure", err)
	}
}

// TestFeatureFileAnySets publishes a history of sets; after each the file says
// the last one, whoever reads it as NFD does.
func TestFeatureFileAnySets(t *testing.T) {
	dir := t.TempDir()
	key := rapid.StringMatching(`[a-z]{1,3}\.io/[a-z]{1,2}`)
	value := rapid.StringMatching(`([a-zA-Z0-9]([a-zA-Z0-9._-]{0,5}[a-zA-Z0-9])?)?`)
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		f := &FeatureFile{Path: filepath.Join(dir, strconv.Itoa(n))}
		for range rapid.IntRange(1, 5).Draw(r, "publishes") {
			set := labels.Set(rapid.MapOfN(key, value, 0, 5).Draw(r, "set"))
			if err := f.Publish(context.Background(), set); err != nil {
				r.Fatal(err)
			}
			data, err := os.ReadFile(f.Path)
			if len(set) == 0 {
				if !errors.Is(err, fs.ErrNotExist) {
					r.Fatalf("withdrawn, but: %v", err)
				}
				continue
			}
			got := parseAsNFD(string(data))
			if len(got) != len(set) {
				r.Fatalf("read back %v, want %v", got, set)
			}
			for k, v := range set {
				if got[k] != v {
					r.Fatalf("read back %v, want %v", got, set)
				}
			}
		}
	})
}

// parseAsNFD reads lines as NFD v0.19 does.
func parseAsNFD(content string) labels.Set {
	set := labels.Set{}
	for line := range strings.SplitSeq(content, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			value = "true"
		}
		set[key] = value
	}
	return set
}

// FuzzFeatureFileLines checks that a set is refused or read back as it was.
func FuzzFeatureFileLines(f *testing.F) {
	f.Add("nvidia.com/gpu.count", "8")
	f.Add("# +no-label", "")
	f.Add("a", "b\nc=d")
	f.Fuzz(func(t *testing.T, key, value string) {
		set := labels.Set{key: value}
		if checkLines(set) != nil {
			return
		}
		got := parseAsNFD(string(render(set, time.Time{})))
		if v, ok := got[key]; !ok || v != value || len(got) != 1 {
			t.Errorf("%q reads back as %q", set, got)
		}
	})
}
