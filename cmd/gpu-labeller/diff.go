package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/dra"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// diffFlags are those of diff: --print's, as far as they say which labels there
// are, and where the other labels come from.
type diffFlags struct {
	flags
	output   cli.Choice
	prefixes []string
	all      bool
	gfd      bool
	dra      bool
}

// The flags that diff shares with the root command.
var diffShares = []string{
	"mig-strategy", "mixed-gpus", "unified-memory", "extra-labels", "amd-beta-labels", "timestamp", "pci-classes", "pci-label-fields",
	"config-file", "host", "root", "machine-type-file", "driver-root", "nvml-timeout", "node-name", "kubeconfig",
}

func newDiffCommand() *cobra.Command {
	var f diffFlags
	cmd := &cobra.Command{
		Use:   "diff [FILE]",
		Short: "Compare what would be published with the labels that a Node has",
		Long: `diff compares the labels that would be published here with those that a Node
has, and changes nothing. The Node's labels come from the API server; or from
FILE (- for standard input), which holds a Node, NodeFeature or list of them as
kubectl get -o json or -o yaml prints it, or key=value lines.

It looks at all labels that would be published and all of ours that are there,
and not at those under the same prefixes that belong to others
(nvidia.com/gpu.deploy.*, gpu.present, …), nor at nvidia.com/gfd.timestamp. PCI
labels are left to NFD where it labels the Node. --gfd looks at the keys of
NVIDIA's GPU Feature Discovery alone, --prefix at others.

HERE is this host, or the one that --host or --root names, THERE the Node or
FILE. Whether the host is the Node is not known: name the right one.

With --dra it compares the GPUs with the ResourceSlices of NVIDIA's DRA driver
instead; FILE then holds what kubectl get resourceslices -o yaml prints.

Exit codes:
  0  equal
  1  different
  2  the command itself went wrong, or wrong usage
  3 to 8  the GPUs cannot be told, as with --print: nothing is compared`,
		Example: `  # Would anything change on this node? In the pod of a node:
  gpu-labeller diff --node-name "$NODE_NAME"

  # With the labels of GFD's own file, and what GFD is configured with
  gpu-labeller diff --gfd --mig-strategy=single \
    /etc/kubernetes/node-feature-discovery/features.d/gfd

  # With a Node that is seen from elsewhere, and a host that was recorded
  kubectl get node node-a -o json | gpu-labeller diff --host node-a.txtar -

  # Do the labels agree with what DRA publishes?
  gpu-labeller diff --dra --node-name node-a --kubeconfig ~/.kube/config`,
		Args: cli.UsageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := ""
			if len(args) > 0 {
				file = args[0]
			}
			err := f.run(cmd, file)
			var exit *cli.ExitError
			if err != nil && !errors.As(err, &exit) {
				return cli.Exit(exitUsage, err) // 1 says that labels differ
			}
			return err
		},
	}
	f.output = cli.Choice{Value: "table", Of: []string{"table", "json", "yaml"}}
	cmd.Flags().SortFlags = false
	registerChoice(cmd, &f.output, "output", "o", "form of the differences")
	cmd.Flags().StringSliceVar(&f.prefixes, "prefix", nil, "compare the keys that begin so, and no others; several are allowed")
	cmd.Flags().BoolVar(&f.gfd, "gfd", false, "compare the keys of NVIDIA's GPU Feature Discovery alone")
	cmd.Flags().BoolVar(&f.all, "all", false, "list the labels that are the same, too")
	cmd.Flags().BoolVar(&f.dra, "dra", false, "compare with ResourceSlices, not with a Node")
	f.share(cmd, diffShares)
	return cmd
}

