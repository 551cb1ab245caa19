package main

import (
	"fmt"
	"runtime"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfile"
)

func newSnapshotCommand() *cobra.Command {
	var s source
	cmd := &cobra.Command{
		Use:   "snapshot FILE.txtar",
		Short: "Record what a scan reads of this host, for replay elsewhere",
		Long: `snapshot records what a scan of this host reads: the PCI functions in sysfs,
the driver's version in procfs, and what NVML answers. Replaying it with --print
--host gives the labels that the host itself would get.

The file is text, made to be read before it is sent. It holds no serial number,
and GPU UUIDs are replaced; the UUID of an NVLink cluster, which is part of a
label, stays. FILE may be - for standard output.`,
		Example: `  gpu-labeller snapshot node-a.txtar
  gpu-labeller --print --host node-a.txtar`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.check(); err != nil {
				return err
			}
			host, err := s.host()
			if err != nil {
				return err
			}
			answer := host.NVML(cmd.Context())
			f, err := hostfile.Record(host, &answer)
			if err != nil {
				return &exitError{exitSysfs, err}
			}
			f.Comment = "Recorded by gpu-labeller " + version() + " on " + runtime.GOOS + "/" + runtime.GOARCH + ".\n"
			text, err := f.Format()
			if err != nil {
				return err
			}
			if args[0] == "-" {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			if err := renameio.WriteFile(args[0], text, 0o644); err != nil {
				return fmt.Errorf("writing %s: %w", args[0], err)
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"txtar"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	s.register(cmd)
	return cmd
}
