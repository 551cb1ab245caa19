package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// TestYAMLOrder: labels are in the order of the other forms, and text stays text.
func TestYAMLOrder(t *testing.T) {
	set := labels.Set{"a/mig-10g": "10", "a/mig-9g": "true", "a/Z": "", "a/b.c": "1.0", "a/b-c": "null"}
	out, err := yaml.Marshal(sortedSet(set))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if _, err := set.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	var inYAML, inText []string
	for line := range strings.Lines(string(out)) {
		key, _, _ := strings.Cut(line, ":")
		inYAML = append(inYAML, key)
	}
	for line := range strings.Lines(text.String()) {
		key, _, _ := strings.Cut(line, "=")
		inText = append(inText, key)
	}
	if !slices.Equal(inYAML, inText) {
		t.Errorf("YAML has %q, text has %q", inYAML, inText)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(out, &tree); err != nil {
		t.Fatal(err)
	}
	for key, value := range set {
		if tree[key] != value {
			t.Errorf("%s is %#v, want %q", key, tree[key], value)
		}
	}
}

// TestNVMLFileIsReadAgain changes what stands for NVML between two scans.
func TestNVMLFileIsReadAgain(t *testing.T) {
	s := source{root: t.TempDir()}
	file := filepath.Join(s.root, "nvml.yaml")
	says := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	says("init: SUCCESS\ndriver_version: \"1\"\n")
	host, err := s.host()
	if err != nil {
		t.Fatal(err)
	}
	says("init: SUCCESS\ndriver_version: \"2\"\n")
	if a := host.NVML(t.Context()); a.DriverVersion != "2" {
		t.Errorf("%+v", a)
	}
	says("init: [")
	if a := host.NVML(t.Context()); a.Failure == nil || !strings.Contains(a.Failure.Text, "nvml.yaml") {
		t.Errorf("%+v", a)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if a := host.NVML(t.Context()); a.Init != nvml.LibraryNotFound {
		t.Errorf("%+v", a)
	}
}