func (f *diffFlags) run(cmd *cobra.Command, file string) error {
	opts, warnings, err := f.labelOptions(cmd.Flags().Changed, time.Now())
	for _, w := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
	}
	if err != nil {
		return err
	}
	if f.gfd && (len(f.prefixes) > 0 || f.dra) {
		return cli.Exit(exitUsage, errors.New("--gfd, --prefix and --dra each say what to compare: give one of them"))
	}
	// The other side first: it is quick, and may not be there.
	var there labelSource
	var devices []dra.Device
	if f.dra {
		there.name = cmp.Or(fileName(file), "ResourceSlices of the Node "+f.agent.nodeName)
		devices, err = f.draDevices(cmd, file)
	} else {
		there, err = f.nodeLabels(cmd, file)
	}
	if err != nil {
		return err
	}
	hereName := f.hereName(cmd)
	inv, scanErr, err := f.scan(cmd, opts)
	if err != nil {
		return err
	}
	for _, p := range inv.Problems {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", cli.Printable(p.String()))
	}
	if code := exitCode(inv, scanErr); code != exitOK {
		return cli.Exit(code, errors.New("the GPUs of this host cannot be told, so nothing is compared"))
	}
	var rows []diffRow
	if f.dra {
		rows = compareDRA(inv, devices)
	} else {
		here, rejected := labels.Compute(inv, opts)
		for _, r := range rejected {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning:", cli.Printable(r.String()))
		}
		rows = compareLabels(here, there.set, func(key string) bool { return f.compared(key, here, there) })
	}
	return f.write(cmd.OutOrStdout(), hereName, there.name, rows)
}

// hereName says which host is compared.
func (f *diffFlags) hereName(cmd *cobra.Command) string {
	name, _ := os.Hostname()
	switch {
	case cmd.Flags().Changed("host"):
		return "host recorded in " + cmp.Or(strings.TrimPrefix(f.hostFile, "-"), "standard input")
	case cmd.Flags().Changed("root") && f.source.root != "/":
		return "host below " + f.source.root
	}
	return "this host, " + cmp.Or(name, "without a name")
}

func fileName(file string) string {
	if file == "-" {
		return "standard input"
	}
	return file
}

// labelSource is labels to compare with, and what has them.
type labelSource struct {
	set  labels.Set
	name string
	// pci: PCI labels are expected there of us: nobody else sees to them.
	pci bool
}

// gfdPrefixes begin the keys of GFD; othersPrefixes those among them that are
// the GPU operator's, its managers' and users', and the one that is never the
// same.
var (
	gfdPrefixes = []string{
		"nvidia.com/gpu.", "nvidia.com/mig-", "nvidia.com/mig.capable", "nvidia.com/mig.strategy",
		"nvidia.com/cuda.", "nvidia.com/vgpu.", "nvidia.com/mps.capable",
	}
	othersPrefixes = []string{
		"nvidia.com/gpu.deploy.", "nvidia.com/gpu.present", "nvidia.com/gpu.workload.", "nvidia.com/vgpu.config", "nvidia.com/mig-manager",
	}
)

// compared tells whether a key is looked at.
func (f *diffFlags) compared(key string, here labels.Set, there labelSource) bool {
	begins := func(prefix string) bool { return strings.HasPrefix(key, prefix) }
	if len(f.prefixes) > 0 {
		return slices.ContainsFunc(f.prefixes, begins)
	}
	gfd := slices.ContainsFunc(gfdPrefixes, begins) && !slices.ContainsFunc(othersPrefixes, begins)
	_, ours := here[key]
	switch {
	case f.gfd, gfd:
		return gfd
	case key == "nvidia.com/gfd.timestamp":
		return false
	case begins(pciPrefix):
		return ours && there.pci
	}
	return ours || slices.ContainsFunc(labels.Keys, func(k labels.Key) bool { return k.Matches(key) })
}

// pciPrefix begins NFD's PCI labels, which are NFD's where it is.
const (
	nfdPrefix = "feature.node.kubernetes.io/"
	pciPrefix = nfdPrefix + "pci-"
)

// withoutNFD tells of a Node that NFD does not label with features of its own.
func withoutNFD(set labels.Set) bool {
	for key := range set {
		if strings.HasPrefix(key, nfdPrefix) && !strings.HasPrefix(key, pciPrefix) {
			return false
		}
	}
	return true
}

