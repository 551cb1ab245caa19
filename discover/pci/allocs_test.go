package pci

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/internal/reads"
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

// A scan is system calls, nearly all of them. Those of read are counted, which are
// the same on every machine: one for each attribute of what is wanted, but two of
// the configuration space, and two for each of the rest.
func TestReadsOfAScan(t *testing.T) {
	functions := map[string]files{}
	for i := range 100 {
		f := nvme
		if i < 8 {
			f = h200
		}
		functions[fmt.Sprintf("0000:%02x:00.0", i)] = f
	}
	root := host(t, functions)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := -reads.OfThread(t) + reads.OfThread(t) // what it takes to ask
	before := reads.OfThread(t)
	if got, _, err := Scan(root, gpus); err != nil || len(got) != 8 {
		t.Fatal(len(got), err)
	}
	if n, most := reads.OfThread(t)-before-own, 92*2+8*16; n > most || n < 92*2 {
		t.Errorf("%d reads for 8 GPUs and 92 other functions, want %d at most", n, most)
	}
}
