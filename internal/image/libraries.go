package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// triplets are Debian's names of architectures, in its folders of libraries.
var triplets = map[elf.Machine]string{
	elf.EM_X86_64:  "x86_64-linux-gnu",
	elf.EM_AARCH64: "aarch64-linux-gnu",
}

// Libraries are the files of this machine that a dynamically linked program needs: its
// loader, and the libraries that it names, those that they name, and further ones, such
// as a library that is loaded later will need. They keep their paths.
func Libraries(program string, further ...string) ([]File, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	loader := ""
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			text := make([]byte, p.Filesz)
			if _, err := p.ReadAt(text, 0); err != nil {
				return nil, fmt.Errorf("%s: %w", program, err)
			}
			loader = string(text[:max(0, len(text)-1)]) // ends in a zero byte
		}
	}
	if loader == "" {
		return nil, fmt.Errorf("%s is not dynamically linked", program)
	}
	triplet, ok := triplets[f.Machine]
	if !ok {
		return nil, fmt.Errorf("%s is for %v, for which no folders of libraries are known", program, f.Machine)
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	file, err := FromDisk(loader, loader, 0o755)
	if err != nil {
		return nil, err
	}
	files := []File{file}
	queue := append(names, further...)
	for i := 0; i < len(queue); i++ {
		name := queue[i]
		if slices.Contains(queue[:i], name) || name == filepath.Base(loader) {
			continue
		}
		path, names, err := findLibrary(name, triplet, f.Machine)
		if err != nil {
			return nil, fmt.Errorf("%s needs %s: %w", program, name, err)
		}
		file, err := FromDisk(path, path, 0o644)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
		queue = append(queue, names...)
	}
	return files, nil
}

// findLibrary looks where the loader does without a cache, and returns what the
// library itself names.
func findLibrary(name, triplet string, machine elf.Machine) (path string, names []string, err error) {
	for _, folder := range []string{"/lib/" + triplet, "/usr/lib/" + triplet, "/lib64", "/usr/lib64", "/lib", "/usr/lib"} {
		path := filepath.Join(folder, name)
		f, err := elf.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", nil, err
		}
		names, err := f.ImportedLibraries()
		other := f.Machine != machine
		f.Close()
		if other {
			continue
		}
		return path, names, err
	}
	return "", nil, os.ErrNotExist
}
