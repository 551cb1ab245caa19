package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/internal/redact"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// cleanupFlags say what is withdrawn, and from where.
type cleanupFlags struct {
	nodeName    string
	allNodes    bool
	dryRun      bool
	sinks       []string // empty for all that can be reached
	kubeconfig  string
	namespace   string
	featureFile string
	nodeFeature string
	taint       string // taken away, whoever set it; empty for none
	ownTaint    string // taken away where we set it; empty for none
	force       bool   // labels under our keys that others set go, too
}

func newCleanupCommand() *cobra.Command {
	var f cleanupFlags
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Withdraw all labels that are ours",
		Long: `cleanup withdraws all that gpu-labeller published: with --node-name for one Node,
with --all-nodes for every one. That is the labels of the Node that it set, its
NodeFeature objects, and, on the node itself, its feature file; or what --sink
names of these. Labels that others set stay. Run again, it does nothing.

It ends with 1 and names them where labels under keys of ours stay, since another
field manager set them, as after a Node was restored from a copy: remove those, or
use --force-conflicts. NFD's stay in any case.

It also takes away the taint ` + defaultTaint + ` (or that of
--own-taint) where gpu-labeller was the last to write the Node's taints. Where
another one wrote them since, as Kubernetes does for a node that is not ready, the
API server no longer knows who set it: --taint takes it away there too, from every
Node that has exactly that taint.

Feature files are on their nodes: --sink=feature-file, run there, removes one.

End the agents first: they would label again, which is an error, too, if it is
seen two seconds later.`,
		Example: `  # From anywhere, as kubectl does
  gpu-labeller cleanup --all-nodes --dry-run
  gpu-labeller cleanup --all-nodes
  gpu-labeller cleanup --node-name node-a

  # The agents kept a taint
  gpu-labeller cleanup --all-nodes --taint=nvidia.com/gpu=present:NoSchedule

  # On a node
  sudo gpu-labeller cleanup --sink=feature-file`,
		Args:              cli.UsageArgs(cobra.NoArgs),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd.Flags().Changed); err != nil {
				return err
			}
			return redact.Error(f.run(cmd.Context(), cmd.OutOrStdout())) // a Job's log
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.nodeName, "node-name", os.Getenv("NODE_NAME"), "the Node to clean up (default $NODE_NAME)")
	fs.BoolVar(&f.allNodes, "all-nodes", false, "clean up every Node of the cluster")
	fs.BoolVar(&f.dryRun, "dry-run", false, "say what would be withdrawn, of one Node each label, and change nothing")
	fs.BoolVar(&f.force, "force-conflicts", false, "remove labels under keys of ours, too, that other field managers set, but NFD's")
	fs.StringSliceVar(&f.sinks, "sink", nil, "where to look: node, node-feature, feature-file; several are allowed (default all that can be reached)")
	fs.StringVar(&f.taint, "taint", "", "take away this taint, whoever set it; `KEY=VALUE:EFFECT`, "+defaultTaint+" without a value")
	fs.StringVar(&f.ownTaint, "own-taint", defaultTaint, "take away this taint where gpu-labeller was the last to write the taints; empty for none")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file (default $KUBECONFIG, in a pod its service account, else ~/.kube/config)")
	fs.StringVar(&f.namespace, "namespace", os.Getenv("NAMESPACE"), "namespace of the NodeFeature objects (default $NAMESPACE, in a pod its own, else all)")
	fs.StringVar(&f.nodeFeature, "node-feature-name", "", "name of the NodeFeature object, if the agent was given one")
	fs.StringVar(&f.featureFile, "feature-file", publish.DefaultFeatureFile, "the feature file")
	fs.Lookup("taint").NoOptDefVal = defaultTaint
	for _, name := range []string{"node-name", "namespace"} {
		fs.Lookup(name).DefValue = ""
	}
	for _, name := range []string{"taint", "own-taint"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions([]string{defaultTaint}, cobra.ShellCompDirectiveNoFileComp))
	}
	_ = cmd.RegisterFlagCompletionFunc("sink", cobra.FixedCompletions([]string{sinkNode, sinkFeatureFile, sinkNodeFeature}, cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"node-name", "namespace", "node-feature-name"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

func (f *cleanupFlags) check(given func(flag string) bool) error {
	usage := func(format string, args ...any) error { return cli.Exit(exitUsage, fmt.Errorf(format, args...)) }
	for _, sink := range f.sinks {
		if !slices.Contains([]string{sinkNode, sinkFeatureFile, sinkNodeFeature}, sink) {
			return usage("--sink %q: want one of %s, %s, %s", sink, sinkNode, sinkNodeFeature, sinkFeatureFile)
		}
	}
	file := slices.Contains(f.sinks, sinkFeatureFile)
	switch {
	case f.allNodes && given("node-name"):
		return usage("--all-nodes and --node-name each say what to clean up: give one of them")
	case f.allNodes && file:
		return usage("--all-nodes does not reach feature files: run gpu-labeller cleanup --sink=feature-file on each node, or have NFD drop their labels by --feature-file-expiry of the agents")
	case f.allNodes && f.nodeFeature != "":
		return usage("--node-feature-name is the name for one Node: not with --all-nodes")
	case !f.allNodes && f.nodeName == "" && !f.onlyFile():
		return usage("say what to clean up: --node-name, or --all-nodes, or --sink=feature-file for the feature file of this host")
	}
	names := sinkFlags{nodeName: f.nodeName, namespace: f.namespace, nodeFeature: f.nodeFeature}
	if err := names.checkNames(); err != nil {
		return err
	}
	for flag, taint := range map[string]string{"taint": f.taint, "own-taint": f.ownTaint} {
		if taint == "" {
			continue
		}
		if _, err := publish.ParseTaint(taint); err != nil {
			return usage("--%s %q: %w", flag, taint, err)
		}
		if given(flag) && len(f.sinks) > 0 && !slices.Contains(f.sinks, sinkNode) {
			return usage("--%s is about the Node: give --sink=node, too", flag)
		}
	}
	if f.namespace == "" {
		f.namespace = podNamespace()
	}
	return nil
}

// wants tells whether a sink is to be looked at.
func (f *cleanupFlags) wants(sink string) bool {
	return len(f.sinks) == 0 || slices.Contains(f.sinks, sink)
}

// onlyFile tells whether all that is asked for is on this host, so that no cluster is
// needed, whatever $NODE_NAME says.
func (f *cleanupFlags) onlyFile() bool {
	return len(f.sinks) > 0 && !slices.ContainsFunc(f.sinks, func(sink string) bool { return sink != sinkFeatureFile })
}

// run goes on after an error, for what is left on one Node is no reason to leave
// it on the next.
func (f *cleanupFlags) run(ctx context.Context, out io.Writer) error {
	c := cleaner{dryRun: f.dryRun, list: !f.allNodes, out: out}
	var errs []error
	if !f.allNodes && (f.nodeName == "" || f.onlyFile()) {
		if err := c.withdraw(ctx, &publish.FeatureFile{Path: f.featureFile}); err != nil {
			return err
		}
		c.end()
		return nil
	}
	config, err := kubectlConfig(f.kubeconfig)
	if err != nil {
		return err
	}
	client, err := publish.NewClient(config)
	if err != nil {
		return err
	}
	if f.wants(sinkNode) {
		nodes, err := f.nodes(ctx, client)
		errs = append(errs, err)
		for _, n := range nodes {
			errs = append(errs, c.withdraw(ctx, n))
		}
	}
	if f.wants(sinkNodeFeature) {
		objects, err := f.nodeFeatures(ctx, client)
		errs = append(errs, err, f.noNamespace(ctx, client))
		for _, n := range objects {
			errs = append(errs, c.withdraw(ctx, n))
		}
	}
	if f.wants(sinkFeatureFile) && !f.allNodes && (len(f.sinks) > 0 || f.here(ctx, client)) {
		errs = append(errs, c.withdraw(ctx, &publish.FeatureFile{Path: f.featureFile}))
	}
	errs = append(errs, stillGone(ctx, c.had))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.end()
	return nil
}

// agentTime is how soon an agent puts back what is taken from it.
const agentTime = 2 * time.Second

// stillGone looks at Nodes again, when an agent has had the time to label them.
func stillGone(ctx context.Context, had []*publish.Node) error {
	if len(had) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(agentTime):
	}
	var errs []error
	for _, node := range had {
		if owned, err := node.Owned(ctx); err == nil && owned {
			errs = append(errs, fmt.Errorf("%v: an agent is running there and has labelled it again; end the agents first", node))
		}
	}
	return errors.Join(errs...)
}

// here tells whether this host is the Node, so that its feature file is meant.
func (f *cleanupFlags) here(ctx context.Context, client *publish.Client) bool {
	node, err := client.NodeIdentity(ctx, f.nodeName)
	if err != nil {
		return false
	}
	same, _ := readHostIdentity("/").is(f.nodeName, node)
	return same
}

// nodes are those that have something of ours, or the one that was named.
func (f *cleanupFlags) nodes(ctx context.Context, client *publish.Client) ([]*publish.Node, error) {
	var names []string
	taints := map[string][]publish.Taint{}
	take := func(n *publish.NodeTaints, text string) {
		taint, err := publish.ParseTaint(text)
		if err == nil && n.Has(taint) && (text == f.taint || n.Ours) {
			taints[n.Node] = append(taints[n.Node], taint)
		}
	}
	asked := slices.Compact([]string{f.ownTaint, f.taint})
	if !f.allNodes {
		n, err := client.NodeTaints(ctx, f.nodeName)
		if err != nil {
			return nil, err
		}
		names = []string{f.nodeName}
		for _, text := range asked {
			take(n, text)
		}
	} else {
		var err error
		if names, err = client.Owned(ctx, ""); err != nil {
			return nil, err
		}
		for _, text := range asked {
			taint, err := publish.ParseTaint(text)
			if err != nil {
				continue // there is none
			}
			tainted, err := client.Tainted(ctx, taint)
			if err != nil {
				return nil, err
			}
			for _, n := range tainted {
				take(n, text)
			}
		}
		for name := range taints {
			names = append(names, name)
		}
		slices.Sort(names)
		names = slices.Compact(names)
	}
	var nodes []*publish.Node
	for _, name := range names {
		n := &publish.Node{Client: client, Name: name, Force: f.force}
		nodes = append(nodes, n)
		for i, taint := range taints[name] {
			if i > 0 {
				n = &publish.Node{Client: client, Name: name, Force: f.force}
				nodes = append(nodes, n)
			}
			n.Taint = &publish.NodeTaint{Taint: taint, Wanted: func(labels.Set) bool { return false }}
		}
	}
	return nodes, nil
}

// noNamespace is an error where the namespace is certainly not there. Who may not
// read it is not told.
func (f *cleanupFlags) noNamespace(ctx context.Context, client *publish.Client) error {
	if f.namespace == "" {
		return nil
	}
	if _, err := client.Get(ctx, "get", "namespaces", "/api/v1/namespaces/"+f.namespace, nil); apierrors.IsNotFound(err) {
		return fmt.Errorf("--namespace %s: the cluster has no such namespace", f.namespace)
	}
	return nil
}

func (f *cleanupFlags) nodeFeatures(ctx context.Context, client *publish.Client) ([]*publish.NodeFeature, error) {
	if !f.allNodes && f.namespace != "" {
		return []*publish.NodeFeature{{Client: client, Namespace: f.namespace, NodeName: f.nodeName, ObjectName: f.nodeFeature}}, nil
	}
	if f.nodeFeature != "" {
		return nil, cli.Exit(exitUsage, errors.New("--node-feature-name needs --namespace"))
	}
	all, err := client.NodeFeatures(ctx, f.namespace)
	if !f.allNodes {
		all = slices.DeleteFunc(all, func(n *publish.NodeFeature) bool { return n.NodeName != f.nodeName })
	}
	return all, err
}

// cleaner withdraws what sinks hold, and says what that was.
type cleaner struct {
	dryRun bool
	list   bool // with dryRun, each label
	out    io.Writer
	found  int             // sinks that held something
	had    []*publish.Node // from which labels were withdrawn
}

// end says so where there was nothing.
func (c *cleaner) end() {
	if c.found == 0 {
		fmt.Fprintln(c.out, "nothing of ours was there")
	}
}

func (c *cleaner) withdraw(ctx context.Context, sink interface {
	publish.Sink
	Published(context.Context) (labels.Set, error)
}) error {
	if file, ok := sink.(*publish.FeatureFile); ok {
		foreign, err := file.Foreign()
		if err != nil {
			return err
		}
		if foreign {
			fmt.Fprintf(c.out, "%v: left alone, since gpu-labeller did not write it\n", file)
			return nil
		}
	}
	set, err := sink.Published(ctx)
	if errors.Is(err, publish.ErrNoNodeFeatures) {
		return nil
	}
	if err != nil {
		return err
	}
	var what []string
	switch len(set) {
	case 0:
	case 1:
		what = append(what, "1 label")
	default:
		what = append(what, fmt.Sprintf("%d labels", len(set)))
	}
	if n, ok := sink.(*publish.Node); ok && n.Taint != nil {
		what = append(what, "the taint "+n.Taint.String())
	}
	if !c.dryRun {
		// Also where there are no labels: an empty object may be there.
		if err := sink.Publish(ctx, nil); err != nil {
			return err
		}
	}
	if len(what) == 0 {
		return nil
	}
	done := "withdrawn"
	if c.dryRun {
		done = "would be withdrawn"
	} else if n, ok := sink.(*publish.Node); ok && len(set) > 0 {
		c.had = append(c.had, n)
	}
	fmt.Fprintf(c.out, "%v: %s %s\n", sink, strings.Join(what, " and "), done)
	if c.dryRun && c.list {
		for _, key := range slices.Sorted(maps.Keys(set)) {
			fmt.Fprintf(c.out, "  %s\n", cli.Printable(redact.UUIDs(key+"="+set[key])))
		}
	}
	c.found++
	return nil
}
