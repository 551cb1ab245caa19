package main

import (
	"bytes"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

var update = flag.Bool("update", false, "write what the tests want anew")

// fixture is a made-up cluster, a pod, and what explain says of it.
type fixture struct {
	name    string
	file    string
	archive *txtar.Archive
	objects *objects
	pod     *corev1.Pod
}

// fixtures reads testdata/clusters. Nodes have what any Node has beside what
// stands there: a host name, room for pods, processors and memory.
func fixtures(t *testing.T) []fixture {
	t.Helper()
	files, err := filepath.Glob("testdata/clusters/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata/clusters: %v", err)
	}
	var all []fixture
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f := fixture{name: strings.TrimSuffix(filepath.Base(file), ".txtar"), file: file, archive: a}
		if f.objects, err = readObjects("-", bytes.NewReader(f.section("cluster.yaml")), false); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		p, err := readObjects("-", bytes.NewReader(f.section("pod.yaml")), true)
		if err != nil || len(p.Pods) != 1 {
			t.Fatalf("%s: pod.yaml: %d pods, %v", file, len(p.Pods), err)
		}
		f.pod = p.Pods[0]
		for _, n := range f.objects.Nodes {
			complete(n)
		}
		all = append(all, f)
	}
	return all
}

func (f fixture) section(name string) []byte {
	for _, s := range f.archive.Files {
		if s.Name == name {
			return s.Data
		}
	}
	return nil
}

func complete(n *corev1.Node) {
	if n.Labels == nil {
		n.Labels = make(map[string]string)
	}
	n.Labels["kubernetes.io/hostname"] = n.Name
	allocatable := corev1.ResourceList{
		"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110"),
		"ephemeral-storage": resource.MustParse("100Gi"),
	}
	maps.Copy(allocatable, n.Status.Allocatable)
	capacity := maps.Clone(allocatable)
	maps.Copy(capacity, n.Status.Capacity)
	n.Status.Allocatable, n.Status.Capacity = allocatable, capacity
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
}

func newFlags() *flags {
	return &flags{config: genericclioptions.NewConfigFlags(true), output: cli.Choice{Value: "table"}}
}

// TestExplainClusters compares what explain prints, byte by byte.
func TestExplainClusters(t *testing.T) {
	t.Setenv("COLUMNS", "100")
	for _, f := range fixtures(t) {
		t.Run(f.name, func(t *testing.T) {
			var out bytes.Buffer
			err := newFlags().explain(t.Context(), &out, &f.objects.Cluster, []subject{{pod: f.pod}}, false)
			var exit *cli.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			got := out.Bytes()
			if *update {
				i := slices.IndexFunc(f.archive.Files, func(s txtar.File) bool { return s.Name == "want.txt" })
				f.archive.Files[i].Data = got
				if err := os.WriteFile(f.file, txtar.Format(f.archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := f.section("want.txt"); !bytes.Equal(got, want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}
