package labels

import (
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

func TestGPUCounts(t *testing.T) {
	intel := func(i int) discover.GPU {
		return discover.GPU{Vendor: discover.Intel, Condition: discover.Usable, Function: function(i, pci.Intel, 0x56c0), Product: "Flex 170"}
	}
	virtual := intel(3)
	virtual.Condition = discover.Virtual
	runRules(t, []ruleTest{
		{"two vendors and a virtual function", host(a100(0), a100(1), intel(2), virtual), Options{}, `
			.../count=3
			.../count.pci=3
			.../vendor.nvidia.count=2
			.../vendor.intel.count=1
			!.../vendor.amd.count
			!.../count.failed
			!.../count.passthrough
			.../model.flex-170.count=1
			.../model.nvidia-a100-sxm4-40gb.count=2
			.../homogeneous=false
			!.../memory.*
			.../state=ok`},
		{"no kernel driver", host(discover.GPU{Vendor: discover.AMD, Condition: discover.NoDriver, Function: function(0, pci.AMD, 0x7408)}), Options{}, `
			.../state=no-driver
			.../count.pci=1
			!.../count
			!.../count.failed
			!.../vendor.*`},
		{"no GPU is usable", host(failed(a100(0))), Options{}, ".../count.pci=1\n.../count.failed=1\n!.../count\n!.../homogeneous\n!.../memory.*\n!.../model.*"},
		{"no GPU", &discover.Inventory{NVIDIA: discover.NVIDIADriver{State: discover.StateTimeout}}, Options{}, "!.../*"},
	})
}

func TestHomogeneous(t *testing.T) {
	nameless := func(g discover.GPU, device uint16) discover.GPU {
		g.Product = "N/A"
		g.Function.Device = device
		return g
	}
	withoutFunction := func(g discover.GPU) discover.GPU {
		g.Function = nil
		return g
	}
	memory := func(g discover.GPU, mib uint64) discover.GPU {
		g.MemoryBytes = mib << 20
		return g
	}
	few := memory(a100(1), 40960)
	few.MemoryBytes += 4096 // less than a MiB
	runRules(t, []ruleTest{
		{"one GPU", host(t4(0)), Options{}, ".../homogeneous=true"},
		{"one GPU, nothing known", host(memory(withoutFunction(nameless(t4(0), 1)), 0)), Options{}, ".../homogeneous=true"},
		{"alike", host(t4(0), t4(1)), Options{}, ".../homogeneous=true"},
		{"alike in MiB", host(a100(0), few), Options{}, ".../homogeneous=true"},
		{"another product", host(t4(0), a100(1)), Options{}, ".../homogeneous=false"},
		{"another memory size", host(t4(0), memory(t4(1), 16)), Options{}, ".../homogeneous=false"},
		{"unified and not", host(t4(0), unified(t4(1))), Options{}, ".../homogeneous=false"},
		{"no memory size known", host(memory(t4(0), 0), memory(t4(1), 0)), Options{}, ".../homogeneous=true"},
		{"one memory size unread", host(t4(0), memory(t4(1), 0)), Options{}, "!.../homogeneous\n!.../memory.min\n!.../memory.type"},
		{"one memory size unread, another product", host(memory(t4(0), 0), t4(1), a100(2)), Options{}, ".../homogeneous=false"},
		{"no names, one device ID", host(nameless(t4(0), 1), nameless(t4(1), 1)), Options{}, ".../homogeneous=true"},
		{"no names, two device IDs", host(nameless(t4(0), 1), nameless(t4(1), 2)), Options{}, ".../homogeneous=false"},
		{"no names, not on PCI", host(withoutFunction(nameless(t4(0), 1)), nameless(t4(1), 1)), Options{}, "!.../homogeneous"},
		{"one without name", host(t4(0), nameless(t4(1), 1)), Options{}, "!.../homogeneous"},
		{"one without name, another memory size", host(t4(0), memory(nameless(t4(1), 1), 16)), Options{}, ".../homogeneous=false"},
	})
}

func TestMemory(t *testing.T) {
	unread := t4(1)
	unread.MemoryBytes = 0
	runRules(t, []ruleTest{
		{"two sizes", host(t4(0), a100(1)), Options{}, ".../memory.min=15109\n.../memory.max=40960\n.../memory.total=56069\n.../memory.type=dedicated"},
		{"one size unread", host(t4(0), unread), Options{}, "!.../memory.*"},
		{"unified beside dedicated", host(t4(0), unified(t4(1))), Options{}, ".../memory.min=15109\n.../memory.max=15109\n.../memory.total=15109\n!.../memory.type"},
		{"unified", host(unified(t4(0))), Options{}, ".../memory.type=unified\n!.../memory.min"},
	})
}

func TestModels(t *testing.T) {
	long := strings.Repeat("NVIDIA RTX PRO ", 4)
	runRules(t, []ruleTest{
		{"two names with one slug", host(gpu(0, "A (B)", 1, 8, 0), gpu(1, "A B", 1, 8, 0), gpu(2, "A B", 1, 8, 0)), Options{},
			"!.../model.a-b.count\n.../model.a-b-bd84f7.count=1\n.../model.a-b-fea4c5.count=2"},
		{"two long names that begin alike", host(gpu(0, long+"X", 1, 8, 0), gpu(1, long+"Y", 1, 8, 0)), Options{},
			".../model.nvidia-rtx-pro-nvidia-rtx-pro-nvidia-rtx-pr-a84368.count=1\n.../model.nvidia-rtx-pro-nvidia-rtx-pro-nvidia-rtx-pr-80959d.count=1"},
	})
}

func TestSlug(t *testing.T) {
	tests := []struct{ name, want string }{
		{"NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"},
		{"AMD Instinct MI250X / MI250", "amd-instinct-mi250x-mi250"},
		{"Tesla_V100-SXM2-16GB", "tesla-v100-sxm2-16gb"},
		{"(Pascal)", "pascal"},
		{"_.-", ""},
		{strings.Repeat("a", 50), strings.Repeat("a", 50)},
		{strings.Repeat("a", 51), strings.Repeat("a", 43) + "-bfc5fe"},
		{strings.Repeat("a", 40) + "--- " + strings.Repeat("b", 20), strings.Repeat("a", 40) + "-c15851"},
	}
	for _, test := range tests {
		if got := slug(test.name); got != test.want {
			t.Errorf("slug(%q) = %q, want %q", test.name, got, test.want)
		}
	}
}

func FuzzSlug(f *testing.F) {
	f.Add("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition")
	f.Add("._ -é")
	f.Fuzz(func(t *testing.T, name string) {
		got := slug(name)
		if got == "" {
			if trim(clean(name)) != "" {
				t.Errorf("slug(%q) is empty", name)
			}
			return
		}
		if len(got) > maxSlug {
			t.Errorf("slug(%q) = %q is longer than %d", name, got, maxSlug)
		}
		if got != strings.ToLower(got) || strings.Contains(got, "_") {
			t.Errorf("slug(%q) = %q, want [a-z0-9.-]", name, got)
		}
		if reason := checkKey(ExtraPrefix + "model." + got + ".count"); reason != "" {
			t.Errorf("slug(%q) = %q: %s", name, got, reason)
		}
	})
}

func TestNVLink(t *testing.T) {
	link := func(g discover.GPU, version string, peers ...int) discover.GPU {
		g.NVML.NVLink = &nvml.NVLink{Version: version, Peers: peers}
		return g
	}
	lost := func(i int) discover.GPU { return fails(a100(i), "nvlink", unknownError) }
	runRules(t, []ruleTest{
		{"one GPU", host(link(a100(0), "3.0")), Options{}, "!.../nvlink*"},
		{"a pair", host(link(a100(0), "4.0", 1), link(a100(1), "4.0", 0)), Options{}, ".../nvlink=all\n.../nvlink.version=4.0"},
		{"one side tells", host(link(a100(0), "4.0", 1), link(a100(1), "4.0")), Options{}, ".../nvlink=all"},
		{"two pairs", host(link(a100(0), "3.0", 1), link(a100(1), "3.0", 0), link(a100(2), "3.0", 3), link(a100(3), "3.0", 2)), Options{}, ".../nvlink=some\n.../nvlink.version=3.0"},
		{"no pair", host(a100(0), a100(1)), Options{}, "!.../nvlink*"},
		{"links to a switch only", host(link(a100(0), "4.0"), link(a100(1), "4.0")), Options{}, "!.../nvlink*"},
		{"two versions", host(link(a100(0), "3.0", 1), link(a100(1), "4.0", 0)), Options{}, ".../nvlink=all\n!.../nvlink.version"},
		{"two versions by turns", host(link(a100(0), "3.0", 1, 2), link(a100(1), "4.0", 2), link(a100(2), "3.0")), Options{}, ".../nvlink=all\n!.../nvlink.version"},
		{"no version", host(link(a100(0), "", 1), link(a100(1), "", 0)), Options{}, ".../nvlink=all\n!.../nvlink.version"},
		{"a GPU that takes no part", host(link(a100(0), "3.0", 1), link(a100(1), "3.0", 0), link(a100(2), "2.0")), Options{}, ".../nvlink=some\n.../nvlink.version=3.0"},
		{"two GPUs do not tell", host(link(a100(0), "3.0", 1), link(a100(1), "3.0", 0), lost(2), lost(3)), Options{}, "!.../nvlink*"},
		{"the peer is lost", host(link(a100(0), "3.0", 1), failed(a100(1))), Options{}, "!.../nvlink*"},
	})
}
