package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"

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
	return &publish.NodeTaint{
		Taint: taint,
		Wanted: func(set labels.Set) bool {
			n, _ := strconv.Atoi(set[countLabel])
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
