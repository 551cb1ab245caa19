package agent

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

var success = &nvml.Answer{Init: nvml.Success}

func device(bus uint8, vendor, id uint16, class uint32) pci.Function {
	return pci.Function{Address: pci.Address{Bus: bus}, Vendor: vendor, Device: id, Class: class}
}

// inventory is one of GPUs that are well.
func inventory(state discover.State, functions ...pci.Function) *discover.Inventory {
	inv := &discover.Inventory{Functions: functions, NVIDIA: discover.NVIDIADriver{State: state}}
	for i := range functions {
		f := &functions[i]
		if f.Class>>8 != 0x0302 {
			continue
		}
		g := discover.GPU{Vendor: discover.NVIDIA, Condition: discover.Failed, Function: f}
		if state == discover.StateOK {
			g.Condition = discover.Usable
			g.NVML = &nvml.GPU{Index: i, Name: "NVIDIA A100"}
			g.Product = g.NVML.Name
			inv.NVIDIA.DriverVersion = "580.1"
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	return inv
}

func conditions(inv *discover.Inventory) map[string]discover.Condition {
	all := map[string]discover.Condition{}
	for _, g := range inv.GPUs {
		all[g.Function.Address.String()] = g.Condition
	}
	return all
}

// A DGX station's display adapter is told by NVML, and stays out when NVML fails.
func TestDisplayAdapterStaysOut(t *testing.T) {
	a, display := device(1, pci.NVIDIA, 0x20b0, 0x030200), device(2, pci.NVIDIA, 0x1fb0, 0x030000)
	var h hold
	h.merge(look{full: true, inv: inventory(discover.StateOK, a, display), answer: success})
	bad := inventory(discover.StateTimeout, a, display)
	bad.GPUs = append(bad.GPUs, discover.GPU{Vendor: discover.NVIDIA, Condition: discover.Failed, Function: &display})
	for range 3 {
		m := h.merge(look{full: true, inv: bad})
		if got := conditions(m.inv); !m.held || len(got) != 1 || got["0000:01:00.0"] != discover.Usable {
			t.Errorf("GPUs are %v, held %v", got, m.held)
		}
	}
}

// Another GPU in the same slot does not get the old one's labels.
func TestOtherGPUAtTheSameAddress(t *testing.T) {
	var h hold
	h.merge(look{full: true, inv: inventory(discover.StateOK, device(1, pci.NVIDIA, 0x20b0, 0x030200)), answer: success})
	m := h.merge(look{full: true, inv: inventory(discover.StateTimeout, device(1, pci.NVIDIA, 0x2335, 0x030200))})
	if got := conditions(m.inv); m.held || got["0000:01:00.0"] != discover.Failed {
		t.Errorf("GPUs are %v, held %v", got, m.held)
	}
}

// A function that is there and cannot be read is not gone, however long.
func TestUnreadableFunction(t *testing.T) {
	a, b := device(1, pci.NVIDIA, 0x20b0, 0x030200), device(2, pci.NVIDIA, 0x20b0, 0x030200)
	now := time.Now()
	var h hold
	h.merge(look{full: true, inv: inventory(discover.StateOK, a, b), answer: success, started: now})
	less := inventory(discover.StateOK, a)
	problem := &pci.FieldError{Address: "0000:02:00.0", Field: "class", Err: errTest}
	less.Problems = []discover.Problem{{Source: "pci", Device: problem.Address, Text: problem.Error()}}
	for i := range 10 {
		m := h.merge(look{full: true, inv: less, answer: success, started: now.Add(time.Duration(i) * time.Minute)})
		if len(m.inv.GPUs) != 2 || len(m.inv.Functions) != 2 || m.unsettled {
			t.Fatalf("GPUs are %v", conditions(m.inv))
		}
	}
	gone := &pci.FieldError{Address: "0000:02:00.0", Err: pci.ErrGone}
	less.Problems[0].Text = gone.Error()
	for i, want := range []int{2, 2, 1} {
		at := now.Add(time.Hour + time.Duration(i)*settleTime/2)
		m := h.merge(look{full: true, inv: less, answer: success, started: at})
		if len(m.inv.GPUs) != want || m.unsettled != (want == 2) {
			t.Errorf("scan %d: GPUs are %v, unsettled %v", i, conditions(m.inv), m.unsettled)
		}
	}
}

// NVML still lists a GPU that sysfs does not: it is there once.
func TestGPUThatOnlyNVMLStillSees(t *testing.T) {
	a := device(1, pci.NVIDIA, 0x20b0, 0x030200)
	var h hold
	h.merge(look{full: true, inv: inventory(discover.StateOK, a), answer: success, started: time.Now()})
	inv := inventory(discover.StateOK)
	inv.GPUs = []discover.GPU{{Vendor: discover.NVIDIA, Condition: discover.Usable, NVML: &nvml.GPU{Name: "NVIDIA A100", PCIAddress: &a.Address}}}
	m := h.merge(look{full: true, inv: inv, answer: success, started: time.Now()})
	if len(m.inv.GPUs) != 1 || m.inv.GPUs[0].Function == nil {
		t.Errorf("GPUs are %+v", m.inv.GPUs)
	}
}

// A scan that waited for a hung NVML ends after quick ones have seen its GPU go.
func TestScanThatWasOvertaken(t *testing.T) {
	a, b := device(1, pci.NVIDIA, 0x20b0, 0x030200), device(2, pci.NVIDIA, 0x20b0, 0x030200)
	now := time.Now()
	at := func(d time.Duration) time.Time { return now.Add(d) }
	for _, state := range []discover.State{discover.StateTimeout, discover.StateOK} {
		var h hold
		full := func(d time.Duration, functions ...pci.Function) int {
			return len(h.merge(look{full: true, inv: inventory(state, functions...), answer: success, started: at(d)}).inv.GPUs)
		}
		quick := func(d time.Duration, functions ...pci.Function) int {
			return len(h.merge(look{inv: inventory("", functions...), started: at(d)}).inv.GPUs)
		}
		h.merge(look{full: true, inv: inventory(discover.StateOK, a, b), answer: success, started: now})
		got := []int{
			quick(11*time.Second, a), // b may be gone
			quick(13*time.Second, a), // it is
			full(10*time.Second, a, b),
			full(30*time.Second, a),
			full(40*time.Second, a, b), // there again
		}
		if want := []int{2, 1, 1, 1, 2}; !slices.Equal(got, want) {
			t.Errorf("state %s: %v GPUs, want %v", state, got, want)
		}
	}
}

// A scan's inventory belongs to who made it.
func TestMergeLeavesTheScanAlone(t *testing.T) {
	a, b := device(1, pci.NVIDIA, 0x20b0, 0x030200), device(2, pci.NVIDIA, 0x20b0, 0x030200)
	var h hold
	h.merge(look{full: true, inv: inventory(discover.StateOK, a, b), answer: success})
	bad, same := inventory(discover.StateError, b), inventory(discover.StateError, b)
	h.merge(look{full: true, inv: bad})
	if !reflect.DeepEqual(bad, same) {
		t.Errorf("it was changed to %+v", bad)
	}
}

// Whatever NVML does: while the bus is the same, every GPU that answered once is
// usable, or NVML answered and said otherwise; and the state is the scan's.
func TestHoldProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		functions := []pci.Function{device(1, pci.NVIDIA, 0x20b0, 0x030200), device(2, pci.NVIDIA, 0x20b0, 0x030200)}
		states := []discover.State{discover.StateOK, discover.StateTimeout, discover.StateError, discover.StateNoDriver, discover.StateDriverMismatch, discover.StateNoPermission}
		var h hold
		was := false
		for range rapid.IntRange(1, 12).Draw(t, "scans") {
			full := rapid.Bool().Draw(t, "full")
			state := rapid.SampledFrom(states).Draw(t, "state")
			k := look{full: full, inv: inventory(state, functions...)}
			if !full {
				k.inv = inventory("", functions...)
			} else if state == discover.StateOK {
				k.answer, was = success, true
			}
			last := h.last
			m := h.merge(k)
			if full && m.inv.NVIDIA.State != state {
				t.Fatalf("state %q, want %q", m.inv.NVIDIA.State, state)
			}
			if !full && last != nil && m.inv.NVIDIA.State != last.NVIDIA.State {
				t.Fatalf("a quick scan made the state %q of %q", m.inv.NVIDIA.State, last.NVIDIA.State)
			}
			for address, condition := range conditions(m.inv) {
				if was && condition != discover.Usable {
					t.Fatalf("%s is %s", address, condition)
				}
			}
			if was && (len(m.inv.GPUs) != 2 || m.inv.NVIDIA.DriverVersion != "580.1") {
				t.Fatalf("%+v", m.inv)
			}
			if !slices.IsSortedFunc(m.inv.GPUs, func(a, b discover.GPU) int { return a.Compare(&b) }) {
				t.Fatal("not sorted")
			}
		}
	})
}

