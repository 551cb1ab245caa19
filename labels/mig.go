package labels

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// migLabels gives the labels that depend on the MIG strategy, over those of
// nvidia.com/gpu.
func migLabels(s Set, gpus []*discover.GPU, opts Options) {
	switch opts.MIGStrategy {
	case MIGSingle:
		migSingle(s, gpus, opts)
	case MIGMixed:
		migMixed(s, gpus, opts)
	default:
		return
	}
	s["nvidia.com/mig.strategy"] = string(opts.MIGStrategy)
}

// migProfile is the MIG devices of one profile.
type migProfile struct {
	name  string // with + turned into a dot, as resources are named
	count int
	// first is the first such MIG device in NVML's order, gpu the GPU it is on.
	first *nvml.MIGDevice
	gpu   *discover.GPU
}

// profilesOf gives the profiles of the MIG devices on GPUs, in NVML's order.
func profilesOf(gpus []*discover.GPU) []migProfile {
	var profiles []migProfile
	for _, g := range gpus {
		if !migEnabled(g) {
			continue
		}
		for i := range g.NVML.MIG.Devices {
			d := &g.NVML.MIG.Devices[i]
			if noProfile(*d) {
				continue
			}
			name := strings.ReplaceAll(d.Profile, "+", ".")
			at := slices.IndexFunc(profiles, func(p migProfile) bool { return p.name == name })
			if at < 0 {
				at = len(profiles)
				profiles = append(profiles, migProfile{name: name, first: d, gpu: g})
			}
			profiles[at].count++
		}
	}
	return profiles
}

// noProfile reports that a MIG device is there but its profile could not be
// read.
func noProfile(d nvml.MIGDevice) bool { return d.Profile == "" }

// maxMemoryMB is more memory than any MIG device has.
const maxMemoryMB = 1 << 30

// labels describes a resource that is the MIG devices of one profile. Where
// some attributes are there, a 0 is NVML's.
func (p migProfile) labels(s Set, r resource) {
	r.labels(s, p.count, p.gpu.NVML.Name, p.name)
	if *p.first == (nvml.MIGDevice{Profile: p.first.Profile, GPUInstance: p.first.GPUInstance, ComputeInstance: p.first.ComputeInstance}) {
		return // the attributes were not recorded
	}
	for _, attribute := range [...]struct {
		name  string
		value uint64
	}{
		{"memory", p.first.MemoryMB},
		{"multiprocessors", uint64(p.first.Multiprocessors)},
		{"slices.gi", uint64(p.first.GPUInstanceSlices)},
		{"slices.ci", uint64(p.first.ComputeInstanceSlices)},
		{"engines.copy", uint64(p.first.CopyEngines)},
		{"engines.decoder", uint64(p.first.Decoders)},
		{"engines.encoder", uint64(p.first.Encoders)},
		{"engines.jpeg", uint64(p.first.JPEGEngines)},
		{"engines.ofa", uint64(p.first.OFAEngines)},
	} {
		if attribute.name == "memory" && attribute.value > maxMemoryMB {
			continue
		}
		s[r.name+"."+attribute.name] = strconv.FormatUint(attribute.value, 10)
	}
}

// migMixed gives each profile a resource of its own.
func migMixed(s Set, gpus []*discover.GPU, opts Options) {
	for _, p := range profilesOf(gpus) {
		p.labels(s, opts.Sharing.resource("nvidia.com/mig-"+p.name))
	}
}

// migSingle makes nvidia.com/gpu stand for the MIG devices, which takes MIG
// devices of one profile on all GPUs.
func migSingle(s Set, gpus []*discover.GPU, opts Options) {
	var enabled []*discover.GPU
	var disabled, empty, unread bool
	for _, g := range gpus {
		if migEnabled(g) {
			enabled = append(enabled, g)
		}
		switch migModeOf(g) {
		case migNotCapable, migIsDisabled:
			disabled = true
		case migIsEmpty:
			empty = true
		case migUnknown:
			unread = true
		case migIsEnabled:
			unread = unread || slices.ContainsFunc(g.NVML.MIG.Devices, noProfile)
		}
	}
	if len(enabled) == 0 {
		return
	}
	// What was said of whole GPUs does not hold.
	for _, name := range []string{"product", "count", "replicas", "sharing-strategy", "memory"} {
		delete(s, gpuResource+"."+name)
	}
	profiles := profilesOf(enabled)
	invalid := empty || disabled || len(profiles) > 1
	if unread && !invalid {
		return
	}

	groups := [][]*discover.GPU{enabled}
	if opts.MixedGPUs == Omit {
		groups = nil
		for _, m := range modelsOf(enabled) {
			groups = append(groups, m.gpus)
		}
	}
	sets := make([]Set, len(groups))
	for i, group := range groups {
		sets[i] = Set{}
		if invalid {
			invalidMIG(sets[i], group[0].NVML.Name)
		} else {
			p := profilesOf(group)[0]
			p.count = profiles[0].count
			p.labels(sets[i], opts.Sharing.resource(gpuResource))
		}
	}
	s.addCommon(sets)
}

// invalidMIG is how GFD says that the strategy "single" does not fit the node.
func invalidMIG(s Set, model string) {
	resource{name: gpuResource}.labels(s, 0, model, "INVALID")
	s[gpuResource+".memory"] = "0"
}

// migMode is what one GPU says of MIG. The words are also those of the label
// mig.state.
type migMode string

const (
	migNotCapable migMode = ""
	migIsDisabled migMode = "disabled"
	migIsEnabled  migMode = "enabled"       // with MIG devices
	migIsEmpty    migMode = "enabled-empty" // without
	migUnknown    migMode = "unknown"
)

// migModeOf tells what a GPU says of MIG. Without an answer about its MIG
// devices it is unknown whether there are any.
func migModeOf(g *discover.GPU) migMode {
	mig := g.NVML.MIG
	switch {
	case mig == nil && answered(g, "mig"):
		return migNotCapable
	case mig == nil:
		return migUnknown
	case !mig.Enabled:
		return migIsDisabled
	case g.NVML.Errors["mig.devices"] != "":
		return migUnknown
	case len(mig.Devices) == 0:
		return migIsEmpty
	}
	return migIsEnabled
}

func migEnabled(g *discover.GPU) bool { return g.NVML.MIG != nil && g.NVML.MIG.Enabled }

// migCapable tells whether any GPU can have MIG devices. When none says so and
// some did not answer, it is not known.
func migCapable(gpus []*discover.GPU) (capable, known bool) {
	known = true
	for _, g := range gpus {
		if g.NVML.MIG != nil {
			return true, true
		}
		known = known && answered(g, "mig")
	}
	return false, known
}

// answered reports whether NVML answered a query of a GPU, be it that the GPU
// or the library does not support it.
func answered(g *discover.GPU, field string) bool {
	code := g.NVML.Errors[field]
	return code == "" || code.Absent()
}