// nodeLabels are the labels to compare with.
func (f *diffFlags) nodeLabels(cmd *cobra.Command, file string) (labelSource, error) {
	if file != "" {
		content, err := readInput(cmd.InOrStdin(), file)
		if err != nil {
			return labelSource{}, err
		}
		there, err := labelsIn(content, f.agent.nodeName)
		if err != nil {
			return labelSource{}, fmt.Errorf("%s: %w", fileName(file), err)
		}
		there.name = strings.TrimPrefix(there.name+" in "+fileName(file), " in ")
		return there, nil
	}
	client, err := f.client()
	if err != nil {
		return labelSource{}, err
	}
	set, err := client.NodeLabels(cmd.Context(), f.agent.nodeName)
	return labelSource{set, "Node " + f.agent.nodeName, withoutNFD(set)}, err
}

func (f *diffFlags) client() (*publish.Client, error) {
	if f.agent.nodeName == "" {
		return nil, cli.Exit(exitUsage, errors.New("give --node-name, to compare with that Node's labels in the cluster, or a file"))
	}
	config, err := restConfig(f.agent.kubeconfig)
	if err != nil {
		return nil, err
	}
	return publish.NewClient(config)
}

// maxInput bounds what is read of a file: a list of nodes is long.
const maxInput = 256 << 20

func readInput(stdin io.Reader, file string) ([]byte, error) {
	in := stdin
	if file != "-" {
		// O_NONBLOCK: opening a FIFO must not wait for a writer.
		opened, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		defer opened.Close()
		in = opened
	}
	content, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err == nil && len(content) > maxInput {
		err = errors.New("more than 256 MiB")
	}
	return content, err
}

// kubeObject is what is of interest in an object as kubectl prints it.
type kubeObject struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name   string            `yaml:"name"`
		Labels map[string]string `yaml:"labels"`
	} `yaml:"metadata"`
	Spec struct {
		Labels map[string]string `yaml:"labels"` // of a NodeFeature
	} `yaml:"spec"`
	Items []kubeObject `yaml:"items"`
}

// labelsIn reads the labels of a Node, or what a NodeFeature wants them to be.
// Of several objects, name says which: a Node's name, or the end of a
// NodeFeature's.
func labelsIn(content []byte, name string) (labelSource, error) {
	var object kubeObject
	if err := yaml.Unmarshal(content, &object); err != nil || object.Kind == "" {
		set := keyValueLines(string(content))
		if len(set) == 0 {
			return labelSource{}, errors.New("neither an object as kubectl get -o json or -o yaml prints it, nor key=value lines")
		}
		return labelSource{set: set, pci: withoutNFD(set)}, nil
	}
	objects := []kubeObject{object}
	if strings.HasSuffix(object.Kind, "List") {
		objects = object.Items
	}
	if name != "" {
		objects = slices.DeleteFunc(objects, func(o kubeObject) bool {
			return o.Metadata.Name != name && !(o.Kind == "NodeFeature" && strings.HasSuffix(o.Metadata.Name, "-features-for-"+name))
		})
	}
	switch {
	case len(objects) == 0 && name != "":
		return labelSource{}, fmt.Errorf("it does not hold %q, which --node-name names", name)
	case len(objects) != 1:
		return labelSource{}, fmt.Errorf("it holds %d objects: name the one with --node-name", len(objects))
	}
	switch o := objects[0]; o.Kind {
	case "Node":
		return labelSource{o.Metadata.Labels, "Node " + o.Metadata.Name, withoutNFD(o.Metadata.Labels)}, nil
	case "NodeFeature":
		return labelSource{o.Spec.Labels, "NodeFeature " + o.Metadata.Name, false}, nil
	default:
		return labelSource{}, fmt.Errorf("it holds a %s: want a Node or a NodeFeature", o.Kind)
	}
}

