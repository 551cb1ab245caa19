package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// writeTable writes a page for people: the GPUs, a row each, what is wrong, and
// the labels by group.
func writeTable(out io.Writer, inv *discover.Inventory, set labels.Set, rejected []labels.Rejected) error {
	w := bufio.NewWriter(out)
	if len(inv.GPUs) == 0 {
		fmt.Fprintln(w, "No GPU found.")
	} else {
		fmt.Fprintln(w, summary(inv))
		fmt.Fprintln(w)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "PCI ADDRESS\tVENDOR\tPRODUCT\tFAMILY\tMEMORY\tDRIVER\tMIG\tNUMA NODE\tCONDITION")
		for _, g := range gpuReports(inv) {
			memory, numa := "", ""
			if g.MemoryMiB > 0 {
				memory = strconv.FormatUint(g.MemoryMiB, 10) + " MiB"
			}
			if g.NUMANode != nil {
				numa = strconv.Itoa(*g.NUMANode)
			}
			row := []string{g.PCIAddress, string(g.Vendor), cli.Printable(g.Product), cli.Printable(g.Family), memory, cli.Printable(g.Driver), g.MIG.String(), numa, string(g.Condition)}
			for i := range row {
				if row[i] == "" {
					row[i] = "-"
				}
			}
			fmt.Fprintln(t, strings.Join(row, "\t"))
		}
		t.Flush()
	}
	if len(inv.Problems)+len(rejected) > 0 {
		fmt.Fprintln(w, "\nPROBLEMS")
		for _, p := range inv.Problems {
			fmt.Fprintln(w, "  "+cli.Printable(p.Text))
			if p.Cure != "" {
				fmt.Fprintln(w, "    cure: "+cli.Printable(p.Cure))
			}
		}
		for _, r := range rejected {
			fmt.Fprintln(w, "  "+cli.Printable(r.String()))
		}
	}
	group := ""
	for _, key := range slices.Sorted(maps.Keys(set)) {
		prefix, name, _ := strings.Cut(key, "/")
		if prefix != group {
			group = prefix
			fmt.Fprintf(w, "\n%s/\n", prefix)
		}
		fmt.Fprintf(w, "  %s=%s\n", name, set[key])
	}
	return w.Flush()
}

func summary(inv *discover.Inventory) string {
	var parts []string
	if inv.Machine != nil && *inv.Machine != "" {
		parts = append(parts, cli.Printable(*inv.Machine))
	}
	if v := inv.NVIDIA.DriverVersion; v != "" {
		parts = append(parts, "NVIDIA driver "+cli.Printable(v))
	}
	if v := inv.NVIDIA.CUDADriverVersion; v != 0 {
		parts = append(parts, fmt.Sprintf("CUDA %d.%d", v/1000, v%1000/10))
	}
	return strings.Join(append(parts, "state "+string(inv.State())), ", ")
}
