package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/internal/programs"
)

// The packages of the command that can start a program. A package that is new here
// is to be looked at, and told in docs/security.md.
var starters = []string{
	"github.com/gpu-labeller/gpu-labeller/discover/nvml", // itself, as the NVML process
	"github.com/jaypipes/ghw/pkg/net",                    // which is linked with ghw and never called
	"golang.org/x/sys/unix",                              // which wraps the system calls
	"k8s.io/client-go/plugin/pkg/client/auth/exec",       // for users with exec in a kubeconfig; a pod has none
}

func TestStartsNothingElse(t *testing.T) {
	found := programs.Starters(t, ".", "CGO_ENABLED=1")
	if !slices.Equal(found, starters) {
		t.Errorf("these packages can start programs:\n%s\nwant\n%s", strings.Join(found, "\n"), strings.Join(starters, "\n"))
	}
	for _, file := range []string{"../../discover/nvml/child.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("exec.Command(")); n != 1 || !bytes.Contains(text, []byte("exec.Command(executable, childCommand")) {
			t.Errorf("%s starts %d programs, want itself alone", file, n)
		}
	}
}

// All loggers of the command write through redact.Handler.
func TestLogsAreRedacted(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	handlers := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all := bytes.Count(text, []byte("slog.NewTextHandler(")) + bytes.Count(text, []byte("slog.NewJSONHandler("))
		clean := bytes.Count(text, []byte("redact.Handler(slog.New"))
		if all != clean || bytes.Contains(text, []byte("slog.Default(")) {
			t.Errorf("%s: %d handlers, %d of them without UUIDs", file, all, clean)
		}
		handlers += all
	}
	if handlers != 3 {
		t.Errorf("%d handlers found, want those of the agent, text and JSON, and of GFD", handlers)
	}
}

// Every module that go.mod requires directly is justified in docs/security.md.
func TestDependenciesAreJustified(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	direct := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllSubmatch(mod, -1) {
		direct[string(m[1])] = true
	}
	if len(direct) < 10 {
		t.Fatalf("only %d modules found", len(direct))
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z0-9.]+[.][a-z]+/[^`]+)`").FindAllSubmatch(text, -1) {
		listed[string(m[1])] = true
	}
	for module := range direct {
		if !listed[module] {
			t.Errorf("docs/security.md does not say what %s is for", strconv.Quote(module))
		}
	}
}
