package labels

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
)

// ExtraPrefix is that of our own labels, which Options.OmitExtra leaves out. NFD
// lets sub-namespaces of its own through.
const ExtraPrefix = "gpu.feature.node.kubernetes.io/"

// gpuLabels gives our own labels, which hold for GPUs of any vendor.
func gpuLabels(s Set, inv *discover.Inventory) {
	if len(inv.GPUs) == 0 {
		return
	}
	var usable []*discover.GPU
	var onBus, failed, passthrough int
	byVendor := make(map[discover.Vendor]int)
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		if g.Function != nil && g.Condition != discover.Virtual {
			onBus++
		}
		switch g.Condition {
		case discover.Usable:
			usable = append(usable, g)
			byVendor[g.Vendor]++
		case discover.Failed:
			failed++
		case discover.Passthrough:
			passthrough++
		}
	}
	if state := inv.State(); state != "" {
		s[ExtraPrefix+"state"] = string(state)
	}
	s.count("count", len(usable))
	s.count("count.pci", onBus)
	s.count("count.failed", failed)
	s.count("count.passthrough", passthrough)
	for vendor, n := range byVendor {
		s.count("vendor."+string(vendor)+".count", n)
	}
	if len(usable) == 0 {
		return
	}
	if same, known := homogeneous(usable); known {
		s[ExtraPrefix+"homogeneous"] = strconv.FormatBool(same)
	}
	modelLabels(s, usable)
	memoryLabels(s, usable)
	nvidia := answeringNVML(inv.GPUs)
	migStateLabels(s, nvidia)
	nvlinkLabels(s, nvidia)
}

// count adds a count of our own, unless it is zero: no label says as much, and
// state says why.
func (s Set) count(name string, n int) {
	if n > 0 {
		s[ExtraPrefix+name] = strconv.Itoa(n)
	}
}

// homogeneous tells whether all GPUs are of one product and memory size. A GPU
// that does not tell either leaves it open.
func homogeneous(gpus []*discover.GPU) (same, known bool) {
	// Two of a kind stand for all of it.
	var some []*discover.GPU
	kinds := map[kind]int{}
	for _, g := range gpus {
		k := kindOf(g)
		if kinds[k]++; kinds[k] <= 2 {
			some = append(some, g)
		}
	}
	known = true
	for i, a := range some {
		for _, b := range some[i+1:] {
			product, memory := compareProducts(a, b), compareMemory(a, b)
			if product == different || memory == different {
				return false, true
			}
			known = known && product == alike && memory == alike
		}
	}
	return true, known
}

// kind is all of a GPU that compareProducts and compareMemory look at.
type kind struct {
	vendor        discover.Vendor
	product       string
	onBus         bool
	maker, device uint16 // IDs
	unified       bool
	bytes         uint64
}

func kindOf(g *discover.GPU) kind {
	k := kind{vendor: g.Vendor, product: g.Product, onBus: g.Function != nil, unified: g.Unified, bytes: g.MemoryBytes}
	if k.onBus {
		k.maker, k.device = g.Function.Vendor, g.Function.Device
	}
	return k
}

type likeness int

const (
	alike likeness = iota
	different
	unclear // one tells and the other does not
)

// compareProducts goes by name, between two GPUs without a name by device ID.
func compareProducts(a, b *discover.GPU) likeness {
	nameless := saysNothing(a.Product)
	switch {
	case a.Vendor != b.Vendor:
		return different
	case nameless != saysNothing(b.Product):
		return unclear
	case !nameless:
		return likenessOf(a.Product == b.Product)
	case a.Function == nil || b.Function == nil:
		return unclear
	}
	return likenessOf(a.Function.Vendor == b.Function.Vendor && a.Function.Device == b.Function.Device)
}

func compareMemory(a, b *discover.GPU) likeness {
	if !a.Unified && !b.Unified && (a.MemoryBytes == 0) != (b.MemoryBytes == 0) {
		return unclear
	}
	return likenessOf(a.Unified == b.Unified && a.MemoryMiB() == b.MemoryMiB())
}

func likenessOf(same bool) likeness {
	if same {
		return alike
	}
	return different
}

// modelLabels counts the GPUs of each product that is known.
func modelLabels(s Set, gpus []*discover.GPU) {
	counts := make(map[string]int, 1)
	for _, g := range gpus {
		if !saysNothing(g.Product) {
			counts[g.Product]++
		}
	}
	names := slices.Sorted(maps.Keys(counts))
	slugs := make(map[string]int, len(names))
	for _, name := range names {
		slugs[slug(name)]++
	}
	for _, name := range names {
		key := slug(name)
		if slugs[key] > 1 {
			key = hashedSlug(name)
		}
		s.count("model."+key+".count", counts[name])
	}
}