// keyValueLines reads key=value lines, and passes over all others.
func keyValueLines(text string) labels.Set {
	set := labels.Set{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && key != "" && !strings.HasPrefix(key, "#") && !strings.ContainsAny(key, " \t") {
			set[key] = value
		}
	}
	return set
}

// verdict says how a label differs.
type verdict string

const (
	isSame    verdict = "same"
	isChanged verdict = "changed"
	isMissing verdict = "missing" // there
	isExtra   verdict = "extra"   // there
)

// diffRow is one label on both sides, nil where it is not.
type diffRow struct {
	Key     string  `json:"key" yaml:"key"`
	Here    *string `json:"here" yaml:"here"`
	There   *string `json:"there" yaml:"there"`
	Verdict verdict `json:"verdict" yaml:"verdict"`
}

// newDiffRow compares as equal does.
func newDiffRow(key string, here, there *string, equal func(here, there string) bool) diffRow {
	r := diffRow{Key: key, Here: here, There: there, Verdict: isChanged}
	switch {
	case here == nil:
		r.Verdict = isExtra
	case there == nil:
		r.Verdict = isMissing
	case equal(*here, *there):
		r.Verdict = isSame
	}
	return r
}

// compareLabels gives a row for each key that either side has, by key.
func compareLabels(here, there labels.Set, compared func(key string) bool) []diffRow {
	var keys []string
	for _, set := range []labels.Set{here, there} {
		for key := range set {
			if compared(key) {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	var rows []diffRow
	for _, key := range slices.Compact(keys) {
		rows = append(rows, newDiffRow(key, valueOf(here, key), valueOf(there, key), func(a, b string) bool { return a == b }))
	}
	return rows
}

func valueOf(set labels.Set, key string) *string {
	if value, ok := set[key]; ok {
		return &value
	}
	return nil
}

// write writes the rows, and says by an error whether any differs.
func (f *diffFlags) write(out io.Writer, here, there string, rows []diffRow) error {
	shown := []diffRow{}
	differ := 0
	for _, r := range rows {
		if r.Verdict != isSame {
			differ++
		}
		if f.all || r.Verdict != isSame {
			shown = append(shown, r)
		}
	}
	report := struct {
		Here     string    `json:"here" yaml:"here"`
		There    string    `json:"there" yaml:"there"`
		Equal    bool      `json:"equal" yaml:"equal"`
		Compared int       `json:"compared" yaml:"compared"`
		Labels   []diffRow `json:"labels" yaml:"labels"`
	}{here, there, differ == 0, len(rows), shown}
	var err error
	if f.output.Value == "table" {
		err = f.writeTable(out, here, there, shown, differ, len(rows))
	} else {
		err = encode(out, f.output.Value, report)
	}
	if err != nil {
		return err
	}
	if differ > 0 {
		return cli.Exit(exitFailure, nil)
	}
	return nil
}

func (f *diffFlags) writeTable(out io.Writer, here, there string, shown []diffRow, differ, compared int) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "HERE   %s\nTHERE  %s\n\n", cli.Printable(here), cli.Printable(there))
	if len(shown) > 0 {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "KEY\tHERE\tTHERE\tVERDICT")
		cell := func(value *string) string {
			switch {
			case value == nil:
				return "-"
			case *value == "":
				return `""`
			}
			return cli.Printable(*value)
		}
		for _, r := range shown {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", cli.Printable(r.Key), cell(r.Here), cell(r.There), r.Verdict)
		}
		t.Flush()
		fmt.Fprintln(w)
	}
	switch {
	case compared == 0 && f.gfd:
		fmt.Fprintln(w, "nothing to compare: neither side has a label of GPU Feature Discovery; without --gfd all are compared")
	case compared == 0:
		fmt.Fprintln(w, "nothing to compare: neither side has such a label")
	case differ == 0:
		fmt.Fprintf(w, "equal: %d compared\n", compared)
	default:
		fmt.Fprintf(w, "different: %d of %d\n", differ, compared)
	}
	return w.Flush()
}
