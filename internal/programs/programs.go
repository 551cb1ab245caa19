// Package programs finds what in a command can start other programs, for tests.
package programs

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// Starters are the packages that the command in a folder is linked with, without
// the standard library's, and that can start a program: by os/exec or by a system
// call of a name that is known. They are sorted. What env says, such as
// CGO_ENABLED=0, decides what is linked.
func Starters(t testing.TB, folder string, env ...string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,CgoFiles,Imports,Standard", ".")
	cmd.Dir, cmd.Env, cmd.Stderr = folder, append(os.Environ(), env...), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for packages := json.NewDecoder(bytes.NewReader(out)); packages.More(); {
		var p struct {
			ImportPath, Dir            string
			GoFiles, CgoFiles, Imports []string
			Standard                   bool
		}
		if err := packages.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if p.Standard {
			continue
		}
		starts := slices.Contains(p.Imports, "os/exec")
		for _, file := range slices.Concat(p.GoFiles, p.CgoFiles) {
			starts = starts || callsStart(t, filepath.Join(p.Dir, file))
		}
		if starts {
			found = append(found, p.ImportPath)
		}
	}
	slices.Sort(found)
	return found
}

// callsStart tells whether a file uses what starts a program without os/exec.
func callsStart(t testing.TB, file string) bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		from, ok := call.X.(*ast.Ident)
		if ok && (from.Name == "os" && call.Sel.Name == "StartProcess" ||
			(from.Name == "syscall" || from.Name == "unix") && slices.Contains([]string{"Exec", "ForkExec", "StartProcess"}, call.Sel.Name)) {
			found = true
		}
		return true
	})
	return found
}
