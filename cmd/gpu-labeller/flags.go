package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-labeller/gpu-labeller/config"
	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfile"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// flags of the root command.
type flags struct {
	print  bool
	output cli.Choice

	migStrategy    cli.Choice
	mixedGPUs      cli.Choice
	unifiedMemory  cli.Choice
	extraLabels    bool
	amdBeta        bool
	intelNames     string
	timestamp      bool
	pciClasses     []string
	pciLabelFields []string

	configFile string
	hostFile   string
	source     source
	agent      agentFlags
}

// source says which host is read and how.
type source struct {
	root        string
	machineFile string
	driverRoot  string
	nvmlTimeout time.Duration
}

func (f *flags) register(cmd *cobra.Command) {
	f.output = cli.Choice{Value: "text", Of: []string{"text", "json", "yaml", "table"}}
	f.migStrategy = cli.Choice{Value: string(labels.MIGNone), Of: []string{string(labels.MIGNone), string(labels.MIGSingle), string(labels.MIGMixed)}}
	f.mixedGPUs = cli.Choice{Value: string(labels.Majority), Of: []string{string(labels.Majority), string(labels.Omit)}}
	f.unifiedMemory = cli.Choice{Value: string(labels.UnifiedNone), Of: []string{string(labels.UnifiedNone), string(labels.UnifiedSystem), string(labels.UnifiedSystemGiB)}}

	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&f.print, "print", false, "print this host's labels once and exit")
	registerChoice(cmd, &f.output, "output", "o", "output of --print; text is key=value lines")

	registerChoice(cmd, &f.migStrategy, "mig-strategy", "", "how MIG devices appear in the nvidia.com/ labels, as in the device plugin")
	registerChoice(cmd, &f.mixedGPUs, "mixed-gpus", "", "on a node with several models, nvidia.com/gpu.* describes the one with the most GPUs (majority), or leaves out what differs (omit)")
	registerChoice(cmd, &f.unifiedMemory, "unified-memory", "", "nvidia.com/gpu.memory of GPUs that share the system's memory: none, all of it in MiB, or rounded down to whole GiB")
	fs.BoolVar(&f.extraLabels, "extra-labels", true, "publish the vendor-neutral gpu.feature.node.kubernetes.io/ labels")
	fs.BoolVar(&f.amdBeta, "amd-beta-labels", false, "also publish the beta.amd.com/ labels that AMD's node labeller has")
	fs.StringVar(&f.intelNames, "intel-names", "", "YAML file of names for Intel GPUs before those built in, by PCI device ID: 56c0: {product: Flex_170, family: Flex_Series}")
	fs.BoolVar(&f.timestamp, "timestamp", false, "publish nvidia.com/gfd.timestamp, the time of the start")
	fs.StringSliceVar(&f.pciClasses, "pci-classes", []string{"03", "0b40", "12"}, "PCI classes that get a feature.node.kubernetes.io/pci- label: the beginning of their four digits; empty for none")
	fs.StringSliceVar(&f.pciLabelFields, "pci-label-fields", []string{"class", "vendor"}, "parts of a PCI label: class, vendor, device, subsystem_vendor, subsystem_device")
	fs.StringVar(&f.configFile, "config-file", "", "the NVIDIA device plugin's configuration file: how GPUs are shared, and flags that are not given here")
	fs.StringVar(&f.hostFile, "host", "", "replay a host recorded with gpu-labeller snapshot (- for standard input), instead of this one")
	f.source.register(cmd)
	f.agent.register(cmd)
	_ = cmd.MarkFlagFilename("host", "txtar")
	_ = cmd.MarkFlagFilename("config-file", "yaml", "yml", "json")
	_ = cmd.RegisterFlagCompletionFunc("pci-classes", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("pci-label-fields", cobra.FixedCompletions([]string{"class", "vendor", "device", "subsystem_vendor", "subsystem_device"}, cobra.ShellCompDirectiveNoFileComp))
}

// share gives another command those of the root command's flags that are named.
func (f *flags) share(cmd *cobra.Command, names []string) {
	var root cobra.Command
	f.register(&root)
	for _, name := range names {
		cmd.Flags().AddFlag(root.Flags().Lookup(name))
	}
}

