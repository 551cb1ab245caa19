package labels

import (
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/amd"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// amdGPU is a usable AMD GPU that is not partitioned.
func amdGPU(i int, device uint16, a amd.GPU) discover.GPU {
	f := function(i, pci.AMD, device)
	f.Class, f.Driver = 0x120000, amd.Driver
	if a.PartitionCount == 0 {
		a.PartitionCount = max(1, len(a.Partitions))
	}
	return discover.GPU{
		Vendor: discover.AMD, Condition: discover.Usable, Function: f,
		Product: a.Product, MemoryBytes: a.OwnMemoryBytes(), Unified: a.APU, AMD: &a,
	}
}

func mi210(i int) discover.GPU {
	return amdGPU(i, 0x740f, amd.GPU{
		Product: "AMD Instinct MI210", VRAMBytes: 68702699520, ChipKnown: true, GFX: "gfx90a", Family: "AI",
		Partitions:    []amd.Partition{{SIMDs: 416, CUs: 104, VRAMBytes: 68702699520}},
		DriverVersion: "6.10.5", DriverSrcVersion: "3D8E5A5F1B0C4D7E9A2B6C8",
	})
}

func rx7900xtx(i int) discover.GPU {
	return amdGPU(i, 0x744c, amd.GPU{
		Product: "AMD Radeon RX 7900 XTX", VRAMBytes: 25753026560, ChipKnown: true, GFX: "gfx1100", Family: "GC_11_0_0",
		Partitions:       []amd.Partition{{SIMDs: 192, CUs: 96, VRAMBytes: 25753026560}},
		DriverSrcVersion: "533BB7E5866E52F63B9ACCB",
	})
}

// mi300x is in n partitions.
func mi300x(i, n int, compute, memory string) discover.GPU {
	const vram = 206141652992
	a := amd.GPU{
		Product: "AMD Instinct MI300X OAM", VRAMBytes: vram, ChipKnown: true, GFX: "gfx942", Family: "AI",
		Compute: amd.Partitioning{Current: compute, Available: []string{"SPX", "DPX", "QPX", "CPX"}},
		Memory:  amd.Partitioning{Current: memory, Available: []string{"NPS1", "NPS4"}},
	}
	for range n {
		a.Partitions = append(a.Partitions, amd.Partition{SIMDs: 1216 / n, CUs: 304 / n, VRAMBytes: vram / uint64(n)})
	}
	return amdGPU(i, 0x74a1, a)
}

func edit(g discover.GPU, change func(*amd.GPU)) discover.GPU {
	a := *g.AMD
	change(&a)
	g.AMD = &a
	return g
}

func TestAMD(t *testing.T) {
	const unsupported = "amd.com/gpu.compute-partitioning-supported=false\n"
	tests := []struct {
		name string
		inv  *discover.Inventory
		opts Options
		want string
	}{
		{"one model", host(mi210(0), mi210(1)), Options{}, unsupported + `amd.com/gpu.count=2
amd.com/gpu.cu-count=104
amd.com/gpu.device-id=740f
amd.com/gpu.driver-src-version=3D8E5A5F1B0C4D7E9A2B6C8
amd.com/gpu.driver-version=6.10.5
amd.com/gpu.family=AI
amd.com/gpu.gfx=gfx90a
amd.com/gpu.memory-partitioning-supported=false
amd.com/gpu.product-name=AMD_Instinct_MI210
amd.com/gpu.simd-count=416
amd.com/gpu.vram=64G
`},
		{"two models, drivers of two versions", host(mi210(0), rx7900xtx(1), mi210(2)), Options{}, unsupported + `amd.com/gpu.count=3
amd.com/gpu.cu-count.104=2
amd.com/gpu.cu-count.96=1
amd.com/gpu.device-id.740f=2
amd.com/gpu.device-id.744c=1
amd.com/gpu.family.AI=2
amd.com/gpu.family.GC_11_0_0=1
amd.com/gpu.gfx.gfx1100=1
amd.com/gpu.gfx.gfx90a=2
amd.com/gpu.memory-partitioning-supported=false
amd.com/gpu.product-name.AMD_Instinct_MI210=2
amd.com/gpu.product-name.AMD_Radeon_RX_7900_XTX=1
amd.com/gpu.simd-count.192=1
amd.com/gpu.simd-count.416=2
amd.com/gpu.vram.24G=1
amd.com/gpu.vram.64G=2
`},
		{"eight partitions each", host(mi300x(0, 8, "CPX", "NPS4"), mi300x(1, 8, "CPX", "NPS4")), Options{}, `amd.com/gpu.compute-memory-partition=cpx_nps4
amd.com/gpu.compute-partitioning-supported=true
amd.com/gpu.count=2
amd.com/gpu.cu-count=38
amd.com/gpu.device-id=74a1
amd.com/gpu.family=AI
amd.com/gpu.gfx=gfx942
amd.com/gpu.memory-partitioning-supported=true
amd.com/gpu.product-name=AMD_Instinct_MI300X_OAM
amd.com/gpu.simd-count=152
amd.com/gpu.vram=24G
`},
		{"one of two partitioned", host(mi300x(0, 1, "SPX", "NPS1"), mi300x(1, 2, "DPX", "NPS1")), Options{}, `amd.com/gpu.compute-partitioning-supported=true
amd.com/gpu.count=2
amd.com/gpu.cu-count.152=2
amd.com/gpu.cu-count.304=1
amd.com/gpu.device-id=74a1
amd.com/gpu.family=AI
amd.com/gpu.gfx=gfx942
amd.com/gpu.memory-partitioning-supported=true
amd.com/gpu.product-name=AMD_Instinct_MI300X_OAM
amd.com/gpu.simd-count.1216=1
amd.com/gpu.simd-count.608=2
amd.com/gpu.vram.192G=1
amd.com/gpu.vram.96G=2
`},
		{"beta, one model", host(mi210(0), mi210(1)), Options{AMDBeta: true}, unsupported + `amd.com/gpu.count=2
amd.com/gpu.cu-count=104
amd.com/gpu.device-id=740f
amd.com/gpu.driver-src-version=3D8E5A5F1B0C4D7E9A2B6C8
amd.com/gpu.driver-version=6.10.5
amd.com/gpu.family=AI
amd.com/gpu.gfx=gfx90a
amd.com/gpu.memory-partitioning-supported=false
amd.com/gpu.product-name=AMD_Instinct_MI210
amd.com/gpu.simd-count=416
amd.com/gpu.vram=64G
beta.amd.com/gpu.cu-count=104
beta.amd.com/gpu.cu-count.104=2
beta.amd.com/gpu.device-id=740f
beta.amd.com/gpu.device-id.740f=2
beta.amd.com/gpu.family=AI
beta.amd.com/gpu.family.AI=2
beta.amd.com/gpu.product-name=AMD_Instinct_MI210
beta.amd.com/gpu.product-name.AMD_Instinct_MI210=2
beta.amd.com/gpu.simd-count=416
beta.amd.com/gpu.simd-count.416=2
beta.amd.com/gpu.vram=64G
beta.amd.com/gpu.vram.64G=2
`},
		{"beta, two models", host(edit(mi210(0), func(a *amd.GPU) { *a = amd.GPU{} }), edit(rx7900xtx(1), func(a *amd.GPU) { *a = amd.GPU{} })), Options{AMDBeta: true}, unsupported + `amd.com/gpu.count=2
amd.com/gpu.device-id.740f=1
amd.com/gpu.device-id.744c=1
amd.com/gpu.memory-partitioning-supported=false
amd.com/gpu.product-name.AMD_Instinct_MI210=1
amd.com/gpu.product-name.AMD_Radeon_RX_7900_XTX=1
beta.amd.com/gpu.device-id.740f=1
beta.amd.com/gpu.device-id.744c=1
beta.amd.com/gpu.product-name.AMD_Instinct_MI210=1
beta.amd.com/gpu.product-name.AMD_Radeon_RX_7900_XTX=1
`},
		{"nothing could be read", host(amdGPU(0, 0x7fff, amd.GPU{
			Compute: amd.Partitioning{Unread: true}, Memory: amd.Partitioning{Unread: true},
		})), Options{}, "amd.com/gpu.count=1\namd.com/gpu.device-id=7fff\n"},
		{"KFD hides one of two", host(mi300x(0, 1, "SPX", "NPS1"), edit(mi300x(1, 8, "CPX", "NPS1"), func(a *amd.GPU) {
			a.Partitions, a.PartitionCount = nil, 8
		})), Options{}, `amd.com/gpu.compute-partitioning-supported=true
amd.com/gpu.count=2
amd.com/gpu.cu-count=304
amd.com/gpu.device-id=74a1
amd.com/gpu.family=AI
amd.com/gpu.gfx=gfx942
amd.com/gpu.memory-partitioning-supported=true
amd.com/gpu.product-name=AMD_Instinct_MI300X_OAM
amd.com/gpu.simd-count=1216
amd.com/gpu.vram.192G=1
amd.com/gpu.vram.24G=8
`},
		{"one can be partitioned", host(mi300x(0, 1, "SPX", "NPS1"), mi210(1)), Options{}, `amd.com/gpu.count=2
amd.com/gpu.cu-count.104=1
amd.com/gpu.cu-count.304=1
amd.com/gpu.device-id.740f=1
amd.com/gpu.device-id.74a1=1
amd.com/gpu.family=AI
amd.com/gpu.gfx.gfx90a=1
amd.com/gpu.gfx.gfx942=1
amd.com/gpu.product-name.AMD_Instinct_MI210=1
amd.com/gpu.product-name.AMD_Instinct_MI300X_OAM=1
amd.com/gpu.simd-count.1216=1
amd.com/gpu.simd-count.416=1
amd.com/gpu.vram.192G=1
amd.com/gpu.vram.64G=1
`},
		{"passed through, without a driver, virtual", func() *discover.Inventory {
			inv := host(mi210(0), mi210(1), mi210(2))
			for i, c := range []discover.Condition{discover.Passthrough, discover.NoDriver, discover.Virtual} {
				inv.GPUs[i].Condition = c
			}
			return inv
		}(), Options{AMDBeta: true}, ""},
		{"no GPU", host(), Options{AMDBeta: true}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkWhole(t, test.inv, test.opts, test.want, "amd.com/", "beta.amd.com/")
		})
	}
}

