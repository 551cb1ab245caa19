package doctor

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// cdiSpec is what a CDI specification says of GPUs: devices that a container
// runtime gives to containers by name (Container Device Interface v1.0).
type cdiSpec struct {
	path    string
	kind    string   // nvidia.com/gpu
	devices []string // their names
	// drivers are the versions of the NVIDIA driver whose libraries the
	// specification mounts.
	drivers []string
	err     error
}

// maxCDI bounds a specification: 16 GPUs of 7 MIG devices each are 200 kB.
const maxCDI = 4 << 20

// readCDI reads the specifications for GPUs. /var/run is a link to /run on all
// but very old hosts.
func (h *host) readCDI() []cdiSpec {
	var specs []cdiSpec
	for _, dir := range []string{"etc/cdi", "var/run/cdi"} {
		names, err := h.readDir(dir)
		if err != nil {
			specs = append(specs, cdiSpec{path: "/" + dir, err: err})
		}
		for _, name := range names {
			if ext := path.Ext(name); ext != ".yaml" && ext != ".json" {
				continue
			}
			file := path.Join(dir, name)
			text, err := h.readFile(file, maxCDI)
			s := cdiSpec{}
			if err == nil {
				s, err = parseCDI(text)
			}
			s.path, s.err = "/"+file, err
			if err != nil || ofGPUs(s.kind) {
				specs = append(specs, s)
			}
		}
	}
	return specs
}

// ofGPUs tells the kinds that name GPUs.
func ofGPUs(kind string) bool {
	vendor, class, _ := strings.Cut(kind, "/")
	return (vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com") || vendor == "amd.com" || strings.HasSuffix(vendor, ".intel.com") || vendor == "intel.com") && class != ""
}

// driverLibrary is the file of one of the driver's libraries, which carries the
// driver's version in its name.
var driverLibrary = regexp.MustCompile(`^lib(?:nvidia-ml|cuda)\.so\.(\d+\.\d+(?:\.\d+)*)$`)

// parseCDI reads a specification; JSON is YAML.
func parseCDI(text []byte) (cdiSpec, error) {
	type edits struct {
		Mounts []struct {
			HostPath string `yaml:"hostPath"`
		} `yaml:"mounts"`
	}
	var spec struct {
		Kind    string `yaml:"kind"`
		Devices []struct {
			Name  string `yaml:"name"`
			Edits edits  `yaml:"containerEdits"`
		} `yaml:"devices"`
		Edits edits `yaml:"containerEdits"`
	}
	if err := yaml.Unmarshal(text, &spec); err != nil {
		return cdiSpec{}, fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	s := cdiSpec{kind: spec.Kind}
	versions := func(e edits) {
		for _, m := range e.Mounts {
			if found := driverLibrary.FindStringSubmatch(path.Base(m.HostPath)); found != nil && !slices.Contains(s.drivers, found[1]) {
				s.drivers = append(s.drivers, found[1])
			}
		}
	}
	versions(spec.Edits)
	for _, d := range spec.Devices {
		s.devices = append(s.devices, d.Name)
		versions(d.Edits)
	}
	slices.Sort(s.drivers)
	return s, nil
}
