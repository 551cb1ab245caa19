package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestGFDResync removes and changes the feature file under GFD's name: it is put
// right within the sleep interval, as GFD does.
func TestGFDResync(t *testing.T) {
	m := newMachine(t, h200, "0000:10:00.0")
	file := filepath.Join(t.TempDir(), "gfd")
	p := command(t)
	p.cmd.Args = []string{gfdName, "--use-node-feature-api=false", "--sleep-interval=1s", "--output-file=" + file, "--root=" + m.root}
	p.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(m.driver, "usr/lib64"))
	begin(t, p)
	right := func(what string) {
		t.Helper()
		for range 100 {
			content, _ := os.ReadFile(file)
			if strings.Contains(string(content), "nvidia.com/gpu.product=NVIDIA-H200\n") && !strings.Contains(string(content), "foreign") {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Fatalf("%s: not put right\n%s", what, p)
	}
	right("at the start")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	right("removed")
	if err := os.WriteFile(file, []byte("nvidia.com/foreign=1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	right("changed")
}
