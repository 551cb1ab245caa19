package agent

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// hold remembers what was found, and completes what a scan found by what is
// still true of it: NVML's answers for GPUs that are on the bus and do not
// answer, as long as NVML answers for none; and devices that are gone from the
// bus, until that was seen twice.
type hold struct {
	last     *discover.Inventory // completed
	asked    bool                // a full scan has ended
	none     time.Time           // since when there is no GPU, where none was ever seen
	answered bool                // NVML has said which GPUs there are, or that there is none
	gone     map[pci.Address]time.Time
	removed  map[pci.Address]time.Time // devices that two scans have seen gone
	noGPU    time.Time                 // since when NVML has listed no GPU, where it had some that are not on PCI
	ignored  map[hardware]bool
}

// merged is an inventory that was completed.
type merged struct {
	inv       *discover.Inventory
	held      bool // NVML's answers are older than this scan
	unsettled bool // something is gone that was there before: look again soon
}

// merge completes what a scan found, and remembers it.
func (h *hold) merge(k look) merged {
	inv := *k.inv // a copy, for the scan's own belongs to who made it
	inv.Functions = slices.Clone(inv.Functions)
	inv.GPUs = slices.Clone(inv.GPUs)
	m := merged{inv: &inv}
	last := h.last
	if last == nil {
		last = &discover.Inventory{}
	}
	if inv.Machine == nil {
		inv.Machine = last.Machine
	}
	if inv.SystemMemoryMiB == 0 {
		inv.SystemMemoryMiB = last.SystemMemoryMiB
	}
	h.dropRemoved(&inv, k)
	m.unsettled = h.keepGone(&inv, last, k.started)

	silent := !k.full || failing(inv.NVIDIA.State)
	if k.full {
		m.unsettled = h.keepOffBus(&inv, last, k, &silent) || m.unsettled
	} else {
		inv.NVIDIA.State = last.NVIDIA.State
		inv.GPUs = append(inv.GPUs, offBus(last)...)
	}
	if silent {
		m.held = h.keepAnswers(&inv, last, k.full)
	}
	if slices.ContainsFunc(inv.GPUs, hasAnswer) && inv.NVIDIA.DriverVersion == "" {
		inv.NVIDIA.DriverVersion, inv.NVIDIA.CUDADriverVersion = last.NVIDIA.DriverVersion, last.NVIDIA.CUDADriverVersion
		if inv.NVIDIA.State == "" {
			inv.NVIDIA.State = last.NVIDIA.State // all that is left are devices that are gone
		}
	}
	slices.SortFunc(inv.Functions, func(a, b pci.Function) int { return a.Address.Compare(b.Address) })
	slices.SortStableFunc(inv.GPUs, func(a, b discover.GPU) int { return a.Compare(&b) })

	m.unsettled = h.doubt(k) || m.unsettled

	if k.full {
		h.asked = true
		if !failing(k.inv.NVIDIA.State) && answered(k.answer) {
			h.answered = true
			h.ignored = ignored(k.inv)
		}
	}
	h.last = &inv
	return m
}

// doubt tells whether the first scan found no GPU: another process may have found
// some a moment ago, and what is gone is to be seen gone twice.
func (h *hold) doubt(k look) bool {
	if len(k.inv.GPUs) > 0 {
		h.none = time.Time{}
		return false
	}
	if h.last == nil {
		h.none = k.started
	}
	if !h.none.IsZero() && k.started.Sub(h.none) >= settleTime {
		h.none = time.Time{}
	}
	return !h.none.IsZero()
}

// dropRemoved takes out what a scan saw that was not the last to look: while it
// waited for NVML, others have seen the device gone.
func (h *hold) dropRemoved(inv *discover.Inventory, k look) {
	stale := func(f *pci.Function) bool {
		since, removed := h.removed[f.Address]
		return removed && since.After(k.started)
	}
	for i := range inv.Functions {
		if f := &inv.Functions[i]; !stale(f) {
			delete(h.removed, f.Address) // there again
		}
	}
	inv.GPUs = slices.DeleteFunc(inv.GPUs, func(g discover.GPU) bool { return g.Function != nil && stale(g.Function) })
	inv.Functions = slices.DeleteFunc(inv.Functions, func(f pci.Function) bool { return stale(&f) })
	if k.full || h.removed == nil {
		h.removed = map[pci.Address]time.Time{} // the next full scan begins later
	}
}

