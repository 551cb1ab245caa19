package labels

import (
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/intel"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// intelGPU is a usable Intel GPU.
func intelGPU(i int, class uint32, device uint16, tiles int) discover.GPU {
	f := function(i, pci.Intel, device)
	f.Class, f.Driver = class<<8, "i915"
	m, _ := intel.Lookup(device)
	return discover.GPU{
		Vendor: discover.Intel, Condition: discover.Usable, Function: f,
		Product: m.String(), Unified: m.Kind == intel.Integrated, Intel: &intel.GPU{Model: m, Tiles: tiles},
	}
}

func TestIntel(t *testing.T) {
	condition := func(g discover.GPU, c discover.Condition) discover.GPU {
		g.Condition = c
		return g
	}
	tests := []struct {
		name string
		inv  *discover.Inventory
		opts Options
		want string
	}{
		{"Max 1550", host(intelGPU(0, 0x0380, 0x0bd5, 2), intelGPU(1, 0x0380, 0x0bd5, 2)), Options{}, `gpu.intel.com/device-id.0380-0bd5.count=2
gpu.intel.com/device-id.0380-0bd5.present=true
gpu.intel.com/device.count=2
gpu.intel.com/family=Max_Series
gpu.intel.com/product=Max_1550
gpu.intel.com/tiles=4
intel.feature.node.kubernetes.io/gpu=true
`},
		{"two kinds of one class", host(intelGPU(0, 0x0380, 0x56c0, 1), intelGPU(1, 0x0380, 0x56c1, 1), intelGPU(2, 0x0380, 0x56c1, 1)), Options{}, `gpu.intel.com/device-id.0380-56c0.count=1
gpu.intel.com/device-id.0380-56c0.present=true
gpu.intel.com/device-id.0380-56c1.count=2
gpu.intel.com/device-id.0380-56c1.present=true
gpu.intel.com/device.count=3
gpu.intel.com/family=Flex_Series
gpu.intel.com/tiles=3
intel.feature.node.kubernetes.io/gpu=true
`},
		{"two families, a tile unknown", host(intelGPU(0, 0x0380, 0x56c0, 1), intelGPU(1, 0x0300, 0x56a0, 0)), Options{}, `gpu.intel.com/device-id.0300-56a0.count=1
gpu.intel.com/device-id.0300-56a0.present=true
gpu.intel.com/device-id.0380-56c0.count=1
gpu.intel.com/device-id.0380-56c0.present=true
gpu.intel.com/device.count=2
intel.feature.node.kubernetes.io/gpu=true
`},
		{"integrated beside discrete", host(intelGPU(0, 0x0300, 0x4690, 1), intelGPU(1, 0x0300, 0xe20b, 1)), Options{}, `gpu.intel.com/device-id.0300-4690.count=1
gpu.intel.com/device-id.0300-4690.present=true
gpu.intel.com/device-id.0300-e20b.count=1
gpu.intel.com/device-id.0300-e20b.present=true
gpu.intel.com/device.count=2
gpu.intel.com/family=B_Series
gpu.intel.com/product=Arc_B580
gpu.intel.com/tiles=2
intel.feature.node.kubernetes.io/gpu=true
`},
		{"integrated alone", host(intelGPU(0, 0x0300, 0x4690, 1)), Options{}, `gpu.intel.com/device-id.0300-4690.count=1
gpu.intel.com/device-id.0300-4690.present=true
gpu.intel.com/device.count=1
gpu.intel.com/product=UHD_Graphics_770
gpu.intel.com/tiles=1
intel.feature.node.kubernetes.io/gpu=true
`},
		{"unknown beside known", host(intelGPU(0, 0x0300, 0xffff, 1), intelGPU(1, 0x0300, 0x56a0, 1)), Options{}, `gpu.intel.com/device-id.0300-56a0.count=1
gpu.intel.com/device-id.0300-56a0.present=true
gpu.intel.com/device-id.0300-ffff.count=1
gpu.intel.com/device-id.0300-ffff.present=true
gpu.intel.com/device.count=2
gpu.intel.com/tiles=2
intel.feature.node.kubernetes.io/gpu=true
`},
		{"the operator's names", host(intelGPU(0, 0x0300, 0xffff, 1)), Options{IntelNames: map[uint16]IntelName{0xffff: {Product: "Arc (X) 1/2", Family: "X_Series"}}}, `gpu.intel.com/device-id.0300-ffff.count=1
gpu.intel.com/device-id.0300-ffff.present=true
gpu.intel.com/device.count=1
gpu.intel.com/family=X_Series
gpu.intel.com/product=Arc_X_1_2
gpu.intel.com/tiles=1
intel.feature.node.kubernetes.io/gpu=true
`},
		{"none usable", host(
			condition(intelGPU(0, 0x0380, 0x56c0, 0), discover.Passthrough),
			condition(intelGPU(1, 0x0380, 0x56c0, 0), discover.NoDriver),
			condition(intelGPU(2, 0x0380, 0x56c0, 0), discover.Virtual)), Options{}, ""},
		{"no GPU", host(), Options{}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkWhole(t, test.inv, test.opts, test.want, "gpu.intel.com/", "intel.feature")
		})
	}
}