func (s *source) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&s.root, "root", "/", "folder that holds the host's sys and proc; an nvml.yaml in it stands for NVML")
	fs.StringVar(&s.machineFile, "machine-type-file", discover.DefaultMachineFile, "file with the machine's name, below --root; empty for none")
	fs.StringVar(&s.driverRoot, "driver-root", "", "folder of the driver's installation, where libnvidia-ml.so.1 is looked for; by default the loader finds it")
	fs.DurationVar(&s.nvmlTimeout, "nvml-timeout", nvml.DefaultTimeout, "how long NVML may take to answer")
	_ = cmd.MarkFlagDirname("root")
	_ = cmd.MarkFlagDirname("driver-root")
}

// check looks at what the flag library does not.
func (s *source) check() error {
	if s.nvmlTimeout <= 0 {
		return cli.Exit(exitUsage, fmt.Errorf("--nvml-timeout %v: want more than 0, for instance 20s", s.nvmlTimeout))
	}
	if st, err := os.Stat(s.root); err != nil {
		return cli.Exit(exitUsage, fmt.Errorf("--root: %w", err))
	} else if !st.IsDir() {
		return cli.Exit(exitUsage, fmt.Errorf("--root %s: want a folder that holds the host's sys and proc; a recorded host's file goes with --host", s.root))
	}
	if s.driverRoot != "" {
		if _, err := os.Stat(s.driverRoot); err != nil {
			return cli.Exit(exitUsage, fmt.Errorf("--driver-root: %w", err))
		}
	}
	return nil
}

// host is the host to scan.
func (s *source) host() (discover.Host, error) {
	h := discover.Host{Root: hostfs.Root(s.root), MachineFile: s.machineFile}
	recorded, err := hostfile.ReadNVML(s.root)
	if err != nil {
		return h, err
	}
	if recorded != nil {
		// Read again each time: an agent sees what has become of it.
		h.NVML = func(context.Context) nvml.Answer {
			recorded, err := hostfile.ReadNVML(s.root)
			switch {
			case err != nil:
				return nvml.Answer{Failure: &nvml.Failure{Kind: nvml.Crash, Text: err.Error()}}
			case recorded == nil:
				return nvml.Answer{Init: nvml.LibraryNotFound, Detail: "nvml.yaml, which stood for it, is gone"}
			}
			return *recorded
		}
		return h, nil
	}
	prober := &nvml.Prober{DriverRoot: s.driverRoot, Timeout: s.nvmlTimeout}
	h.NVML = prober.Ask
	return h, nil
}

// labelOptions checks the flags that say which labels there are, and reads the
// configuration file. The command line goes before the file. Warnings are about
// what the file says and nobody heeds.
func (f *flags) labelOptions(given func(flag string) bool, start time.Time) (opts labels.Options, warnings []string, err error) {
	opts = labels.Options{
		MIGStrategy:   labels.MIGStrategy(f.migStrategy.Value),
		MixedGPUs:     labels.MixedGPUs(f.mixedGPUs.Value),
		UnifiedMemory: labels.UnifiedMemory(f.unifiedMemory.Value),
		OmitExtra:     !f.extraLabels,
		AMDBeta:       f.amdBeta,
	}
	if f.timestamp {
		opts.Timestamp = start
	}
	if f.intelNames != "" {
		if opts.IntelNames, err = readIntelNames(f.intelNames); err != nil {
			return opts, nil, fmt.Errorf("--intel-names: %w", err)
		}
	}
	if f.configFile != "" {
		var c *config.Config
		if c, warnings, err = config.Load(f.configFile, config.Refuse); err != nil {
			return opts, warnings, fmt.Errorf("--config-file: %w", err)
		}
		opts.Sharing = c.Sharing()
		if s := c.Flags.MIGStrategy; s != nil && !given("mig-strategy") {
			strategy := cli.Choice{Of: f.migStrategy.Of}
			if err := strategy.Set(*s); err != nil {
				return opts, warnings, fmt.Errorf("--config-file: %s: flags.migStrategy: %s: %w", f.configFile, *s, err)
			}
			opts.MIGStrategy = labels.MIGStrategy(*s)
		}
	}
	if opts.PCIClasses, err = labels.ParsePCIClasses(f.pciClasses); err != nil {
		return opts, warnings, cli.Exit(exitUsage, fmt.Errorf("--pci-classes: %w", err))
	}
	if opts.PCILabelFields, err = labels.ParsePCILabelFields(f.pciLabelFields); err != nil {
		return opts, warnings, cli.Exit(exitUsage, fmt.Errorf("--pci-label-fields: %w", err))
	}
	return opts, warnings, nil
}

func registerChoice(cmd *cobra.Command, c *cli.Choice, name, short, usage string) {
	cmd.Flags().VarP(c, name, short, usage)
	_ = cmd.RegisterFlagCompletionFunc(name, c.Complete)
}
