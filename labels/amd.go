package labels

import (
	"math"
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/amd"
)

// The labels of this file are those of AMD's node labeller
// (ROCm/k8s-device-plugin), but for GPUs that fail, values that the API server
// would refuse, and the empty values that it gives for what cannot be read.
const (
	amdPrefix     = "amd.com/gpu"
	amdBetaPrefix = "beta.amd.com/gpu"
)

// amdLabels gives the amd.com/ labels, of GPUs that amdgpu is bound to.
func amdLabels(s Set, inv *discover.Inventory, opts Options) {
	var gpus []*discover.GPU
	for i := range inv.GPUs {
		if g := &inv.GPUs[i]; g.AMD != nil && g.Function != nil && g.Condition == discover.Usable {
			gpus = append(gpus, g)
		}
	}
	if len(gpus) == 0 {
		return
	}
	s[amdPrefix+".count"] = strconv.Itoa(len(gpus))

	// AMD counts these by physical GPU.
	devices, products, families, gfx := tally{}, tally{}, tally{}, tally{}
	// And these by partition, each of which is a GPU to the device plugin.
	vram, simds, cus := tally{}, tally{}, tally{}
	for _, g := range gpus {
		devices.add(string(appendHex(nil, g.Function.Device)))
		if !saysNothing(g.Product) {
			products.add(trim(withUnderscores(g.Product)))
		}
		families.add(sanitise(g.AMD.Family))
		gfx.add(sanitise(g.AMD.GFX))
		for _, bytes := range g.AMD.VRAMPerPartition() {
			vram.add(amdGiB(bytes))
		}
		for _, p := range g.AMD.Partitions {
			simds.addCount(p.SIMDs)
			cus.addCount(p.CUs)
		}
	}
	for _, property := range []struct {
		name  string
		tally tally
		beta  bool
	}{
		{"device-id", devices, true},
		{"product-name", products, true},
		{"vram", vram, true},
		{"simd-count", simds, true},
		{"cu-count", cus, true},
		{"family", families, true},
		{"gfx", gfx, false},
	} {
		property.tally.labels(s, amdPrefix+"."+property.name)
		if property.beta && opts.AMDBeta {
			property.tally.betaLabels(s, amdBetaPrefix+"."+property.name)
		}
	}

	s.addUniform(amdPrefix+".driver-version", gpus, func(g *amd.GPU) string { return sanitise(g.DriverVersion) })
	s.addUniform(amdPrefix+".driver-src-version", gpus, func(g *amd.GPU) string { return sanitise(g.DriverSrcVersion) })
	s.addUniform(amdPrefix+".compute-memory-partition", gpus, computeMemoryPartition)
	s.addUniform(amdPrefix+".compute-partitioning-supported", gpus, func(g *amd.GPU) string { return partitionable(g.Compute) })
	s.addUniform(amdPrefix+".memory-partitioning-supported", gpus, func(g *amd.GPU) string { return partitionable(g.Memory) })
}

// addUniform adds a label that AMD gives only when all GPUs have the same value.
func (s Set) addUniform(key string, gpus []*discover.GPU, value func(*amd.GPU) string) {
	same := value(gpus[0].AMD)
	for _, g := range gpus[1:] {
		if value(g.AMD) != same {
			return
		}
	}
	if same != "" {
		s[key] = same
	}
}

// computeMemoryPartition joins both modes as AMD does: spx_nps1.
func computeMemoryPartition(g *amd.GPU) string {
	if g.Compute.Current == "" || g.Memory.Current == "" {
		return ""
	}
	return sanitise(strings.ToLower(g.Compute.Current + "_" + g.Memory.Current))
}

func partitionable(p amd.Partitioning) string {
	if p.Unread {
		return ""
	}
	return strconv.FormatBool(len(p.Available) > 0)
}

// tally counts GPUs by a value.
type tally map[string]int

// add counts a GPU, unless it does not tell the value.
func (t tally) add(value string) {
	if value != "" {
		t[value]++
	}
}

func (t tally) addCount(n int) {
	if n > 0 {
		t[strconv.Itoa(n)]++
	}
}

// labels gives the value where all GPUs have the same, and else how many GPUs
// have each.
func (t tally) labels(s Set, key string) {
	if len(t) != 1 {
		t.counters(s, key)
		return
	}
	for value := range t {
		s[key] = bound(value, "")
	}
}

// betaLabels gives the value where all have the same, and the counts always.
func (t tally) betaLabels(s Set, key string) {
	if len(t) == 1 {
		t.labels(s, key)
	}
	t.counters(s, key)
}

func (t tally) counters(s Set, key string) {
	_, name, _ := strings.Cut(key, "/")
	counts := tally{}
	for value, n := range t { // two long names may be one when cut
		if room := maxName - len(name) - 1; len(value) > room {
			value = trim(value[:room])
		}
		counts[value] += n
	}
	for value, n := range counts {
		s[key+"."+value] = strconv.Itoa(n)
	}
}

// underscored is a product name as a label value.
func underscored(name string) string { return bound(withUnderscores(name), "") }

// withUnderscores writes a product name as AMD's labeller does, spaces and slashes
// as underscores and brackets left out, and leaves out what else a label cannot
// hold.
func withUnderscores(name string) string {
	b := make([]byte, 0, len(name))
	for _, c := range []byte(strings.TrimSpace(name)) {
		switch {
		case c == ' ' || c == '/':
			b = append(b, '_')
		case isAllowed(c):
			b = append(b, c)
		}
	}
	return string(b)
}

// amdGiB writes memory as AMD's labeller does: MiB rounded down, then GiB rounded
// to the nearest. It is empty for less than half a GiB.
func amdGiB(bytes uint64) string {
	gib := math.Round(float64(bytes>>20) / 1024)
	if gib < 1 {
		return ""
	}
	return strconv.FormatFloat(gib, 'f', 0, 64) + "G"
}
