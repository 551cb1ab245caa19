package programs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestStarters(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":          "module a\n\ngo 1.26.0\n",
		"main.go":         "package main\n\nimport (\n\t_ \"a/asks\"\n\t_ \"a/cgo\"\n\t_ \"a/command\"\n\t_ \"a/process\"\n)\n\nfunc main() {}\n",
		"asks/a.go":       "package asks\n\nimport \"syscall\"\n\nvar _ = syscall.Getpid\n",
		"cgo/a.go":        "package cgo\n",
		"cgo/b.go":        "package cgo\n\nimport \"C\"\nimport \"syscall\"\n\nvar _ = syscall.Exec\n",
		"command/a.go":    "package command\n\nimport \"os/exec\"\n\nvar _ = exec.Command\n",
		"process/a.go":    "package process\n\nimport \"os\"\n\nvar _ = os.StartProcess\n",
		"not-linked/a.go": "package other\n\nimport _ \"os/exec\"\n",
	} {
		file := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := Starters(t, folder, "CGO_ENABLED=1"), []string{"a/cgo", "a/command", "a/process"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := Starters(t, folder, "CGO_ENABLED=0"), []string{"a/command", "a/process"}; !slices.Equal(got, want) {
		t.Errorf("without cgo %q, want %q", got, want)
	}
}