func TestUnderscored(t *testing.T) {
	tests := []struct{ name, want string }{
		{"AMD Instinct MI210", "AMD_Instinct_MI210"},
		{"AMD Instinct MI250X / MI250", "AMD_Instinct_MI250X___MI250"},
		{"AMD INSTINCT MI250X (MCM) OAM AC MBA MSFT", "AMD_INSTINCT_MI250X_MCM_OAM_AC_MBA_MSFT"},
		{"AMD Radeon(TM) Pro 5600M\n", "AMD_RadeonTM_Pro_5600M"},
		{"Arc Pro A40/A50", "Arc_Pro_A40_A50"},
		{"(x) ", "x"},
		{" _é\xff(/) ", ""},
		{strings.Repeat("ab ", 40), strings.Repeat("ab_", 21)[:62]},
	}
	for _, test := range tests {
		if got := underscored(test.name); got != test.want {
			t.Errorf("%q: got %q, want %q", test.name, got, test.want)
		}
	}
}

func TestAMDGiB(t *testing.T) {
	tests := []struct {
		bytes uint64
		want  string
	}{
		{68702699520, "64G"}, {206141652992, "192G"}, {25753026560, "24G"}, {51522830336, "48G"},
		{1 << 30, "1G"}, {512 << 20, "1G"}, {512<<20 - 1, ""}, {0, ""}, {1<<64 - 1, "17179869184G"},
	}
	for _, test := range tests {
		if got := amdGiB(test.bytes); got != test.want {
			t.Errorf("%d: got %q, want %q", test.bytes, got, test.want)
		}
	}
}

