package main

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpu-labeller/gpu-labeller/explain"
)

func TestShorten(t *testing.T) {
	for _, test := range []struct {
		text  string
		width int
		want  string
	}{{"node-a", 6, "node-a"}, {"gpu-worker-01", 9, "gpu-…r-01"}, {"ünïcödé", 5, "ün…dé"}, {"abc", 2, "abc"}} {
		if got := shorten(test.text, test.width); got != test.want {
			t.Errorf("%q to %d: got %q, want %q", test.text, test.width, got, test.want)
		}
	}
}

// TestPage: text is broken before the page ends, and colours take no room in a
// table.
func TestPage(t *testing.T) {
	var out bytes.Buffer
	page{Writer: &out, width: 12}.text(2, 4, "one two three a-word-that-is-too-long four")
	if got, want := out.String(), "  one two\n    three\n    a-word-that-is-too-long\n    four\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	out.Reset()
	page{Writer: &out, colour: true}.table([][]string{{"A", "B"}, {"x", "yes"}}, func(_, column int, text string) string {
		return map[string]string{"yes": good}[text]
	})
	if got, want := out.String(), "\x1b[1mA  \x1b[0m\x1b[1mB\x1b[0m\nx  \x1b[32myes\x1b[0m\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestManyNodes: a large cluster fills no more than a screen.
func TestManyNodes(t *testing.T) {
	r := &explain.Result{Verdict: explain.Pending, Summary: "Pod p is pending."}
	for i := range 100 {
		answer, distance := explain.Blocks, 2.0
		if i == 70 {
			answer, distance = explain.OK, 1
		}
		r.Nodes = append(r.Nodes, explain.Node{Name: "node-" + string(rune('a'+i/10)) + string(rune('0'+i%10)), Fits: explain.No, Distance: distance,
			Checks: map[explain.Check]explain.Answer{explain.Taints: answer, explain.Resources: explain.Blocks}})
	}
	var out bytes.Buffer
	writeExplanation(page{Writer: &out}, r, subject{}, false)
	text := out.String()
	if n := strings.Count(text, "node-"); n != mostNodes || !strings.Contains(text, "node-h0") || !strings.Contains(text, "and 80 more") {
		t.Errorf("%d nodes:\n%s", n, text)
	}
	out.Reset()
	writeExplanation(page{Writer: &out}, r, subject{}, true)
	if n := strings.Count(out.String(), "node-"); n != 100 {
		t.Errorf("with --all %d nodes", n)
	}
}

// TestWrite: what could steer a terminal has escapes in every format.
func TestWrite(t *testing.T) {
	for _, value := range []string{"x\u202ey\u009bz\x7f<", "a plain one"} {
		for _, format := range []string{"json", "yaml"} {
			var out bytes.Buffer
			if err := write(&out, format, map[string]string{"a": value}); err != nil {
				t.Fatal(err)
			}
			if strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }) {
				t.Errorf("%s: %q", format, out.String())
			}
			var back map[string]string
			if err := yaml.Unmarshal(out.Bytes(), &back); err != nil || back["a"] != value {
				t.Errorf("%s: read back %q, %v", format, back["a"], err)
			}
		}
	}
}
