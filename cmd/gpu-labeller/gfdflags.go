package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-labeller/gpu-labeller/config"
	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

// gfdFlags are the flags of GPU Feature Discovery v0.20, read as it reads them:
// Go's flag syntax, and for what is not on the command line, environment
// variables.
type gfdFlags struct {
	migStrategy       string
	failOnInitError   bool
	oneshot           bool
	noTimestamp       bool
	sleepInterval     time.Duration // or config.Infinite
	outputFile        string        // empty is standard output
	machineTypeFile   string        // empty is no machine type
	configFile        string        // empty is none
	useNodeFeatureAPI bool
	strategy          string
	driverRoot        string // of no use, as in GFD
	kubeconfig        string
	qps               float64
	burst             int
	namespace         string
	nodeName          string
	podName           string

	root          string // ours, not GFD's
	forceNodeName bool   // likewise

	help, version bool
	stray         []string // what is no flag, and all that follows it

	// given are the flags that the command line or the environment decides, by
	// name; those go before the configuration file.
	given map[string]bool
}

// gfdFlag is a flag and where its value may stand.
type gfdFlag struct {
	name    string
	aliases []string
	vars    []string // environment variables; the first that is set counts, if empty too
	usage   string
	value   gfdValue
}

// gfdValue reads a flag's value. An empty variable is to a text the empty text,
// to a boolean false, and to anything else as if it were not set.
type gfdValue struct {
	set     func(string) error
	initial string // for --help
	boolean bool
	text    bool
}

func (v gfdValue) Set(s string) error { return v.set(s) }
func (v gfdValue) String() string     { return v.initial }
func (v gfdValue) IsBoolFlag() bool   { return v.boolean }

func gfdText(p *string, initial string) gfdValue {
	*p = initial
	return gfdValue{text: true, initial: initial, set: func(s string) error { *p = s; return nil }}
}

func gfdBool(p *bool, initial bool) gfdValue {
	*p = initial
	return gfdValue{boolean: true, initial: strconv.FormatBool(initial), set: func(s string) (err error) {
		if *p, err = strconv.ParseBool(s); err != nil {
			return errors.New("want true or false")
		}
		return nil
	}}
}

// table lists the flags, and sets their defaults.
func (f *gfdFlags) table() []gfdFlag {
	f.sleepInterval, f.qps, f.burst = time.Minute, 5, 10
	return []gfdFlag{
		{"mig-strategy", nil, []string{"GFD_MIG_STRATEGY", "MIG_STRATEGY"},
			"how MIG devices are labelled: none, single or mixed", gfdText(&f.migStrategy, "none")},
		{"fail-on-init-error", nil, []string{"GFD_FAIL_ON_INIT_ERROR", "FAIL_ON_INIT_ERROR"},
			"with --oneshot, exit with 1 when NVML cannot be asked; without, it is asked again for ever", gfdBool(&f.failOnInitError, true)},
		{"oneshot", nil, []string{"GFD_ONESHOT"},
			"label once and exit", gfdBool(&f.oneshot, false)},
		{"no-timestamp", nil, []string{"GFD_NO_TIMESTAMP"},
			"leave out nvidia.com/gfd.timestamp", gfdBool(&f.noTimestamp, false)},
		{"sleep-interval", nil, []string{"GFD_SLEEP_INTERVAL"},
			"time between two scans of a node that does not change, or infinite", gfdValue{initial: "60s", set: func(s string) (err error) {
				f.sleepInterval, err = config.ParseSleepInterval(s)
				return err
			}}},
		{"output-file", []string{"output", "o"}, []string{"GFD_OUTPUT_FILE"},
			"the feature file; empty is standard output", gfdText(&f.outputFile, "/etc/kubernetes/node-feature-discovery/features.d/gfd")},
		{"machine-type-file", nil, []string{"GFD_MACHINE_TYPE_FILE"},
			"file with the machine's name; empty for none", gfdText(&f.machineTypeFile, discover.DefaultMachineFile)},
		{"config-file", nil, []string{"GFD_CONFIG_FILE", "CONFIG_FILE"},
			"the device plugin's configuration file", gfdText(&f.configFile, "")},
		{"use-node-feature-api", nil, []string{"GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"},
			"publish a NodeFeature object, not a feature file", gfdBool(&f.useNodeFeatureAPI, true)},
		{"device-discovery-strategy", nil, []string{"DEVICE_DISCOVERY_STRATEGY"},
			"auto, nvml, tegra or vfio; of no effect: every GPU is taken for what it is", gfdText(&f.strategy, "auto")},
		{"driver-root-ctr-path", []string{"container-driver-root"}, []string{"DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"},
			"of no effect, as in GFD", gfdText(&f.driverRoot, "/driver-root")},
		{"kubeconfig", nil, []string{"KUBECONFIG"},
			"kubeconfig file; in a pod, its service account", gfdText(&f.kubeconfig, "")},
		{"kube-api-qps", nil, []string{"KUBE_API_QPS"},
			"requests to the API server in a second", gfdValue{initial: "5", set: func(s string) (err error) {
				if f.qps, err = strconv.ParseFloat(s, 64); err != nil || f.qps != 0 && f.qps != -1 && !(f.qps >= 0.1 && f.qps <= 1000) {
					return errors.New("want a number from 0.1 to 1000, 0 for the default or -1 for no limit")
				}
				return nil
			}}},
		{"kube-api-burst", nil, []string{"KUBE_API_BURST"},
			"requests to the API server in one go", gfdValue{initial: "10", set: func(s string) error {
				n, err := strconv.ParseInt(s, 0, 0)
				if err != nil || n < 0 || n > 10000 {
					return errors.New("want an integer from 1 to 10000, or 0 for the default")
				}
				f.burst = int(n)
				return nil
			}}},
		{"namespace", nil, []string{"NAMESPACE"},
			"namespace of the NodeFeature object", gfdText(&f.namespace, "default")},
		{"node-name", nil, []string{"NODE_NAME"},
			"the Node that is labelled", gfdText(&f.nodeName, "")},
		{"pod-name", nil, []string{"POD_NAME"},
			"this pod, whose DaemonSet owns the NodeFeature object", gfdText(&f.podName, "")},
		{"root", nil, nil,
			"not GFD's: folder that holds the host's sys and proc", gfdText(&f.root, "/")},
		{"force-node-name", nil, nil,
			"not GFD's: label the Node although this host does not look like it; outside a pod, that is refused", gfdBool(&f.forceNodeName, false)},
		{"help", []string{"h"}, nil, "print this", gfdBool(&f.help, false)},
		{"version", []string{"v"}, nil, "print the version", gfdBool(&f.version, false)},
	}
}

