// Command kubectl-gpu_labeller shows the GPUs of a cluster and says why a pod is
// pending. Installed under this name, kubectl runs it as kubectl gpu-labeller. It
// reads and changes nothing.
package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

// Under this name kubectl runs a program to complete what is typed after
// kubectl gpu-labeller.
const completionName = "kubectl_complete-gpu_labeller"

// release is set by the build: -ldflags "-X main.release=v1.2.3".
var release string

func main() {
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == completionName {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	os.Exit(run(args, os.Stdin, os.Stdout, os.Stderr))
}

// Exit codes. A script may rely on them: they are listed in --help.
const (
	exitOK      = cli.ExitOK
	exitFailure = cli.ExitFailure // the command itself went wrong
	exitUsage   = cli.ExitUsage
	exitNo      = 3 // the pod is pending; there is no GPU
	exitUnknown = 4 // rights are lacking to tell
)

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return cli.Execute(root, stderr)
}

// wide is what kubectl calls a table with all columns: nodes --wide.
const wide = "wide"

// flags are those of all commands.
type flags struct {
	config  *genericclioptions.ConfigFlags
	output  cli.Choice
	objects string
}

func newRootCommand() *cobra.Command {
	f := flags{
		config: genericclioptions.NewConfigFlags(true),
		output: cli.Choice{Value: "table", Of: []string{"table", "json", "yaml"}, Also: wide},
	}
	cmd := &cobra.Command{
		Use:   "kubectl-gpu_labeller",
		Short: "Show the GPUs of a cluster, and why a pod is pending",
		Long: `Show the GPUs of a cluster, why a pod that wants some is pending, and what to
write into a pod to get them. All commands read and change nothing. Where a
right is lacking, what could not be read is named and the rest goes on.

kubectl completes kubectl gpu-labeller by a program in the PATH that is named
kubectl_complete-gpu_labeller: a link of that name to this one.

Exit codes:
  0  done: the pod fits or has its node, there are GPUs
  1  the command itself went wrong
  2  wrong usage
  3  the pod is pending, or there is no GPU
  4  it cannot be told, for want of rights`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpu-labeller"},
		Args:          cli.UsageArgs(cobra.NoArgs),
		Version:       cli.Version(release),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if f.output.Value == wide && cmd.Name() != "nodes" {
				return cli.Exit(exitUsage, errors.New("-o wide is for the command nodes"))
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(cli.UsageFlags)
	persistent := cmd.PersistentFlags()
	f.config.AddFlags(persistent)
	persistent.VarP(&f.output, "output", "o", "output format: table, json or yaml; of the command nodes also wide")
	persistent.StringVar(&f.objects, "objects", "", "read the cluster from a `FILE` of objects, as kubectl get -o yaml prints them, instead of from the API server; - is standard input")
	f.completeFlags(cmd)
	cmd.AddCommand(newExplainCommand(&f), newNodesCommand(&f), newSuggestCommand(&f), cli.NewVersionCommand())
	return cmd
}
