// Package hostfile reads and writes recorded hosts: what a scan reads of a
// machine, in one text file that can be mailed, reviewed and replayed.
//
// The file is a txtar archive (golang.org/x/tools/txtar). Its files are those
// below sys and proc, and nvml.yaml, which holds what NVML answered. sysfs is
// symbolic links and its names contain colons; both break as real files in a
// repository, so links are lines of the comment:
//
//	symlink sys/bus/pci/devices/0000:01:00.0/driver -> ../../../bus/pci/drivers/nvidia
//	dir sys/bus/pci/devices
//
// The latter stands for an empty folder. Binary files are hexadecimal, in a file
// whose name has .hex added. Other comment lines and files are left alone:
// tests keep the labels they want there.
package hostfile

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"

	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// What a host file may hold. A host of 2,000 PCI functions is 3 MB and 40,000
// files and links; the deepest is 11 folders down.
const (
	maxSize    = 32 << 20
	maxEntries = 100_000
	maxDepth   = 32
	maxPath    = 1024
)

// nvmlFile is the name, in the archive and in an extracted folder, of what NVML
// answered.
const nvmlFile = "nvml.yaml"

// A File is a recorded host.
type File struct {
	// Comment is what the archive says before its first file, links left out.
	Comment string
	// Files are the contents by slash-separated path: those of the host below
	// sys and proc, and whatever else the archive holds.
	Files map[string][]byte
	// Links are the symbolic links, path to target.
	Links map[string]string
	// Dirs are folders that must exist though nothing is in them.
	Dirs []string
	// NVML is what NVML answered; nil: it was not asked.
	NVML *nvml.Answer
}

// Read reads a host file from disk, or from standard input when the name is "-".
//
// When ctx is done it returns, and leaves a goroutine that waits for standard
// input.
func Read(ctx context.Context, name string) (*File, error) {
	if name == "-" {
		return readFrom(ctx, os.Stdin, "standard input")
	}
	// Opening a FIFO would wait for a writer.
	if st, err := os.Stat(name); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: a recorded host is a file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readFrom(ctx, f, name)
}

func readFrom(ctx context.Context, r io.Reader, name string) (*File, error) {
	type result struct {
		data []byte
		err  error
	}
	results := make(chan result, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
		results <- result{data, err}
	}()
	var read result
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case read = <-results:
	}
	if read.err != nil {
		return nil, fmt.Errorf("%s: %w", name, read.err)
	}
	file, err := Parse(read.data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return file, nil
}

// Parse reads a host file. Errors name the file or the line of the archive that
// is wrong.
func Parse(data []byte) (*File, error) {
	if len(data) > maxSize {
		return nil, fmt.Errorf("a recorded host has at most %d MiB", maxSize>>20)
	}
	archive := txtar.Parse(data)
	f := &File{Files: map[string][]byte{}, Links: map[string]string{}}
	var comment strings.Builder
	for line := range strings.Lines(string(archive.Comment)) {
		switch kind, rest, _ := strings.Cut(strings.TrimSpace(line), " "); kind {
		case "symlink":
			name, target, ok := strings.Cut(rest, " -> ")
			if !ok || target == "" || !local(name) {
				return nil, fmt.Errorf("%s: want symlink PATH -> TARGET, PATH below sys or proc", clip(strings.TrimSpace(line)))
			}
			if len(target) > maxPath || !plain(target) {
				return nil, fmt.Errorf("symlink %s: its target %s is no path of at most %d printable characters", name, clip(target), maxPath)
			}
			if path.IsAbs(target) || strings.HasPrefix(path.Join(path.Dir(name), target), "..") {
				return nil, fmt.Errorf("symlink %s: its target %s is outside the host", name, clip(target))
			}
			f.Links[name] = target
		case "dir":
			if !local(rest) {
				return nil, fmt.Errorf("%s: want dir PATH, PATH below sys or proc", clip(strings.TrimSpace(line)))
			}
			f.Dirs = append(f.Dirs, rest)
		default:
			comment.WriteString(line)
		}
	}
	f.Comment = comment.String()
	for _, entry := range archive.Files {
		name, content := entry.Name, entry.Data
		if !plain(name) {
			return nil, fmt.Errorf("file %s: want printable ASCII in its name", clip(name))
		}
		if name == nvmlFile {
			answer, err := parseNVML(content)
			if err != nil {
				return nil, err
			}
			f.NVML = answer
			continue
		}
		if base, ok := strings.CutSuffix(name, ".hex"); ok {
			decoded, err := hex.DecodeString(strings.Join(strings.Fields(string(content)), ""))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			name, content = base, decoded
		}
		if _, twice := f.Files[name]; twice {
			return nil, fmt.Errorf("%s stands there twice", name)
		}
		f.Files[name] = content
	}
	if n := len(f.Files) + len(f.Links) + len(f.Dirs); n > maxEntries {
		return nil, fmt.Errorf("%d files and links: a recorded host has at most %d", n, maxEntries)
	}
	if f.NVML == nil && len(f.Dirs)+len(f.Links) == 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(f.Files)), local) {
		return nil, errors.New("not a recorded host: it holds nothing of sys or proc")
	}
	return f, nil
}

