package agent

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMetricsDocumented compares the table of docs/operate.md with the metrics that
// there are: names, and labels in their order.
func TestMetricsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	_, section, _ := strings.Cut(string(text), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|(.*?)\\| .+ \\|$").FindAllStringSubmatch(section, -1) {
		if _, twice := documented[m[1]]; twice {
			t.Errorf("%s is there twice", m[1])
		}
		documented[m[1]] = m[2]
	}
	name := regexp.MustCompile("`([a-z]+)`")
	for _, f := range newMetrics("").families {
		cell, ok := documented[f.name]
		if !ok {
			t.Errorf("docs/operate.md does not have %s", f.name)
			continue
		}
		delete(documented, f.name)
		var labels []string
		for _, m := range name.FindAllStringSubmatch(regexp.MustCompile(`\(.*?\)`).ReplaceAllString(cell, ""), -1) {
			labels = append(labels, m[1])
		}
		if !slices.Equal(labels, f.labels) {
			t.Errorf("docs/operate.md gives %s the labels %v, and it has %v", f.name, labels, f.labels)
		}
	}
	for name := range documented {
		t.Errorf("docs/operate.md has %s, which is not exported", name)
	}
}

// TestReadBackDocumented: docs/nfd.md has the words of the warnings.
func TestReadBackDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/nfd.md")
	if err != nil {
		t.Fatal(err)
	}
	some := missing{total: 37}
	for range 24 {
		some.keys = append(some.keys, "nvidia.com/gpu.count")
	}
	for _, m := range []missing{some, {keys: []string{"nvidia.com/gpu.count"}, total: 1}} {
		if want := m.text(3 * time.Minute); !strings.Contains(string(text), want) {
			t.Errorf("docs/nfd.md does not have: %s", want)
		}
	}
}
