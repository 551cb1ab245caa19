package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is the release, or, where there is none, what the build recorded of
// its source.
func Version(release string) string {
	if release != "" {
		return release
	}
	v, revision, modified := "", "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		v = info.Main.Version
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value[:min(12, len(s.Value))]
			case "vcs.modified":
				if s.Value == "true" {
					modified = "-modified"
				}
			}
		}
	}
	if revision != "" && (v == "" || v == "(devel)") {
		return "devel-" + revision + modified
	}
	return cmp.Or(v, "devel")
}

// NewVersionCommand prints the name and the version of the command that it is
// added to.
func NewVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the version",
		Args:              UsageArgs(cobra.NoArgs),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root := cmd.Root()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s %s %s/%s\n", root.Name(), root.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
