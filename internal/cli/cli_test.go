package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

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