// Two long names that begin alike have one counter, and no key is too long.
func TestAMDLongNames(t *testing.T) {
	long := strings.Repeat("AMD Instinct ", 5)
	named := func(i int, name string) discover.GPU {
		g := mi210(i)
		g.Product = name
		return g
	}
	got, rejected := Compute(host(named(0, long+"1"), named(1, long+"2"), named(2, "N/A")), Options{})
	want := "amd.com/gpu.product-name.AMD_Instinct_AMD_Instinct_AMD_Instinct_AMD_Ins=2\n"
	if got := vendorLabels(got, "amd.com/gpu.product-name"); got != want || len(rejected) > 0 {
		t.Errorf("got %swant %s%v", got, want, rejected)
	}
}

func FuzzUnderscored(f *testing.F) {
	f.Add("AMD Instinct MI250X / MI250")
	f.Add("(\xff)")
	f.Fuzz(func(t *testing.T, name string) {
		got := underscored(name)
		if reason := checkValue(got); reason != "" {
			t.Errorf("%q: got %q: %s", name, got, reason)
		}
		s := Set{}
		tally{got: 1, "x": 2}.labels(s, "beta.amd.com/gpu.product-name")
		delete(s, "beta.amd.com/gpu.product-name.")
		if rejected := s.dropIllegal(); len(rejected) > 0 {
			t.Errorf("%q: %v", name, rejected)
		}
	})
}
