//go:build e2e

// Package e2e installs gpu-labeller on a real node: a kubelet and containerd beside a
// control plane, the image, a recorded host's sysfs and a stand-in for NVML. It needs
// root; see internal/cluster.
package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfile"
	"github.com/gpu-labeller/gpu-labeller/internal/cluster"
	"github.com/gpu-labeller/gpu-labeller/internal/image"
	"github.com/gpu-labeller/gpu-labeller/internal/standin"
)

const (
	root     = "../.."
	chart    = root + "/manifests/chart/gpu-labeller"
	recorded = root + "/testdata/hosts/h200x1.txtar"
	nodeName = "node-a"

	pauseImage = "localhost/pause:test"
)

// driver is what the stand-in for NVML answers on the recorded host.
const driver = `
driver 580.159.04
cuda 13000
gpu bus=0000:00:06.0 dev=0x233510de name=NVIDIA~H200 membytes=150754820096 cc=9.0 mig=0 addressing=0
`

// world is what all tests share.
type world struct {
	*cluster.Cluster
	node *cluster.Node
	sys  string            // the recorded host's
	root string            // of the driver
	want map[string]string // the labels
}

func TestNode(t *testing.T) {
	w := &world{Cluster: cluster.Start(t), want: map[string]string{}}
	w.node = w.StartNode(nodeName, pauseImage, pause(t), agent(t))
	host, err := hostfile.Read(t.Context(), recorded)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := host.Extract(t.Context(), folder); err != nil {
		t.Fatal(err)
	}
	w.sys = filepath.Join(folder, "sys")
	w.root = standin.DriverRoot(t, driver)
	archive, err := txtar.ParseFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range archive.Files {
		if f.Name == "want.labels" {
			for line := range strings.Lines(string(f.Data)) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
				w.want[key] = value
			}
		}
	}
	if len(w.want) < 30 {
		t.Fatalf("%s wants the labels %v", recorded, w.want)
	}
	// A Node that is out of order, on which the GPU Operator has paused users of NVML:
	// neither an agent nor the clean-up is to go there.
	w.CreateNode("node-b")
	w.Kubectl("taint", "node", "node-b", "example.com/out-of-order:NoSchedule")
	w.Kubectl("label", "node", "node-b", "nvidia.com/gpu.deploy.client=paused-for-driver-upgrade")
	w.Apply(`
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: nvidia
`)

	t.Run("kustomize", w.kustomize)
	t.Run("helm", w.helm)
	t.Run("privileged", w.privileged)
	t.Run("node-feature", w.nodeFeature)
	t.Run("feature-file", w.featureFile)
}

// kustomize installs manifests/overlays/direct, with the recorded host in the place of
// the node's, and the library where NVIDIA's runtime would put it.
func (w *world) kustomize(t *testing.T) {
	overlay := w.overlay(t)
	w.Kubectl("apply", "-k", overlay)
	w.rolledOut(t, "gpu-labeller")
	w.labelled(t)
	pod := w.pod(t, "gpu-labeller")
	w.within(t, pod)
	t.Run("serves", func(t *testing.T) {
		for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ok", "/metrics": `gpu_labeller_gpus{vendor="nvidia",condition="usable"} 1`} {
			status, body, err := w.node.Get("http://" + pod.Status.PodIP + ":8080" + path)
			if err != nil || status != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%s: %d %v, want %q in\n%s", path, status, err, want, body)
			}
		}
	})
	t.Run("scheduling", w.scheduling)
	t.Run("rights", func(t *testing.T) { w.rights(t, w.node.Token(pod.Metadata.UID)) })
	w.unmoved(t, func() {
		w.Kubectl("rollout", "restart", "daemonset/gpu-labeller", "-n", "gpu-labeller")
		w.rolledOut(t, "gpu-labeller")
	})
	if again := w.pod(t, "gpu-labeller"); again.Metadata.UID == pod.Metadata.UID {
		t.Error("the pod was not replaced")
	}
	if t.Failed() {
		t.Logf("the agent says:\n%s", w.node.Log("gpu-labeller", w.pod(t, "gpu-labeller").Metadata.Name))
	}

	t.Run("pause", func(t *testing.T) {
		before := w.pod(t, "gpu-labeller").Metadata.Name
		w.Kubectl("label", "node", nodeName, "nvidia.com/gpu.deploy.client=paused-for-mig-change")
		w.Kubectl("wait", "-n", "gpu-labeller", "--for=delete", "pod/"+before, "--timeout=30s")
		w.Kubectl("label", "node", nodeName, "nvidia.com/gpu.deploy.client-")
		w.Kubectl("wait", "-n", "gpu-labeller", "--for=jsonpath={.status.numberReady}=1", "daemonset/gpu-labeller", "--timeout=60s")
		w.labelled(t)
	})

	w.Kubectl("delete", "-k", overlay)
	w.labelled(t) // an agent that ends takes nothing with it
	w.Kubectl("apply", "-k", root+"/manifests/cleanup/direct")
	if _, err := w.TryKubectl("wait", "-n", "gpu-labeller", "--for=condition=Complete", "job/gpu-labeller-cleanup", "--timeout=60s"); err != nil {
		t.Fatalf("%v\n%s\nit says:\n%s", err, w.Kubectl("get", "jobs,pods,events", "-n", "gpu-labeller"), w.node.Log("gpu-labeller", "gpu-labeller-cleanup*"))
	}
	w.unlabelled(t)
	w.Kubectl("delete", "-k", root+"/manifests/cleanup/direct")
}

