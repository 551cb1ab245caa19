package hostfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// odd makes a folder with one of each thing that can be in a file's place.
func odd(t *testing.T) Root {
	t.Helper()
	root := t.TempDir()
	name := func(s string) string { return filepath.Join(root, s) }
	for _, err := range []error{
		os.WriteFile(name("file"), []byte("value\n"), 0o644),
		os.Mkdir(name("folder"), 0o755),
		os.WriteFile(name("folder/inner"), []byte("inner\n"), 0o644),
		syscall.Mkfifo(name("fifo"), 0o644),
		os.Symlink("file", name("link")),
		os.Symlink("folder", name("folderlink")),
		os.Symlink("loop", name("loop")),
		os.Symlink("gone", name("dangling")),
		os.Symlink("/dev/zero", name("device")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return Root(root)
}

func open(t *testing.T, root Root, name string) Dir {
	t.Helper()
	dir, err := root.OpenDir(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

func TestReadFileIsBounded(t *testing.T) {
	const max = 1000
	root := Root(t.TempDir())
	for _, size := range []int{0, 1, 511, 512, 513, max - 1, max, max + 1, max + 2, 10 << 20} {
		content := strings.Repeat("0123456789", size/10+1)[:size]
		name := fmt.Sprint(size)
		if err := os.WriteFile(root.Path(name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		for way, read := range map[string]func(string, int) ([]byte, error){
			"root": root.ReadFile, "dir": open(t, root, ".").ReadFile,
		} {
			got, err := read(name, max)
			if string(got) != content[:min(size, max)] {
				t.Errorf("%s: %d bytes: got %d bytes, or others", way, size, len(got))
			}
			if (size > max) != errors.Is(err, ErrTooLong) || size <= max && err != nil {
				t.Errorf("%s: %d bytes: error %v", way, size, err)
			}
			if cap(got) > 4*max {
				t.Errorf("%s: %d bytes: a buffer of %d for at most %d", way, size, cap(got), max)
			}
		}
	}
}

// What is in a file's place must not be read, nor waited for.
func TestReadFileOddThings(t *testing.T) {
	root := odd(t)
	dir := open(t, root, ".")
	tests := []struct {
		name            string
		rootErr, dirErr error // nil: the file's content
	}{
		{"file", nil, nil},
		{"link", nil, ErrNotRegular},
		{"dangling", fs.ErrNotExist, ErrNotRegular},
		{"loop", syscall.ELOOP, ErrNotRegular},
		{"device", ErrNotRegular, ErrNotRegular},
		{"fifo", ErrNotRegular, ErrNotRegular},
		{"folder", ErrNotRegular, ErrNotRegular},
		{"missing", fs.ErrNotExist, fs.ErrNotExist},
		{"file/below", syscall.ENOTDIR, syscall.ENOTDIR},
	}
	for _, tt := range tests {
		for _, way := range []struct {
			name string
			read func(string) (string, error)
			want error
		}{{"root", root.Attribute, tt.rootErr}, {"dir", dir.Attribute, tt.dirErr}} {
			start := time.Now()
			got, err := way.read(tt.name)
			if !errors.Is(err, way.want) || (err == nil) != (got == "value") {
				t.Errorf("%s: %s: got %q, %v, want error %v", way.name, tt.name, got, err, way.want)
			}
			if err != nil && strings.Contains(err.Error(), string(root)) {
				t.Errorf("%s: %s: the path is in the error: %v", way.name, tt.name, err)
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("%s: %s: took %v", way.name, tt.name, d)
			}
		}
	}
}

func TestAttributeTrims(t *testing.T) {
	root := Root(t.TempDir())
	for content, want := range map[string]string{
		"0x10de\n":                       "0x10de",
		" \t32.0 GT/s PCIe \r\n\x00\x00": "32.0 GT/s PCIe",
		"two\nlines\n":                   "two\nlines",
		"a\x00b":                         "a\x00b",
		"\n":                             "",
		"":                               "",
	} {
		if err := os.WriteFile(root.Path("file"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := root.Attribute("file"); got != want || err != nil {
			t.Errorf("%q: got %q, %v", content, got, err)
		}
	}
}

func TestReadlink(t *testing.T) {
	root := odd(t)
	dir := open(t, root, ".")
	for _, read := range []func(string) (string, error){root.Readlink, dir.Readlink} {
		for name, want := range map[string]string{"link": "file", "dangling": "gone", "loop": "loop"} {
			if got, err := read(name); got != want || err != nil {
				t.Errorf("%s: got %q, %v", name, got, err)
			}
		}
		for name, want := range map[string]error{"file": ErrNotLink, "folder": ErrNotLink, "missing": fs.ErrNotExist} {
			if got, err := read(name); got != "" || !errors.Is(err, want) {
				t.Errorf("%s: got %q, %v, want error %v", name, got, err, want)
			}
		}
	}
}

func TestReadDir(t *testing.T) {
	root := odd(t)
	got, err := root.ReadDir(".")
	want := []string{"dangling", "device", "fifo", "file", "folder", "folderlink", "link", "loop"}
	if !slices.Equal(got, want) || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	for name, want := range map[string]error{"missing": fs.ErrNotExist, "file": syscall.ENOTDIR, "loop": syscall.ELOOP} {
		got, err := root.ReadDir(name)
		if got != nil || !errors.Is(err, want) || strings.Contains(err.Error(), string(root)) {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

func TestExists(t *testing.T) {
	root := odd(t)
	for name, want := range map[string]bool{"file": true, "folder": true, "dangling": true, "loop": true, "missing": false, "file/below": false} {
		if got := root.Exists(name); got != want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestOpenDir(t *testing.T) {
	root := odd(t)
	top := open(t, root, ".")
	for _, way := range []func(string) (Dir, error){root.OpenDir, top.OpenDir} {
		for _, name := range []string{"folder", "folderlink"} {
			dir, err := way(name)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := dir.Attribute("inner"); got != "inner" || err != nil {
				t.Errorf("%s: got %q, %v", name, got, err)
			}
			if err := dir.Close(); err != nil {
				t.Error(err)
			}
		}
		for name, want := range map[string]error{
			"file": syscall.ENOTDIR, "link": syscall.ENOTDIR, "fifo": syscall.ENOTDIR, "device": syscall.ENOTDIR,
			"loop": syscall.ELOOP, "dangling": fs.ErrNotExist, "missing": fs.ErrNotExist,
		} {
			if _, err := way(name); !errors.Is(err, want) {
				t.Errorf("%s: error %v, want %v", name, err, want)
			}
		}
	}
}

// An open folder stays the same folder, whatever takes its name.
func TestDirIsOneFolder(t *testing.T) {
	root := odd(t)
	dir := open(t, root, "folder")
	if err := os.Rename(root.Path("folder"), root.Path("moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(root.Path("folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := dir.Attribute("inner"); got != "inner" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := os.RemoveAll(root.Path("moved")); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.Attribute("inner"); !Gone(err) {
		t.Errorf("after removal: error %v", err)
	}
}

func TestGone(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.ENOENT: true, syscall.ENODEV: true, syscall.ENXIO: true, fs.ErrNotExist: true,
		fmt.Errorf("class: %w", syscall.ENODEV): true,
		syscall.EACCES:                          false, syscall.EIO: false, ErrNotRegular: false, ErrTooLong: false,
	} {
		if got := Gone(err); got != want {
			t.Errorf("%v: got %v", err, got)
		}
	}
	if Gone(nil) {
		t.Error("no error, and gone")
	}
}

// The files of procfs say that they are empty.
func TestReadFileOfProcfs(t *testing.T) {
	got, err := Root("/").ReadFile("proc/self/status", PageSize)
	if err != nil || !strings.HasPrefix(string(got), "Name:") {
		t.Errorf("got %.20q, %v", got, err)
	}
}
