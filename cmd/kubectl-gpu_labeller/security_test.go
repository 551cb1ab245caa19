package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/internal/programs"
)

// The packages of the plugin that can start a program. A package that is new here
// is to be looked at, and told in docs/security.md.
var starters = []string{
	"github.com/google/gnostic-models/compiler",             // extensions of a compiler of OpenAPI, which nothing here has
	"golang.org/x/sys/unix",                                 // which wraps the system calls
	"k8s.io/client-go/plugin/pkg/client/auth/exec",          // for users with exec in a kubeconfig
	"sigs.k8s.io/kustomize/api/internal/builtins",           // kustomize, for kubectl's -k, which the plugin has not
	"sigs.k8s.io/kustomize/api/internal/git",                // the same
	"sigs.k8s.io/kustomize/api/internal/plugins/execplugin", // the same
	"sigs.k8s.io/kustomize/kyaml/fn/runtime/exec",           // the same
}

func TestStartsNothingElse(t *testing.T) {
	found := programs.Starters(t, ".", "CGO_ENABLED=0")
	if !slices.Equal(found, starters) {
		t.Errorf("these packages can start programs:\n%s\nwant\n%s", strings.Join(found, "\n"), strings.Join(starters, "\n"))
	}
}