// helm installs the chart, with the library from a driver root.
func (w *world) helm(t *testing.T) {
	settings := []string{"--set", "nvml.access=driverRoot,nvml.driverRoot.privileged=false,nvml.driverRoot.path=" + w.root + ",host.sys=" + w.sys}
	w.runHelm(t, append([]string{"install", "gpu-labeller", chart, "--namespace=gpus", "--create-namespace", "--wait", "--timeout=60s"}, settings...)...)
	w.labelled(t)
	w.within(t, w.pod(t, "gpus"))
	w.unmoved(t, func() {
		w.runHelm(t, append([]string{"upgrade", "gpu-labeller", chart, "--namespace=gpus", "--wait", "--timeout=60s", "--set", "podAnnotations.changed=yes"}, settings...)...)
	})
	w.runHelm(t, "uninstall", "gpu-labeller", "--namespace=gpus", "--wait", "--timeout=120s")
	w.unlabelled(t)
	left := w.Kubectl("get", "-A", "-o", "name", "-l", "app.kubernetes.io/instance=gpu-labeller",
		"daemonsets,jobs,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings")
	if left != "" {
		t.Errorf("helm uninstall left\n%s", left)
	}
}

// privileged installs the chart with the node's device nodes, as a driver root needs
// them. The driver comes after the agent, and the library with it.
func (w *world) privileged(t *testing.T) {
	late := filepath.Join(t.TempDir(), "driver")
	w.runHelm(t, "install", "gpu-labeller", chart, "--namespace=gpus", "--create-namespace",
		"--set", "nvml.access=driverRoot,nvml.driverRoot.path="+late+",host.sys="+w.sys+",extraArgs={--poll=500ms,--interval=2s}")
	w.eventually(t, "no-driver")
	if err := os.CopyFS(late, os.DirFS(w.root)); err != nil {
		t.Fatal(err)
	}
	w.eventually(t, "ok")
	w.rolledOut(t, "gpus")
	w.labelled(t)
	w.runHelm(t, "uninstall", "gpu-labeller", "--namespace=gpus", "--wait", "--timeout=120s")
	w.unlabelled(t)
}

// eventually waits for the state in the Node's label.
func (w *world) eventually(t *testing.T, state string) {
	t.Helper()
	var got string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if got = w.ours(t)["gpu.feature.node.kubernetes.io/state"]; got == state {
			return
		}
	}
	t.Fatalf("the state is %q after 30 s, want %q:\n%s", got, state, w.Kubectl("get", "pods,events", "-A"))
}

