package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfile"
	"github.com/gpu-labeller/gpu-labeller/discover/nvidiaids"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

func printLabels(cmd *cobra.Command, f *flags) error {
	if err := f.agent.check(); err != nil {
		return err // other flags of the agent are its own affair
	}
	opts, warnings, err := f.labelOptions(cmd.Flags().Changed, time.Now())
	opts.OmitPCI = f.agent.omitPCI(f.agent.sinks)
	for _, w := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
	}
	if err != nil {
		return err
	}
	inv, scanErr, err := f.scan(cmd, opts)
	if err != nil {
		return err
	}
	set, rejected := labels.Compute(inv, opts)

	out, diagnostics := cmd.OutOrStdout(), cmd.ErrOrStderr()
	if f.output.Value == "table" {
		err = writeTable(out, inv, set, rejected)
	} else {
		err = writeReport(out, f.output.Value, inv, set, rejected)
		for _, p := range inv.Problems {
			fmt.Fprintln(diagnostics, "warning:", cli.Printable(p.String()))
		}
		for _, r := range rejected {
			fmt.Fprintln(diagnostics, "warning:", cli.Printable(r.String()))
		}
		if len(inv.GPUs) == 0 && exitCode(inv, scanErr) == exitOK {
			fmt.Fprintln(diagnostics, "no GPU found")
		}
	}
	if err != nil {
		return err
	}
	if code := exitCode(inv, scanErr); code != exitOK {
		return cli.Exit(code, nil)
	}
	return nil
}

// scan reads the host that the flags name. The first error is discover.Scan's,
// with which there is an inventory all the same.
func (f *flags) scan(cmd *cobra.Command, opts labels.Options) (inv *discover.Inventory, scanErr, err error) {
	// A signal ends the child and removes what a recorded host was extracted to.
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	done, err := f.replay(ctx, cmd)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	if err := f.source.check(); err != nil {
		return nil, nil, err
	}
	host, err := f.source.host()
	if err != nil {
		return nil, nil, err
	}
	host.Class = opts.WantsClass
	inv, scanErr = discover.Scan(ctx, host)
	if ctx.Err() != nil {
		return nil, nil, errors.New("interrupted")
	}
	return inv, scanErr, nil
}

// replay puts the host that --host names, if it does, in the place of this one,
// until done is called.
func (f *flags) replay(ctx context.Context, cmd *cobra.Command) (done func(), err error) {
	if !cmd.Flags().Changed("host") {
		return func() {}, nil
	}
	if cmd.Flags().Changed("root") {
		return nil, cli.Exit(exitUsage, errors.New("--host and --root each name a host: give one of them"))
	}
	dir, err := extract(ctx, f.hostFile)
	if ctx.Err() != nil {
		return nil, errors.New("interrupted")
	}
	if err != nil {
		return nil, cli.Exit(exitUsage, fmt.Errorf("--host: %w", err))
	}
	f.source.root = dir
	return func() { os.RemoveAll(dir) }, nil
}

// extract writes a recorded host into a new folder, which the caller removes.
func extract(ctx context.Context, file string) (string, error) {
	if file == "" {
		return "", errors.New("name a file, or - for standard input")
	}
	dir, err := os.MkdirTemp("", "gpu-labeller-host-")
	if err != nil {
		return "", err
	}
	if err := extractTo(ctx, file, dir); err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}