// maxSlug leaves room for "model." and ".count" in the name of a key.
const maxSlug = 50

// slug turns a product name into a part of a key: lower case, words joined by
// dashes. What would be too long is cut and told apart by a hash.
func slug(name string) string {
	if base := slugBase(name); len(base) <= maxSlug {
		return base
	}
	return hashedSlug(name)
}

// hashedSlug ends in the first six digits of the name's SHA-256.
func hashedSlug(name string) string {
	sum := sha256.Sum256([]byte(name))
	suffix := "-" + hex.EncodeToString(sum[:3])
	base := slugBase(name)
	return trim(base[:min(len(base), maxSlug-len(suffix))]) + suffix
}

func slugBase(name string) string {
	return trim(strings.ReplaceAll(strings.ToLower(clean(name)), "_", "-"))
}

// memoryLabels says how much memory GPUs have of their own, if all that have
// any tell.
func memoryLabels(s Set, gpus []*discover.GPU) {
	kind := memoryType(gpus[0])
	for _, g := range gpus[1:] {
		if memoryType(g) != kind {
			kind = ""
		}
	}
	if kind != "" {
		s[ExtraPrefix+"memory.type"] = kind
	}

	var least, most, total uint64
	for _, g := range gpus {
		mib := g.MemoryMiB()
		switch {
		case g.Unified:
			continue
		case mib == 0:
			return
		case least == 0 || mib < least:
			least = mib
		}
		most = max(most, mib)
		total += mib
	}
	if total == 0 {
		return
	}
	s[ExtraPrefix+"memory.min"] = strconv.FormatUint(least, 10)
	s[ExtraPrefix+"memory.max"] = strconv.FormatUint(most, 10)
	s[ExtraPrefix+"memory.total"] = strconv.FormatUint(total, 10)
}

func memoryType(g *discover.GPU) string {
	switch {
	case g.Unified:
		return "unified"
	case g.MemoryBytes > 0:
		return "dedicated"
	}
	return ""
}

// migStateLabels says what MIG is like on the node, whatever the strategy.
func migStateLabels(s Set, gpus []*discover.GPU) {
	if !slices.ContainsFunc(gpus, func(g *discover.GPU) bool { return g.NVML.MIG != nil }) {
		return
	}
	var modes []migMode
	enabled, devices := 0, 0
	modeUnknown := false
	for _, g := range gpus {
		if mode := migModeOf(g); mode != migNotCapable && !slices.Contains(modes, mode) {
			modes = append(modes, mode)
		}
		if g.NVML.MIG == nil {
			modeUnknown = modeUnknown || !answered(g, "mig")
			continue
		}
		if g.NVML.MIG.Enabled {
			enabled++
			devices += len(g.NVML.MIG.Devices)
		}
	}
	state := modes[0]
	switch unknown := slices.Contains(modes, migUnknown); {
	case unknown:
		state = migUnknown
	case len(modes) > 1:
		state = "mixed"
	}
	s[ExtraPrefix+"mig.state"] = string(state)
	if !modeUnknown {
		s[ExtraPrefix+"mig.gpus"] = strconv.Itoa(enabled)
	}
	if state != migUnknown {
		s[ExtraPrefix+"mig.devices"] = strconv.Itoa(devices)
	}
}

// nvlinkLabels says how far the NVIDIA GPUs are linked with each other.
func nvlinkLabels(s Set, gpus []*discover.GPU) {
	pairs, linked := 0, 0
	unknown := false
	var versions []string
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			pairs++
			switch {
			case hasPeer(a, b) || hasPeer(b, a):
				linked++
				versions = append(versions, nvlinkVersion(a), nvlinkVersion(b))
			case !answered(a, "nvlink") || !answered(b, "nvlink"):
				unknown = true
			}
		}
	}
	switch {
	case linked == 0:
		return
	case linked == pairs:
		s[ExtraPrefix+"nvlink"] = "all"
	case unknown:
		return
	default:
		s[ExtraPrefix+"nvlink"] = "some"
	}
	if versions = slices.Compact(versions); len(versions) == 1 {
		if version := sanitise(versions[0]); version != "" {
			s[ExtraPrefix+"nvlink.version"] = version
		}
	}
}

func hasPeer(g, peer *discover.GPU) bool {
	return g.NVML.NVLink != nil && slices.Contains(g.NVML.NVLink.Peers, peer.NVML.Index)
}

func nvlinkVersion(g *discover.GPU) string {
	if g.NVML.NVLink == nil {
		return ""
	}
	return g.NVML.NVLink.Version
}
