package labels

import (
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/intel"
)

// The labels of this file are those that Intel's NodeFeatureRules for NFD
// (intel/intel-device-plugins-for-kubernetes) give, right on nodes with several
// kinds of GPUs.
const intelPrefix = "gpu.intel.com/"

// IntelName is what gpu.intel.com/product and family say of a device ID; empty
// means no label.
type IntelName struct {
	Product string // e.g. Max_1550
	Family  string // e.g. Max_Series
}

// intelLabels gives Intel's labels, of GPUs that i915 or xe is bound to.
func intelLabels(s Set, inv *discover.Inventory, opts Options) {
	var gpus []*discover.GPU
	for i := range inv.GPUs {
		if g := &inv.GPUs[i]; g.Intel != nil && g.Function != nil && g.Condition == discover.Usable {
			gpus = append(gpus, g)
		}
	}
	if len(gpus) == 0 {
		return
	}
	s["intel.feature.node.kubernetes.io/gpu"] = "true"
	s[intelPrefix+"device.count"] = strconv.Itoa(len(gpus))

	kinds := tally{}
	tiles, tilesKnown := 0, true
	for _, g := range gpus {
		id := append(appendHex(nil, g.Function.ClassID()), '-')
		kinds.add(string(appendHex(id, g.Function.Device)))
		tiles += g.Intel.Tiles
		tilesKnown = tilesKnown && g.Intel.Tiles > 0
	}
	for kind, n := range kinds {
		s[intelPrefix+"device-id."+kind+".present"] = "true"
		s[intelPrefix+"device-id."+kind+".count"] = strconv.Itoa(n)
	}
	if tilesKnown {
		s[intelPrefix+"tiles"] = strconv.Itoa(tiles)
	}
	if product := uniform(gpus, func(g *discover.GPU) string { return intelName(g, opts).Product }); product != "" {
		s[intelPrefix+"product"] = product
	}
	if family := uniform(gpus, func(g *discover.GPU) string { return intelName(g, opts).Family }); family != "" {
		s[intelPrefix+"family"] = family
	}
}

// uniform is the value that all GPUs have. The processor's own GPU has no say
// where there are others: Intel's rules do not know it.
func uniform(gpus []*discover.GPU, value func(*discover.GPU) string) string {
	var speakers []*discover.GPU
	for _, g := range gpus {
		if !g.Intel.Integrated() {
			speakers = append(speakers, g)
		}
	}
	if len(speakers) == 0 {
		speakers = gpus
	}
	same := value(speakers[0])
	for _, g := range speakers[1:] {
		if value(g) != same {
			return ""
		}
	}
	return same
}

// intelName is the operator's name of a GPU, else the table's.
func intelName(g *discover.GPU, opts Options) IntelName {
	n, ok := opts.IntelNames[g.Function.Device]
	if !ok {
		n = IntelName{Product: intelProduct(g.Intel.Model), Family: g.Intel.Model.Family}
	}
	return IntelName{Product: underscored(n.Product), Family: underscored(n.Family)}
}

// intelProduct shortens "Data Center GPU Max 1550" to "Max 1550", as Intel does.
func intelProduct(m intel.Model) string {
	return strings.TrimPrefix(m.Product, "Data Center GPU ")
}