// keepGone keeps functions that are gone from the bus, with their GPUs, until
// two scans have seen it; and for as long as they are there but cannot be read.
// It tells whether another scan is needed to be sure.
func (h *hold) keepGone(inv, last *discover.Inventory, now time.Time) (unsettled bool) {
	present := make(map[pci.Address]bool, len(inv.Functions))
	for i := range inv.Functions {
		present[inv.Functions[i].Address] = true
	}
	seen := map[pci.Address]time.Time{}
	kept := map[pci.Address]bool{}
	was := gpusByAddress(last)
	for i := range last.Functions {
		f := &last.Functions[i]
		if present[f.Address] {
			continue
		}
		if !unreadable(inv, f.Address) {
			since, before := h.gone[f.Address]
			if before && now.Sub(since) >= settleTime {
				h.removed[f.Address] = now
				continue
			}
			if !before {
				since = now
			}
			seen[f.Address] = since
			unsettled = true
		}
		inv.Functions = append(inv.Functions, *f)
		kept[f.Address] = true
		if g := was[f.Address]; g != nil {
			inv.GPUs = append(inv.GPUs, *g)
		}
	}
	// NVML may have seen a GPU while sysfs did not.
	inv.GPUs = slices.DeleteFunc(inv.GPUs, func(g discover.GPU) bool {
		return g.Function == nil && g.NVML != nil && g.NVML.PCIAddress != nil && kept[*g.NVML.PCIAddress]
	})
	h.gone = seen
	return unsettled
}

// unreadable tells a function that is there and cannot be read from one that is
// gone.
func unreadable(inv *discover.Inventory, a pci.Address) bool {
	name := a.String()
	return slices.ContainsFunc(inv.Problems, func(p discover.Problem) bool {
		return p.Source == "pci" && p.Device == name && !strings.Contains(p.Text, pci.ErrGone.Error())
	})
}

// keepOffBus keeps GPUs that are not on PCI while NVML does not answer, or has
// listed none once. It sets silent when NVML does not answer.
func (h *hold) keepOffBus(inv, last *discover.Inventory, k look, silent *bool) (unsettled bool) {
	was := offBus(last)
	if len(was) == 0 || len(offBus(inv)) > 0 || inv.NVIDIA.State == discover.StateOK {
		h.noGPU = time.Time{}
		return false
	}
	if !*silent {
		if answered(k.answer) {
			if !h.noGPU.IsZero() && k.started.Sub(h.noGPU) >= settleTime {
				h.noGPU = time.Time{}
				return false
			}
			if h.noGPU.IsZero() {
				h.noGPU = k.started
			}
			inv.GPUs = append(inv.GPUs, was...)
			return true
		}
		// Without a function on the bus the scan sees no reason for a state.
		inv.NVIDIA.State = stateOf(k.answer)
		*silent = true
	}
	inv.GPUs = append(inv.GPUs, was...)
	return false
}

// keepAnswers gives the GPUs that do not answer the answer that they gave last.
// Without NVML having been asked (asked is false) a GPU is what it was, and one
// that was not there does not count yet. It tells whether any answer is old.
func (h *hold) keepAnswers(inv, last *discover.Inventory, asked bool) (held bool) {
	known := gpusByAddress(last)
	inv.GPUs = slices.DeleteFunc(inv.GPUs, func(g discover.GPU) bool {
		if g.Vendor != discover.NVIDIA || g.Condition != discover.Failed || g.Function == nil {
			return false
		}
		return h.ignored[hardwareOf(g.Function)] || !asked && known.find(g.Function) == nil
	})
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		if g.Vendor != discover.NVIDIA {
			continue
		}
		if g.Function == nil {
			held = held || g.NVML != nil
			continue
		}
		if g.Condition != discover.Failed {
			continue
		}
		was := known.find(g.Function)
		if was == nil || asked && (was.Condition != discover.Usable || was.NVML == nil) {
			continue
		}
		function := g.Function
		*g = *was
		g.Function = function
		held = held || g.NVML != nil
	}
	return held && asked
}

// blind describes an inventory for which NVML has not answered since the agent
// started, or which has no GPU and is the first, so that what an earlier process
// published may be more than we know. It is nil when we know.
func (h *hold) blind(inv *discover.Inventory, answer *nvml.Answer, opts labels.Options) *blind {
	doubt := !h.none.IsZero()
	if h.answered && !doubt {
		return nil
	}
	b := &blind{extra: !opts.OmitExtra, state: inv.NVIDIA.State, doubt: doubt}
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		b.waiting = b.waiting || g.Vendor == discover.NVIDIA && g.Condition == discover.Failed
		b.onBus = b.onBus || g.Vendor == discover.NVIDIA && g.Function != nil
	}
	if b.state == "" && answer != nil {
		b.state = stateOf(answer)
	}
	return b
}

