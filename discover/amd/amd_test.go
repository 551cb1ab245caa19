package amd

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// folder stands for a folder in a file's place, which cannot be read even by
// root.
const folder = "\x00folder"

// files are the files of a host, by path below the function's folder, or below
// sys where they start with a slash.
type files map[string]string

func (f files) with(more files) files {
	g := maps.Clone(f)
	maps.Copy(g, more)
	return g
}

const at = "0000:05:00.0"

func address(s string) pci.Address {
	a, err := pci.ParseAddress(s)
	if err != nil {
		panic(err)
	}
	return a
}

func host(t *testing.T, f files) hostfs.Root {
	t.Helper()
	root := t.TempDir()
	for name, content := range f {
		path := filepath.Join(root, "sys/bus/pci/devices", at, name)
		if strings.HasPrefix(name, "/") {
			path = filepath.Join(root, "sys", name)
		}
		dir := filepath.Dir(path)
		if content == folder {
			dir = path
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if content != folder {
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return hostfs.Root(root)
}

// core942 is the discovery table of an MI300X, as far as it is read.
func core942(dies int) files {
	f := files{}
	for die := range dies {
		for instance := range 2 {
			dir := fmt.Sprintf("ip_discovery/die/%d/GC/%d/", die, instance)
			maps.Copy(f, files{dir + "major": "9\n", dir + "minor": "4\n", dir + "revision": "3\n", dir + "harvest": "0x0\n"})
		}
	}
	return f
}

// kfd is a node of the KFD topology.
func kfd(n, simds int, location uint32, vram uint64) files {
	dir := fmt.Sprintf("/class/kfd/kfd/topology/nodes/%d/", n)
	return files{
		dir + "properties": fmt.Sprintf("cpu_cores_count 0\nsimd_count %d\nsimd_per_cu 4\ngfx_target_version 90402\n"+
			"location_id %d\ndomain 0\nhive_id 18446744073709551615\nunique_id 16404946649897475633\n", simds, location),
		dir + "mem_banks/0/properties": fmt.Sprintf("heap_type 1\nsize_in_bytes %d\nflags 0\n", vram),
	}
}

const cpuNode = "cpu_cores_count 96\nsimd_count 0\nsimd_per_cu 0\nlocation_id 0\ndomain 0\n"

func TestScan(t *testing.T) {
	const gib = 1 << 30
	mi300x := core942(4).with(files{
		"product_name":                               "AMD Instinct MI300X OAM\n",
		"mem_info_vram_total":                        "206158430208\n",
		"mem_info_vram_vendor":                       "hynix\n",
		"current_compute_partition":                  "SPX\n",
		"available_compute_partition":                "SPX, DPX, QPX, CPX\n",
		"current_memory_partition":                   "NPS1\n",
		"available_memory_partition":                 "NPS1, NPS4\n",
		"/class/kfd/kfd/topology/nodes/0/properties": cpuNode,
		"/module/amdgpu/version":                     "6.10.5\n",
		"/module/amdgpu/srcversion":                  "A1B2C3D4E5F60718293A4B5\n",
	})
	whole := kfd(1, 1216, 0x0500, 192*gib)
	want := GPU{
		Product: "AMD Instinct MI300X OAM", VRAMBytes: 192 * gib, VRAMVendor: "hynix", ChipKnown: true,
		GC: Version{9, 4, 3, 8}, GFX: "gfx942", Family: "AI",
		Compute:       Partitioning{Current: "SPX", Available: []string{"SPX", "DPX", "QPX", "CPX"}},
		Memory:        Partitioning{Current: "NPS1", Available: []string{"NPS1", "NPS4"}},
		Partitions:    []Partition{{1216, 304, 192 * gib}},
		DriverVersion: "6.10.5", DriverSrcVersion: "A1B2C3D4E5F60718293A4B5", PartitionCount: 1,
	}
	eight := func(shift int) (nodes files, parts []Partition) {
		nodes = files{}
		for i := range 8 {
			// Above 9, so that names and numbers sort differently.
			maps.Copy(nodes, kfd(7+i, 152, 0x0500|uint32(i)<<shift, uint64(20+i)*gib))
			parts = append(parts, Partition{152, 38, uint64(20+i) * gib})
		}
		return nodes, parts
	}
	cpx := files{"current_compute_partition": "CPX\n"}
	low, parts := eight(0)
	high, _ := eight(28)
	isCPX := func(g *GPU) { g.Compute.Current, g.PartitionCount, g.Partitions = "CPX", 8, parts }
	hidden := func(g *GPU) { g.Partitions = nil }
	const denied = "the compute units of AMD GPUs are not known: 1 of 2 nodes in /sys/class/kfd/kfd/topology/nodes cannot be read: "

	tests := []struct {
		name     string
		files    files
		device   uint16 // 0x74a1 if zero
		revision uint8
		driver   string // amdgpu if empty
		want     func(*GPU)
		problems []string
	}{
		{name: "one GPU", files: mi300x.with(whole)},
		{name: "partitions by function number", files: mi300x.with(cpx).with(low), want: isCPX},
		{name: "partitions by the highest bits", files: mi300x.with(cpx).with(high), want: isCPX},
		{name: "no KFD", files: mi300x, want: hidden},
		{name: "no KFD, partitioned", files: mi300x.with(cpx), want: func(g *GPU) {
			g.Compute.Current, g.PartitionCount, g.Partitions = "CPX", 8, nil
		}},
		{name: "no KFD, an unknown mode", files: mi300x.with(files{"current_compute_partition": "OPX"}), want: func(g *GPU) {
			g.Compute.Current, g.PartitionCount, g.Partitions = "OPX", 0, nil
		}},
		{
			name:  "KFD denied",
			files: mi300x.with(files{"/class/kfd/kfd/topology/nodes/1/properties": folder}), want: hidden,
			problems: []string{denied + "not a regular file"},
		},
		{
			name:  "KFD node without properties",
			files: mi300x.with(files{"/class/kfd/kfd/topology/nodes/1/gpu_id": folder}), want: hidden,
			problems: []string{denied + "no such file or directory"},
		},
		{
			name:  "KFD node of garbage",
			files: mi300x.with(files{"/class/kfd/kfd/topology/nodes/1/properties": "simd_count many\n"}), want: hidden,
			problems: []string{denied + `parsing "simd_count many": invalid syntax`},
		},
		{
			name:  "memory banks denied",
			files: mi300x.with(kfd(1, 1216, 0x0500, 1)).with(files{"/class/kfd/kfd/topology/nodes/1/mem_banks/1/properties": folder}),
			want:  func(g *GPU) { g.Partitions[0].VRAMBytes = 0 }, problems: []string{denied + "not a regular file"},
		},
		{
			name:     "a partition denied",
			files:    mi300x.with(cpx).with(low).with(files{"/class/kfd/kfd/topology/nodes/9/properties": folder}),
			want:     func(g *GPU) { isCPX(g); g.Partitions = nil },
			problems: []string{strings.Replace(denied, "1 of 2", "1 of 9", 1) + "not a regular file"},
		},
		{
			name:     "another GPU's node denied",
			files:    mi300x.with(whole).with(files{"/class/kfd/kfd/topology/nodes/2/properties": folder}),
			problems: []string{strings.Replace(denied, "1 of 2", "1 of 3", 1) + "not a regular file"},
		},
		{
			name: "more memory than there is",
			files: mi300x.with(whole).with(files{
				"mem_info_vram_total": "18446744073709551615\n",
				"/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 9223372036854775808\n",
				"/class/kfd/kfd/topology/nodes/1/mem_banks/1/properties": "heap_type 1\nsize_in_bytes 9223372036854775809\n",
			}),
			want: func(g *GPU) { g.VRAMBytes, g.Partitions[0].VRAMBytes = 0, 0 },
			problems: []string{
				`PCI device 0000:05:00.0: mem_info_vram_total: parsing "18446744073709551615": more than any GPU has`,
				denied + "size_in_bytes 9223372036854775808: more than any GPU has",
			},
		},
		{name: "a placeholder for a name", files: mi300x.with(whole).with(files{"product_name": "N/A\n"}), want: func(g *GPU) { g.Product = "AMD Instinct MI300X" }},
		{name: "punctuation for a name", files: mi300x.with(whole).with(files{"product_name": " / \n"}), want: func(g *GPU) { g.Product = "AMD Instinct MI300X" }},
		{
			name: "memory that the processor sees and that it does not",
			files: mi300x.with(whole).with(files{
				"/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 1073741824\n",
				"/class/kfd/kfd/topology/nodes/1/mem_banks/1/properties": "heap_type 2\nsize_in_bytes 1073741824\n",
				"/class/kfd/kfd/topology/nodes/1/mem_banks/2/properties": "heap_type 5\nsize_in_bytes 1073741824\n",
				"/class/kfd/kfd/topology/nodes/1/mem_banks/used_memory":  "7\n",
				"/class/kfd/kfd/topology/nodes/x/properties":             folder,
			}),
			want: func(g *GPU) { g.Partitions[0].VRAMBytes = 2 * gib },
		},
		{
			name:  "a node of another device",
			files: mi300x.with(kfd(1, 1216, 0x0600, 192*gib)), want: hidden,
		},
		{
			name:  "no SIMDs per compute unit",
			files: mi300x.with(files{"/class/kfd/kfd/topology/nodes/1/properties": "simd_count 8\nlocation_id 1280\n", "/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 8\n"}),
			want:  func(g *GPU) { g.Partitions = []Partition{{8, 0, 8}} },
		},
		{
			name: "in-kernel driver, no name, nothing to partition",
			files: mi300x.with(whole).with(files{
				"product_name": "\n", "mem_info_vram_vendor": "unknown\n", "/module/amdgpu/version": "",
				"current_compute_partition": "Not supported\n", "available_compute_partition": "Not supported\n",
				"current_memory_partition": "UNKNOWN\n", "available_memory_partition": "Not supported\n",
			}),
			want: func(g *GPU) {
				g.Product, g.VRAMVendor, g.DriverVersion = "AMD Instinct MI300X", "", ""
				g.Compute, g.Memory = Partitioning{}, Partitioning{}
			},
		},
		{name: "virtual function", device: 0x74b5, files: core942(4).with(files{"mem_info_vram_total": "1024\n"}), want: func(g *GPU) {
			*g = GPU{Product: "AMD Instinct MI300X VF", VRAMBytes: 1024, ChipKnown: true, GC: want.GC, GFX: "gfx942", Family: "AI", PartitionCount: 1}
		}},
		{name: "MI300A", device: 0x74a0, files: core942(3), want: func(g *GPU) {
			*g = GPU{Product: "AMD Instinct MI300A", APU: true, ChipKnown: true, GC: Version{9, 4, 3, 6}, GFX: "gfx942", Family: "AI", PartitionCount: 1}
		}},
		{name: "MI210 has no discovery table", device: 0x740f, revision: 2, files: files{"mem_info_vram_total": "1024\n"}, want: func(g *GPU) {
			*g = GPU{Product: "AMD Instinct MI210", VRAMBytes: 1024, ChipKnown: true, GFX: "gfx90a", Family: "AI", PartitionCount: 1}
		}},
		{name: "harvested cores", files: core942(4).with(files{"ip_discovery/die/0/GC/0/harvest": "0x1\n", "ip_discovery/die/3/GC/1/harvest": "0x1\n"}), want: func(g *GPU) {
			*g = GPU{Product: "AMD Instinct MI300X", ChipKnown: true, GC: Version{9, 4, 3, 6}, GFX: "gfx942", Family: "AI", PartitionCount: 1}
		}},
		{name: "unknown chip", device: 0x7fff, files: files{"mem_info_vram_total": "1024\n"}, want: func(g *GPU) {
			*g = GPU{VRAMBytes: 1024, PartitionCount: 1}
		}},
		{name: "passed through", driver: "vfio-pci", files: mi300x.with(whole), want: func(g *GPU) {
			*g = GPU{Product: "AMD Instinct MI300X"}
		}},
		{
			name: "files of garbage",
			files: mi300x.with(whole).with(files{
				"product_name": folder, "mem_info_vram_total": "lots\n", "available_compute_partition": "SPX; DPX\n",
				"current_memory_partition": "nps1\n", "ip_discovery/die/0/GC/0/major": "nine\n", "/module/amdgpu/version": folder,
			}),
			want: func(g *GPU) {
				g.Product, g.VRAMBytes, g.DriverVersion, g.GC.Instances = "AMD Instinct MI300X", 0, "", 7
				g.Compute.Available, g.Compute.Unread, g.Memory.Current = nil, true, ""
			},
			problems: []string{
				`PCI device 0000:05:00.0: product_name: not a regular file`,
				`PCI device 0000:05:00.0: mem_info_vram_total: parsing "lots": invalid syntax`,
				`PCI device 0000:05:00.0: available_compute_partition: parsing "SPX; DPX": want modes such as SPX, DPX`,
				`PCI device 0000:05:00.0: current_memory_partition: parsing "nps1": want modes such as SPX, DPX`,
				`PCI device 0000:05:00.0: ip_discovery/die/0/GC/0: major: parsing "nine": invalid syntax`,
				`/sys/module/amdgpu/version: not a regular file`,
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &pci.Function{Address: address(at), Vendor: pci.AMD, Device: 0x74a1, Driver: Driver, Revision: tt.revision}
			if tt.device != 0 {
				f.Device = tt.device
			}
			if tt.driver != "" {
				f.Driver = tt.driver
			}
			w := want
			w.Partitions = []Partition{want.Partitions[0]}
			if tt.want != nil {
				tt.want(&w)
			}
			got, problems := Scan(host(t, tt.files), []*pci.Function{f})
			if !reflect.DeepEqual(got, []GPU{w}) {
				t.Errorf("\n got %+v\nwant %+v", got[0], w)
			}
			var texts []string
			for _, err := range problems {
				texts = append(texts, err.Error())
			}
			if !reflect.DeepEqual(texts, tt.problems) {
				t.Errorf("problems:\n got %q\nwant %q", texts, tt.problems)
			}
		})
	}
}

// A node goes to the function of exactly that address, before that of the same
// device, and to no function that amdgpu is not bound to.
func TestOwner(t *testing.T) {
	functions := []*pci.Function{
		{Address: address("0000:05:00.2"), Driver: Driver},
		{Address: address("0000:05:00.1"), Driver: Driver},
		{Address: address("0000:05:00.0"), Driver: "vfio-pci"},
		{Address: address("0001:05:00.0"), Driver: Driver},
	}
	tests := []struct {
		domain, location uint32
		want             int
	}{
		{0, 0x0502, 0}, {0, 0x0501, 1}, {0, 0x0500, 1}, {0, 0x0507, 1}, {1, 0x0500, 3}, {1, 0x70000500, 3}, {2, 0x0500, -1}, {0, 0x0600, -1}, {0, 0x0508, -1},
	}
	for _, tt := range tests {
		if got := owner(functions, properties{Domain: tt.domain, LocationID: tt.location}); got != tt.want {
			t.Errorf("%x:%x: got %d, want %d", tt.domain, tt.location, got, tt.want)
		}
	}
}

func TestOwnMemory(t *testing.T) {
	tests := []struct {
		name string
		gpu  GPU
		want uint64
	}{
		{"board", GPU{VRAMBytes: 8, ChipKnown: true}, 8},
		{"APU", GPU{VRAMBytes: 8, ChipKnown: true, APU: true}, 0},
		{"unknown chip", GPU{VRAMBytes: 8}, 0},
		{"unknown chip, known maker of the memory", GPU{VRAMBytes: 8, VRAMVendor: "hynix"}, 8},
	}
	for _, tt := range tests {
		if got := tt.gpu.OwnMemoryBytes(); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestDenied(t *testing.T) {
	if err := fmt.Errorf("%w: %w", ErrTopology, syscall.EPERM); !Denied(err) {
		t.Errorf("%v is a denial", err)
	}
	for _, err := range []error{nil, ErrTopology, fs.ErrPermission, errors.Join(ErrTopology, fs.ErrNotExist)} {
		if Denied(err) {
			t.Errorf("%v is no denial", err)
		}
	}
}

func TestGFXName(t *testing.T) {
	for version, want := range map[uint32]string{
		0: "", 70000: "gfx700", 80003: "gfx803", 90010: "gfx90a", 90012: "gfx90c", 90402: "gfx942", 90500: "gfx950", 100306: "gfx1036",
		110000: "gfx1100", 120001: "gfx1201", 99: "", 91600: "", 90016: "", 1000000: "", 4294967295: "",
	} {
		if got := gfxName(version); got != want {
			t.Errorf("%d: got %q, want %q", version, got, want)
		}
	}
}

func TestCoreOf(t *testing.T) {
	tests := []struct {
		name   string
		device uint16
		gc     Version
		gfx    string
		want   core
		ok     bool
	}{
		{"version first", 0x740f, Version{11, 0, 0, 1}, "gfx90a", core{"gfx1100", "GC_11_0_0", false}, true},
		{"then device ID", 0x1506, Version{}, "gfx1036", core{"gfx1036", "GC_10_3_7", true}, true},
		{"then KFD's name", 0xffff, Version{}, "gfx1201", core{"gfx1201", "GC_12_0_0", false}, true},
		{"KFD's name of two families", 0xffff, Version{}, "gfx1036", core{"gfx1036", "", true}, true},
		{"Hawaii by KFD", 0x67b0, Version{}, "gfx701", core{"gfx701", "CI", false}, true},
		{"MI300A", 0x74a0, Version{9, 4, 3, 6}, "gfx942", mi300a, true},
		{"MI300X by KFD", 0xffff, Version{}, "gfx942", core{"gfx942", "AI", false}, true},
		{"unknown version", 0xffff, Version{13, 0, 0, 1}, "", core{}, false},
		{"nothing", 0xffff, Version{}, "", core{}, false},
	}
	for _, tt := range tests {
		if got, ok := coreOf(tt.device, tt.gc, tt.gfx); got != tt.want || ok != tt.ok {
			t.Errorf("%s: got %+v, %v", tt.name, got, ok)
		}
	}
}

func TestProduct(t *testing.T) {
	tests := []struct {
		device   uint16
		revision uint8
		want     string
	}{
		{0x740c, 0x01, "AMD Instinct MI250X / MI250"},
		{0x744c, 0xc8, "AMD Radeon RX 7900 XTX"},
		{0x744c, 0xcc, "AMD Radeon RX 7900 XT"},
		{0x744c, 0x00, ""}, // which of them is not known
		{0x74a1, 0x7f, "AMD Instinct MI300X"},
		{0x74b5, 0x00, "AMD Instinct MI300X VF"},
		{0x74b9, 0x00, "AMD Instinct MI325X VF"},
		{0x75a3, 0x00, "AMD Instinct MI355X"},
		{0x15bf, 0xc4, "AMD Radeon 780M Graphics"},
		{0xffff, 0x00, ""},
	}
	for _, tt := range tests {
		if got := Product(tt.device, tt.revision); got != tt.want {
			t.Errorf("%04x, %02x: got %q, want %q", tt.device, tt.revision, got, tt.want)
		}
	}
}

// Every row of the table is read.
func TestIDs(t *testing.T) {
	for device, row := range pci.Rows(idsText) {
		if _, ok := parseName(row); !ok {
			t.Errorf("%04x %s", device, row)
		}
	}
	if n := len(names()); n < 100 {
		t.Errorf("%d device IDs", n)
	}
}

func TestParseModes(t *testing.T) {
	tests := []struct {
		text string
		want []string
		err  bool
	}{
		{"SPX", []string{"SPX"}, false},
		{"SPX, DPX, QPX, CPX", []string{"SPX", "DPX", "QPX", "CPX"}, false},
		{"NPS1,NPS4, NPS1", []string{"NPS1", "NPS4"}, false},
		{"Not supported", nil, false},
		{"NOT SUPPORTED", nil, false},
		{"", nil, false},
		{"SPX,", nil, true},
		{"SPX DPX", nil, true},
		{"Not supported, SPX", nil, true},
	}
	for _, tt := range tests {
		if got, err := parseModes(tt.text); !reflect.DeepEqual(got, tt.want) || (err != nil) != tt.err {
			t.Errorf("%q: got %q, %v", tt.text, got, err)
		}
	}
}

func TestPartitionsIn(t *testing.T) {
	for mode, want := range map[string]int{"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": 6, "": 0, "OPX": 0} {
		if got := partitionsIn(mode, 6); got != want {
			t.Errorf("%s: got %d, want %d", mode, got, want)
		}
	}
}

func FuzzParseProperties(f *testing.F) {
	f.Add([]byte("cpu_cores_count 0\nsimd_count 416\nsimd_per_cu 4\ngfx_target_version 90010\nlocation_id 25344\ndomain 0\n"))
	f.Add([]byte("heap_type 1\nsize_in_bytes 51539607552\nflags 0\nwidth 8192\nmem_clk_max 1300\n"))
	f.Add([]byte("simd_count -1\n"))
	f.Add([]byte("simd_count\n\n \x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := parseProperties(text)
		if err != nil {
			if p != (properties{}) {
				t.Errorf("%q: %+v with error %v", text, p, err)
			}
			return
		}
		if a := p.address(); a.Device > 0x1f || a.Function > 7 {
			t.Errorf("%q: address %+v", text, a)
		}
		if name := gfxName(p.GFXTargetVersion); name != "" && (len(name) < 6 || len(name) > 7) {
			t.Errorf("%q: gfx name %q", text, name)
		}
		again, err := parseProperties(fmt.Appendf(nil, "simd_count %d\nsimd_per_cu %d\ngfx_target_version %d\nlocation_id %d\ndomain %d\nheap_type %d\nsize_in_bytes %d\n",
			p.SIMDCount, p.SIMDPerCU, p.GFXTargetVersion, p.LocationID, p.Domain, p.HeapType, p.SizeInBytes))
		if err != nil || again != p {
			t.Errorf("%q: %+v, and again %+v, %v", text, p, again, err)
		}
	})
}

func FuzzParseModes(f *testing.F) {
	for _, text := range []string{"SPX", "SPX, DPX, QPX, CPX", "Not supported", "NPS1, NPS4", ",", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		modes, err := parseModes(text)
		if err != nil && modes != nil {
			t.Errorf("%q: %q with error %v", text, modes, err)
		}
		for _, mode := range modes {
			if !isMode(mode) {
				t.Errorf("%q: mode %q", text, mode)
			}
		}
		if modes == nil {
			return
		}
		again, err := parseModes(strings.Join(modes, ", "))
		if err != nil || !reflect.DeepEqual(again, modes) {
			t.Errorf("%q: %q, and again %q, %v", text, modes, again, err)
		}
	})
}

func FuzzParseBlockNumber(f *testing.F) {
	for _, text := range []string{"0", "9", "10", "0x0", "0xff", "256", "-1", "0x", "1_0", "010"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseBlockNumber(text)
		if err != nil && n != 0 || n < 0 || n > 255 {
			t.Errorf("%q: got %d, %v", text, n, err)
		}
	})
}

func FuzzParseName(f *testing.F) {
	f.Add("c8,cc AMD Radeon RX 7900")
	f.Add("* AMD Instinct MI350P")
	f.Add("100 x")
	f.Fuzz(func(t *testing.T, row string) {
		if n, ok := parseName(row); ok && n.name == "" {
			t.Errorf("%q: no name", row)
		}
	})
}
