package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// What a user typed, or a file said, does not steer the terminal from an error.
func TestExecutePrintable(t *testing.T) {
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		return errors.Join(Exit(ExitUsage, errors.New("a \x1b[31mred\u202e word")), errors.New("a second\r line"))
	}}
	root.SetArgs(nil)
	var said bytes.Buffer
	if code := Execute(root, &said); code != ExitUsage {
		t.Errorf("code %d", code)
	}
	if want := "Error: a ?[31mred? word\na second? line\n"; said.String() != want {
		t.Errorf("said %q, want %q", said.String(), want)
	}
}

func TestWriteJSON(t *testing.T) {
	in := map[string]string{"a": "x\u202ey\u009bz\x7f\U000e0001é<\n"}
	var out bytes.Buffer
	if err := WriteJSON(&out, in); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"a\": \"x\\u202ey\\u009bz\\u007f\\udb40\\udc01é<\\n\"\n}\n"; out.String() != want {
		t.Errorf("got %s want %s", out.String(), want)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["a"] != in["a"] {
		t.Errorf("read back %q, %v", back["a"], err)
	}
}

// TestMeant has people mistype.
func TestMeant(t *testing.T) {
	for line, want := range map[string]string{
		"dcotor":        "did you mean x doctor?; see x --help",
		"Doctor":        "did you mean x doctor?",
		"print":         "did you mean --print?",
		"--pritn":       "did you mean --print?",
		"--prin":        "did you mean --print?",
		"--wait 5":      `--wait "5": want a number with its unit, for instance 5s; see x --help`,
		"--extra false": `the value of --extra stands after an equals sign: --extra=false`,
		"--extra dctor": "did you mean x doctor?",
		"--mark a":      `the value of --mark stands after an equals sign: --mark=KEY`,
		"doctor -z":     "unknown shorthand flag: 'z' in -z; see x doctor --help",
		"--somewhat":    "",
		"--ok":          "",
		"secret":        "",
	} {
		root := &cobra.Command{Use: "x", Args: UsageArgs(cobra.NoArgs), SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return nil }}
		root.SetFlagErrorFunc(UsageFlags)
		root.Flags().Bool("print", false, "")
		root.Flags().Bool("extra", true, "")
		root.Flags().String("taint", "", "")
		root.Flags().Duration("wait", 0, "")
		root.Flags().String("mark", "", "a `KEY`")
		root.Flags().Lookup("mark").NoOptDefVal = "default"
		hidden := root.Flags()
		hidden.Bool("secret", false, "")
		_ = hidden.MarkHidden("secret")
		root.AddCommand(&cobra.Command{Use: "doctor", Run: func(*cobra.Command, []string) {}})
		root.SetArgs(strings.Fields(line))
		var out strings.Builder
		code := Execute(root, &out)
		if code != ExitUsage || !strings.Contains(out.String(), want) || want == "" && strings.Contains(out.String(), "did you mean") {
			t.Errorf("%s: exit code %d, %swant %s", line, code, out.String(), want)
		}
	}
}
