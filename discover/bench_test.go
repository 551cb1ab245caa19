package discover_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfile"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

var (
	kfdNode   = regexp.MustCompile(`topology/nodes/(\d+)/`)
	kfdDomain = regexp.MustCompile(`(?m)^domain \d+$`)
)

// several makes one host out of n of a kind, each in a PCI domain of its own.
func several(b *testing.B, name string, n int) discover.Host {
	one, err := hostfile.Read(b.Context(), filepath.Join("..", "testdata", "hosts", name+".txtar"))
	if err != nil {
		b.Fatal(err)
	}
	nodes := 0
	for path := range one.Files {
		if m := kfdNode.FindStringSubmatch(path); m != nil {
			i, _ := strconv.Atoi(m[1])
			nodes = max(nodes, i+1)
		}
	}
	all := *one
	all.Files, all.Links = maps.Clone(one.Files), maps.Clone(one.Links)
	for k := 1; k < n; k++ {
		move := func(path string) string {
			path = strings.Replace(path, "devices/0000:", fmt.Sprintf("devices/%04x:", k), 1)
			return kfdNode.ReplaceAllStringFunc(path, func(s string) string {
				i, _ := strconv.Atoi(kfdNode.FindStringSubmatch(s)[1])
				return fmt.Sprintf("topology/nodes/%d/", i+k*nodes)
			})
		}
		for path, content := range one.Files {
			all.Files[move(path)] = kfdDomain.ReplaceAll(content, fmt.Appendf(nil, "domain %d", k))
		}
		for path, target := range one.Links {
			all.Links[move(path)] = target
		}
	}
	dir := b.TempDir()
	if err := all.Extract(b.Context(), dir); err != nil {
		b.Fatal(err)
	}
	return discover.Host{Root: hostfs.Root(dir), NVML: func(context.Context) nvml.Answer { return *one.NVML }}
}

// BenchmarkPartitions is a whole pass over AMD's GPUs, in 64 partitions for eight.
func BenchmarkPartitions(b *testing.B) {
	for _, n := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprintf("%d partitions", 64*n), func(b *testing.B) {
			host := several(b, "amd-mi300x-cpx-nps4", n)
			b.ReportAllocs()
			for b.Loop() {
				inv, err := discover.Scan(b.Context(), host)
				if err != nil {
					b.Fatal(err)
				}
				partitions := 0
				for _, g := range inv.GPUs {
					partitions += len(g.AMD.Partitions)
				}
				if set, _ := labels.Compute(inv, labels.Options{}); partitions != 64*n || len(set) < 20 {
					b.Fatal(partitions, set)
				}
			}
		})
	}
}
