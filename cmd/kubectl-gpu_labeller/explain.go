package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-labeller/gpu-labeller/explain"
	"github.com/gpu-labeller/gpu-labeller/fleet"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

// mostNodes is how many Nodes a table has, unless --all.
const mostNodes = 20

func newExplainCommand(f *flags) *cobra.Command {
	var file string
	var all bool
	cmd := &cobra.Command{
		Use:   "explain (POD | -f FILE)",
		Short: "Say where a pod fits, and why it is pending",
		Long: `explain says for each node whether the scheduler would put a pod there: whether
node selector, affinity, taints, resources and device claims (DRA) hold, who holds
the GPUs, and how close the closest node comes. The pod is one of the cluster, or
that of a file that need not be there yet: a Pod, or what makes pods (Deployment,
StatefulSet, DaemonSet, ReplicaSet, Job, CronJob).

It asks the scheduler's own libraries. Host ports, volumes, topology spread and
affinity to other pods are not checked; it says so when the pod has them. To a pod
of a file no LimitRange, RuntimeClass or PriorityClass is applied.

Exit codes:
  0  the pod fits, has its node, or has ended
  1  the command itself went wrong
  2  wrong usage
  3  the pod is pending
  4  it cannot be told, for want of rights
Of several pods in a file, the highest code.`,
		Example: `  # Why is it pending?
  kubectl gpu-labeller explain train-0 --namespace research

  # Would it fit?
  kubectl gpu-labeller explain -f pod.yaml

  # Would another replica fit?
  kubectl get deployment llm -o yaml | kubectl gpu-labeller explain -f -`,
		Args:              cli.UsageArgs(cobra.MaximumNArgs(1)),
		ValidArgsFunction: f.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (file != "") {
				return cli.Exit(exitUsage, errors.New("name a pod, or a file with -f"))
			}
			if file == "-" && f.objects == "-" {
				return cli.Exit(exitUsage, errors.New("-f and --objects cannot both be standard input"))
			}
			ctx := cmd.Context()
			c, err := f.cluster(ctx, cmd.InOrStdin())
			if err != nil {
				return err
			}
			var pods []*corev1.Pod
			if file != "" {
				pods, err = f.podsOfFile(file, cmd.InOrStdin(), c)
			} else {
				var pod *corev1.Pod
				pod, err = f.podOf(ctx, c, args[0])
				pods = []*corev1.Pod{pod}
			}
			if err != nil {
				return err
			}
			return f.explain(ctx, cmd.OutOrStdout(), c, pods, all)
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "explain the pods of a `FILE`; - is standard input")
	cmd.Flags().BoolVar(&all, "all", false, fmt.Sprintf("show all nodes, not the %d that come closest", mostNodes))
	return cmd
}

// podOf finds a pod among what was read, or asks for it: it may have ended, or
// pods may not be listed.
func (f *flags) podOf(ctx context.Context, c *fleet.Cluster, name string) (*corev1.Pod, error) {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "pods/"), "pod/")
	namespace := f.namespace()
	for _, pod := range c.Pods {
		// In a file, objects may be without a namespace.
		if pod.Name == name && (pod.Namespace == namespace || pod.Namespace == "" && f.objects != "") {
			return pod, nil
		}
	}
	if f.objects != "" {
		return nil, fmt.Errorf("--objects: there is no pod %s in namespace %s", name, namespace)
	}
	r, err := f.reader()
	if err != nil {
		return nil, err
	}
	return r.pod(ctx, namespace, name)
}

// podsOfFile reads the pods of a file. Claims and templates beside them are taken
// to be in the cluster.
func (f *flags) podsOfFile(file string, stdin io.Reader, c *fleet.Cluster) ([]*corev1.Pod, error) {
	o, err := readObjects(file, stdin)
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	pods := append(o.Pods, o.templates...)
	if len(pods) == 0 {
		return nil, fmt.Errorf("-f: %s: there is no pod in it, and nothing that makes pods", file)
	}
	namespace := ""
	if f.objects == "" || *f.config.Namespace != "" {
		namespace = f.namespace()
	}
	for _, pod := range pods {
		if pod.Namespace == "" {
			pod.Namespace = namespace
		}
		if pod.Name == "" {
			pod.Name = strings.TrimSuffix(pod.GenerateName, "-")
		}
	}
	for _, claim := range o.Claims {
		if claim.Namespace == "" {
			claim.Namespace = namespace
		}
	}
	for _, template := range o.Templates {
		if template.Namespace == "" {
			template.Namespace = namespace
		}
	}
	c.Claims = append(o.Claims, c.Claims...)
	c.Templates = append(o.Templates, c.Templates...)
	return pods, nil
}

func (f *flags) explain(ctx context.Context, out io.Writer, c *fleet.Cluster, pods []*corev1.Pod, all bool) error {
	code := exitOK
	var results []*explain.Result
	for _, pod := range pods {
		r, err := explain.Explain(ctx, c, pod)
		if err != nil {
			return err
		}
		results = append(results, r)
		switch r.Verdict {
		case explain.Pending:
			code = max(code, exitNo)
		case explain.Unknown:
			code = max(code, exitUnknown)
		}
	}
	var err error
	switch {
	case f.output.Value == "table":
		for i, r := range results {
			if i > 0 {
				fmt.Fprintln(out)
			}
			writeExplanation(newPage(out), r, all)
		}
	case len(results) == 1:
		err = write(out, f.output.Value, results[0])
	default:
		err = write(out, f.output.Value, results)
	}
	if err != nil || code == exitOK {
		return err
	}
	return cli.Exit(code, nil)
}