func TestBlind(t *testing.T) {
	published := labels.Set{
		pciKey: "true", product: "NVIDIA-A100", "nvidia.com/gpu.count": "2",
		stateKey: "ok", countKey: "2", onBusKey: "2", labels.ExtraPrefix + "memory.min": "40960",
	}
	now := labels.Set{pciKey: "true", stateKey: "timeout", onBusKey: "2", failedKey: "2", guestsKey: "1"}
	waiting := &blind{waiting: true, onBus: true, state: discover.StateTimeout, extra: true}
	change := func(set labels.Set, key, value string) labels.Set {
		set = maps.Clone(set)
		if value == "" {
			delete(set, key)
		} else {
			set[key] = value
		}
		return set
	}
	offBus := change(published, onBusKey, "")
	held := labels.Set{
		pciKey: "true", product: "NVIDIA-A100", "nvidia.com/gpu.count": "2", guestsKey: "1",
		stateKey: "timeout", countKey: "2", onBusKey: "2", labels.ExtraPrefix + "memory.min": "40960",
	}
	for _, c := range []struct {
		name           string
		blind          *blind
		published, set labels.Set
		want           labels.Set
	}{
		{"same hardware", waiting, published, now, held},
		{"NVML has answered", nil, published, now, now},
		{"nothing was published", waiting, labels.Set{}, now, now},
		{"nobody knows what was published", waiting, nil, now, now},
		{"only PCI labels were published", waiting, labels.Set{pciKey: "true"}, now, now},
		{"fewer GPUs", waiting, change(published, onBusKey, "3"), now, now},
		{"all went to guests", &blind{onBus: true, state: "", extra: true}, published, now, now},
		{"no GPU at all", &blind{extra: true}, published, labels.Set{}, labels.Set{}},
		{"our own labels are not wanted", &blind{waiting: true, onBus: true}, published, labels.Set{pciKey: "true"},
			labels.Set{pciKey: "true", product: "NVIDIA-A100", "nvidia.com/gpu.count": "2"}},
		{"GPUs off PCI", &blind{state: discover.StateTimeout, extra: true}, offBus, labels.Set{}, labels.Set{
			product: "NVIDIA-A100", "nvidia.com/gpu.count": "2", stateKey: "timeout", countKey: "2", labels.ExtraPrefix + "memory.min": "40960"}},
	} {
		before := maps.Clone(c.set)
		if got := c.blind.over(c.published, c.set); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if !maps.Equal(c.set, before) {
			t.Errorf("%s: the set was changed", c.name)
		}
	}
}

type testError string

func (e testError) Error() string { return string(e) }

const errTest = testError("permission denied")
