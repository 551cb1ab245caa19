//go:build faults

package faults

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/internal/standin"
)

const document = "../../docs/reliability.md"

// The document has the tables between these.
const (
	tablesBegin = "<!-- These tables are written by: go test -tags faults ./test/faults -run TestDocument -update -->\n"
	tablesEnd   = "<!-- End of the tables. -->\n"
)

// TestDocument checks that docs/reliability.md has the rows as they are here.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(text, []byte(tablesBegin))
	old, after, okEnd := bytes.Cut(rest, []byte(tablesEnd))
	if !ok || !okEnd {
		t.Fatalf("%s lacks the lines that begin and end the tables", document)
	}
	now := []byte(tables(rows()))
	if bytes.Equal(old, now) {
		return
	}
	if !*update {
		t.Fatalf("%s has other tables than the test: go test -tags faults ./test/faults -run TestDocument -update", document)
	}
	whole := slices.Concat(before, []byte(tablesBegin), now, []byte(tablesEnd), after)
	if err := os.WriteFile(document, whole, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestRowsAreNamedApart(t *testing.T) {
	seen := map[string]string{}
	for _, r := range rows() {
		name := nodeName(r.name)
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q are both %s", r.name, other, name)
		}
		seen[name] = r.name
	}
}

// TestEachQuestionFails checks that each question which NVML is asked fails in a row.
func TestEachQuestionFails(t *testing.T) {
	fail := map[string]bool{"nvmlInit": true, "nvmlDeviceGetHandleByIndex": true} // in ways of their own
	for _, r := range rows() {
		for _, q := range r.questions {
			fail[q] = true
		}
	}
	binary := build(t)
	for name, text := range map[string]string{"linked": linked(2), "split": splitGPUs(2, 2)} {
		for _, without := range [][]string{nil, {"nvmlDeviceGetGpuFabricInfo"}} {
			driver := standin.DriverRoot(t, text+"log asked\n", without...)
			if out, err := exec.Command(binary, "--print", "--root", t.TempDir(), "--driver-root", driver).CombinedOutput(); err != nil {
				t.Logf("%s: %v\n%s", name, err, out) // there is no bus
			}
			asked, err := os.ReadFile(filepath.Join(driver, "usr/lib64/asked"))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(asked)) {
				question := version.ReplaceAllString(strings.Fields(line)[0], "")
				if !fail[question] {
					t.Errorf("%s: no row has %s fail", name, question)
					fail[question] = true // once is enough
				}
			}
		}
	}
}

// TestKnownIssues checks that what docs/known-issues-elsewhere.md names is there:
// hosts, tests and rows.
func TestKnownIssues(t *testing.T) {
	text, err := os.ReadFile("../../docs/known-issues-elsewhere.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, r := range rows() {
		names[r.name] = true
	}
	hosts, _ := filepath.Glob("../../testdata/hosts/*.txtar")
	for _, h := range hosts {
		names[strings.TrimSuffix(filepath.Base(h), ".txtar")] = true
	}
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range testFunction.FindAllSubmatch(source, -1) {
			names[string(m[1])] = true
		}
		for _, m := range subtest.FindAllSubmatch(source, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "---") || strings.TrimSpace(cells[3]) == "held by" {
			continue
		}
		lines++
		held := quoted.FindAllStringSubmatch(cells[3], -1)
		if len(held) == 0 {
			t.Errorf("nothing holds: %s", cells[1])
		}
		for _, m := range held {
			before, isPrefix := strings.CutSuffix(m[1], "…")
			if names[m[1]] || strings.HasPrefix(m[1], "-") || isPrefix && slices.ContainsFunc(slices.Collect(maps.Keys(names)), func(n string) bool { return strings.HasPrefix(n, before) }) {
				continue
			}
			t.Errorf("no host, test or row has the name %q", m[1])
		}
	}
	if lines < 30 {
		t.Errorf("only %d lines found", lines)
	}
}

// A node that is tainted or cordoned has GPUs all the same, and one that no label
// selects yet waits for ours.
func TestDaemonSetGoesEverywhere(t *testing.T) {
	text, err := os.ReadFile("../../manifests/base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var daemonSet struct {
		Spec struct {
			Template struct {
				Spec struct {
					NodeSelector map[string]string `yaml:"nodeSelector"`
					Tolerations  []struct{ Key, Operator, Effect string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &daemonSet); err != nil {
		t.Fatal(err)
	}
	pod := daemonSet.Spec.Template.Spec
	if len(pod.Tolerations) != 1 || pod.Tolerations[0].Operator != "Exists" || pod.Tolerations[0].Key != "" || pod.Tolerations[0].Effect != "" {
		t.Errorf("tolerations %v, want all taints to be tolerated", pod.Tolerations)
	}
	for key := range pod.NodeSelector {
		if !strings.HasPrefix(key, "kubernetes.io/") {
			t.Errorf("the node must have the label %s", key)
		}
	}
}

var (
	testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	subtest      = regexp.MustCompile(`t\.Run\("([^"]+)"`)
	quoted       = regexp.MustCompile("`([^`]+)`")
)

// tables is a table for each area.
func tables(all []row) string {
	var b strings.Builder
	area := ""
	for i := 0; i < len(all); {
		r := &all[i]
		if r.area != area {
			area = r.area
			fmt.Fprintf(&b, "\n### %s\n\n| what goes wrong | before | during | after |\n|---|---|---|---|\n", area)
		}
		items := []string{r.item}
		for i++; i < len(all) && r.item != "" && sameLine(r, &all[i]); i++ {
			items = append(items, all[i].item)
		}
		fault := r.fault
		if r.item != "" {
			fault = fmt.Sprintf(r.fault, "`"+strings.Join(items, "`, `")+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", fault, inPassing(r.before, r.through), outcomes(r.during), outcomes(r.after))
	}
	b.WriteString("\n")
	return b.String()
}

// sameLine tells rows that differ only by their item.
func sameLine(a, b *row) bool {
	return a.area == b.area && a.fault == b.fault && inPassing(a.before, a.through) == inPassing(b.before, b.through) &&
		outcomes(a.during) == outcomes(b.during) && outcomes(a.after) == outcomes(b.after)
}

// outcomes is what is published after each step, each once.
func outcomes(steps []step) string {
	var all []string
	for _, s := range steps {
		if text := inPassing(s.want, s.through); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all, "; then ")
}

// inPassing is what is published, and what else may be on the way.
func inPassing(w want, through []want) string {
	text := w.String()
	separator := "; in passing: "
	for _, t := range through {
		text += separator + t.String()
		separator = "; or "
	}
	return text
}

func (w want) String() string {
	if w.as != "" {
		return w.as
	}
	text := baseNames[w.of]
	var set, gone []string
	for _, key := range slices.Sorted(maps.Keys(w.but)) {
		if value := w.but[key]; value != "" {
			set = append(set, "`"+key+"="+value+"`")
		} else {
			gone = append(gone, "`"+key+"`")
		}
	}
	if set != nil {
		text += ", " + strings.Join(set, " ")
	}
	if gone != nil {
		text += ", without " + strings.Join(gone, " ")
	}
	return text
}
