package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

func newCleanupCommand() *cobra.Command {
	var f sinkFlags
	var allNodes bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Withdraw all labels that are ours",
		Long: `cleanup withdraws all that gpu-labeller published for this node, on every sink
that can be reached, or on those that --sink names: its labels of the Node, its
NodeFeature object, its feature file. Labels that others set stay. Run again, it
does nothing.

It ends with 1 and names them where labels under keys of ours stay, since another
field manager set them, as after a Node was restored from a copy: remove those, or
use --force-conflicts. NFD's stay in any case.

With --taint it also takes away the taint that the agent kept, named as it was for
the agent: a taint of that key, value and effect, whoever set it.

With --all-nodes it does so for every Node that carries labels of ours, and for
every NodeFeature object of ours in the namespace; feature files are on their
nodes and stay there.

End the agents first: they would label again, which is an error, too, if it is
seen two seconds later.`,
		Example: `  gpu-labeller cleanup --node-name node-a --kubeconfig ~/.kube/config
  gpu-labeller cleanup --all-nodes --kubeconfig ~/.kube/config`,
		Args:              cli.UsageArgs(cobra.NoArgs),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cleanup(cmd.Context(), &f, allNodes, cmd.OutOrStdout(), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&allNodes, "all-nodes", false, "for every Node, not only this one")
	return cmd
}

func cleanup(ctx context.Context, f *sinkFlags, allNodes bool, out io.Writer, log *slog.Logger) error {
	f.podName = "" // the owner of what goes does not matter
	if err := f.checkNames(); err != nil {
		return err
	}
	named := len(f.sinks) > 0
	if !named {
		f.sinks = []string{sinkFeatureFile}
		if _, err := restConfig(f.kubeconfig); err == nil {
			f.sinks = append(f.sinks, sinkNode, sinkNodeFeature)
		} else if f.kubeconfig != "" || allNodes {
			return err
		}
		if checkForNFD(f.nodeName) != nil {
			f.sinks = slices.DeleteFunc(f.sinks, func(s string) bool { return s == sinkNodeFeature }) // it cannot have one
		}
		if f.namespace == "" && podNamespace() == "" {
			f.sinks = slices.DeleteFunc(f.sinks, func(s string) bool { return s == sinkNodeFeature })
			if len(f.sinks) > 1 {
				log.Warn("NodeFeature objects are left alone: their namespace is not known, give --namespace")
			}
		}
	}
	if err := f.checkTaint(f.sinks); err != nil {
		return err
	}
	if !allNodes {
		had, err := withdraw(ctx, f, named, out, log)
		return errors.Join(err, stillGone(ctx, had))
	}

	f.sinks = slices.DeleteFunc(f.sinks, func(s string) bool { return s == sinkFeatureFile })
	config, err := restConfig(f.kubeconfig)
	if err != nil {
		return err
	}
	client, err := publish.NewClient(config)
	if err != nil {
		return err
	}
	all := f.sinks
	var had []*publish.Node
	var errs []error
	for _, sink := range all {
		var nodes []string
		var err error
		switch sink {
		case sinkNode:
			nodes, err = client.Owned(ctx, "")
		case sinkNodeFeature:
			if f.namespace == "" {
				f.namespace = podNamespace()
			}
			nodes, err = client.NodeFeatures(ctx, f.namespace)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, node := range nodes {
			f.sinks, f.nodeName = []string{sink}, node
			labelled, err := withdraw(ctx, f, true, out, log)
			if err != nil {
				errs = append(errs, err)
			}
			had = append(had, labelled...)
		}
	}
	return errors.Join(append(errs, stillGone(ctx, had))...)
}

// withdraw publishes nothing on every sink of f. Where the sinks were not named,
// one that the cluster does not have is passed over. It gives the Nodes that had
// labels of ours.
func withdraw(ctx context.Context, f *sinkFlags, named bool, out io.Writer, log *slog.Logger) (had []*publish.Node, err error) {
	s, err := f.open(ctx, log)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, sink := range s.all {
		if node, ok := sink.(*publish.Node); ok {
			if set, err := node.Published(ctx); err == nil && len(set) > 0 {
				had = append(had, node)
			}
		}
		if err := sink.Publish(ctx, nil); err != nil {
			if !named && errors.Is(err, publish.ErrNoNodeFeatures) {
				continue
			}
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(out, "%v: nothing of ours is left\n", sink)
	}
	return had, errors.Join(errs...)
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