// nodeFeature installs the chart with sink node-feature. There is no NFD to label the
// Node.
func (w *world) nodeFeature(t *testing.T) {
	w.ApplyNodeFeatures()
	w.runHelm(t, "install", "gpu-labeller", chart, "--namespace=gpus", "--create-namespace", "--wait", "--timeout=60s",
		"--set", "sinks={node-feature},nvml.access=driverRoot,nvml.driverRoot.privileged=false,nvml.driverRoot.path="+w.root+",host.sys="+w.sys)
	var object struct {
		Metadata struct{ OwnerReferences []struct{ Kind string } }
		Spec     struct{ Labels map[string]string }
	}
	w.get(t, &object, "nodefeature", "gpu-labeller-features-for-"+nodeName, "-n", "gpus")
	if want := w.withoutPCI(); !maps.Equal(object.Spec.Labels, want) {
		t.Errorf("NodeFeature says\n%v, want\n%v", object.Spec.Labels, want)
	}
	if len(object.Metadata.OwnerReferences) != 2 || object.Metadata.OwnerReferences[0].Kind != "DaemonSet" || object.Metadata.OwnerReferences[1].Kind != "Pod" {
		t.Errorf("its owners are %v", object.Metadata.OwnerReferences)
	}
	w.runHelm(t, "uninstall", "gpu-labeller", "--namespace=gpus", "--wait", "--timeout=120s")
	if left := w.Kubectl("get", "nodefeatures", "-A", "-o", "name"); left != "" {
		t.Errorf("helm uninstall left %s", left)
	}
	w.unlabelled(t)
}

// featureFile installs the chart with sink feature-file.
func (w *world) featureFile(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "features.d") // made by the kubelet, as root's
	w.runHelm(t, "install", "gpu-labeller", chart, "--namespace=gpus", "--create-namespace", "--wait", "--timeout=60s",
		"--set", "sinks={feature-file},featureFile.folder="+folder+",nvml.access=driverRoot,nvml.driverRoot.privileged=false,nvml.driverRoot.path="+w.root+",host.sys="+w.sys)
	content, err := os.ReadFile(filepath.Join(folder, "gpu-labeller"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(string(content)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			got[key] = value
		}
	}
	if want := w.withoutPCI(); !maps.Equal(got, want) {
		t.Errorf("the feature file says\n%s", content)
	}
	w.runHelm(t, "uninstall", "gpu-labeller", "--namespace=gpus", "--wait", "--timeout=120s")
}

// withoutPCI are the labels where NFD gives those of PCI functions.
func (w *world) withoutPCI() map[string]string {
	want := maps.Clone(w.want)
	maps.DeleteFunc(want, func(key, _ string) bool { return strings.HasPrefix(key, "feature.node.kubernetes.io/pci-") })
	return want
}