// parseGFDFlags reads the command line, without the program's name, and the
// environment. Of a flag that is repeated the last one counts; what follows the
// first argument that is no flag is passed over.
func parseGFDFlags(args []string, lookup func(string) (string, bool)) (*gfdFlags, error) {
	f := &gfdFlags{given: map[string]bool{}}
	table := f.table()
	fs := flag.NewFlagSet("gpu-feature-discovery", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	for _, g := range table {
		if err := f.fromEnvironment(g, lookup); err != nil {
			return nil, err
		}
		for _, name := range append([]string{g.name}, g.aliases...) {
			fs.Var(g.value, name, g.usage)
		}
	}
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	var used []string
	fs.Visit(func(v *flag.Flag) { used = append(used, v.Name) })
	for _, g := range table {
		names := slices.DeleteFunc(append([]string{g.name}, g.aliases...), func(name string) bool { return !slices.Contains(used, name) })
		switch len(names) {
		case 0:
		case 1:
			f.given[g.name] = true
		default:
			return nil, fmt.Errorf("--%s are one flag: give one of them", strings.Join(names, " and --"))
		}
	}
	f.stray = fs.Args()
	f.help = f.help || fs.Arg(0) == "help" || fs.Arg(0) == "h"
	return f, nil
}

// fromEnvironment sets a flag by the first of its variables that is set. Such a
// value must be good, whatever the command line says.
func (f *gfdFlags) fromEnvironment(g gfdFlag, lookup func(string) (string, bool)) error {
	for _, name := range g.vars {
		text, ok := lookup(name)
		if !ok {
			continue
		}
		if text == "" && !g.value.text {
			if !g.value.boolean {
				return nil
			}
			text = "false"
		}
		if err := g.value.Set(text); err != nil {
			return fmt.Errorf("$%s: %q: %w", name, text, err)
		}
		f.given[g.name] = true
		return nil
	}
	return nil
}

// writeGFDUsage is --help.
func writeGFDUsage(w io.Writer) {
	fmt.Fprint(w, `gpu-feature-discovery labels the node's NVIDIA GPUs. It is gpu-labeller under
that name, with the command line, the environment and the labels of NVIDIA's GPU
Feature Discovery (GFD) v0.20.

Usage:
  gpu-feature-discovery [flags]

Flags, with their environment variables and defaults:
`)
	for _, g := range new(gfdFlags).table() {
		names := "--" + g.name
		for _, alias := range g.aliases {
			names += ", -" + strings.Repeat("-", min(1, len(alias)-1)) + alias
		}
		vars := ""
		if len(g.vars) > 0 {
			vars = " [$" + strings.Join(g.vars, ", $") + "]"
		}
		if g.value.initial != "" && len(g.vars) > 0 {
			vars += " (" + g.value.initial + ")"
		}
		const width, indent = 80, 6
		fmt.Fprintln(w, "  "+names)
		lines := cli.Wrap(g.usage+vars, width, indent, indent)
		if len(lines) > 1 && vars != "" { // which stay together
			lines = append(cli.Wrap(g.usage, width, indent, indent), cli.Wrap(vars, width, indent, indent)...)
		}
		fmt.Fprintln(w, strings.Join(lines, "\n"))
	}
}