// writeExplanation writes a page for people: the verdict, the Nodes, what is in
// the way, what was not looked at.
func writeExplanation(p page, r *explain.Result, all bool) {
	colours := map[explain.Verdict]string{explain.Schedulable: good, explain.Bound: good, explain.Pending: bad, explain.Unknown: vague}
	p.text(0, 0, p.paint(colours[r.Verdict], cli.Printable(r.Summary)))
	if len(r.Nodes) > 0 && r.Verdict != explain.Ended {
		fmt.Fprintln(p)
		writeNodeChecks(p, r, all)
	}
	pending := r.Verdict == explain.Pending || r.Verdict == explain.Unknown
	if pending && len(r.Misses) > 0 {
		fmt.Fprintln(p, "\n"+p.paint(bold, "In the way:"))
		for _, m := range r.Misses {
			p.text(2, 4, string(m.Check)+where(m.Nodes, len(r.Nodes))+": "+cli.Printable(m.Text))
			if m.Cure != "" {
				fmt.Fprintln(p, "    cure: "+cli.Printable(m.Cure)) // in one line, to paste
			}
		}
	}
	if r.Nearest != "" && pending && len(r.Nodes) > 1 {
		i := slices.IndexFunc(r.Nodes, func(n explain.Node) bool { return n.Name == r.Nearest })
		var failed []string
		for _, check := range r.Nodes[i].Failed() {
			failed = append(failed, string(check))
		}
		fmt.Fprintln(p)
		p.text(0, 0, fmt.Sprintf("Nearest is %s, which fails only %s.", r.Nearest, strings.Join(failed, " and ")))
	}
	section := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintln(p, "\n"+p.paint(bold, title))
		for _, line := range lines {
			p.text(2, 4, cli.Printable(line))
		}
	}
	section("Not checked:", r.Unchecked)
	section("Note:", r.Notes)
	var unread []string
	for _, u := range r.Unread {
		unread = append(unread, string(u.Kind)+": "+u.Why)
	}
	section("Could not be read:", unread)
}

// where says which Nodes a miss is of.
func where(nodes []string, of int) string {
	switch n := len(nodes); {
	case n == 0:
		return ""
	case n == of && of == 1:
		return ", on " + nodes[0]
	case n == of && of == 2:
		return ", on both nodes"
	case n == of:
		return fmt.Sprintf(", on all %d nodes", of)
	case n <= 3:
		return ", on " + strings.Join(nodes, ", ")
	default:
		return fmt.Sprintf(", on %d of %d nodes", n, of)
	}
}

// writeNodeChecks writes a row a Node. A check that no Node is asked has no
// column.
func writeNodeChecks(p page, r *explain.Result, all bool) {
	headings := map[explain.Check]string{
		explain.NodeName: "NAME", explain.Cordon: "CORDON", explain.Taints: "TAINTS", explain.Selector: "SELECTOR",
		explain.Affinity: "AFFINITY", explain.Resources: "RESOURCES", explain.Claims: "CLAIMS",
	}
	var checks []explain.Check
	for _, check := range explain.Checks {
		if slices.ContainsFunc(r.Nodes, func(n explain.Node) bool { return n.Checks[check] != explain.NotAsked }) {
			checks = append(checks, check)
		}
	}
	preferred := slices.ContainsFunc(r.Nodes, func(n explain.Node) bool { return n.Preference != 0 })
	row := []string{"NODE", "FITS"}
	for _, check := range checks {
		row = append(row, headings[check])
	}
	if preferred {
		row = append(row, "PREFERENCE")
	}
	rows := [][]string{row}
	for _, n := range closest(r.Nodes, all) {
		row := []string{cli.Printable(n.Name), string(n.Fits)}
		for _, check := range checks {
			row = append(row, string(n.Checks[check]))
		}
		if preferred {
			row = append(row, strconv.FormatInt(n.Preference, 10))
		}
		rows = append(rows, row)
	}
	if over := tableWidth(rows) - p.width; p.width > 0 && over > 0 {
		width := max(12, columnWidths(rows)[0]-over)
		for _, row := range rows {
			row[0] = shorten(row[0], width)
		}
	}
	p.table(rows, func(_, column int, text string) string {
		if column == 0 {
			return ""
		}
		return map[string]string{"yes": good, "no": bad, "unknown": vague}[text]
	})
	if more := len(r.Nodes) - (len(rows) - 1); more > 0 {
		fmt.Fprintf(p, "… and %d more, which come no closer: --all shows them\n", more)
	}
}

// closest is the Nodes that fail the fewest checks, sorted by name.
func closest(nodes []explain.Node, all bool) []explain.Node {
	if all || len(nodes) <= mostNodes {
		return nodes
	}
	best := slices.Clone(nodes)
	slices.SortStableFunc(best, func(a, b explain.Node) int { return len(a.Failed()) - len(b.Failed()) })
	best = best[:mostNodes]
	slices.SortFunc(best, func(a, b explain.Node) int { return strings.Compare(a.Name, b.Name) })
	return best
}
