package amd

// core is what the kernel derives from the version of the graphics core.
type core struct {
	gfx    string // kfd_device.c, as gfxName writes it
	family string // amdgpu_discovery.c, AMDGPU_FAMILY_
	apu    bool   // amdgpu_discovery.c, AMD_IS_APU
}

// cores are the graphics cores by GC version.
var cores = map[[3]int]core{
	{9, 0, 1}:   {"gfx900", "AI", false},
	{9, 1, 0}:   {"gfx902", "RV", true},
	{9, 2, 1}:   {"gfx904", "AI", false},
	{9, 2, 2}:   {"gfx902", "RV", true},
	{9, 3, 0}:   {"gfx90c", "RV", true},
	{9, 4, 0}:   {"gfx906", "AI", false},
	{9, 4, 1}:   {"gfx908", "AI", false},
	{9, 4, 2}:   {"gfx90a", "AI", false},
	{9, 4, 3}:   {"gfx942", "AI", false}, // the MI300A is told by its device ID
	{9, 4, 4}:   {"gfx942", "AI", false},
	{9, 5, 0}:   {"gfx950", "AI", false},
	{10, 1, 10}: {"gfx1010", "NV", false},
	{10, 1, 2}:  {"gfx1011", "NV", false},
	{10, 1, 1}:  {"gfx1012", "NV", false},
	{10, 1, 3}:  {"gfx1013", "NV", true},
	{10, 1, 4}:  {"gfx1013", "NV", true},
	{10, 3, 0}:  {"gfx1030", "NV", false},
	{10, 3, 2}:  {"gfx1031", "NV", false},
	{10, 3, 4}:  {"gfx1032", "NV", false},
	{10, 3, 1}:  {"gfx1033", "VGH", true},
	{10, 3, 5}:  {"gfx1034", "NV", false},
	{10, 3, 3}:  {"gfx1035", "YC", true},
	{10, 3, 6}:  {"gfx1036", "GC_10_3_6", true},
	{10, 3, 7}:  {"gfx1036", "GC_10_3_7", true},
	{11, 0, 0}:  {"gfx1100", "GC_11_0_0", false},
	{11, 0, 3}:  {"gfx1101", "GC_11_0_0", false},
	{11, 0, 2}:  {"gfx1102", "GC_11_0_0", false},
	{11, 0, 1}:  {"gfx1103", "GC_11_0_1", true},
	{11, 0, 4}:  {"gfx1103", "GC_11_0_1", true},
	{11, 5, 0}:  {"gfx1150", "GC_11_5_0", true},
	{11, 5, 1}:  {"gfx1151", "GC_11_5_0", true},
	{11, 5, 2}:  {"gfx1152", "GC_11_5_0", true},
	{11, 5, 3}:  {"gfx1153", "GC_11_5_0", true},
	{12, 0, 0}:  {"gfx1200", "GC_12_0_0", false},
	{12, 0, 1}:  {"gfx1201", "GC_12_0_0", false},
}

// Chips from before the discovery table, and APUs that older kernels drive
// without showing it, by PCI device ID (amdgpu_drv.c, pciidlist).
var (
	kaveri    = core{"gfx700", "KV", true}
	carrizo   = core{"gfx801", "CZ", true}
	stoney    = core{"gfx810", "CZ", true}
	polaris   = core{"gfx803", "VI", false}
	vega10    = cores[[3]int{9, 0, 1}]
	vega12    = cores[[3]int{9, 2, 1}]
	raven     = cores[[3]int{9, 1, 0}]
	renoir    = cores[[3]int{9, 3, 0}]
	vega20    = cores[[3]int{9, 4, 0}]
	arcturus  = cores[[3]int{9, 4, 1}]
	aldebaran = cores[[3]int{9, 4, 2}]
	mi300a    = core{"gfx942", "AI", true}
	vangogh   = cores[[3]int{10, 3, 1}]
	rembrandt = cores[[3]int{10, 3, 3}]
	raphael   = cores[[3]int{10, 3, 6}]
	mendocino = cores[[3]int{10, 3, 7}]
	phoenix   = cores[[3]int{11, 0, 1}]
)

// deviceRanges are inclusive.
var deviceRanges = []struct {
	first, last uint16
	core        core
}{
	{0x1304, 0x131d, kaveri},
	{0x1506, 0x1506, mendocino},
	{0x15bf, 0x15bf, phoenix},
	{0x15c8, 0x15c8, phoenix},
	{0x15d8, 0x15d8, raven},
	{0x15dd, 0x15dd, raven},
	{0x15e7, 0x15e7, renoir},
	{0x1636, 0x1636, renoir},
	{0x1638, 0x1638, renoir},
	{0x163f, 0x163f, vangogh},
	{0x164c, 0x164c, renoir},
	{0x164d, 0x164d, rembrandt},
	{0x164e, 0x164e, raphael},
	{0x1681, 0x1681, rembrandt},
	{0x66a0, 0x66af, vega20},
	{0x67c0, 0x67ff, polaris},
	{0x6860, 0x687f, vega10},
	{0x6980, 0x699f, polaris},
	{0x69a0, 0x69af, vega12},
	{0x7388, 0x7390, arcturus},
	{0x7408, 0x7410, aldebaran},
	{0x74a0, 0x74a0, mi300a},
	{0x9874, 0x9874, carrizo},
	{0x98e4, 0x98e4, stoney},
}

// coresByGFX are those whose name tells family and APU; of chips that only KFD
// tells apart, some more.
var coresByGFX = func() map[string]core {
	byGFX := map[string]core{
		"gfx700": kaveri,
		"gfx701": {"gfx701", "CI", false},
		"gfx801": carrizo,
		"gfx802": {"gfx802", "VI", false},
		"gfx803": polaris,
		"gfx810": stoney,
	}
	ambiguous := map[string]bool{}
	for _, c := range cores {
		if old, ok := byGFX[c.gfx]; ok && old != c {
			ambiguous[c.gfx] = true
		}
		byGFX[c.gfx] = c
	}
	for gfx := range ambiguous {
		c := byGFX[gfx]
		c.family = "" // gfx1036 is of two families, both APUs
		byGFX[gfx] = c
	}
	return byGFX
}()

// coreOf finds the graphics core of a function: by the version that it shows,
// else by its device ID, else by the name that KFD gives.
func coreOf(device uint16, gc Version, gfx string) (core, bool) {
	if device == 0x74a0 {
		return mi300a, true
	}
	if c, ok := cores[[3]int{gc.Major, gc.Minor, gc.Revision}]; ok {
		return c, true
	}
	for _, r := range deviceRanges {
		if r.first <= device && device <= r.last {
			return r.core, true
		}
	}
	c, ok := coresByGFX[gfx]
	return c, ok
}
