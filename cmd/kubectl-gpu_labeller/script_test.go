package main

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"kubectl-gpu_labeller": main,
		completionName:         main,
	})
}

// TestScripts runs the command as a user does, on clusters that are files.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			// No kubeconfig of whoever runs the tests.
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("KUBECONFIG", "")
			env.Setenv("KUBERNETES_SERVICE_HOST", "")
			return nil
		},
	})
}
