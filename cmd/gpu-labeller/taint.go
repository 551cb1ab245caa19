package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

const (
	// defaultTaint is what --taint without a value means. NVIDIA's device plugin
	// and GPU Operator tolerate its key, and so do pods that ask for nvidia.com/gpu
	// where the admission plugin ExtendedResourceToleration is on.
	defaultTaint = "nvidia.com/gpu=present:NoSchedule"
	// countLabel says how many GPUs are usable, those included whose answers are
	// held.
	countLabel = labels.ExtraPrefix + "count"
)

// taintVendors are the domains of vendors: a taint under one is for the nodes with
// that vendor's GPUs, since only what uses those tolerates it.
var taintVendors = map[string]discover.Vendor{
	"nvidia.com": discover.NVIDIA, "amd.com": discover.AMD, "intel.com": discover.Intel,
}

// taintLabel is the label that says how many GPUs the taint is for.
func taintLabel(key string) string {
	domain, _, _ := strings.Cut(key, "/")
	for of, vendor := range taintVendors {
		if domain == of || strings.HasSuffix(domain, "."+of) {
			return "gpu.feature.node.kubernetes.io/vendor." + string(vendor) + ".count"
		}
	}
	return countLabel
}

// checkTaint looks at --taint. Without sinks, they are not known yet.
func (f *sinkFlags) checkTaint(sinks []string) error {
	if f.taint == "" {
		return nil
	}
	if _, err := publish.ParseTaint(f.taint); err != nil {
		return cli.Exit(exitUsage, fmt.Errorf("--taint %q: %w", f.taint, err))
	}
	if len(sinks) > 0 && !slices.Contains(sinks, sinkNode) {
		return cli.Exit(exitUsage, fmt.Errorf("--taint writes to the Node, and labels go to %s: give --sink=node, too, or have NFD set the taint by a NodeFeatureRule", sinks[0]))
	}
	return nil
}

// nodeTaint is what --taint says, nil without it.
func (f *sinkFlags) nodeTaint(log *slog.Logger) (*publish.NodeTaint, error) {
	if f.taint == "" {
		return nil, nil
	}
	taint, err := publish.ParseTaint(f.taint)
	if err != nil {
		return nil, cli.Exit(exitUsage, fmt.Errorf("--taint %q: %w", f.taint, err))
	}
	count := taintLabel(taint.Key)
	return &publish.NodeTaint{
		Taint: taint,
		Wanted: func(set labels.Set) bool {
			n, _ := strconv.Atoi(set[count])
			return n > 0
		},
		Changed: func(set bool) {
			if set {
				log.Info("taint set: the node has usable GPUs", "node", f.nodeName, "taint", taint.String())
			} else {
				log.Info("taint taken away", "node", f.nodeName, "taint", taint.String())
			}
		},
	}, nil
}

// strayTaint warns of a taint that an agent with --taint left, and nobody keeps.
func (f *sinkFlags) strayTaint(log *slog.Logger) func(*publish.NodeTaints) {
	return func(n *publish.NodeTaints) {
		ours, _ := publish.ParseTaint(defaultTaint)
		const stays = "an earlier agent with --taint set it, and this one neither keeps it nor takes it away; give --taint again, or end it with kubectl"
		if n.Has(ours) {
			log.Warn("taint left behind: "+stays, "node", n.Node, "taint", defaultTaint, "cure", "kubectl taint node "+n.Node+" "+defaultTaint+"-")
			return
		}
		// Which of them it was is not known.
		var all []string
		for _, t := range n.Taints {
			if namespace, _, _ := strings.Cut(t.Key, "/"); !strings.HasSuffix(namespace, "kubernetes.io") {
				all = append(all, t.String())
			}
		}
		if len(all) > 0 {
			log.Warn("one of these taints may be left behind: "+stays, "node", n.Node, "taints", strings.Join(all, " "), "cure", "kubectl taint node "+n.Node+" TAINT-")
		}
	}
}
