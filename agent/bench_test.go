package agent

import (
	"context"
	"fmt"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// manyGPUs is a host with n GPUs, all of which NVML knew until it failed.
func manyGPUs(b *testing.B, n int, driver string) (*machine, *hold) {
	m := newMachine(b)
	m.loadDriver("580.95.05")
	var known []nvml.GPU
	for i := range n {
		address := fmt.Sprintf("0000:%02x:%02x.%x", i>>8, i>>3&0x1f, i&7)
		m.function(address, a100, driver)
		known = append(known, gpu(address, "NVIDIA A100-SXM4-40GB"))
	}
	m.good(known...)
	h := &hold{}
	h.merge(pass(b, m))
	m.bad(nvml.Answer{Init: nvml.Unknown})
	return m, h
}

func pass(b *testing.B, m *machine) look {
	answer := m.nvml(b.Context())
	host := m.host()
	host.NVML = func(context.Context) nvml.Answer { return answer }
	inv, err := discover.Scan(b.Context(), host)
	m.check(err)
	return look{full: true, inv: inv, answer: &answer}
}

// A whole pass, all but NVML itself, over functions that are a guest's, and over
// GPUs that do not answer any more.
func BenchmarkPass(b *testing.B) {
	for _, driver := range []string{"vfio-pci", "nvidia"} {
		for _, n := range []int{16, 250, 500, 1000, 2000} {
			b.Run(fmt.Sprintf("%s/%d", driver, n), func(b *testing.B) {
				m, h := manyGPUs(b, n, driver)
				b.ReportAllocs()
				for b.Loop() {
					merged := h.merge(pass(b, m))
					if set, _ := labels.Compute(merged.inv, labels.Options{}); len(set) == 0 {
						b.Fatal("no labels")
					}
				}
			})
		}
	}
}

// What a look of the sentry costs beside a fingerprint.
func BenchmarkSentry(b *testing.B) {
	for _, test := range []struct {
		name string
		m    *machine
	}{{"8 GPUs with MIG", eightGPUs(b)}, {"2000 of guests", func() *machine { m, _ := manyGPUs(b, 2000, "vfio-pci"); return m }()}} {
		f := NewFingerprinter(hostfs.Root(test.m.root))
		_, err := f.Take()
		test.m.check(err)
		w := f.Watched()
		for _, list := range []struct {
			name  string
			paths pathList
		}{{"often", w.Often}, {"seldom", w.Seldom}, {"rarely", w.Rarely}} {
			b.Run(test.name+"/"+list.name, func(b *testing.B) {
				for b.Loop() {
					list.paths.sum()
				}
			})
		}
	}
}
