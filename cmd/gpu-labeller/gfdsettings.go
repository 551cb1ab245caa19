package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpu-labeller/gpu-labeller/config"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// gfdSettings are the flags completed by the configuration file.
type gfdSettings struct {
	gfdFlags

	sharing *labels.Sharing
	// unread: the file could not be used, so that the flags alone are in force.
	unread bool
}

// gfdFileError is an error of the configuration file.
type gfdFileError struct{ err error }

func (e *gfdFileError) Error() string { return "--config-file: " + e.err.Error() }
func (e *gfdFileError) Unwrap() error { return e.err }

// settings reads the configuration file, if there is one. What the command line
// or the environment decides is not looked at in the file. The error is a
// *gfdFileError where it is the file's.
func (f *gfdFlags) settings() (s *gfdSettings, warnings []string, err error) {
	s = &gfdSettings{gfdFlags: *f}
	if f.configFile != "" {
		var c *config.Config
		if c, warnings, err = config.Load(f.configFile, config.PassOver); err != nil {
			return nil, warnings, &gfdFileError{err}
		}
		s.sharing = c.Sharing()
		take(f, "mig-strategy", &s.migStrategy, c.Flags.MIGStrategy)
		take(f, "fail-on-init-error", &s.failOnInitError, c.Flags.FailOnInitError)
		take(f, "use-node-feature-api", &s.useNodeFeatureAPI, c.Flags.UseNodeFeatureAPI)
		take(f, "device-discovery-strategy", &s.strategy, c.Flags.DeviceDiscoveryStrategy)
		take(f, "oneshot", &s.oneshot, c.Flags.GFD.Oneshot)
		take(f, "no-timestamp", &s.noTimestamp, c.Flags.GFD.NoTimestamp)
		take(f, "sleep-interval", &s.sleepInterval, c.Flags.GFD.SleepInterval)
		take(f, "output-file", &s.outputFile, c.Flags.GFD.OutputFile)
		take(f, "machine-type-file", &s.machineTypeFile, c.Flags.GFD.MachineTypeFile)
	}
	for _, word := range []struct {
		flag, field, value string
		of                 []string
	}{
		{"mig-strategy", "migStrategy", s.migStrategy, []string{string(labels.MIGNone), string(labels.MIGSingle), string(labels.MIGMixed)}},
		{"device-discovery-strategy", "deviceDiscoveryStrategy", s.strategy, []string{"auto", "nvml", "tegra", "vfio"}},
	} {
		known := cli.Choice{Of: word.of}
		err := known.Set(word.value)
		if err == nil {
			continue
		}
		err = fmt.Errorf("%q: %w", word.value, err)
		if f.given[word.flag] || f.configFile == "" {
			return nil, warnings, fmt.Errorf("--%s %w", word.flag, err)
		}
		return nil, warnings, &gfdFileError{fmt.Errorf("%s: flags.%s: %w", f.configFile, word.field, err)}
	}
	return s, warnings, nil
}

// take overrides a value by the file's, unless a flag or a variable goes first.
func take[T any](f *gfdFlags, flag string, value, file *T) {
	if file != nil && !f.given[flag] {
		*value = *file
	}
}

// options say which labels there are: GFD's, and no others.
func (s *gfdSettings) options(start time.Time) labels.Options {
	opts := labels.Options{
		MIGStrategy: labels.MIGStrategy(s.migStrategy),
		Sharing:     s.sharing,
		OmitExtra:   true,
		OmitPCI:     true,
	}
	if !s.noTimestamp {
		opts.Timestamp = start
	}
	return opts
}

// interval is the time between two scans. The agent goes by changes of the host
// besides, so that infinite leaves out no more than the scans for nothing.
func (s *gfdSettings) interval() time.Duration {
	// The agent computes with multiples of it.
	const longest = 10 * 365 * 24 * time.Hour
	return min(max(s.sleepInterval, time.Second), longest)
}

// sameRun tells whether an agent that runs by s would do for t, but for the
// labels' options.
func (s *gfdSettings) sameRun(t *gfdSettings) bool {
	return s.unread == t.unread && s.oneshot == t.oneshot && s.interval() == t.interval() &&
		s.machineTypeFile == t.machineTypeFile && s.useNodeFeatureAPI == t.useNodeFeatureAPI &&
		(s.useNodeFeatureAPI || s.outputFile == t.outputFile)
}

// decides tells whether the configuration file may decide a label: while it
// cannot be read, the truth of that label is unknown. Where the MIG strategy is
// given elsewhere, only sharing is the file's.
func (s *gfdSettings) decides(key string, set labels.Set) bool {
	name, ours := strings.CutPrefix(key, "nvidia.com/")
	if !ours {
		return false
	}
	for _, shared := range []string{".product", ".replicas", ".sharing-strategy"} {
		if strings.HasSuffix(name, shared) {
			return true
		}
	}
	if name == "mps.capable" {
		return true
	}
	if s.given["mig-strategy"] || set["nvidia.com/mig.capable"] != "true" {
		return false
	}
	for _, mig := range []string{"mig.strategy", "mig-", "gpu.count", "gpu.memory", "gpu.multiprocessors", "gpu.slices.", "gpu.engines."} {
		if strings.HasPrefix(name, mig) {
			return true
		}
	}
	return false
}
