package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/gpu-labeller/gpu-labeller/explain"
	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// FuzzObjects takes anything for a file of Kubernetes objects, counts the GPUs in it
// and explains its pods. Nothing may panic or take long.
func FuzzObjects(f *testing.F) {
	clusters, err := filepath.Glob("testdata/clusters/*.txtar")
	if err != nil || len(clusters) == 0 {
		f.Fatal("no clusters", err)
	}
	for _, name := range clusters {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			if strings.HasSuffix(file.Name, ".yaml") {
				f.Add(file.Data)
			}
		}
	}
	f.Add([]byte("nvidia.com/gpu.count=8\nnvidia.com/gpu.product=NVIDIA-H200\n"))
	f.Add([]byte(`{"kind":"List","items":[{"kind":"Node","metadata":{"name":"a"},"status":{"allocatable":{"nvidia.com/gpu":"8"}}},{"kind":"Pod","spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}]}]}}},"containers":[{"resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		watchdog := time.AfterFunc(20*time.Second, func() { panic("it takes too long") })
		defer watchdog.Stop()
		if _, err := readNode("-", bytes.NewReader(text)); err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
		o, err := readObjects("-", bytes.NewReader(text), len(text)%2 == 0)
		if err != nil {
			return
		}
		if all, err := o.GPUs(); err == nil {
			fleet.Sums(all)
		}
		pods := o.Pods
		for _, w := range o.workloads {
			pods = append(pods, w.pod)
		}
		for _, pod := range pods {
			_, _ = explain.Explain(t.Context(), &o.Cluster, pod)
		}
	})
}
