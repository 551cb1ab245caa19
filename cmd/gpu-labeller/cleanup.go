package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

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

func (f *cleanupFlags) run(ctx context.Context, out io.Writer) error {
	c := cleaner{dryRun: f.dryRun, list: !f.allNodes, out: out}
	file := [][]withdrawable{{&publish.FeatureFile{Path: f.featureFile}}}
	if !f.allNodes && (f.nodeName == "" || f.onlyFile()) {
		c.withdraw(ctx, file)
		return c.end()
	}
	config, err := kubectlConfig(f.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = cleanupQPS, cleanupQPS
	client, err := publish.NewClient(config)
	if err != nil {
		return err
	}
	if f.wants(sinkNode) {
		var nodes [][]withdrawable
		err := whileBusy(ctx, func() (err error) {
			nodes, err = f.nodes(ctx, client)
			return err
		})
		c.failed(err)
		c.withdraw(ctx, nodes)
	}
	if f.wants(sinkNodeFeature) && !c.ended && !slices.ContainsFunc(c.errs, unserved) {
		var objects [][]withdrawable
		err := whileBusy(ctx, func() (err error) {
			objects, err = f.nodeFeatures(ctx, client)
			return err
		})
		c.failed(err, f.noNamespace(ctx, client))
		c.withdraw(ctx, objects)
	}
	if f.wants(sinkFeatureFile) && !f.allNodes && (len(f.sinks) > 0 || f.here(ctx, client)) {
		c.withdraw(ctx, file)
	}
	c.failed(c.stillGone(ctx, client))
	return c.end()
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
func (f *cleanupFlags) nodes(ctx context.Context, client *publish.Client) ([][]withdrawable, error) {
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
	var nodes [][]withdrawable
	for _, name := range names {
		n := &publish.Node{Client: client, Name: name, Force: f.force}
		node := []withdrawable{n}
		for i, taint := range taints[name] {
			if i > 0 {
				n = &publish.Node{Client: client, Name: name, Force: f.force}
				node = append(node, n)
			}
			n.Taint = &publish.NodeTaint{Taint: taint, Wanted: func(labels.Set) bool { return false }}
		}
		nodes = append(nodes, node)
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

func (f *cleanupFlags) nodeFeatures(ctx context.Context, client *publish.Client) ([][]withdrawable, error) {
	if !f.allNodes && f.namespace != "" {
		return [][]withdrawable{{&publish.NodeFeature{Client: client, Namespace: f.namespace, NodeName: f.nodeName, ObjectName: f.nodeFeature}}}, nil
	}
	if f.nodeFeature != "" {
		return nil, cli.Exit(exitUsage, errors.New("--node-feature-name needs --namespace"))
	}
	all, err := client.NodeFeatures(ctx, f.namespace)
	var objects [][]withdrawable
	for _, n := range all {
		if f.allNodes || n.NodeName == f.nodeName {
			objects = append(objects, []withdrawable{n})
		}
	}
	return objects, err
}
