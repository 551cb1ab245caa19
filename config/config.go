// Package config reads the configuration file of NVIDIA's Kubernetes device
// plugin, which GPU Feature Discovery (GFD) shares. It was checked against
// version v0.20 of both.
//
// The file is read as the plugin reads it (YAML 1.1, or JSON), with one
// difference: a field that the plugin would pass over in silence is an error
// here.
package config

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// Config is a configuration file. Fields that only the device plugin has a use
// for are checked and not kept.
type Config struct {
	Flags Flags

	// TimeSlicing and MPS are sharing.timeSlicing and sharing.mps. A file may
	// hold both: then MPS is in force.
	TimeSlicing, MPS *Replicated
}

// Flags are the options that can also be given on the command line or in the
// environment, where they win over the file. Nil is not set. The plugin does
// not look at values when it reads the file, as they may yet be overridden.
type Flags struct {
	MIGStrategy             *string // none, single or mixed; GFD's default: none
	FailOnInitError         *bool   // GFD's default: true
	UseNodeFeatureAPI       *bool   // a NodeFeature, not a file; GFD's default: true
	DeviceDiscoveryStrategy *string // auto, nvml, tegra or vfio; GFD's default: auto
	NVIDIADriverRoot        *string // a path on the host; GFD has no use for it
	ContainerDriverRoot     *string // plugin.containerDriverRoot, a path in the container; GFD's default: /driver-root

	GFD GFD
}

// GFD is flags.gfd: the options that only GFD has.
type GFD struct {
	Oneshot         *bool          // GFD's default: false
	NoTimestamp     *bool          // GFD's default: false
	SleepInterval   *time.Duration // or Infinite; zero and negative are let through; GFD's default: 60s
	OutputFile      *string        // empty is standard output; GFD's default: /etc/kubernetes/node-feature-discovery/features.d/gfd
	MachineTypeFile *string        // empty is no machine type; GFD's default: /sys/class/dmi/id/product_name
}

// Infinite is the sleep interval of a GFD that scans once and then waits for a
// signal.
const Infinite time.Duration = math.MaxInt64

// ParseSleepInterval reads a sleep interval: "infinite", or a duration such as
// 90s.
func ParseSleepInterval(s string) (time.Duration, error) {
	if s == "infinite" {
		return Infinite, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%s: want a duration such as 60s, or infinite", clip(s))
	}
	return d, nil
}

// Replicated is what is shared by one means.
type Replicated struct {
	// RenameByDefault has the plugin advertise each resource under its name
	// with .shared appended.
	RenameByDefault bool
	Resources       []Resource // one or more
}

// Resource is a resource that is advertised several times.
type Resource struct {
	Name     string // in full, e.g. nvidia.com/gpu
	Replicas int    // 2 or more
}

// Sharing tells how GPUs are shared, nil if they are not. As in GFD, MPS goes
// before time-slicing, and of several entries for a resource the first counts.
func (c *Config) Sharing() *labels.Sharing {
	strategy, shared := labels.MPS, c.MPS
	if shared == nil {
		strategy, shared = labels.TimeSlicing, c.TimeSlicing
	}
	if shared == nil {
		return nil
	}
	s := &labels.Sharing{Strategy: strategy}
	for _, r := range shared.Resources {
		s.Resources = append(s.Resources, labels.SharedResource{
			Name:     r.Name,
			Renamed:  shared.RenameByDefault,
			Replicas: r.Replicas,
		})
	}
	return s
}

// maxSize is what a ConfigMap can hold.
const maxSize = 1 << 20

// Load reads and parses a configuration file. It may be a symbolic link, as in
// a mounted ConfigMap. The warnings are those of Parse, with the path.
func Load(path string, unknown Unknown) (*Config, []string, error) {
	data, err := hostfs.Root("").ReadFile(path, maxSize)
	switch {
	case errors.Is(err, hostfs.ErrNotRegular):
		return nil, nil, fmt.Errorf("%s: not a regular file: want the path of a configuration file", path)
	case errors.Is(err, hostfs.ErrTooLong):
		return nil, nil, fmt.Errorf("%s: more than 1 MiB: want the device plugin's configuration file", path)
	case err != nil:
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	c, warnings, err := Parse(data, unknown)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, w := range warnings {
		warnings[i] = path + ": " + w
	}
	return c, warnings, nil
}
