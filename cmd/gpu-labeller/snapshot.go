package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfile"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

func newSnapshotCommand() *cobra.Command {
	var s source
	var unpack bool
	cmd := &cobra.Command{
		Use:   "snapshot FILE.txtar",
		Short: "Record what a scan reads of this host, for replay elsewhere",
		Long: `snapshot records what a scan of this host reads: the PCI functions in sysfs, the
driver's version in procfs, and what NVML answers. Replaying it with --print
--host gives the labels that the host itself would get.

The file is text, made to be read before it is sent. It holds no serial number,
and GPU UUIDs are replaced; the UUID of an NVLink cluster, which is part of a
label, stays. FILE may be - for standard output.

With --unpack it does the contrary: it writes a recorded host's sys, proc and
nvml.yaml, what NVML answered, into the folder DIR, for --root. There they can
be changed, also while an agent runs on them.`,
		Example: `  gpu-labeller snapshot node-a.txtar
  gpu-labeller --print --host node-a.txtar

  # As root, so that the vgpu labels are recorded too, with a driver of its own
  sudo gpu-labeller snapshot --driver-root /run/nvidia/driver node-a.txtar

  # Run an agent on a recorded host, without a cluster
  gpu-labeller snapshot --unpack node-a.txtar node-a
  gpu-labeller --root node-a --sink=feature-file --feature-file ./features`,
		Args: cli.UsageArgs(func(_ *cobra.Command, args []string) error {
			if unpack {
				if len(args) != 2 {
					return errors.New("name the recorded host and the folder to unpack it to: --unpack FILE.txtar DIR")
				}
				return nil
			}
			if len(args) != 1 {
				return errors.New("name the file to write, or - for standard output")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if unpack {
				return unpackTo(cmd.Context(), args[0], args[1])
			}
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
				return cli.Exit(exitSysfs, err)
			}
			f.Comment = "Recorded by gpu-labeller " + cli.Version(release) + " on " + runtime.GOOS + "/" + runtime.GOARCH + ".\n"
			text, err := f.Format()
			if err != nil {
				return err
			}
			if args[0] == "-" {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			again, err := overwrites(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := write(args[0], text); err != nil {
				return fmt.Errorf("writing %s: %w", args[0], err)
			}
			to := "recorded to " + args[0]
			if again {
				to += ", in place of the host recorded there"
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", to, asked(answer))
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return []string{"txtar"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	s.register(cmd)
	cmd.Flags().BoolVar(&unpack, "unpack", false, "unpack a recorded host into a folder for --root: snapshot --unpack FILE.txtar DIR")
	return cmd
}

// overwrites tells whether a recorded host is there already, and refuses to put one
// in the place of anything else.
func overwrites(ctx context.Context, name string) (bool, error) {
	st, err := os.Stat(name)
	if err != nil || !st.Mode().IsRegular() || st.Size() == 0 {
		return false, nil
	}
	if _, err := hostfile.Read(ctx, name); err != nil {
		return false, cli.Exit(exitUsage, fmt.Errorf("%s is there, and is no recorded host: name another file, or remove it", name))
	}
	return true, nil
}

// unpackTo writes a recorded host into a folder that is new or empty.
func unpackTo(ctx context.Context, file, dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case len(entries) > 0:
		return cli.Exit(exitUsage, fmt.Errorf("%s is not empty: name a new folder", dir))
	case errors.Is(err, fs.ErrNotExist):
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	if err := extractTo(ctx, file, dir); err != nil {
		return cli.Exit(exitUsage, err)
	}
	return nil
}

// write makes text the content of a file, at once or not at all. What is not a
// file, such as a pipe or a device, is written to and stays what it is.
func write(name string, text []byte) error {
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	var err error
	if st, statErr := os.Stat(name); statErr == nil && !st.Mode().IsRegular() {
		var f *os.File
		if f, err = os.OpenFile(name, os.O_WRONLY, 0); err == nil {
			_, err = f.Write(text)
			err = errors.Join(err, f.Close())
		}
	} else {
		err = renameio.WriteFile(name, text, 0o644)
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err // not the name of a temporary file
	}
	return err
}

// asked says in a few words what came of asking NVML.
func asked(a nvml.Answer) string {
	switch {
	case a.Failure != nil:
		return a.Failure.Text
	case a.Init == nvml.Success:
		return fmt.Sprintf("NVML answered, GPUs: %d", len(a.GPUs))
	case a.Init == nvml.LibraryNotFound:
		return "NVML's library was not found, which is right on a host without an NVIDIA driver"
	}
	return "NVML did not answer: " + string(a.Init)
}