// overlay writes one over manifests/overlays/direct.
func (w *world) overlay(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	direct, err := filepath.Abs(root + "/manifests/overlays/direct")
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(folder, direct)
	if err != nil {
		t.Fatal(err)
	}
	content := fmt.Sprintf(`
resources: [%s]
patches:
- patch: |
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: gpu-labeller, namespace: gpu-labeller}
    spec:
      template:
        spec:
          containers:
          - name: gpu-labeller
            volumeMounts:
            - {name: injected, mountPath: /usr/local/nvidia/lib64, readOnly: true}
          volumes:
          - {name: sys, hostPath: {path: %s}}
          - {name: injected, hostPath: {path: %s/usr/lib64}}
`, relative, w.sys, w.root)
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

func (w *world) rolledOut(t *testing.T, namespace string) {
	t.Helper()
	if _, err := w.TryKubectl("rollout", "status", "daemonset/gpu-labeller", "-n", namespace, "--timeout=60s"); err != nil {
		pod := w.pod(t, namespace)
		t.Fatalf("%v\n%s\nthe agent says:\n%s", err, w.Kubectl("describe", "pod", "-n", namespace, pod.Metadata.Name), w.node.Log(namespace, pod.Metadata.Name))
	}
}

// labelled compares the Node's labels with the recorded host's.
func (w *world) labelled(t *testing.T) {
	t.Helper()
	got := w.ours(t)
	for _, key := range slices.Sorted(maps.Keys(w.want)) {
		if value, ok := got[key]; !ok || value != w.want[key] {
			t.Errorf("label %s is %q, want %q", key, value, w.want[key])
		}
		delete(got, key)
	}
	for key, value := range got {
		t.Errorf("label %s=%s is too much", key, value)
	}
}

func (w *world) unlabelled(t *testing.T) {
	t.Helper()
	if got := w.ours(t); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

var ours = regexp.MustCompile(`^(nvidia\.com|([a-z]+\.)?feature\.node\.kubernetes\.io)/`)

// ours are the labels of the Node that only we could have set.
func (w *world) ours(t *testing.T) map[string]string {
	t.Helper()
	var node struct {
		Metadata struct{ Labels map[string]string }
	}
	w.get(t, &node, "node", nodeName)
	maps.DeleteFunc(node.Metadata.Labels, func(key, _ string) bool { return !ours.MatchString(key) })
	return node.Metadata.Labels
}

type pod struct {
	Metadata struct{ Name, UID string }
	Spec     struct{ NodeName string }
	Status   struct {
		Phase, PodIP      string
		ContainerStatuses []struct{ RestartCount int }
	}
}

// pod is the agent's on the node.
func (w *world) pod(t *testing.T, namespace string) pod {
	t.Helper()
	var list struct{ Items []pod }
	w.get(t, &list, "pods", "-n", namespace, "-l", "app.kubernetes.io/component=agent")
	for _, p := range list.Items {
		if p.Spec.NodeName != nodeName {
			t.Errorf("an agent runs on %q, where it is paused", p.Spec.NodeName)
		}
	}
	if len(list.Items) == 0 {
		t.Fatalf("no agent in %s: %s", namespace, w.Kubectl("get", "events", "-n", namespace))
	}
	return list.Items[len(list.Items)-1]
}

// within looks at what the pod has used.
func (w *world) within(t *testing.T, p pod) {
	t.Helper()
	peak, limit := w.node.Memory(p.Metadata.UID)
	t.Logf("the pod used at most %.1f MiB of %.0f", float64(peak)/(1<<20), float64(limit)/(1<<20))
	// Without pages of the program file, most of which the page cache had already.
	if limit != 64<<20 || peak > 32<<20 {
		t.Errorf("memory: %d bytes at most, of %d", peak, limit)
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.RestartCount > 0 {
			t.Errorf("it was restarted %d times", c.RestartCount)
		}
	}
}

// scheduling makes pods that want a GPU the node has, and one it has not.
func (w *world) scheduling(t *testing.T) {
	made := ""
	for name, affinity := range map[string]string{
		"product":       `{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-H200]}`,
		"memory":        `{key: nvidia.com/gpu.memory, operator: Gt, values: ["100000"]}`,
		"state":         `{key: gpu.feature.node.kubernetes.io/state, operator: In, values: [ok]}`,
		"wrong-product": `{key: nvidia.com/gpu.product, operator: In, values: [Tesla-T4]}`,
		"wrong-memory":  `{key: nvidia.com/gpu.memory, operator: Gt, values: ["200000"]}`,
	} {
		made += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {test: scheduling}}
spec:
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [%s]}]}}}
  terminationGracePeriodSeconds: 1
  containers: [{name: pause, image: %s}]
