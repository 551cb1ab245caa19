package nvml

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	securejoin "github.com/cyphar/filepath-securejoin"
)

const soname = "libnvidia-ml.so.1"

var (
	// driverPrefixes are where a driver may live below a driver root: the host
	// itself, the GPU Operator's driver container, WSL, and the driver installer
	// of GKE and COS.
	driverPrefixes = []string{"", "run/nvidia/driver", "usr/lib/wsl", "usr/local/nvidia", "run/opengl-driver"}
	libraryFolders = []string{
		"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib",
		"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib",
	}
)

// findLibrary loads NVML and says where from. Without a driver root the loader
// looks first, as it knows LD_LIBRARY_PATH and ld.so.cache; the usual folders
// come next. It answers false with Init and Detail set when there is none.
func findLibrary(driverRoot string) (a Answer, found bool) {
	a.Library = soname
	if driverRoot == "" {
		resolved, err := load(soname)
		if err == nil {
			a.Library = resolved
			return a, true
		}
		a.Detail = err.Error()
		driverRoot = "/"
	} else {
		a.Library = filepath.Join(driverRoot, "…", soname)
	}
	for _, prefix := range driverPrefixes {
		for _, folder := range libraryFolders {
			// The root may be another system's: its absolute links are its own.
			path, err := securejoin.SecureJoin(driverRoot, filepath.Join(prefix, folder, soname))
			if err != nil {
				continue
			}
			if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
				continue
			}
			resolved, err := load(path)
			if err == nil {
				return Answer{Library: resolved}, true
			}
			a.Library, a.Detail = path, err.Error()
		}
	}
	a.Init = LibraryNotFound
	if a.Detail == "" {
		a.Detail = "no " + soname + " below " + driverRoot
	}
	return a, false
}

// load opens a library for good and returns its path. go-nvml, which opens it
// again, keeps the loader's text to itself, and would call an nvmlInit that is
// not there.
func load(name string) (string, error) {
	lib := dl.New(name, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := lib.Open(); err != nil {
		return "", err
	}
	if lib.Lookup("nvmlInit_v2") != nil && lib.Lookup("nvmlInit") != nil {
		defer lib.Close()
		return "", fmt.Errorf("%s is not NVML: it has no nvmlInit", name)
	}
	path, err := lib.Path()
	if err != nil || path == "" {
		return name, nil
	}
	// The file behind the soname carries the driver's version in its name.
	if file, err := filepath.EvalSymlinks(path); err == nil {
		path = file
	}
	return path, nil
}
