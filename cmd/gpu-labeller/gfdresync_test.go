package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestResync removes and changes the feature file: it is put right within the
// interval, whatever its expiry; under GFD's name within the sleep interval, as GFD
// does.
func TestResync(t *testing.T) {
	for name, args := range map[string][]string{
		"our name":               {"gpu-labeller", "--sink=feature-file", "--interval=1s", "--feature-file"},
		"our name and an expiry": {"gpu-labeller", "--sink=feature-file", "--interval=1s", "--feature-file-expiry=5m", "--feature-file"},
		"GFD's name":             {gfdName, "--use-node-feature-api=false", "--sleep-interval=1s", "--output-file"},
	} {
		t.Run(name, func(t *testing.T) { testResync(t, args) })
	}
}

func testResync(t *testing.T, args []string) {
	m := newMachine(t, h200, "0000:10:00.0")
	file := filepath.Join(t.TempDir(), "gfd")
	p := command(t)
	p.cmd.Args = append(slices.Clone(args), file, "--root="+m.root)
	p.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(m.driver, "usr/lib64"))
	begin(t, p)
	right := func(what string) {
		t.Helper()
		for range 80 {
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

// TestGFDMoves has the configuration send the labels from a NodeFeature object, whose
// API server never answers, to a file: they do not wait for it for long.
func TestGFDMoves(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	m := newMachine(t, h200, "0000:10:00.0")
	file := filepath.Join(t.TempDir(), "gfd")
	m.write("kubeconfig", kubeconfigFor("http://"+listener.Addr().String()))
	m.write("config.yaml", "version: v1\nflags: {useNodeFeatureAPI: true}\n")
	p := command(t)
	p.cmd.Args = []string{gfdName, "--sleep-interval=1s", "--node-name=a", "--namespace=b", "--force-node-name", "--root=" + m.root,
		"--kubeconfig=" + filepath.Join(m.root, "kubeconfig"), "--config-file=" + filepath.Join(m.root, "config.yaml")}
	p.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(m.driver, "usr/lib64"))
	begin(t, p)
	time.Sleep(3 * time.Second)
	m.write("config.yaml", "version: v1\nflags: {useNodeFeatureAPI: false, gfd: {outputFile: "+file+"}}\n")
	_ = p.cmd.Process.Signal(syscall.SIGHUP)
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		content, _ := os.ReadFile(file)
		if strings.Contains(string(content), "nvidia.com/gpu.product=NVIDIA-H200\n") {
			break
		}
		if time.Since(began) > moveLimit+10*time.Second {
			t.Fatalf("there is no file\n%s", p)
		}
	}
	if !strings.Contains(p.String(), "the labels stay at the old place, too") {
		t.Errorf("the log does not say that labels may be left\n%s", p)
	}
}