`, name, affinity, pauseImage)
	}
	w.Apply(made)
	w.Kubectl("wait", "--for=condition=Ready", "pod/product", "pod/memory", "pod/state", "--timeout=60s")
	w.Kubectl("wait", `--for=jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}=Unschedulable`, "pod/wrong-product", "pod/wrong-memory", "--timeout=60s")
	w.Kubectl("delete", "pods", "-l", "test=scheduling")
}

// rights sends patches with the token that the kubelet gave to the pod.
func (w *world) rights(t *testing.T, token string) {
	const own, other = "/api/v1/nodes/" + nodeName, "/api/v1/nodes/node-b"
	for _, r := range []struct {
		name, path, body string
		want             int
	}{
		{"own label", own, `{"metadata":{"labels":{"nvidia.com/gpu.clique":"x"}}}`, 200},
		{"without it", own, `{"metadata":{"labels":{"nvidia.com/gpu.clique":null}}}`, 200},
		{"another Node", other, `{"metadata":{"labels":{"nvidia.com/gpu.replicas":"1"}}}`, 403},
		{"foreign label", own, `{"metadata":{"labels":{"example.com/x":"y"}}}`, 403},
		{"the operator's label", own, `{"metadata":{"labels":{"nvidia.com/gpu.deploy.client":"false"}}}`, 403},
		{"annotation", own, `{"metadata":{"annotations":{"example.com/x":"y"}}}`, 403},
		{"finalizer", own, `{"metadata":{"finalizers":["example.com/x"]}}`, 403},
		{"owner", own, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node-b","uid":"0"}]}}`, 403},
		{"taint", own, `{"spec":{"taints":[{"key":"x","effect":"NoSchedule"}]}}`, 403},
		{"cordon", own, `{"spec":{"unschedulable":true}}`, 403},
		{"status", own + "/status", `{"status":{"capacity":{"nvidia.com/gpu":"8"}}}`, 403},
	} {
		config := w.ConfigWithToken(token)
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, config.Host+r.path, strings.NewReader(r.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/merge-patch+json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != r.want {
			t.Errorf("%s: %d, want %d: %s", r.name, resp.StatusCode, r.want, body)
		}
	}
	w.labelled(t)
}

// unmoved watches the Node while f runs: no state of it has other labels.
func (w *world) unmoved(t *testing.T, f func()) {
	t.Helper()
	config := w.Config()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(config.Host + "/api/v1/nodes?watch=true&fieldSelector=metadata.name%3D" + nodeName)
	if err != nil {
		t.Fatal(err)
	}
	type seen struct{ states, moved int }
	done := make(chan seen)
	go func() {
		var s seen
		for decoder := json.NewDecoder(resp.Body); ; {
			var event struct {
				Object struct {
					Metadata struct{ Labels map[string]string }
				}
			}
			if decoder.Decode(&event) != nil {
				done <- s // closed below
				return
			}
			s.states++
			for key, value := range w.want {
				if event.Object.Metadata.Labels[key] != value {
					s.moved++
					break
				}
			}
		}
	}()
	f()
	time.Sleep(time.Second) // what the new pod writes, it writes at once
	resp.Body.Close()
	s := <-done
	if s.states == 0 || s.moved > 0 {
		t.Errorf("of %d states of the Node, %d had other labels", s.states, s.moved)
	}
	w.labelled(t)
}

// get decodes an object that kubectl gets.
func (w *world) get(t *testing.T, into any, args ...string) {
	t.Helper()
	out := w.Kubectl(append([]string{"get", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatal(err)
	}
}

func (w *world) runHelm(t *testing.T, args ...string) {
	t.Helper()
	begin := time.Now()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"tool", "-modfile=" + root + "/manifests/tools/go.mod", "helm"}, args...)...)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+w.Kubeconfig())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("helm %s: %v\n%s\n%s", strings.Join(args, " "), err, out, w.Kubectl("get", "pods,events", "-A"))
	}
	t.Logf("helm %s in %.1f s", args[0], time.Since(begin).Seconds())
}

// agent builds the agent's image, with the name that the manifests have.
func agent(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "gpu-labeller")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w -X main.release=v0.1.0", "-o", program, "./cmd/gpu-labeller")
	build.Dir = root
	build.Env = append(build.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if info, err := os.Stat(program); err != nil {
		t.Fatal(err)
	} else if info.Size() > 20e6 {
		t.Errorf("the binary has %d bytes", info.Size())
	}
	img, err := image.Agent("ghcr.io/gpu-labeller/gpu-labeller:v0.1.0", program, "v0.1.0", "", time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	return write(t, img)
}

// pause builds the image that holds a pod's namespaces.
func pause(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pause")
	build := exec.Command("gcc", "-x", "c", "-static", "-O1", "-o", program, "-")
	build.Stdin = strings.NewReader(`#include <signal.h>
#include <unistd.h>
static void end(int s) { (void)s; _exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
`)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	file, err := image.FromDisk(program, "/pause", 0o755)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, &image.Image{Name: pauseImage, Files: []image.File{file}, Entrypoint: []string{"/pause"}})
}

func write(t *testing.T, img *image.Image) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := img.WriteTo(f); err != nil {
		t.Fatal(err)
	}
	return path
}
