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
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/txtar"

	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// maxSize bounds a host file. A host of 2,000 PCI functions is 3 MB.
const maxSize = 32 << 20

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
func Read(name string) (*File, error) {
	if name == "-" {
		return readFrom(os.Stdin, "standard input")
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
	return readFrom(f, name)
}

func readFrom(r io.Reader, name string) (*File, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	file, err := Parse(data)
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
	for line := range strings.Lines(string(archive.Comment)) {
		switch kind, rest, _ := strings.Cut(strings.TrimSpace(line), " "); kind {
		case "symlink":
			name, target, ok := strings.Cut(rest, " -> ")
			if !ok || target == "" || !local(name) {
				return nil, fmt.Errorf("%q: want symlink PATH -> TARGET, PATH below sys or proc", strings.TrimSpace(line))
			}
			if path.IsAbs(target) || strings.HasPrefix(path.Join(path.Dir(name), target), "..") {
				return nil, fmt.Errorf("symlink %s: its target %s is outside the host", name, target)
			}
			f.Links[name] = target
		case "dir":
			if !local(rest) {
				return nil, fmt.Errorf("%q: want dir PATH, PATH below sys or proc", strings.TrimSpace(line))
			}
			f.Dirs = append(f.Dirs, rest)
		default:
			f.Comment += line
		}
	}
	for _, entry := range archive.Files {
		name, content := entry.Name, entry.Data
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
	if f.NVML == nil && len(f.Dirs)+len(f.Links) == 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(f.Files)), local) {
		return nil, errors.New("not a recorded host: it holds nothing of sys or proc")
	}
	return f, nil
}

// local tells whether a path is below sys or proc and stays there.
func local(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return (first == "sys" || first == "proc") && path.Clean(name) == name && filepath.IsLocal(name)
}

// Extract writes the host below dir, an existing folder: sys, proc and, when NVML
// was asked, nvml.yaml. Nothing is written outside dir, and no link leads out.
func (f *File) Extract(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range f.Dirs {
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(f.Files) {
		if !local(name) {
			continue
		}
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if err := root.WriteFile(name, f.Files[name], 0o644); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(f.Links) {
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if err := root.Symlink(f.Links[name], name); err != nil {
			return err
		}
	}
	// A chain of links may climb out where none does by itself.
	for _, name := range sortedKeys(f.Links) {
		if _, err := root.Stat(name); err != nil && !errors.Is(err, os.ErrNotExist) && !isLoop(err) {
			return fmt.Errorf("symlink %s: %w", name, err)
		}
	}
	if f.NVML == nil {
		return nil
	}
	content, err := formatNVML(f.NVML)
	if err != nil {
		return err
	}
	return root.WriteFile(nvmlFile, content, 0o644)
}

// Format writes the file in its one form: files and links sorted by path, binary
// files in hexadecimal.
func (f *File) Format() ([]byte, error) {
	var comment strings.Builder
	comment.WriteString(f.Comment)
	if f.Comment != "" && !strings.HasSuffix(f.Comment, "\n") {
		comment.WriteByte('\n')
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
