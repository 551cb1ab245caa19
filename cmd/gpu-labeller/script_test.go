package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gpu-labeller/gpu-labeller/internal/standin"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"gpu-labeller":      main,
		"gpu-labeller-nvml": main, // the child's name for itself
		gfdName:             main,
	})
}

// TestScripts runs the command as a user does, against the stand-in NVML. A
// script has the command
//
//	driver-root DIR FILE [SYMBOL...]
//
// which lays out an NVML that answers what FILE says, without the SYMBOLs.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			hosts, err := filepath.Abs("../../testdata/hosts")
			env.Setenv("HOSTS", hosts)
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"driver-root": func(ts *testscript.TestScript, _ bool, args []string) {
				if len(args) < 2 {
					ts.Fatalf("usage: driver-root DIR FILE [SYMBOL...]")
				}
				root := standin.DriverRoot(t, ts.ReadFile(args[1]), args[2:]...)
				ts.Check(os.Rename(root, ts.MkAbs(args[0])))
			},
		},
	})
}
