package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/dra"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// draDevices are the GPUs and MIG devices that DRA publishes for the node: by the
// file, or by the API server when there is none.
func (f *diffFlags) draDevices(cmd *cobra.Command, file string) ([]dra.Device, error) {
	var all []dra.Slice
	if file != "" {
		content, err := readInput(cmd.InOrStdin(), file)
		if err != nil {
			return nil, err
		}
		if all, err = dra.Parse(content); err != nil {
			return nil, err
		}
	} else {
		client, err := f.client()
		if err != nil {
			return nil, err
		}
		if all, err = dra.List(cmd.Context(), client, f.agent.nodeName); err != nil {
			return nil, err
		}
	}
	return devicesOf(all, f.agent.nodeName)
}

// devicesOf gives the devices of NVIDIA's driver on the node; on the only one
// that has such, when none is named.
func devicesOf(all []dra.Slice, node string) ([]dra.Device, error) {
	nodes := map[string]bool{}
	mine := slices.DeleteFunc(all, func(s dra.Slice) bool {
		other := s.Spec.Driver != dra.NVIDIA || node != "" && s.Spec.NodeName != node
		if !other {
			nodes[s.Spec.NodeName] = true
		}
		return other
	})
	switch len(nodes) {
	case 0:
		return nil, fmt.Errorf("there is no ResourceSlice of the driver %s for node %s", dra.NVIDIA, cmp.Or(node, "(any)"))
	case 1:
		return dra.Devices(mine, dra.NVIDIA), nil
	default:
		return nil, fmt.Errorf("there are ResourceSlices of %d nodes: name one with --node-name", len(nodes))
	}
}

// draModel is the GPUs of one product, as DRA describes them.
type draModel struct {
	gpus     map[string]bool // by UUID, those that are split by MIG included
	whole    *dra.Device     // one that is not split, nil if all are
	any      *dra.Device
	profiles map[string]int // MIG devices
	dynamic  bool           // MIG devices that could be made are listed, too
}

// draModels sorts devices by product. GPUs that are passed through to virtual
// machines are none of ours.
func draModels(devices []dra.Device) map[string]*draModel {
	models := map[string]*draModel{}
	for i := range devices {
		d := &devices[i]
		kind := d.Attributes["type"].String
		if kind != "gpu" && kind != "mig" {
			continue
		}
		name := d.Attributes["productName"].String
		m := models[name]
		if m == nil {
			m = &draModel{gpus: map[string]bool{}, profiles: map[string]int{}}
			models[name] = m
		}
		m.any = d
		switch {
		case kind == "gpu":
			m.whole = d
			m.gpus[cmp.Or(d.Attributes["uuid"].String, d.Name)] = true
		case d.Attributes["uuid"].String == "":
			m.dynamic = true // not there yet; its GPU is listed as one
		default:
			m.profiles[strings.ReplaceAll(d.Attributes["profile"].String, "+", ".")]++
			m.gpus[cmp.Or(d.Attributes["parentUUID"].String, d.Name)] = true
		}
	}
	return models
}

