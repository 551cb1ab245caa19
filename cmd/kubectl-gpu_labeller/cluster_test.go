package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/explain"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/internal/cluster"
)

// TestSchedulerAgrees gives every cluster of testdata/clusters and its pod to a
// real API server and scheduler. Explain is asked before the pod is there; then
// the scheduler must bind the pod to a Node that fits, or leave it pending and say
// word by word what Explain said that it would.
func TestSchedulerAgrees(t *testing.T) {
	all := fixtures(t)
	c := cluster.Start(t)
	w := newWorld(t, c.Config())
	c.Apply(`
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: kata}
handler: kata
overhead: {podFixed: {cpu: 250m}}
`)
	// Nodes are made once: their taint of not being ready takes a while to go.
	for _, f := range all {
		for _, n := range f.objects.Nodes {
			if !w.nodes[n.Name] {
				c.CreateNode(n.Name)
				w.nodes[n.Name] = true
			}
		}
	}
	bound := 0
	start := time.Now()
	for _, f := range all {
		t.Run(f.name, func(t *testing.T) {
			w := w
			w.t = t
			w.set(f)
			before, err := w.reader.cluster(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			r, err := explain.Explain(t.Context(), before, f.pod)
			if err != nil {
				t.Fatal(err)
			}
			limit := 20 * time.Second
			if r.Verdict == explain.Pending && r.Scheduler == "" {
				limit = 2 * time.Second
			}
			node, message := w.schedule(f.pod, limit, r.Verdict == explain.Schedulable)
			switch {
			case node != "" && (r.Verdict != explain.Schedulable || !slices.Contains(r.Fits, node)):
				t.Errorf("the scheduler bound the pod to %s; explain says %s: %s", node, r.Verdict, r.Summary)
			case node == "" && r.Verdict != explain.Pending:
				t.Errorf("the scheduler left the pod pending: %s\nexplain says %s: %s", message, r.Verdict, r.Summary)
			case node == "" && message != r.Scheduler:
				t.Errorf("the scheduler says %q\nexplain says that it says %q", message, r.Scheduler)
			case node != "":
				bound++
				if best := r.Fits[0]; node != best && strings.HasPrefix(f.name, "preferred") {
					t.Errorf("the scheduler preferred %s, explain %s", node, best)
				}
			}
			// What is there now must be explained as what it is.
			now, err := w.reader.cluster(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pod, err := w.reader.pod(t.Context(), f.pod.Namespace, f.pod.Name)
			if err != nil {
				t.Fatal(err)
			}
			r, err = explain.Explain(t.Context(), now, pod)
			if err != nil {
				t.Fatal(err)
			}
			if want := (map[bool]explain.Verdict{true: explain.Bound, false: explain.Pending})[node != ""]; r.Verdict != want {
				t.Errorf("afterwards explain says %s (%s), want %s", r.Verdict, r.Summary, want)
			}
		})
	}
	t.Logf("%d clusters, %d pods bound, %d pending, in %.0f s", len(all), bound, len(all)-bound, time.Since(start).Seconds())
	t.Run("shared-claim", func(t *testing.T) { testSharedClaim(t, c, all) })
	t.Run("kubectl", func(t *testing.T) { testPlugin(t, c) })
	t.Run("admission", func(t *testing.T) { testAdmission(t, c) })
	t.Run("rights", func(t *testing.T) { testRights(t, c, all) })
}

// world is a cluster that is made to look like one fixture after the other.
type world struct {
	t      *testing.T
	reader *reader
	nodes  map[string]bool
}

func newWorld(t *testing.T, config *rest.Config) world {
	t.Helper()
	r, err := newReader(config)
	if err != nil {
		t.Fatal(err)
	}
	return world{t: t, reader: r, nodes: make(map[string]bool)}
}

func (w world) must(err error) {
	w.t.Helper()
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
}

var now = metav1.DeleteOptions{GracePeriodSeconds: new(int64)}

// set makes the cluster look like a fixture.
func (w world) set(f fixture) {
	w.t.Helper()
	ctx := w.t.Context()
	core, res := w.reader.core, w.reader.resource
	w.clear(ctx)
	there := make(map[string]bool)
	for _, n := range f.objects.Nodes {
		there[n.Name] = true
		w.shape(ctx, n)
	}
	for name := range w.nodes {
		if !there[name] {
			w.must(core.Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
		}
	}
	for _, class := range f.objects.Classes {
		_, err := res.DeviceClasses().Create(ctx, class.DeepCopy(), metav1.CreateOptions{})
		w.must(err)
	}
	for _, s := range f.objects.Slices {
		_, err := res.ResourceSlices().Create(ctx, s.DeepCopy(), metav1.CreateOptions{})
		w.must(err)
	}
	for _, template := range f.objects.Templates {
		_, err := res.ResourceClaimTemplates(template.Namespace).Create(ctx, template.DeepCopy(), metav1.CreateOptions{})
		w.must(err)
	}
	for _, claim := range f.objects.Claims {
		made := claim.DeepCopy()
		if claim.Status.Allocation != nil {
			// As the scheduler does before it allocates, and relies on later.
			made.Finalizers = []string{resourcev1.Finalizer}
		}
		made, err := res.ResourceClaims(claim.Namespace).Create(ctx, made, metav1.CreateOptions{})
		w.must(err)
		made.Status = *claim.Status.DeepCopy()
		// The controller takes what is reserved for pods that are not there away,
		// and the allocation with it.
		for i, r := range made.Status.ReservedFor {
			w.holder(ctx, r.Name, claim)
			holder, err := core.Pods(claim.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
			w.must(err)
			made.Status.ReservedFor[i].UID = holder.UID
		}
		_, err = res.ResourceClaims(claim.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
		w.must(err)
	}
	for _, p := range f.objects.Pods {
		made, err := core.Pods(p.Namespace).Create(ctx, p.DeepCopy(), metav1.CreateOptions{})
		w.must(err)
		if p.Status.Phase != "" {
			made.Status.Phase = p.Status.Phase
			_, err = core.Pods(p.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
			w.must(err)
		}
	}
	// The scheduler watches each kind on its own: it must have seen all of this
	// before it sees the pod.
	time.Sleep(300 * time.Millisecond)
}

// holder makes the pod that a claim is reserved for.
func (w world) holder(ctx context.Context, name string, claim *resourcev1.ResourceClaim) {
	w.t.Helper()
	_, err := w.reader.core.Pods(claim.Namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: claim.Namespace},
		Spec: corev1.PodSpec{
			NodeName:       "node-a",
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim.Name}},
			Containers:     []corev1.Container{{Name: "main", Image: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
}

// clear removes everything but the Nodes.
func (w world) clear(ctx context.Context) {
	w.t.Helper()
	core, res := w.reader.core, w.reader.resource
	const ns = metav1.NamespaceDefault
	w.must(core.Pods(ns).DeleteCollection(ctx, now, metav1.ListOptions{}))
	w.must(res.ResourceClaimTemplates(ns).DeleteCollection(ctx, now, metav1.ListOptions{}))
	w.must(res.ResourceSlices().DeleteCollection(ctx, now, metav1.ListOptions{}))
	w.must(res.DeviceClasses().DeleteCollection(ctx, now, metav1.ListOptions{}))
	claims, err := res.ResourceClaims(ns).List(ctx, metav1.ListOptions{})
	w.must(err)
	for i := range claims.Items {
		claim := &claims.Items[i]
		if len(claim.Finalizers) > 0 {
			// A patch, since the controllers write claims at the same time.
			_, err := res.ResourceClaims(ns).Patch(ctx, claim.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			w.must(err)
		}
		w.must(res.ResourceClaims(ns).Delete(ctx, claim.Name, now))
	}
}

// shape gives a Node the labels, taints and resources of a fixture's.
func (w world) shape(ctx context.Context, want *corev1.Node) {
	w.t.Helper()
	nodes := w.reader.core.Nodes()
	for range 10 {
		n, err := nodes.Get(ctx, want.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			// A Node made anew is tainted until the controller has seen that it
			// is ready, but spec.taints can be written at once.
			n, err = nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: want.Name}}, metav1.CreateOptions{})
		}
		w.must(err)
		n.Labels = maps.Clone(want.Labels)
		n.Spec.Unschedulable = want.Spec.Unschedulable
		n.Spec.Taints = slices.Clone(want.Spec.Taints)
		if n, err = nodes.Update(ctx, n, metav1.UpdateOptions{}); err == nil {
			n.Status.Allocatable, n.Status.Capacity = want.Status.Allocatable, want.Status.Capacity
			n.Status.Conditions = slices.Clone(want.Status.Conditions)
			for i := range n.Status.Conditions {
				n.Status.Conditions[i].LastHeartbeatTime, n.Status.Conditions[i].LastTransitionTime = metav1.Now(), metav1.Now()
			}
			_, err = nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{})
		}
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			w.t.Fatal(err)
		}
	}
	w.t.Fatalf("Node %s: conflicts without end", want.Name)
}

// The scheduler adds what preemption would do, which is not explained.
var preemption = regexp.MustCompile(`\. (preemption|no new claims to deallocate|still not schedulable|not found).*$`)

// Claims made from a template have a name of their own.
var generated = regexp.MustCompile(`/train-gpu-[a-z0-9]{5}`)

// schedule makes a pod and waits until the scheduler has bound it, to the Node
// that is returned, or said why not. It says nothing of a pod whose claim is not
// there. With patience, what it says first does not count: it may take an idle
// claim's devices back, or try again.
func (w world) schedule(pod *corev1.Pod, limit time.Duration, patience bool) (node, message string) {
	w.t.Helper()
	ctx := w.t.Context()
	pods := w.reader.core.Pods(pod.Namespace)
	p := pod.DeepCopy()
	p.UID = types.UID("")
	_, err := pods.Create(ctx, p, metav1.CreateOptions{})
	w.must(err)
	for start := time.Now(); time.Since(start) < limit; time.Sleep(20 * time.Millisecond) {
		p, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		w.must(err)
		if p.Spec.NodeName != "" {
			return p.Spec.NodeName, ""
		}
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Message != "" {
				message = preemption.ReplaceAllString(condition.Message, ".")
				message = generated.ReplaceAllString(message, "/train-gpu")
				if !patience {
					return "", message
				}
			}
		}
	}
	return "", message
}

// testRights asks as a user who may see Nodes and nothing else: what that leaves
// open is said.
func testRights(t *testing.T, c *cluster.Cluster, all []fixture) {
	c.Apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: see-nodes}
rules: [{apiGroups: [""], resources: [nodes], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: see-nodes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: see-nodes}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`)
	i := slices.IndexFunc(all, func(f fixture) bool { return f.name == "gpus-held" })
	w := newWorld(t, c.Config())
	w.set(all[i])
	r, err := newReader(c.ConfigFor("alice"))
	if err != nil {
		t.Fatal(err)
	}
	seen, err := r.cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	result, err := explain.Explain(t.Context(), seen, all[i].pod)
	if err != nil {
		t.Fatal(err)
	}
	if result.Verdict != explain.Unknown {
		t.Errorf("without the right to list pods the verdict is %s, want unknown", result.Verdict)
	}
	var out bytes.Buffer
	writeExplanation(page{Writer: &out}, result, subject{}, false)
	if want := "pods: this user may not list pods in all namespaces"; !strings.Contains(out.String(), want) {
		t.Errorf("lacks %q:\n%s", want, &out)
	}

	r, err = newReader(c.ConfigFor("bob"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.cluster(t.Context())
	if got, want := fmt.Sprint(err), "this user may not list nodes"; !strings.Contains(got, want) {
		t.Errorf("without any right the error is %q, want %q in it", got, want)
	}
	if exit := new(cli.ExitError); !errors.As(err, &exit) || exit.Code != exitUnknown {
		t.Errorf("without any right the exit code is not %d: %v", exitUnknown, err)
	}
}

// testAdmission: a file that explain -f refuses the API server refuses, too, and the
// other way round.
func testAdmission(t *testing.T, c *cluster.Cluster) {
	container := func(resources string) string {
		return `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: default}, spec: {containers: [{name: main, image: main, resources: ` + resources + `}]}}`
	}
	tolerating := func(expression, toleration string) string {
		return `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: default}, spec: {containers: [{name: main, image: main}], tolerations: [` + toleration + `],
 affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [` + expression + `]}]}}}}}`
	}
	for _, test := range []struct{ name, manifest string }{
		{"well", container(`{limits: {nvidia.com/gpu: 1, cpu: 1}, requests: {cpu: 500m, memory: 1Gi}}`)},
		{"equal", container(`{limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 1}}`)},
		{"huge pages", container(`{limits: {hugepages-2Mi: 4Mi, memory: 1Gi}}`)},
		{"requested", container(`{requests: {nvidia.com/gpu: 1}}`)},
		{"huge pages requested", container(`{requests: {hugepages-2Mi: 4Mi, memory: 1Gi}}`)},
		{"unequal", container(`{limits: {nvidia.com/gpu: 2}, requests: {nvidia.com/gpu: 1}}`)},
		{"half", container(`{limits: {nvidia.com/gpu: 500m}}`)},
		{"another domain", container(`{requests: {example.com/fpga: 1}}`)},
		{"misspelt", container(`{limit: {nvidia.com/gpu: 1}}`)},
		{"no container", `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: []}}`},
		{"operator", tolerating(`{key: a, operator: In, values: [b]}`, `{key: a, operator: Exists}`)},
		{"unknown operator", tolerating(`{key: a, operator: Gte, values: ["1"]}`, `{key: a}`)},
		{"no operator", tolerating(`{key: a, values: ["1"]}`, `{key: a}`)},
		{"unknown operator of a toleration", tolerating(`{key: a, operator: Exists}`, `{key: a, operator: In, value: b}`)},
		{"no version", `{kind: Pod, metadata: {name: p}, spec: {containers: [{name: main, image: main}]}}`},
	} {
		file := filepath.Join(t.TempDir(), "pod.yaml")
		if err := os.WriteFile(file, []byte(test.manifest), 0o644); err != nil {
			t.Fatal(err)
		}
		_, refused := c.TryKubectl("create", "--dry-run=server", "--filename="+file)
		_, err := readObjects(file, nil, true)
		if (err == nil) != (refused == nil) {
			t.Errorf("%s: the API server says %v, explain -f %v", test.name, refused, err)
		}
	}
}

// testPlugin lets the real kubectl find the plugin, and complete its words.
func testPlugin(t *testing.T, c *cluster.Cluster) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"kubectl-gpu_labeller", completionName} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("COLUMNS", "80")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"gpu-labeller", "version"}, "kubectl-gpu_labeller "},
		{[]string{"gpu-labeller", "nodes", "-o", "json", "node-a"}, `"node": "node-a"`},
		{[]string{"gpu-labeller", "suggest", "node-a", "--namespace", "default"}, "nodeSelector:"},
		{[]string{"__complete", "gpu-labeller", "nodes", "node-"}, "node-a"},
		{[]string{"__complete", "gpu-labeller", "ex"}, "explain\tSay where"},
		{[]string{"__complete", "gpu-labeller", "nodes", "-o", ""}, "yaml"},
		{[]string{"__complete", "gpu-labeller", "nodes", "--context", ""}, "test"},
	} {
		out, err := c.TryKubectl(test.args...)
		if err != nil || !strings.Contains(out, test.want) {
			t.Errorf("kubectl %s lacks %q:\n%s%v", strings.Join(test.args, " "), test.want, out, err)
		}
	}
	c.Apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm, namespace: default}
spec:
  replicas: 2
  paused: true
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}}
    spec: {containers: [{name: main, image: main}]}
`)
	out, _ := c.TryKubectl("gpu-labeller", "explain", "deployment.apps/llm")
	if want := "Deployment default/llm asks for 2 such pods"; !strings.Contains(out, want) {
		t.Errorf("explain deployment.apps/llm lacks %q:\n%s", want, out)
	}
	_, err = c.TryKubectl("gpu-labeller", "explain", "job/llm")
	if want := "there is no Job llm in namespace default"; !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("the error is %v, want %q in it", err, want)
	}
	c.Kubectl("delete", "deployment", "llm", "--wait=false")
	_, err = c.TryKubectl("gpu-labeller", "explain", "nobody")
	if want := "there is no pod nobody in namespace default"; !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("the error is %v, want %q in it", err, want)
	}
}

