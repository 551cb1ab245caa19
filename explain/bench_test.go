package explain

import (
	"fmt"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// BenchmarkExplain is a pod that fits nowhere, in a large cluster.
func BenchmarkExplain(b *testing.B) {
	c := new(fleet.Cluster)
	for i := range 5000 {
		name := fmt.Sprintf("node-%04d", i)
		c.Nodes = append(c.Nodes, node(name, memory+"=81559", gpu+":8", "!nvidia.com/gpu:NoSchedule"))
		for j := range 8 {
			c.Pods = append(c.Pods, on(pod(fmt.Sprintf("pod-%d-%d", i, j), gpu+":1"), name))
		}
	}
	p := requiring(pod("p", gpu+":1"), memory, "Gt", "100000")
	for b.Loop() {
		r, err := Explain(b.Context(), c, p)
		if err != nil || r.Verdict != Pending {
			b.Fatal(r.Verdict, err)
		}
	}
}
