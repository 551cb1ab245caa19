// Package standin builds the stand-in NVML of testdata/nvml and lays it out as
// a driver's installation, for tests that ask a real library in a real child
// process.
package standin

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// DriverRoot makes a folder that holds an NVML which answers what text says
// (see testdata/nvml/README.md). It is what --driver-root takes. Symbols named
// in without are left out of the library, as in an old one.
func DriverRoot(tb testing.TB, text string, without ...string) string {
	tb.Helper()
	root := tb.TempDir()
	folder := filepath.Join(root, "usr", "lib64")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		tb.Fatal(err)
	}
	library, err := build(without)
	if err != nil {
		tb.Fatal(err)
	}
	content, err := os.ReadFile(library)
	if err != nil {
		tb.Fatal(err)
	}
	for name, data := range map[string][]byte{"libnvidia-ml.so.1": content, "nvml.txt": []byte(text)} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	return root
}

var building sync.Mutex

// build compiles the library once for each set of flags and version of the
// source, into a folder that outlives the test.
func build(without []string) (string, error) {
	building.Lock()
	defer building.Unlock()
	_, here, _, _ := runtime.Caller(0)
	source := filepath.Join(filepath.Dir(here), "..", "..", "testdata", "nvml", "nvml.c")
	content, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	args := []string{"-shared", "-fPIC", "-O1"}
	for _, symbol := range without {
		args = append(args, "-DWITHOUT_"+symbol)
	}
	sum := sha256.Sum256(append([]byte(strings.Join(args, " ")), content...))
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	folder := filepath.Join(cache, "gpu-labeller-standin")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	library := filepath.Join(folder, fmt.Sprintf("%x.so", sum[:8]))
	if _, err := os.Stat(library); err == nil {
		return library, nil
	}
	// Several test binaries build at a time: the name is taken by a rename.
	partial := fmt.Sprintf("%s.%d", library, os.Getpid())
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "gcc"
	}
	out, err := exec.Command(compiler, append(args, "-o", partial, source)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building the stand-in NVML: %v\n%s", err, out)
	}
	return library, os.Rename(partial, library)
}