// testSharedClaim lets the scheduler allocate a claim for one pod, and then places
// a second one that shares it: no device is free, and it fits all the same.
func testSharedClaim(t *testing.T, c *cluster.Cluster, all []fixture) {
	i := slices.IndexFunc(all, func(f fixture) bool { return f.name == "dra-count" })
	w := newWorld(t, c.Config())
	f := all[i]
	for _, n := range f.objects.Nodes {
		w.nodes[n.Name] = true
	}
	w.set(f)
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "both"}, Spec: *f.objects.Templates[0].Spec.Spec.DeepCopy()}
	claim.Spec.Devices.Requests[0].Exactly.Count = 2
	_, err := w.reader.resource.ResourceClaims(metav1.NamespaceDefault).Create(t.Context(), claim, metav1.CreateOptions{})
	w.must(err)
	for _, name := range []string{"first", "second"} {
		pod := f.pod.DeepCopy()
		pod.Name = name
		pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &claim.Name}
		seen, err := w.reader.cluster(t.Context())
		w.must(err)
		r, err := explain.Explain(t.Context(), seen, pod)
		w.must(err)
		if r.Verdict != explain.Schedulable || !slices.Equal(r.Fits, []string{"node-a"}) {
			t.Errorf("explain says of the %s pod: %s", name, r.Summary)
		}
		if node, message := w.schedule(pod, 20*time.Second, true); node != "node-a" {
			t.Errorf("the scheduler put the %s pod on %q: %s", name, node, message)
		}
	}
}
