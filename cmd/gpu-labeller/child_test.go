package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The process that asks NVML ends before these initialise, which is what most of
// its own time would go to.
func TestChildInitialisesLittle(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "nvml-probe", t.TempDir())
	cmd.Env = []string{"GPU_LABELLER_NVML_CHILD=1", "GODEBUG=inittrace=1"}
	var trace strings.Builder
	cmd.Stderr = &trace
	answer, err := cmd.Output()
	if err != nil || !strings.Contains(string(answer), "LIBRARY_NOT_FOUND") {
		t.Fatalf("%v, %s\n%s", err, answer, trace.String())
	}
	initialised := map[string]bool{}
	for line := range strings.Lines(trace.String()) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "init" {
			initialised[fields[1]] = true
		}
	}
	if !initialised["github.com/NVIDIA/go-nvml/pkg/nvml"] {
		t.Errorf("no trace:\n%s", trace.String())
	}
	for name := range initialised {
		if strings.HasPrefix(name, "k8s.io/client-go/") {
			t.Errorf("%s initialises", name)
		}
	}
	for _, name := range []string{
		"github.com/spf13/cobra", "net/http", "crypto/tls",
		"github.com/jaypipes/ghw/pkg/option", "github.com/gpu-labeller/gpu-labeller/discover/pci",
	} {
		if initialised[name] {
			t.Errorf("%s initialises", name)
		}
	}
}
