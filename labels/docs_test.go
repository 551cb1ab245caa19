package labels

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite generated files")

// forms are what the values of each form must match.
var forms = map[Form]*regexp.Regexp{
	FormInt:     regexp.MustCompile(`^[0-9]+$`),
	FormMiB:     regexp.MustCompile(`^[0-9]+$`),
	FormVersion: regexp.MustCompile(`^[A-Za-z0-9._-]+$`),
	FormName:    regexp.MustCompile(`^[A-Za-z0-9._-]+$`),
	FormID:      regexp.MustCompile(`^[0-9a-f]{4}$`),
	FormGiB:     regexp.MustCompile(`^[0-9]+G$`),
	FormGFX:     regexp.MustCompile(`^gfx[0-9a-f]{3,4}$`),
	FormModes:   regexp.MustCompile(`^[a-z0-9]+_[a-z0-9]+$`),
	FormUUID:    regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]+$`),
}

// mayBeEmpty are the labels that GFD gives without a value.
var mayBeEmpty = map[string]bool{
	"nvidia.com/gpu.machine":                  true,
	"nvidia.com/cuda.driver-version.minor":    true,
	"nvidia.com/cuda.driver.minor":            true,
	"nvidia.com/cuda.driver-version.revision": true,
	"nvidia.com/cuda.driver.rev":              true,
	"nvidia.com/gpu.sharing-strategy":         true,
}

// documented says what of a label contradicts Keys.
func documented(key, value string) error {
	var k *Key
	for i := range Keys {
		if !Keys[i].Matches(key) {
			continue
		}
		if k != nil {
			return fmt.Errorf("%s is documented twice, as %s and %s", key, k.Pattern, Keys[i].Pattern)
		}
		k = &Keys[i]
	}
	switch {
	case k == nil:
		return fmt.Errorf("%s is not documented", key)
	case value == "" && mayBeEmpty[key]:
		return nil
	case !matchesForm(k.Form, value):
		return fmt.Errorf("%s=%s: documented as %s", key, value, k.Form)
	}
	return nil
}

// matchesForm reads the words of forms that list words from the form itself.
func matchesForm(form Form, value string) bool {
	if re := forms[form]; re != nil {
		return re.MatchString(value)
	}
	return value != "" && strings.Contains(string(form), "`"+value+"`")
}

// exampleLabel is an example of a key, and its value.
func exampleLabel(k Key) (key, value string) {
	if key, value, ok := strings.Cut(k.Example, "="); ok {
		return key, value
	}
	return k.Pattern, k.Example
}

func TestKeys(t *testing.T) {
	seen := make(map[string]bool)
	for _, k := range Keys {
		if seen[k.Pattern] {
			t.Errorf("%s is there twice", k.Pattern)
		}
		seen[k.Pattern] = true
		if k.Group == "" || k.Meaning == "" || k.Form == "" || k.Source == "" {
			t.Errorf("%s lacks a column", k.Pattern)
		}
		key, value := exampleLabel(k)
		if !k.Matches(key) || value == "" {
			t.Errorf("%s: the example %s does not match", k.Pattern, k.Example)
		}
		if reason := checkKey(key) + checkValue(value); reason != "" {
			t.Errorf("%s: the example %s: %s", k.Pattern, k.Example, reason)
		}
		if err := documented(key, value); err != nil {
			t.Error(err)
		}
	}
}

// TestKeysArePublished looks for each key in the labels of some host in
// testdata/hosts.
func TestKeysArePublished(t *testing.T) {
	files, err := filepath.Glob("../testdata/hosts/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no hosts", err)
	}
	published := map[string]bool{}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range archive.Files {
			if f.Name != "want.labels" {
				continue
			}
			for line := range strings.Lines(string(f.Data)) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
				published[key] = true
				if err := documented(key, value); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
	}
	for _, k := range Keys {
		if k.Pattern == "nvidia.com/gfd.timestamp" {
			continue // a host file cannot tell the time
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(published)), k.Matches) {
			t.Errorf("%s is documented, and no host in testdata/hosts has it: add one, and run make generate", k.Pattern)
		}
	}
}

func TestMatches(t *testing.T) {
	tests := []struct {
		pattern, key string
		want         bool
	}{
		{"nvidia.com/gpu.count", "nvidia.com/gpu.count", true},
		{"nvidia.com/gpu.count", "nvidia.com/gpu.counts", false},
		{"nvidia.com/mig-{profile}.count", "nvidia.com/mig-1g.5gb.me.count", true},
		{"nvidia.com/mig-{profile}.count", "nvidia.com/mig-.count", false},
		{"nvidia.com/mig-{profile}.count", "nvidia.com/mig-1g.5gb.memory", false},
		{"nvidia.com/mig-{profile}.count", "nvidia.com/mig.count", false},
	}
	for _, test := range tests {
		if got := (Key{Pattern: test.pattern}).Matches(test.key); got != test.want {
			t.Errorf("%s matches %s: %v, want %v", test.pattern, test.key, got, test.want)
		}
	}
}

// TestDocs compares docs/labels.md with the keys; -update writes it.
func TestDocs(t *testing.T) {
	type group struct {
		Name Group
		Keys []Key
	}
	var groups []group
	for _, k := range Keys {
		if len(groups) == 0 || groups[len(groups)-1].Name != k.Group {
			groups = append(groups, group{Name: k.Group})
		}
		last := &groups[len(groups)-1]
		last.Keys = append(last.Keys, k)
	}
	page, err := template.New("labels.md.tmpl").Funcs(template.FuncMap{
		"group": func(name string) (group, error) {
			for _, g := range groups {
				if string(g.Name) == name {
					return g, nil
				}
			}
			return group{}, fmt.Errorf("no group %q", name)
		},
	}).ParseFiles("testdata/labels.md.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := page.Execute(&want, groups); err != nil {
		t.Fatal(err)
	}
	const path = "../docs/labels.md"
	if *update {
		if err := os.WriteFile(path, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what the keys say: run go test ./labels -update", path)
	}
	for _, g := range groups {
		if !strings.Contains(want.String(), "## "+string(g.Name)+"\n") {
			t.Errorf("the group %s is missing", g.Name)
		}
	}
}