// extractTo writes a recorded host into an empty folder.
func extractTo(ctx context.Context, file, dir string) error {
	f, err := hostfile.Read(ctx, file)
	if err != nil {
		return err
	}
	if f.NVML == nil {
		// This host's NVML is not that one's.
		f.NVML = &nvml.Answer{Init: nvml.LibraryNotFound, Detail: "the recorded host has no nvml.yaml"}
	}
	if err := f.Extract(ctx, dir); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func exitCode(inv *discover.Inventory, scanErr error) int {
	if scanErr != nil || len(inv.GPUs) == 0 && inv.Unread > 0 {
		return exitSysfs
	}
	switch inv.State() {
	case discover.StateNoDriver:
		return exitNoDriver
	case discover.StateDriverMismatch:
		return exitDriverMismatch
	case discover.StateTimeout:
		return exitTimeout
	case discover.StateNoPermission:
		return exitNoPermission
	case discover.StateError:
		return exitNVML
	}
	return exitOK
}

// report is what -o json and -o yaml print.
type report struct {
	State    discover.State     `json:"state,omitempty" yaml:"state,omitempty"` // absent without GPUs
	Labels   sortedSet          `json:"labels" yaml:"labels"`
	GPUs     []gpuReport        `json:"gpus" yaml:"gpus"`
	Problems []discover.Problem `json:"problems" yaml:"problems"`
}

// sortedSet is in one order in all forms: by itself, YAML puts 9 before 10.
type sortedSet labels.Set

// MarshalYAML implements yaml.Marshaler.
func (s sortedSet) MarshalYAML() (any, error) {
	tree := &yaml.Node{Kind: yaml.MappingNode}
	for _, key := range slices.Sorted(maps.Keys(s)) {
		var k, v yaml.Node
		k.SetString(key)
		v.SetString(s[key])
		tree.Content = append(tree.Content, &k, &v)
	}
	return tree, nil
}

// gpuReport is one GPU for people and scripts.
type gpuReport struct {
	PCIAddress string             `json:"pciAddress,omitempty" yaml:"pciAddress,omitempty"`
	Vendor     discover.Vendor    `json:"vendor" yaml:"vendor"`
	Product    string             `json:"product,omitempty" yaml:"product,omitempty"`
	Family     string             `json:"family,omitempty" yaml:"family,omitempty"`
	MemoryMiB  uint64             `json:"memoryMiB,omitempty" yaml:"memoryMiB,omitempty"`
	Driver     string             `json:"driver,omitempty" yaml:"driver,omitempty"`
	MIG        *migReport         `json:"mig,omitempty" yaml:"mig,omitempty"`
	NUMANode   *int               `json:"numaNode,omitempty" yaml:"numaNode,omitempty"`
	Condition  discover.Condition `json:"condition" yaml:"condition"`
}

// migReport is a GPU's MIG mode; absent where the GPU has none.
type migReport struct {
	Enabled bool `json:"enabled" yaml:"enabled"`
	Pending bool `json:"pending" yaml:"pending"` // after the next reset
	Devices int  `json:"devices" yaml:"devices"`
}

func (m *migReport) String() string {
	if m == nil {
		return ""
	}
	text := "disabled"
	switch {
	case m.Enabled && m.Devices == 1:
		text = "1 device"
	case m.Enabled:
		text = fmt.Sprintf("%d devices", m.Devices)
	}
	if m.Pending != m.Enabled {
		text += ", changes at the next reset"
	}
	return text
}

func gpuReports(inv *discover.Inventory) []gpuReport {
	rows := make([]gpuReport, len(inv.GPUs))
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		r := gpuReport{Vendor: g.Vendor, Product: g.Product, MemoryMiB: g.MemoryMiB(), Condition: g.Condition}
		switch {
		case g.NVML != nil && g.NVML.ComputeCapability != nil:
			r.Family = labels.Family(*g.NVML.ComputeCapability)
		case g.AMD != nil:
			r.Family = g.AMD.GFX
		case g.Intel != nil:
			r.Family = g.Intel.Model.Family
		}
		if g.Product == "" && g.Vendor == discover.NVIDIA && g.Function != nil {
			m, _ := nvidiaids.Lookup(g.Function.Device)
			r.Product, r.Family = m.Product, m.Family
		}
		if g.Function != nil {
			r.PCIAddress = g.Function.Address.String()
			r.Driver = g.Function.Driver
			r.NUMANode = g.Function.NUMANode
		}
		if g.NVML != nil && g.NVML.MIG != nil {
			m := g.NVML.MIG
			r.MIG = &migReport{Enabled: m.Enabled, Pending: m.Pending, Devices: len(m.Devices)}
		}
		rows[i] = r
	}
	return rows
}

func writeReport(w io.Writer, format string, inv *discover.Inventory, set labels.Set, rejected []labels.Rejected) error {
	if format == "text" {
		_, err := set.WriteTo(w)
		return err
	}
	r := report{State: inv.State(), Labels: sortedSet(set), GPUs: gpuReports(inv), Problems: append([]discover.Problem{}, inv.Problems...)}
	for _, label := range rejected {
		r.Problems = append(r.Problems, discover.Problem{Source: "labels", Text: label.String()})
	}
	return encode(w, format, r)
}
