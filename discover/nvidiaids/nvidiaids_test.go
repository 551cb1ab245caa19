package nvidiaids

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

func TestLookup(t *testing.T) {
	tests := []struct {
		device uint16
		want   Model
	}{
		{0x2335, Model{"NVIDIA H200 SXM 141GB", "hopper"}},
		{0x2331, Model{"NVIDIA H100 PCIe", "hopper"}},
		{0x20b0, Model{"NVIDIA A100 SXM4 40GB", "ampere"}},
		{0x1eb8, Model{"NVIDIA Tesla T4", "turing"}},
		{0x26b9, Model{"NVIDIA L40S", "ada-lovelace"}},
		{0x2901, Model{"NVIDIA B200", "blackwell"}},
		{0x2684, Model{"NVIDIA GeForce RTX 4090", "ada-lovelace"}},
		{0x2204, Model{"NVIDIA GeForce RTX 3090", "ampere"}},
		{0x1b06, Model{"NVIDIA GeForce GTX 1080 Ti", "pascal"}},
		{0x22a3, Model{}}, // an NVSwitch
		{0xffff, Model{}},
	}
	for _, tt := range tests {
		if got, ok := Lookup(tt.device); got != tt.want || ok != (tt.want != Model{}) {
			t.Errorf("%04x: got %+v, %v", tt.device, got, ok)
		}
	}
}

// Every row of the table is read, and of a family that GFD knows.
func TestIDs(t *testing.T) {
	families := []string{"kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada-lovelace", "hopper", "blackwell", "rubin"}
	for device, row := range pci.Rows(idsText) {
		if m, ok := parseModel(row); !ok || !slices.Contains(families, m.Family) {
			t.Errorf("%04x %s", device, row)
		}
	}
}

func FuzzParseModel(f *testing.F) {
	f.Add("hopper H100 PCIe")
	f.Add("hopper")
	f.Fuzz(func(t *testing.T, row string) {
		if m, ok := parseModel(row); ok && m.Family+" "+strings.TrimPrefix(m.Product, "NVIDIA ") != row {
			t.Errorf("%q: got %+v", row, m)
		}
	})
}
