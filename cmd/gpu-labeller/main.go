// Command gpu-labeller finds the GPUs of a node and labels the node for
// scheduling.
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/internal/redact"
)

// release is set by the build: -ldflags "-X main.release=v1.2.3".
var release string

func main() {
	if isGFD(os.Args[0]) {
		os.Exit(runGFD(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// Exit codes. A script may rely on them: they are listed in --help.
const (
	exitOK             = cli.ExitOK
	exitFailure        = cli.ExitFailure // the command itself went wrong
	exitUsage          = cli.ExitUsage
	exitNoDriver       = 3
	exitDriverMismatch = 4
	exitTimeout        = 5
	exitSysfs          = 6
	exitNoPermission   = 7
	exitNVML           = 8
)

func run(args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return cli.Execute(root, stderr)
}

func newRootCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "gpu-labeller",
		Short: "Find the GPUs of a node and label the node for scheduling",
		Long: `gpu-labeller finds the GPUs of a node, NVIDIA's, AMD's and Intel's, and labels
the node for scheduling: product, memory, count, family, MIG, driver.

With --print it does so once, on any host, and writes the labels to standard
output. It needs no cluster and no root, and what is wrong is said on standard
error with its cure.

Exit codes of --print:
  0  labels printed, also when some of several GPUs failed (state degraded), or
     the host has no GPU
  1  the command itself went wrong
  2  wrong usage
  3  GPUs on the bus, but no driver or no NVML library
  4  the NVML library and the kernel module are of different versions
  5  NVML did not answer in time
  6  /sys/bus/pci/devices cannot be read, or no GPU was found and a PCI function
     that may be one cannot be read
  7  no permission to open the GPUs
  8  NVML crashed or could not be initialised, or no GPU answered
With codes 3 to 8, the labels that could be told are printed all the same.`,
		Example: `  # What would this node be labelled with?
  gpu-labeller --print

  # As a page for people, with the GPUs and what is wrong with them
  gpu-labeller --print -o table

  # MIG devices as resources of their own, as the device plugin does with mixed
  gpu-labeller --print --mig-strategy=mixed

  # A host whose file system is mounted at /host
  gpu-labeller --print --root /host --driver-root /host

  # Record this host, and replay it elsewhere
  gpu-labeller snapshot node-a.txtar
  gpu-labeller --print --host node-a.txtar`,
		Args:          cli.UsageArgs(cobra.NoArgs),
		Version:       cli.Version(release),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.print {
				return printLabels(cmd, &f)
			}
			return redact.Error(runAgent(cmd, &f))
		},
	}
	cmd.SetFlagErrorFunc(cli.UsageFlags)
	f.register(cmd)
	cmd.AddCommand(newSnapshotCommand(), newCleanupCommand(), newGFDCommand(), newDiffCommand(), newDoctorCommand(), cli.NewVersionCommand())
	return cmd
}