// local tells whether a path is below sys or proc and stays there.
func local(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return (first == "sys" || first == "proc") && path.Clean(name) == name && filepath.IsLocal(name) &&
		len(name) <= maxPath && strings.Count(name, "/") < maxDepth && plain(name)
}

// plain tells whether a path can stand in a line of the archive, and be shown on
// a terminal: the kernel's names are ASCII.
func plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// clip keeps a message short, and safe for a terminal.
func clip(s string) string {
	return strconv.QuoteToASCII(s[:min(len(s), 80)])
}

// Extract writes the host below dir, an existing folder: sys, proc and, when NVML
// was asked, nvml.yaml. Nothing is written outside dir, and no link leads out.
// When ctx is done it returns, whatever is written by then.
func (f *File) Extract(ctx context.Context, dir string) error {
	// All folders are made before the first link, so that no link is on the way to
	// what is written. (os.Root would look at each folder on the way, each time.)
	made := map[string]bool{".": true}
	mkdir := func(name string) error {
		if made[name] {
			return ctx.Err()
		}
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
		made[name] = true
		return ctx.Err()
	}
	for _, name := range f.Dirs {
		if err := mkdir(name); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(f.Files) {
		if !local(name) {
			continue
		}
		if err := mkdir(path.Dir(name)); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), f.Files[name], 0o644); err != nil {
			return err
		}
	}
	links := sortedKeys(f.Links)
	for _, name := range links {
		if !local(name) {
			return fmt.Errorf("symlink %s: want a path below sys or proc", clip(name))
		}
		if err := mkdir(path.Dir(name)); err != nil {
			return err
		}
	}
	for _, name := range links {
		if err := os.Symlink(f.Links[name], filepath.Join(dir, name)); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	// A chain of links may climb out where none does by itself.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range links {
		if _, err := root.Stat(name); err != nil && !errors.Is(err, os.ErrNotExist) && !isLoop(err) {
			return fmt.Errorf("symlink %s: %w", name, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if f.NVML == nil {
		return nil
	}
	content, err := formatNVML(f.NVML)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, nvmlFile), content, 0o644)
}

// Format writes the file in its one form: files and links sorted by path, binary
// files in hexadecimal.
func (f *File) Format() ([]byte, error) {
	var comment strings.Builder
	comment.WriteString(f.Comment)
	if f.Comment != "" && !strings.HasSuffix(f.Comment, "\n") {
		comment.WriteByte('\n')
	}
	for _, name := range slices.Concat(f.Dirs, sortedKeys(f.Links), slices.Sorted(maps.Values(f.Links)), sortedKeys(f.Files)) {
		if !plain(name) {
			return nil, fmt.Errorf("%s: no name for a line of the file", clip(name))
		}
	}
	for _, name := range sorted(f.Dirs) {
		fmt.Fprintf(&comment, "dir %s\n", name)
	}
	for _, name := range sortedKeys(f.Links) {
		fmt.Fprintf(&comment, "symlink %s -> %s\n", name, f.Links[name])
	}
	archive := &txtar.Archive{Comment: []byte(comment.String())}
	if f.NVML != nil {
		content, err := formatNVML(f.NVML)
		if err != nil {
			return nil, err
		}
		archive.Files = append(archive.Files, txtar.File{Name: nvmlFile, Data: content})
	}
	for _, name := range sortedKeys(f.Files) {
		content := f.Files[name]
		if !isText(content) {
			name, content = name+".hex", []byte(hex.EncodeToString(content)+"\n")
		}
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: content})
	}
	return txtar.Format(archive), nil
}

// isText tells what txtar can hold as it is: lines that are not file markers.
func isText(content []byte) bool {
	for _, b := range content {
		if b != '\n' && b != '\t' && (b < ' ' || b > '~') {
			return false
		}
	}
	return !strings.HasPrefix(string(content), "-- ") && !strings.Contains(string(content), "\n-- ")
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }
