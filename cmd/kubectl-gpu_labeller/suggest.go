package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-labeller/gpu-labeller/fleet"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

func newSuggestCommand(f *flags) *cobra.Command {
	var file string
	var podSpec bool
	gpus := int64(1)
	cmd := &cobra.Command{
		Use:   "suggest [NODE | -f FILE]",
		Short: "Print what to write into a pod to get GPUs like a node's",
		Long: `suggest prints node selector, affinity, tolerations and limits that select GPUs
like those of a node, and with a DRA driver a ResourceClaimTemplate whose
attribute names are those of the node's ResourceSlices. Without a node it does
so for each product of the cluster. What may keep the pod pending is a warning:
more GPUs than a node has, a node that offers none. A node need not be there
yet: -f reads a Node, or the labels that gpu-labeller --print prints for this or
a recorded host.

Exit codes:
  0  there are GPUs to suggest
  1  the command itself went wrong
  2  wrong usage
  3  there is no GPU`,
		Example: `  # What to paste into a pod
  kubectl gpu-labeller suggest node-a

  # A whole pod to apply, with two GPUs
  kubectl gpu-labeller suggest node-a --gpus 2 --pod-spec | kubectl apply -f -

  # From a recorded host
  gpu-labeller --print --host node-a.txtar | kubectl gpu-labeller suggest -f -`,
		Args:              cli.UsageArgs(cobra.MaximumNArgs(1)),
		ValidArgsFunction: f.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && file != "" {
				return cli.Exit(exitUsage, errors.New("name a node, or a file with -f"))
			}
			if gpus < 1 {
				return cli.Exit(exitUsage, errors.New("--gpus must be at least 1"))
			}
			var c *fleet.Cluster
			var err error
			if file != "" {
				c, err = readNode(file, cmd.InOrStdin())
			} else {
				c, err = f.cluster(cmd.Context(), cmd.InOrStdin())
			}
			if err != nil {
				return err
			}
			if len(args) == 1 {
				if _, err := nodeNamed(c, args[0]); err != nil {
					return err
				}
			}
			all, err := c.GPUs()
			if err != nil {
				return err
			}
			var suggestions []fleet.Suggestion
			var products []string
			for _, g := range all {
				product := string(g.Vendor) + " " + g.Product
				if len(args) == 1 && g.Node != args[0] || len(args) == 0 && slices.Contains(products, product) {
					continue
				}
				products = append(products, product)
				node, err := nodeNamed(c, g.Node)
				if err != nil {
					return err
				}
				s, err := c.Suggest(cmd.Context(), node, g.Vendor, gpus)
				if err != nil {
					return err
				}
				suggestions = append(suggestions, s)
			}
			if len(suggestions) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "no GPU to suggest: no label, resource or ResourceSlice tells of one")
				return cli.Exit(exitNo, nil)
			}
			if podSpec { // which may go to kubectl apply, comments and all
				for _, s := range suggestions {
					for _, w := range s.Warnings {
						fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s: %s\n", cli.Printable(s.Node), cli.Printable(w))
					}
				}
			}
			return f.suggest(cmd.OutOrStdout(), suggestions, podSpec)
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the node of a `FILE`: a Node, or key=value lines; - is standard input")
	cmd.Flags().BoolVar(&podSpec, "pod-spec", false, "print a whole pod")
	cmd.Flags().Int64Var(&gpus, "gpus", gpus, "how many GPUs the pod asks for")
	return cmd
}

func nodeNamed(c *fleet.Cluster, name string) (*corev1.Node, error) {
	i := slices.IndexFunc(c.Nodes, func(n *corev1.Node) bool { return n.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no node %s: kubectl get nodes lists them", name)
	}
	return c.Nodes[i], nil
}

// readNode reads objects, or the labels of one Node.
func readNode(file string, stdin io.Reader) (*fleet.Cluster, error) {
	in, err := open(file, stdin)
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	defer in.Close()
	content, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	if labels, ok := readLabels(content); ok {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "the node", Labels: labels}}
		return &fleet.Cluster{Nodes: []*corev1.Node{node}}, nil
	}
	o, err := decodeObjects(file, bytes.NewReader(content), false)
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	if len(o.Nodes) == 0 {
		return nil, fmt.Errorf("-f: %s: there is neither a Node nor a label in it", file)
	}
	return &o.Cluster, nil
}

// readLabels reads key=value lines, if that is what the content is.
func readLabels(content []byte) (map[string]string, bool) {
	labels := make(map[string]string)
	s := bufio.NewScanner(bytes.NewReader(content))
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || !strings.Contains(key, "/") || strings.ContainsAny(key, " :{") {
			return nil, false
		}
		labels[key] = value
	}
	return labels, len(labels) > 0
}

// suggest prints pieces, or whole pods.
func (f *flags) suggest(out io.Writer, all []fleet.Suggestion, podSpec bool) error {
	format := f.output.Value
	if format != "table" && !podSpec {
		if len(all) == 1 {
			return write(out, format, all[0])
		}
		return write(out, format, all)
	}
	if format == "json" {
		var items []any
		for _, s := range all {
			items = append(items, suggestedPod(s)...)
		}
		if len(items) == 1 {
			return write(out, format, items[0])
		}
		return write(out, format, fields{"apiVersion": "v1", "kind": "List", "items": items})
	}
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(out, "---")
		}
		fmt.Fprintln(out, "# "+headline(s))
		for _, w := range s.Warnings {
			fmt.Fprintln(out, "# Warning: "+cli.Printable(w))
		}
		if more := others(s); podSpec && len(more) > 0 {
			fmt.Fprintln(out, "# The node also offers "+cli.Printable(strings.Join(more, ", ")))
		}
		var err error
		if podSpec {
			err = writeDocuments(out, suggestedPod(s))
		} else {
			err = writePieces(out, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func headline(s fleet.Suggestion) string {
	text := "GPUs like those of " + cli.Printable(s.Node)
	if s.Product != "" {
		text += ": " + cli.Printable(s.Product)
	}
	if len(s.AlsoOn) > 0 {
		text += ", as on " + cli.Printable(cli.Few(s.AlsoOn, 3))
	}
	return text
}
