package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpu-labeller/gpu-labeller/explain"
	"github.com/gpu-labeller/gpu-labeller/fleet"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

// subject is a pod to explain, and the workload that it is one of, if any.
type subject struct {
	pod *corev1.Pod
	of  *workload
	// pending is how many of the workload's pods wait; 0 if the pod is one that the
	// workload would make.
	pending int
}

// workloadKind is a kind that makes pods, and how people write it.
type workloadKind struct {
	kind, plural, group string
	words               []string
}

var workloadKinds = []workloadKind{
	{"Deployment", "deployments", "apps/v1", []string{"deployment", "deployments", "deploy"}},
	{"StatefulSet", "statefulsets", "apps/v1", []string{"statefulset", "statefulsets", "sts"}},
	{"DaemonSet", "daemonsets", "apps/v1", []string{"daemonset", "daemonsets", "ds"}},
	{"ReplicaSet", "replicasets", "apps/v1", []string{"replicaset", "replicasets", "rs"}},
	{"Job", "jobs", "batch/v1", []string{"job", "jobs"}},
	{"CronJob", "cronjobs", "batch/v1", []string{"cronjob", "cronjobs", "cj"}},
}

// find looks for what the command line names: POD, NAMESPACE/POD or KIND/NAME,
// where the kind may have its group, as kubectl get -o name prints it.
func (f *flags) find(ctx context.Context, o *objects, arg string) (subject, error) {
	namespace, name, word := f.namespace(), arg, ""
	if before, after, ok := strings.Cut(arg, "/"); ok {
		if before == "" || after == "" || strings.Contains(after, "/") {
			return subject{}, cli.Exit(exitUsage, fmt.Errorf("%q: want POD, NAMESPACE/POD or KIND/NAME, and the namespace of the latter with --namespace", arg))
		}
		word, _, _ = strings.Cut(strings.ToLower(before), ".")
		i := slices.IndexFunc(workloadKinds, func(k workloadKind) bool { return slices.Contains(k.words, word) })
		name = after
		switch {
		case i >= 0:
			return f.findWorkload(ctx, o, workloadKinds[i], namespace, name)
		case slices.Contains([]string{"pod", "pods", "po"}, word):
			word = ""
		case *f.config.Namespace != "" && *f.config.Namespace != before:
			return subject{}, cli.Exit(exitUsage, fmt.Errorf("%q and --namespace %s name two namespaces", arg, *f.config.Namespace))
		default:
			namespace = before
		}
	}
	pod, err := f.podOf(ctx, o, namespace, name)
	if kind := likeKind(word); err != nil && kind != "" {
		err = fmt.Errorf("%w; or is %s/%s meant?", err, kind, name)
	}
	return subject{pod: pod}, err
}

// likeKind is the kind that a word is but for a typing error, if there is one.
// Short words are like too many others.
func likeKind(word string) string {
	const short = 3
	kinds := map[string]string{"pods": "pod"}
	for _, k := range workloadKinds {
		for _, w := range k.words {
			if len(w) > short {
				kinds[w] = k.words[0]
			}
		}
	}
	if len(word) <= short {
		return ""
	}
	return kinds[explain.Similar(word, slices.Sorted(maps.Keys(kinds)))]
}

func (f *flags) findWorkload(ctx context.Context, o *objects, kind workloadKind, namespace, name string) (subject, error) {
	var w *workload
	if f.objects != "" {
		i := slices.IndexFunc(o.workloads, func(w *workload) bool {
			return w.kind == kind.kind && w.pod.Name == name && (w.pod.Namespace == namespace || w.pod.Namespace == "")
		})
		if i < 0 {
			return subject{}, fmt.Errorf("--objects: there is no %s %s in namespace %s", kind.kind, name, namespace)
		}
		w = o.workloads[i]
	} else {
		r, err := f.reader()
		if err != nil {
			return subject{}, err
		}
		if w, err = r.workload(ctx, kind, namespace, name); err != nil {
			return subject{}, err
		}
	}
	waiting := w.waiting(&o.Cluster)
	if len(waiting) == 0 {
		return subject{pod: w.pod, of: w}, nil
	}
	return subject{waiting[0], w, len(waiting)}, nil
}

// waiting is the workload's pods that have no Node yet, sorted.
func (w *workload) waiting(c *fleet.Cluster) []*corev1.Pod {
	selector, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil || selector.Empty() {
		return nil
	}
	var pods []*corev1.Pod
	for _, p := range c.Pods {
		if p.Namespace == w.pod.Namespace && p.Spec.NodeName == "" && !fleet.Ended(p) && selector.Matches(labels.Set(p.Labels)) {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

// podOf finds a pod among what was read, or asks for it: it may have ended, or
// pods may not be listed.
func (f *flags) podOf(ctx context.Context, o *objects, namespace, name string) (*corev1.Pod, error) {
	for _, pod := range o.Pods {
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
