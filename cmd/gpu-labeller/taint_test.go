package main

import (
	"log/slog"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

func TestTaintIsForItsVendor(t *testing.T) {
	const prefix = "gpu.feature.node.kubernetes.io/"
	nvidia := labels.Set{prefix + "count": "2", prefix + "vendor.nvidia.count": "2"}
	amd := labels.Set{prefix + "count": "1", prefix + "vendor.amd.count": "1"}
	both := labels.Set{prefix + "count": "2", prefix + "vendor.amd.count": "1", prefix + "vendor.intel.count": "1"}
	lost := labels.Set{prefix + "count.pci": "1"}
	for _, tt := range []struct {
		taint                   string
		nvidia, amd, both, lost bool
	}{
		{defaultTaint, true, false, false, false},
		{"amd.com/gpu=present:NoSchedule", false, true, true, false},
		{"gpu.intel.com/i915:NoSchedule", false, false, true, false},
		{"example.com/gpu=present:NoSchedule", true, true, true, false},
		{"gpu:NoSchedule", true, true, true, false},
		{"xnvidia.com/gpu:NoSchedule", true, true, true, false},
	} {
		f := sinkFlags{taint: tt.taint}
		taint, err := f.nodeTaint(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range []struct {
			set  labels.Set
			want bool
		}{{nvidia, tt.nvidia}, {amd, tt.amd}, {both, tt.both}, {lost, tt.lost}, {nil, false}} {
			if got := taint.Wanted(node.set); got != node.want {
				t.Errorf("%s on a node with %v: %v", tt.taint, node.set, got)
			}
		}
	}
}
