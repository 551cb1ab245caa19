package pci

import (
	"fmt"
	"testing"
)

// A bound by allocations holds on every machine; one by time would not. The race detector
// adds some.
func TestAllocationsOf200Functions(t *testing.T) {
	functions := map[string]files{}
	for i := range 200 {
		f := nvme
		if i%12 == 0 && i < 192 {
			f = h200
		}
		functions[fmt.Sprintf("0000:%02x:00.0", i)] = f
	}
	root := host(t, functions)
	scan := func() {
		if got, _, err := Scan(root, gpus); err != nil || len(got) != 16 {
			t.Fatal(len(got), err)
		}
	}
	if n := testing.AllocsPerRun(5, scan); n > 3000 {
		t.Errorf("%v allocations, want 3000 at most", n)
	}
}