// compareDRA compares the GPUs that were found, model by model, with those that
// DRA publishes. What DRA does not say is not compared.
func compareDRA(inv *discover.Inventory, devices []dra.Device) []diffRow {
	here := modelLabels(inv)
	there := draModels(devices)
	names := slices.Collect(maps.Keys(here))
	for name := range there {
		if here[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	rows := driverRows(here, there)
	for _, name := range names {
		for _, r := range modelRows(name, here[name], there[name]) {
			// What DRA leaves out is no difference, but for a whole model and a
			// profile.
			if r.There == nil && there[name] != nil && !strings.HasSuffix(r.Key, ".count") {
				continue
			}
			if len(names) > 1 {
				r.Key += " of " + name
			}
			rows = append(rows, r)
		}
	}
	return slices.DeleteFunc(rows, func(r diffRow) bool { return r.Here == nil && r.There == nil })
}

// driverRows compares what is the same for all models, where both sides say it.
func driverRows(here map[string]labels.Set, there map[string]*draModel) []diffRow {
	var rows []diffRow
	for _, v := range []struct{ key, attribute string }{
		{"nvidia.com/cuda.driver-version.full", "driverVersion"},
		{"nvidia.com/cuda.runtime-version.full", "cudaDriverVersion"},
	} {
		var label, version string
		for _, set := range here {
			label = set[v.key]
		}
		for _, name := range slices.Sorted(maps.Keys(there)) {
			version = cmp.Or(version, there[name].any.Attributes[v.attribute].Version)
		}
		if label != "" && version != "" {
			rows = append(rows, newDiffRow(v.key, &label, &version, dra.SameVersion))
		}
	}
	return rows
}

// modelLabels are the labels that each model would have if it were alone on the
// node, MIG devices by profile, and nothing shared.
func modelLabels(inv *discover.Inventory) map[string]labels.Set {
	models := map[string][]discover.GPU{}
	for _, g := range inv.GPUs {
		if g.NVML != nil && g.Condition == discover.Usable {
			models[g.NVML.Name] = append(models[g.NVML.Name], g)
		}
	}
	sets := map[string]labels.Set{}
	for name, gpus := range models {
		set, _ := labels.Compute(&discover.Inventory{GPUs: gpus, NVIDIA: inv.NVIDIA},
			labels.Options{MIGStrategy: labels.MIGMixed, OmitExtra: true, OmitPCI: true})
		sets[name] = set
	}
	return sets
}

// modelRows compares a model; set or m is nil where one side does not have it, of
// which it is enough to know the count.
func modelRows(name string, set labels.Set, m *draModel) []diffRow {
	exactly := func(a, b string) bool { return a == b }
	there := labels.Set{}
	if m != nil {
		there = labels.Set{"nvidia.com/gpu.product": name, "nvidia.com/gpu.count": strconv.Itoa(len(m.gpus))}
	}
	rows := []diffRow{
		draRow("nvidia.com/gpu.product", set, there["nvidia.com/gpu.product"], equalNames),
		draRow("nvidia.com/gpu.count", set, there["nvidia.com/gpu.count"], exactly),
	}
	if set == nil || m == nil {
		return rows
	}
	var memory string
	if m.whole != nil {
		if q, err := resource.ParseQuantity(m.whole.Capacity["memory"].Value); err == nil {
			memory = strconv.FormatInt(q.Value()>>20, 10)
		}
	}
	major, minor, _ := strings.Cut(m.any.Attributes["cudaComputeCapability"].Version, ".")
	minor, _, _ = strings.Cut(minor, ".")
	rows = append(rows,
		draRow("nvidia.com/gpu.memory", set, memory, exactly),
		draRow("nvidia.com/gpu.compute.major", set, major, exactly),
		draRow("nvidia.com/gpu.compute.minor", set, minor, exactly),
		draRow("nvidia.com/gpu.family", set, m.any.Attributes["architecture"].String, equalNames),
	)
	if m.dynamic {
		return rows
	}
	profiles := slices.Collect(maps.Keys(m.profiles))
	for key := range set {
		profile, ok := strings.CutPrefix(key, "nvidia.com/mig-")
		profile, count := strings.CutSuffix(profile, ".count")
		if ok && count && m.profiles[profile] == 0 {
			profiles = append(profiles, profile)
		}
	}
	slices.Sort(profiles)
	for _, profile := range profiles {
		there := ""
		if n := m.profiles[profile]; n > 0 {
			there = strconv.Itoa(n)
		}
		rows = append(rows, draRow("nvidia.com/mig-"+profile+".count", set, there, exactly))
	}
	return rows
}

// draRow compares a label with DRA's value, empty where DRA has none.
func draRow(key string, set labels.Set, there string, equal func(here, there string) bool) diffRow {
	var value *string
	if there != "" {
		value = &there
	}
	return newDiffRow(key, valueOf(set, key), value, equal)
}

// equalNames compares a label's value with the text that it was made of. A label
// holds no space and few marks, and is cut at 63 characters.
func equalNames(a, b string) bool {
	x, y := lettersOf(a), lettersOf(b)
	return x == y || len(a) >= 60 && strings.HasPrefix(y, x)
}

func lettersOf(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, strings.ToLower(s))
}
