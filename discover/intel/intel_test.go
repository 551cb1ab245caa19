package intel

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// folder stands for an empty folder, which is also no file in a file's place.
const folder = "\x00folder"

type files map[string]string

func host(t *testing.T, f files) hostfs.Root {
	t.Helper()
	root := t.TempDir()
	for name, content := range f {
		path := filepath.Join(root, "sys/bus/pci/devices/0000:03:00.0", name)
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

func TestScan(t *testing.T) {
	const gib = 1 << 30
	tests := []struct {
		name     string
		device   uint16
		driver   string
		files    files
		tiles    int
		memory   uint64
		problems []string
	}{
		{"i915", 0x56a0, "i915", files{"drm/card10/gt/gt0": folder, "drm/renderD128": folder}, 1, 0, nil},
		{"i915 before it showed GTs", 0x56a0, "i915", files{"drm/card0": folder}, 1, 0, nil},
		{"i915 before it showed GTs, Max series", 0x0bd5, "i915", files{"drm/card0": folder}, 0, 0, nil},
		{"i915, media GT", 0x7d55, "i915", files{"drm/card0/gt/gt0": folder, "drm/card0/gt/gt1": folder}, 1, 0, nil},
		{"i915, two tiles", 0x0bd5, "i915", files{"drm/card0/gt/gt0": folder, "drm/card0/gt/gt1": folder, "drm/card0/lmem_total_bytes": "68719476736\n"}, 2, 128 * gib, nil},
		{"i915, unknown device ID", 0xffff, "i915", files{"drm/card0/gt/gt0": folder}, 1, 0, nil},
		{"i915, unknown device ID and two GTs", 0xffff, "i915", files{"drm/card0/gt/gt0": folder, "drm/card0/gt/gt1": folder, "drm/card0/lmem_total_bytes": "1024\n"}, 0, 0, nil},
		{"i915 without a card", 0x56a0, "i915", files{"drm/cardX": folder}, 0, 0, nil},
		{"i915, memory of garbage", 0x56a0, "i915", files{"drm/card0/gt/gt0": folder, "drm/card0/lmem_total_bytes": "much\n"}, 1, 0, []string{
			`PCI device 0000:03:00.0: drm/card0/lmem_total_bytes: parsing "much": want a number of bytes`,
		}},
		{"i915, memory that is no file", 0x56a0, "i915", files{"drm/card0/gt/gt0": folder, "drm/card0/lmem_total_bytes": folder}, 1, 0, []string{
			`PCI device 0000:03:00.0: drm/card0/lmem_total_bytes: not a regular file`,
		}},
		{"xe", 0xe20b, "xe", files{"tile0/gt0": folder, "tile0/gt1": folder}, 1, 0, nil},
		{"xe, memory", 0xe20b, "xe", files{"tile0/physical_vram_size_bytes": "0x300000000\n"}, 1, 12 * gib, nil},
		{"xe, a dozen tiles", 0xffff, "xe", files{
			"tile0": folder, "tile1": folder, "tile2": folder, "tile3": folder, "tile4": folder, "tile5": folder,
			"tile6": folder, "tile7": folder, "tile8": folder, "tile9": folder, "tile10": folder, "tile11": folder, "tiles": folder,
		}, 12, 0, nil},
		{"xe, memory of one tile of two", 0x0bd5, "xe", files{"tile0/physical_vram_size_bytes": "1024\n", "tile1": folder}, 2, 0, nil},
		{"xe without tiles", 0xe20b, "xe", files{"vendor": "0x8086\n"}, 0, 0, nil},
		{"passed through", 0x56c0, "vfio-pci", files{"tile0": folder}, 0, 0, nil},
		{"no driver", 0x56c0, "", files{}, 0, 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &pci.Function{Address: pci.Address{Bus: 3}, Vendor: pci.Intel, Device: tt.device, Driver: tt.driver}
			got, problems := Scan(host(t, tt.files), []*pci.Function{f})
			model, _ := Lookup(tt.device)
			if want := (GPU{Model: model, Tiles: tt.tiles, MemoryBytes: tt.memory}); got[0] != want {
				t.Errorf("got %+v, want %+v", got[0], want)
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

func TestLookup(t *testing.T) {
	tests := []struct {
		device uint16
		want   Model
		name   string
	}{
		{0x0bd5, Model{"Data Center GPU Max 1550", "Max_Series", Discrete}, "Intel Data Center GPU Max 1550"},
		{0x0bda, Model{"Data Center GPU Max 1100", "Max_Series", Discrete}, "Intel Data Center GPU Max 1100"},
		{0x0bd0, Model{"", "Max_Series", Discrete}, ""},
		{0x56c0, Model{"Data Center GPU Flex 170", "Flex_Series", Discrete}, "Intel Data Center GPU Flex 170"},
		{0x56c1, Model{"Data Center GPU Flex 140", "Flex_Series", Discrete}, "Intel Data Center GPU Flex 140"},
		{0x56a0, Model{"Arc A770", "A_Series", Discrete}, "Intel Arc A770"},
		{0xe20b, Model{"Arc B580", "B_Series", Discrete}, "Intel Arc B580"},
		{0x4905, Model{"Iris Xe MAX Graphics", "", Discrete}, "Intel Iris Xe MAX Graphics"},
		{0xa780, Model{"UHD Graphics 770", "", Integrated}, "Intel UHD Graphics 770"},
		{0x64a0, Model{"Arc Graphics 130V/140V", "", Integrated}, "Intel Arc Graphics 130V/140V"},
		{0x7d45, Model{"Intel Graphics", "", Integrated}, "Intel Graphics"},
		{0xffff, Model{}, ""},
	}
	for _, tt := range tests {
		got, ok := Lookup(tt.device)
		if got != tt.want || got.String() != tt.name || ok != (tt.want != Model{}) {
			t.Errorf("%04x: got %+v, %q, %v", tt.device, got, got, ok)
		}
	}
}

// The IDs of Intel's NodeFeatureRules have the families that those give.
func TestFamilies(t *testing.T) {
	for family, ids := range map[string][]uint16{
		"Max_Series":  {0x0bda, 0x0bd5, 0x0bd9, 0x0bdb, 0x0bd7, 0x0bd6, 0x0bd0},
		"Flex_Series": {0x56c0, 0x56c1},
		"A_Series": {
			0x5690, 0x5691, 0x5692, 0x5693, 0x5694, 0x5695, 0x5696, 0x5697, 0x56a0, 0x56a1, 0x56a2, 0x56a3, 0x56a4, 0x56a5, 0x56a6,
			0x56b0, 0x56b1, 0x56b2, 0x56b3, 0x56ba, 0x56bb, 0x56bc, 0x56bd,
		},
	} {
		for _, id := range ids {
			if m, _ := Lookup(id); m.Family != family || m.Kind != Discrete {
				t.Errorf("%04x: got %+v, want %s", id, m, family)
			}
		}
	}
}

// Every row of the table is read.
func TestIDs(t *testing.T) {
	for device, row := range pci.Rows(idsText) {
		if _, ok := parseModel(row); !ok {
			t.Errorf("%04x %s", device, row)
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, text := range []string{"68719476736", "0x300000000", "0x", "", "-1", "1e9", "18446744073709551615"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseBytes(text); err != nil && n != 0 || n > 1<<50 {
			t.Errorf("%q: got %d, %v", text, n, err)
		}
	})
}

func FuzzParseModel(f *testing.F) {
	f.Add("d A_Series Arc A770")
	f.Add("d Max_Series")
	f.Add("x y")
	f.Fuzz(func(t *testing.T, row string) {
		if m, ok := parseModel(row); ok == (m.Kind == Unknown) {
			t.Errorf("%q: got %+v, %v", row, m, ok)
		}
	})
}
