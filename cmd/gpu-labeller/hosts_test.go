package main

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/util/validation"
)

var update = flag.Bool("update", false, "rewrite want.labels in testdata/hosts")

// TestHosts replays every recorded or made-up host through the command. In a
// host file, args are flags, want.labels is all of standard output, want.problems
// all of standard error where it stands, and want.exit the exit code when it is
// not 0. gfd.labels is what NVIDIA's GFD prints on that host: our nvidia.com/
// labels must be equal to it.
func TestHosts(t *testing.T) {
	files, err := filepath.Glob("../../testdata/hosts/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no hosts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			testHost(t, file)
		})
	}
}

func testHost(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	section := func(name string) (string, bool) {
		for _, f := range archive.Files {
			if f.Name == name {
				return string(f.Data), true
			}
		}
		return "", false
	}
	args := []string{"--print", "--host", file}
	if text, ok := section("args"); ok {
		args = append(args, strings.Fields(text)...)
	}
	if text, ok := section("config.yaml"); ok {
		config := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config-file", config)
	}
	var stdout, stderr bytes.Buffer
	code := run(args, &stdout, &stderr)
	t.Logf("standard error:\n%s", &stderr)

	set := map[string]string{}
	for line := range strings.Lines(stdout.String()) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		set[key] = value
		for _, e := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
			t.Errorf("%s=%s: %s", key, value, e)
		}
	}
	if gfd, ok := section("gfd.labels"); ok {
		want := strings.Split(strings.TrimSpace(gfd), "\n")
		slices.Sort(want)
		var got []string
		for _, key := range slices.Sorted(maps.Keys(set)) {
			if strings.HasPrefix(key, "nvidia.com/") {
				got = append(got, key+"="+set[key])
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("nvidia.com/ labels differ from GFD's:\n%s", diff(want, got))
		}
	}
	wantCode := "0"
	if text, ok := section("want.exit"); ok {
		wantCode = strings.TrimSpace(text)
	}
	if got := string(rune('0' + code)); got != wantCode {
		t.Errorf("exit code %s, want %s", got, wantCode)
	}

	if *update {
		if t.Failed() {
			return // nothing is made right by writing it down
		}
		updateSection(archive, "want.labels", stdout.Bytes())
		if _, ok := section("want.problems"); ok {
			updateSection(archive, "want.problems", stderr.Bytes())
		}
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, _ := section("want.labels"); want != stdout.String() {
		t.Errorf("labels differ (-update rewrites want.labels):\n%s", diff(strings.Split(want, "\n"), strings.Split(stdout.String(), "\n")))
	}
	if want, ok := section("want.problems"); ok && want != stderr.String() {
		t.Errorf("standard error:\n%s\nwant:\n%s", &stderr, want)
	}
}

func updateSection(archive *txtar.Archive, name string, content []byte) {
	for i := range archive.Files {
		if archive.Files[i].Name == name {
			archive.Files[i].Data = content
			return
		}
	}
	archive.Files = append(archive.Files, txtar.File{Name: name, Data: content})
}

// diff lists the lines that only one side has.
func diff(want, got []string) string {
	var b strings.Builder
	for _, line := range want {
		if !slices.Contains(got, line) {
			b.WriteString("- " + line + "\n")
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			b.WriteString("+ " + line + "\n")
		}
	}
	return b.String()
}
