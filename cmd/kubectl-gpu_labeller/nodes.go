package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-labeller/gpu-labeller/fleet"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

func newNodesCommand(f *flags) *cobra.Command {
	var whole bool
	cmd := &cobra.Command{
		Use:   "nodes [NODE...]",
		Short: "Show the GPUs of the cluster at a glance",
		Long: `nodes shows which nodes have which GPUs, what pods can ask for and how much of
it is free, and adds up by product. It tells from the labels of gpu-labeller (or
GPU Feature Discovery), the resources of device plugins and the ResourceSlices
of DRA drivers.

The sums leave out of FREE what is on nodes that are cordoned or not ready, and
say how much. A node whose state is tainted takes pods that tolerate its taints:
--wide shows them.

On a terminal the table is made to fit: columns are left out and names
shortened. --wide, or -o wide, shows everything.

Exit codes:
  0  there are GPUs
  1  the command itself went wrong
  2  wrong usage
  3  there is no GPU`,
		Args:              cli.UsageArgs(cobra.ArbitraryArgs),
		ValidArgsFunction: f.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.cluster(cmd.Context(), cmd.InOrStdin())
			if err != nil {
				return err
			}
			for _, name := range args {
				if _, err := nodeNamed(c, name); err != nil {
					return err
				}
			}
			all, err := c.GPUs()
			if err != nil {
				return err
			}
			if len(args) > 0 {
				all = slices.DeleteFunc(all, func(g fleet.GPUs) bool { return !slices.Contains(args, g.Node) })
			}
			if f.output.Value == "table" || f.output.Value == wide {
				writeNodes(newPage(cmd.OutOrStdout()), all, whole || f.output.Value == wide)
				for _, u := range c.Unread {
					if u.Kind == fleet.Pods {
						fmt.Fprintln(cmd.ErrOrStderr(), "warning: pods could not be read, so what is requested is not known:", u.Why)
					}
				}
			} else if err := write(cmd.OutOrStdout(), f.output.Value, struct {
				Nodes  []fleet.GPUs   `json:"nodes"`
				Sums   []fleet.Sum    `json:"sums"`
				Unread []fleet.Unread `json:"unread"`
			}{append([]fleet.GPUs{}, all...), fleet.Sums(all), append([]fleet.Unread{}, c.Unread...)}); err != nil {
				return err
			}
			if len(all) == 0 {
				return cli.Exit(exitNo, nil)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&whole, wide, false, "show all columns and whole names, however wide that is")
	return cmd
}

// column is one of the table's; those with a lower rank are left out first.
type column struct {
	heading string
	rank    int // 0: never left out
	wide    bool
	cell    func(fleet.GPUs, fleet.Offer) string
}

var nodeColumns = []column{
	{"NODE", 0, false, func(g fleet.GPUs, _ fleet.Offer) string { return cli.Printable(g.Node) }},
	{"VENDOR", 1, false, func(g fleet.GPUs, _ fleet.Offer) string { return string(g.Vendor) }},
	{"PRODUCT", 0, false, func(g fleet.GPUs, o fleet.Offer) string { return cli.Printable(g.Product) }},
	{"FAMILY", 1, true, func(g fleet.GPUs, _ fleet.Offer) string { return cli.Printable(g.Family) }},
	{"GPUS", 4, false, func(g fleet.GPUs, _ fleet.Offer) string { return positive(g.Count) }},
	{"MEMORY", 5, false, func(g fleet.GPUs, o fleet.Offer) string { return memory(cmp.Or(o.MemoryMiB, g.MemoryMiB)) }},
	{"MIG", 3, false, func(g fleet.GPUs, _ fleet.Offer) string { return cli.Printable(g.MIG) }},
	{"SHARING", 1, true, func(g fleet.GPUs, _ fleet.Offer) string { return cli.Printable(g.Sharing) }},
	{"DRIVER", 2, false, func(g fleet.GPUs, _ fleet.Offer) string { return cli.Printable(g.Driver) }},
	{"STATE", 6, false, func(g fleet.GPUs, _ fleet.Offer) string { return state(g) }},
	{"TAINTS", 1, true, func(g fleet.GPUs, _ fleet.Offer) string { return cli.Printable(strings.Join(g.Taints, ",")) }},
	{"RESOURCE", 0, false, func(_ fleet.GPUs, o fleet.Offer) string { return offerName(o.Resource, o.DRA) }},
	{"ALLOC", 0, false, func(_ fleet.GPUs, o fleet.Offer) string {
		if o.Resource == "" {
			return ""
		}
		return strconv.FormatInt(o.Allocatable, 10)
	}},
	{"REQ", 0, false, func(_ fleet.GPUs, o fleet.Offer) string { return known(o.Requested) }},
	{"FREE", 0, false, func(_ fleet.GPUs, o fleet.Offer) string { return known(o.Free) }},
}

// writeNodes writes a row for each resource of each Node, and the sums.
func writeNodes(p page, all []fleet.GPUs, wide bool) {
	if len(all) == 0 {
		fmt.Fprintln(p, "No node has a GPU that labels, resources or ResourceSlices tell of.")
		return
	}
	columns := slices.DeleteFunc(slices.Clone(nodeColumns), func(c column) bool { return c.wide && !wide })
	if !wide {
		columns = slices.DeleteFunc(columns, func(c column) bool { return c.heading == "RESOURCE" && plainResources(all) })
	}
	if !wide && p.width > 0 && tableWidth(nodeRows(all, columns)) > p.width {
		all = withoutDomain(all)
	}
	rows := nodeRows(all, columns)
	if !wide && p.width > 0 {
		for rank := 1; rank <= 6 && tableWidth(shortened(rows, columns)) > p.width; rank++ {
			columns = slices.DeleteFunc(columns, func(c column) bool { return c.rank == rank })
			rows = nodeRows(all, columns)
		}
		rows = fitted(rows, columns, p.width)
	}
	p.table(rows, func(_, column int, text string) string {
		if columns[column].heading != "STATE" || text == "-" {
			return ""
		}
		return stateColour(text)
	})
	footnotes := nodeNotes(all, columns, wide)
	fmt.Fprintln(p)
	rows = [][]string{{"PRODUCT", "RESOURCE", "NODES", "GPUS", "ALLOC", "REQ", "FREE"}}
	for _, s := range fleet.Sums(all) {
		rows = append(rows, dashes([]string{cli.Printable(s.Product), offerName(s.Resource, s.DRA), strconv.Itoa(s.Nodes), positive(s.Count),
			strconv.FormatInt(s.Allocatable, 10), known(s.Requested), known(s.Free)}))
	}
	if over := tableWidth(rows) - p.width; !wide && p.width > 0 && over > 0 {
		width := max(16, columnWidths(rows)[0]-over)
		for _, row := range rows {
			row[0] = shorten(row[0], width)
		}
	}
	p.table(rows, nil)
	for _, s := range fleet.Sums(all) {
		if s.Withheld > 0 {
			footnotes = append(footnotes, fmt.Sprintf("FREE leaves out %d %s of %s on nodes that are cordoned or not ready.", s.Withheld, offerName(s.Resource, s.DRA), cli.Printable(s.Product)))
		}
	}
	for i, note := range footnotes {
		if i == 0 {
			fmt.Fprintln(p)
		}
		p.text(0, 2, note)
	}
}

// stateColour is that of the worst word of a state. A taint is no trouble.
func stateColour(text string) string {
	colour := good
	for word := range strings.SplitSeq(text, ",") {
		switch word {
		case "ok", "tainted":
		case "degraded", "passthrough", "cordoned":
			colour = vague
		default:
			return bad
		}
	}
	return colour
}

// nodeNotes says what the table does not: GPUs that nobody can ask for, or select,
// and which columns had no room.
func nodeNotes(all []fleet.GPUs, columns []column, whole bool) []string {
	var notes, names, unlabelled []string
	for _, g := range all {
		if g.Product == "" && g.Count == 0 && slices.ContainsFunc(g.Offers, func(o fleet.Offer) bool { return !o.DRA }) {
			unlabelled = append(unlabelled, cli.Printable(g.Node))
		}
		if len(g.Offers) == 0 && g.Count > 0 && (g.State == "" || g.State == "ok" || g.State == "degraded") {
			names = append(names, cli.Printable(g.Node))
		}
	}
	if len(names) > 0 {
		notes = append(notes, fmt.Sprintf("No pod can ask for the GPUs of %s: does a device plugin or a DRA driver run there?", cli.Few(names, 3)))
	}
	if len(unlabelled) > 0 {
		notes = append(notes, fmt.Sprintf("No label tells of the GPUs of %s: does gpu-labeller run there?", cli.Few(unlabelled, 3)))
	}
	var left []string
	for _, c := range nodeColumns {
		if c.rank > 0 && !c.wide && !whole && !slices.ContainsFunc(columns, func(shown column) bool { return shown.heading == c.heading }) {
			left = append(left, c.heading)
		}
	}
	if len(left) > 0 {
		notes = append(notes, fmt.Sprintf("No room for %s: --wide shows all.", strings.Join(left, ", ")))
	}
	return notes
}

// plainResources tells that every row's resource can be told from its vendor.
func plainResources(all []fleet.GPUs) bool {
	for _, g := range all {
		if len(g.Offers) > 1 {
			return false
		}
		for _, o := range g.Offers {
			if o.Resource != string(g.Vendor)+".com/gpu" && o.Resource != "gpu.intel.com/i915" && o.Resource != "gpu.intel.com/xe" {
				return false
			}
		}
	}
	return true
}

func nodeRows(all []fleet.GPUs, columns []column) [][]string {
	row := make([]string, len(columns))
	for i, c := range columns {
		row[i] = c.heading
	}
	rows := [][]string{row}
	for _, g := range all {
		offers := g.Offers
		if len(offers) == 0 {
			offers = []fleet.Offer{{}}
		}
		for _, o := range offers {
			row := make([]string, len(columns))
			for i, c := range columns {
				row[i] = c.cell(g, o)
			}
			rows = append(rows, dashes(row))
		}
	}
	return rows
}

// withoutDomain takes the domain that all Nodes are in from their names.
func withoutDomain(all []fleet.GPUs) []fleet.GPUs {
	domain := ""
	for _, g := range all {
		_, d, ok := strings.Cut(g.Node, ".")
		if !ok {
			continue
		}
		if domain != "" && d != domain {
			return all
		}
		domain = d
	}
	all = slices.Clone(all)
	for i := range all {
		all[i].Node, _, _ = strings.Cut(all[i].Node, ".")
	}
	return all
}

// The least that names are shortened to.
const leastName, leastProduct = 12, 12

// shortened is rows as narrow as they can be made without leaving a column out.
func shortened(rows [][]string, columns []column) [][]string {
	return fitted(rows, columns, 1)
}

// fitted shortens products first, then Nodes, as far as the width asks for.
func fitted(rows [][]string, columns []column, width int) [][]string {
	rows = slices.Clone(rows)
	for i := range rows {
		rows[i] = slices.Clone(rows[i])
	}
	for _, c := range []struct {
		heading string
		least   int
	}{{"PRODUCT", leastProduct}, {"RESOURCE", leastProduct}, {"NODE", leastName}} {
		j := slices.IndexFunc(columns, func(col column) bool { return col.heading == c.heading })
		over := tableWidth(rows) - width
		if j < 0 || over <= 0 {
			continue
		}
		to := max(c.least, columnWidths(rows)[j]-over)
		for _, row := range rows {
			row[j] = shorten(row[j], to)
		}
	}
	return rows
}

func dashes(row []string) []string {
	for i := range row {
		row[i] = cmp.Or(row[i], "-")
	}
	return row
}

// offerName is a resource without the vendor's domain, which the row has; a DRA
// driver's devices say that they are claimed, not requested.
func offerName(resource string, dra bool) string {
	if dra {
		if _, kind, ok := strings.Cut(resource, "/"); ok {
			return "dra:" + kind
		}
		return "dra:" + resource
	}
	return strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(resource, "nvidia.com/"), "amd.com/"), "gpu.intel.com/")
}

func positive(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// known writes a number that there may be none of, since it could not be read.
func known(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

// memory is MiB in GiB, rounded down; less than one stays MiB.
func memory(mib int64) string {
	switch {
	case mib == 0:
		return ""
	case mib < 1024:
		return strconv.FormatInt(mib, 10) + "Mi"
	}
	return strconv.FormatInt(mib/1024, 10) + "Gi"
}

func state(g fleet.GPUs) string {
	parts := []string{}
	if g.State != "" {
		parts = append(parts, cli.Printable(g.State))
	}
	if !g.Ready {
		parts = append(parts, "not-ready")
	}
	if g.Cordoned {
		parts = append(parts, "cordoned")
	}
	if g.Tainted {
		parts = append(parts, "tainted")
	}
	return strings.Join(parts, ",")
}
