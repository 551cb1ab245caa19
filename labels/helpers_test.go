package labels

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

const unknownError nvml.Code = "UNKNOWN"

// address gives each GPU of a test host its place on the bus.
func address(i int) pci.Address { return pci.Address{Bus: uint8(0x10 + 8*i)} }

// function is a 3D controller (0302) with its first VF capability unset.
func function(i int, vendor, device uint16) *pci.Function {
	return &pci.Function{Address: address(i), Vendor: vendor, Device: device, Class: 0x030200}
}

// gpu is a usable NVIDIA GPU at the given NVML index and place.
func gpu(i int, name string, mib uint64, major, minor int) discover.GPU {
	f := function(i, pci.NVIDIA, 0x20b0)
	f.Driver = "nvidia"
	f.VGPU = &pci.VGPU{}
	return discover.GPU{
		Vendor:      discover.NVIDIA,
		Condition:   discover.Usable,
		Function:    f,
		Product:     name,
		MemoryBytes: mib << 20,
		NVML: &nvml.GPU{
			Index:             i,
			Name:              name,
			PCIAddress:        &f.Address,
			MemoryBytes:       mib << 20,
			ComputeCapability: &nvml.ComputeCapability{Major: major, Minor: minor},
		},
	}
}

func a100(i int) discover.GPU { return gpu(i, "NVIDIA A100-SXM4-40GB", 40960, 8, 0) }

func t4(i int) discover.GPU { return gpu(i, "Tesla T4", 15109, 7, 5) }

// n makes n GPUs, from index and place 0.
func n(count int, of func(int) discover.GPU) []discover.GPU {
	var gpus []discover.GPU
	for i := range count {
		gpus = append(gpus, of(i))
	}
	return gpus
}

// mig enables MIG on a GPU, with the MIG devices.
func mig(g discover.GPU, devices ...nvml.MIGDevice) discover.GPU {
	g.NVML.MIG = &nvml.MIG{Enabled: true, Pending: true, Devices: devices}
	return g
}

func migOff(g discover.GPU) discover.GPU {
	g.NVML.MIG = &nvml.MIG{}
	return g
}

// fails has NVML fail a query of a GPU.
func fails(g discover.GPU, field string, code nvml.Code) discover.GPU {
	g.NVML.Errors = map[string]nvml.Code{field: code}
	return g
}

func unified(g discover.GPU) discover.GPU {
	g.Unified, g.MemoryBytes, g.NVML.MemoryBytes = true, 0, 0
	return g
}

// failed makes a GPU one that NVML lists and cannot open.
func failed(g discover.GPU) discover.GPU {
	return discover.GPU{
		Vendor: g.Vendor, Condition: discover.Failed, Function: g.Function,
		NVML: &nvml.GPU{Index: g.NVML.Index, Handle: nvml.GPUIsLost},
	}
}

func passthrough(g discover.GPU) discover.GPU {
	f := *g.Function
	f.Driver = "vfio-pci"
	return discover.GPU{Vendor: g.Vendor, Condition: discover.Passthrough, Function: &f}
}

func slice(profile string, mb uint64, sms, slices uint32) nvml.MIGDevice {
	return nvml.MIGDevice{
		Profile: profile, MemoryMB: mb, Multiprocessors: sms,
		GPUInstanceSlices: slices, ComputeInstanceSlices: slices, CopyEngines: slices,
	}
}

func oneG() nvml.MIGDevice { return slice("1g.5gb", 4864, 14, 1) }

func repeat(d nvml.MIGDevice, times int) []nvml.MIGDevice {
	return slices.Repeat([]nvml.MIGDevice{d}, times)
}

// host has the GPUs, and a driver that answers.
func host(gpus ...discover.GPU) *discover.Inventory {
	inv := &discover.Inventory{GPUs: gpus}
	for _, g := range gpus {
		if g.Function != nil {
			inv.Functions = append(inv.Functions, *g.Function)
		}
		if g.NVML != nil {
			inv.NVIDIA = discover.NVIDIADriver{
				State: discover.StateOK, DriverVersion: "580.159.04", CUDADriverVersion: 13000,
			}
		}
	}
	return inv
}

// check compares some labels. Each line of want is a label, or a key after an
// exclamation mark that must be absent; a key may end in * then. Prefixes are
// shortened: ".../" is our own, pci- is NFD's and anything else NVIDIA's.
func check(t *testing.T, got Set, want string) {
	t.Helper()
	full := func(key string) string {
		switch {
		case strings.HasPrefix(key, ".../"):
			return ExtraPrefix + key[len(".../"):]
		case strings.HasPrefix(key, "pci-"):
			return nfdPrefix + key
		}
		return nvidiaPrefix + key
	}
	for line := range strings.Lines(want) {
		line = strings.TrimSpace(line)
		if key, absent := strings.CutPrefix(line, "!"); absent {
			prefix, open := strings.CutSuffix(full(key), "*")
			for k, v := range got {
				if k == prefix || open && strings.HasPrefix(k, prefix) {
					t.Errorf("got %s=%s, want no such label", k, v)
				}
			}
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			if line != "" {
				t.Fatalf("test: %q is no label", line)
			}
			continue
		}
		if v, ok := got[full(key)]; !ok {
			t.Errorf("got no label %s, want %s", full(key), value)
		} else if v != value {
			t.Errorf("got %s=%s, want %s", full(key), v, value)
		}
	}
}

// vendorLabels are the labels of some prefixes, a line each.
func vendorLabels(s Set, prefixes ...string) string {
	picked := Set{}
	for key, value := range s {
		for _, prefix := range prefixes {
			if strings.HasPrefix(key, prefix) {
				picked[key] = value
			}
		}
	}
	return text(picked)
}

// checkWhole compares all labels of a vendor. None is rejected, all are
// documented, and the GPUs' order makes no difference.
func checkWhole(t *testing.T, inv *discover.Inventory, opts Options, want string, prefixes ...string) {
	t.Helper()
	set, rejected := Compute(inv, opts)
	if got := vendorLabels(set, prefixes...); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if len(rejected) > 0 {
		t.Errorf("rejected %v", rejected)
	}
	for key, value := range set {
		if err := documented(key, value); err != nil {
			t.Error(err)
		}
	}
	reversed := *inv
	reversed.GPUs = slices.Clone(inv.GPUs)
	slices.Reverse(reversed.GPUs)
	if again, _ := Compute(&reversed, opts); !maps.Equal(set, again) {
		t.Errorf("the GPUs' order matters: %v", again)
	}
}

// keysOf gives the keys below a prefix, sorted and without it.
func keysOf(s Set, prefix string) []string {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			keys = append(keys, rest)
		}
	}
	return keys
}

// text is the set as --print writes it.
func text(s Set) string {
	var b strings.Builder
	if _, err := s.WriteTo(&b); err != nil {
		panic(err)
	}
	return b.String()
}
