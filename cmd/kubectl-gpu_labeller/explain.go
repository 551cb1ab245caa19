package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

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
		Use:   "explain (POD | NAMESPACE/POD | KIND/NAME | -f FILE)",
		Short: "Say where a pod fits, and why it is pending",
		Long: `explain says for each node whether the scheduler would put a pod there: whether
node selector, affinity, taints, resources and device claims (DRA) hold, who
holds the GPUs, and how close the closest node comes. The pod is one of the
cluster, or that of a file that need not be there yet: a Pod, or what makes pods
(Deployment, StatefulSet, DaemonSet, ReplicaSet, Job, CronJob). Of what makes
pods one pod is looked at: one that is pending, else one that it would make,
with how many fit. What the API server would refuse of a file is an error.

Of a pod that is there, what the scheduler says of it comes first.

It asks the scheduler's own libraries. Host ports, volumes, topology spread and
affinity to other pods are not checked; it says so when the pod has them. To a
pod of a file no LimitRange, RuntimeClass or PriorityClass is applied.

Exit codes:
  0  the pod fits, has its node, or has ended
  1  the command itself went wrong
  2  wrong usage
  3  the pod is pending
  4  it cannot be told, for want of rights
Of several pods in a file, the highest code.`,
		Example: `  # Why is it pending?
  kubectl gpu-labeller explain train-0 --namespace research

  kubectl gpu-labeller explain research/train-0
  kubectl gpu-labeller explain deployment/llm

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
			o, err := f.read(ctx, cmd.InOrStdin())
			if err != nil {
				return err
			}
			var subjects []subject
			if file != "" {
				subjects, err = f.podsOfFile(file, cmd.InOrStdin(), &o.Cluster)
			} else {
				subjects = make([]subject, 1)
				subjects[0], err = f.find(ctx, o, args[0])
			}
			if err != nil {
				return err
			}
			return f.explain(ctx, cmd.OutOrStdout(), &o.Cluster, subjects, all)
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "explain the pods of a `FILE`; - is standard input")
	cmd.Flags().BoolVar(&all, "all", false, fmt.Sprintf("show all nodes, not the %d that come closest, or the one that the pod has", mostNodes))
	return cmd
}

// podsOfFile reads the pods of a file. Claims and templates beside them are taken
// to be in the cluster.
func (f *flags) podsOfFile(file string, stdin io.Reader, c *fleet.Cluster) ([]subject, error) {
	o, err := readObjects(file, stdin, true)
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	var subjects []subject
	for _, pod := range o.Pods {
		subjects = append(subjects, subject{pod: pod})
	}
	for _, w := range o.workloads {
		subjects = append(subjects, subject{pod: w.pod, of: w})
	}
	if len(subjects) == 0 {
		return nil, fmt.Errorf("-f: %s: there is no pod in it, and nothing that makes pods", file)
	}
	namespace := ""
	if f.objects == "" || *f.config.Namespace != "" {
		namespace = f.namespace()
	}
	for _, s := range subjects {
		if s.pod.Namespace == "" {
			s.pod.Namespace = namespace
		}
		if s.pod.Name == "" {
			s.pod.Name = strings.TrimSuffix(s.pod.GenerateName, "-")
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
	return subjects, nil
}

func (f *flags) explain(ctx context.Context, out io.Writer, c *fleet.Cluster, subjects []subject, all bool) error {
	code := exitOK
	var results []*explain.Result
	for _, s := range subjects {
		r, err := explain.Explain(ctx, c, s.pod)
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
			writeExplanation(newPage(out), r, subjects[i], all)
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
func writeExplanation(p page, r *explain.Result, s subject, all bool) {
	colours := map[explain.Verdict]string{explain.Schedulable: good, explain.Bound: good, explain.Pending: bad, explain.Unknown: vague}
	p.text(0, 0, p.paint(colours[r.Verdict], cli.Printable(r.Summary)))
	if text := s.about(r); text != "" {
		p.text(0, 0, cli.Printable(text))
	}
	if r.Said != "" {
		p.text(0, 2, "The scheduler says: "+cli.Printable(r.Said))
	}
	if len(r.Nodes) > 0 && r.Verdict != explain.Ended {
		fmt.Fprintln(p)
		writeNodeChecks(p, r, all)
	}
	pending := r.Verdict == explain.Pending || r.Verdict == explain.Unknown
	if pending && len(r.Misses) > 0 {
		title := "In the way:"
		if r.Said != "" && len(r.Fits) > 0 {
			title = "In the way on the other nodes:"
		}
		fmt.Fprintln(p, "\n"+p.paint(bold, title))
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
	if r.Scheduler != "" || len(r.Fits) == 0 || r.Said == "" { // else the first line has it
		section("Not checked:", r.Unchecked)
	}
	section("Note:", r.Notes)
	var unread []string
	for _, u := range r.Unread {
		unread = append(unread, string(u.Kind)+": "+u.Why)
	}
	section("Could not be read:", unread)
}

// about says which of a workload's pods is looked at, and how many have room.
func (s subject) about(r *explain.Result) string {
	switch {
	case s.of == nil:
		return ""
	case s.pending == 1:
		return "" // the first line has it
	case s.pending > 0:
		return fmt.Sprintf("It is one of %d pending pods of %s.", s.pending, s.of)
	case s.of.replicas < 2:
		return ""
	}
	text := fmt.Sprintf("%s asks for %d such pods; this is about one.", s.of, s.of.replicas)
	switch {
	case r.Verdict != explain.Schedulable:
	case r.Room == nil:
		text += " How many fit is not known."
	default:
		text += fmt.Sprintf(" As things are, %d fit.", *r.Room)
	}
	return text
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

// writeNodeChecks writes a row a Node; of a pod that has its Node, that of this one.
// A check that no Node is asked has no column.
func writeNodeChecks(p page, r *explain.Result, all bool) {
	nodes := r.Nodes
	if r.Verdict == explain.Bound && !all {
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n explain.Node) bool { return n.Checks[explain.NodeName] == explain.Blocks })
	}
	headings := map[explain.Check]string{
		explain.NodeName: "NAME", explain.Cordon: "CORDON", explain.Taints: "TAINTS", explain.Selector: "SELECTOR",
		explain.Affinity: "AFFINITY", explain.Resources: "RESOURCES", explain.Claims: "CLAIMS",
	}
	var checks []explain.Check
	for _, check := range explain.Checks {
		if slices.ContainsFunc(nodes, func(n explain.Node) bool { return n.Checks[check] != explain.NotAsked }) {
			checks = append(checks, check)
		}
	}
	preferred := slices.ContainsFunc(nodes, func(n explain.Node) bool { return n.Preference != 0 })
	row := []string{"NODE", "FITS"}
	for _, check := range checks {
		row = append(row, headings[check])
	}
	if preferred {
		row = append(row, "PREFERENCE")
	}
	rows := [][]string{row}
	for _, n := range closest(nodes, all) {
		row := []string{cli.Printable(n.Name), string(n.Fits)}
		for _, check := range checks {
			row = append(row, cell(n.Checks[check]))
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
		return map[string]string{"yes": good, "no": bad, "ok": good, "blocks": bad, "unknown": vague}[text]
	})
	switch more := len(r.Nodes) - (len(rows) - 1); {
	case more == 0:
	case r.Verdict == explain.Bound:
		fmt.Fprintf(p, "… and %d more: --all shows them\n", more)
	default:
		fmt.Fprintf(p, "… and %d more, which come no closer: --all shows them\n", more)
	}
}

// cell is a check as the table has it. What a pod asks nothing of is in no Node's
// way.
func cell(a explain.Answer) string {
	if a == explain.NotAsked {
		return string(explain.OK)
	}
	return string(a)
}

// closest is the Nodes with the least in the way, sorted by name.
func closest(nodes []explain.Node, all bool) []explain.Node {
	if all || len(nodes) <= mostNodes {
		return nodes
	}
	best := slices.Clone(nodes)
	slices.SortStableFunc(best, func(a, b explain.Node) int { return cmp.Compare(a.Distance, b.Distance) })
	best = best[:mostNodes]
	slices.SortFunc(best, func(a, b explain.Node) int { return strings.Compare(a.Name, b.Name) })
	return best
}