// blind is what decides whether published labels are held.
type blind struct {
	waiting bool // a GPU on the bus should have answered
	onBus   bool // there is an NVIDIA GPU on the bus
	state   discover.State
	extra   bool // our own labels are wanted
	doubt   bool // no GPU was seen, and not for long
}

// The prefixes and keys that decide what is held.
const (
	nvidiaPrefix = "nvidia.com/"
	stateKey     = labels.ExtraPrefix + "state"
	countKey     = labels.ExtraPrefix + "count"
	onBusKey     = labels.ExtraPrefix + "count.pci"
	failedKey    = labels.ExtraPrefix + "count.failed"
	guestsKey    = labels.ExtraPrefix + "count.passthrough"
)

// over completes set, for which NVML did not answer, by those labels of
// published that only NVML can tell, if the hardware is the same as far as the
// labels say.
func (b *blind) over(published, set labels.Set) labels.Set {
	if b != nil && b.doubt {
		return published
	}
	if b == nil || !hasPrefix(published, nvidiaPrefix) {
		return set
	}
	was, is := published[onBusKey], set[onBusKey]
	sameBus := was == "" || is == "" || was == is
	offBus := !b.onBus && was == "" && published[countKey] != ""
	if !(b.waiting && sameBus) && !offBus {
		return set
	}
	held := maps.Clone(set)
	delete(held, failedKey)
	for key, value := range published {
		switch {
		case strings.HasPrefix(key, nvidiaPrefix):
			held[key] = value
		case key == stateKey, key == onBusKey, key == guestsKey:
		case b.extra && strings.HasPrefix(key, labels.ExtraPrefix):
			held[key] = value
		}
	}
	if offBus && b.extra && b.state != "" {
		held[stateKey] = string(b.state)
	}
	return held
}

func hasPrefix(set labels.Set, prefix string) bool {
	for key := range set {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// failing tells the states in which NVML has told nothing.
func failing(s discover.State) bool { return s != "" && s != discover.StateOK }

// answered tells whether NVML could be asked which GPUs there are.
func answered(a *nvml.Answer) bool {
	return a != nil && a.Failure == nil && a.Init == nvml.Success && a.Errors["gpus"] == ""
}

// stateOf is the state that an answer without GPUs stands for, where GPUs are
// known that it should have listed. The scan gives none without a GPU on the bus.
func stateOf(a *nvml.Answer) discover.State {
	switch {
	case a == nil:
		return discover.StateError
	case a.Failure != nil && (a.Failure.Kind == nvml.Timeout || a.Failure.Kind == nvml.Stuck):
		return discover.StateTimeout
	case a.Init == nvml.VersionMismatch:
		return discover.StateDriverMismatch
	case a.Init == nvml.LibraryNotFound, a.Init == nvml.DriverNotLoaded:
		return discover.StateNoDriver
	case a.Init == nvml.NoPermission:
		return discover.StateNoPermission
	}
	return discover.StateError
}

// ignored are the functions of GPUs that NVML knows and that do not count, such
// as the display adapter of a DGX station.
func ignored(inv *discover.Inventory) map[hardware]bool {
	all := map[hardware]bool{}
	known := gpusByAddress(inv)
	for i := range inv.Functions {
		f := &inv.Functions[i]
		if class := f.ClassID(); f.Vendor == pci.NVIDIA && (class == 0x0300 || class == 0x0302) && known.find(f) == nil {
			all[hardwareOf(f)] = true
		}
	}
	return all
}

// offBus are the GPUs that are on no PCI bus.
func offBus(inv *discover.Inventory) []discover.GPU {
	var all []discover.GPU
	for _, g := range inv.GPUs {
		if g.Function == nil {
			all = append(all, g)
		}
	}
	return all
}

// gpus finds GPUs by the addresses of their functions.
type gpus map[pci.Address]*discover.GPU

func gpusByAddress(inv *discover.Inventory) gpus {
	all := make(gpus, len(inv.GPUs))
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		if g.Function != nil && all[g.Function.Address] == nil {
			all[g.Function.Address] = g
		}
	}
	return all
}

// find gives the GPU of a function, nil if there is none.
func (all gpus) find(f *pci.Function) *discover.GPU {
	if g := all[f.Address]; g != nil && hardwareOf(g.Function) == hardwareOf(f) {
		return g
	}
	return nil
}

// hardware is a piece of hardware, as far as one can tell it from another.
type hardware struct {
	address        pci.Address
	vendor, device uint16
}

func hardwareOf(f *pci.Function) hardware { return hardware{f.Address, f.Vendor, f.Device} }

func hasAnswer(g discover.GPU) bool { return g.NVML != nil }
