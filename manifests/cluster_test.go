package manifests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/internal/cluster"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

const runtimeClass = `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: nvidia
`

// TestCluster gives the manifests to a real API server. No kubelet runs: pods are
// bound to Nodes, and their tokens are asked for.
func TestCluster(t *testing.T) {
	c := cluster.Start(t)
	c.Apply(runtimeClass)
	c.ApplyNodeFeatures()
	c.Kubectl("create", "namespace", "gpu-operator")
	c.Kubectl("create", "namespace", "gpu-labeller")
	for _, name := range []string{"node-a", "node-b"} {
		c.CreateNode(name)
	}

	t.Run("strict", func(t *testing.T) {
		for _, o := range overlays {
			strict(t, c, "-k", filepath.Join("overlays", o.name))
			if o.cleanup != "" {
				strict(t, c, "-k", filepath.Join("cleanup", o.cleanup))
			}
		}
		for _, set := range []string{"nvml.access=driverRoot", "nvml.access=driverRoot,nvml.driverRoot.privileged=false,config.configMap=c,host.sys=", "sinks={node,feature-file},monitoring.dashboard.enabled=true", "networkPolicy.enabled=true", "networkPolicy.enabled=true,networkPolicy.from[0].ipBlock.cidr=10.0.0.0/8", "taint.enabled=true", "taint.enabled=true,taint.key=example.com/gpu,taint.value=,taint.effect=NoExecute"} {
			out := tool(t, "helm", "template", "x", "chart/gpu-labeller", "--namespace", "gpu-labeller", "--set", set)
			file := filepath.Join(t.TempDir(), "rendered.yaml")
			if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
				t.Fatal(err)
			}
			strict(t, c, "-f", file)
		}
	})
	t.Run("restricted", func(t *testing.T) { restricted(t, c) })
	t.Run("examples", func(t *testing.T) { examples(t, c) })
	t.Run("direct", func(t *testing.T) { ownNode(t, c) })
	t.Run("cleanup", func(t *testing.T) { cleanup(t, c) })
	t.Run("taint", func(t *testing.T) { ownTaint(t, c) })
	t.Run("notes", func(t *testing.T) { notes(t, c) })
	t.Run("nodefeature", func(t *testing.T) { ownNodeFeature(t, c) })
	t.Run("flowschema", func(t *testing.T) { ownFlow(t, c) })
}

// ownFlow: with the FlowSchema that is applied as it is, the agents of every overlay
// are in it, and others are not.
func ownFlow(t *testing.T, c *cluster.Cluster) {
	strict(t, c, "-f", "flowschema")
	c.Kubectl("apply", "-f", "flowschema")
	want := c.Kubectl("get", "flowschema", "gpu-labeller", "-o", "jsonpath={.metadata.uid}")
	flowOf := func(namespace, name string) string {
		client, err := rest.HTTPClientFor(c.ConfigWithToken(c.ServiceAccountToken(namespace, name, "")))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Get(c.Config().Host + ownNodePath)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.Header.Get("X-Kubernetes-PF-FlowSchema-UID")
	}
	for _, namespace := range namespaces() {
		_, _ = c.TryKubectl("create", "serviceaccount", "gpu-labeller", "-n", namespace) // or it is there
		got := ""
		for deadline := time.Now().Add(30 * time.Second); got != want && time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
			got = flowOf(namespace, "gpu-labeller")
		}
		if got != want {
			t.Errorf("an agent in namespace %s is in FlowSchema %q, want %q", namespace, got, want)
		}
	}
	if got := flowOf("default", "default"); got == "" || got == want {
		t.Errorf("another ServiceAccount is in FlowSchema %q", got)
	}
}

// strict asks the API server whether it would take everything, unknown fields and
// warnings included.
func strict(t *testing.T, c *cluster.Cluster, args ...string) {
	t.Helper()
	_, err := c.TryKubectl(append([]string{"apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors"}, args...)...)
	if err != nil {
		t.Errorf("%s: %v", strings.Join(args, " "), err)
	}
}

// restricted installs without /sys where the Pod Security Standard "restricted" is
// enforced.
func restricted(t *testing.T, c *cluster.Cluster) {
	c.Apply(`
apiVersion: v1
kind: Namespace
metadata: {name: restricted, labels: {pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/warn: restricted}}
`)
	out := tool(t, "helm", "template", "x", "chart/gpu-labeller", "--namespace", "restricted", "--set", "host.sys=")
	file := filepath.Join(t.TempDir(), "rendered.yaml")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	strict(t, c, "-f", file)
}

// examples applies them beside two Nodes with the labels of recorded hosts, and looks
// where their pods go.
func examples(t *testing.T, c *cluster.Cluster) {
	for node, host := range map[string]string{"h200": "h200x1", "mig": "gfd-mig-mixed-h200", "t4": "gfd-t4x4"} {
		c.CreateNode(node)
		labels := hostLabels(t, host)
		if len(labels) == 0 {
			t.Fatalf("host %s has no labels", host)
		}
		patch(t, c, "/api/v1/nodes/"+node, map[string]any{"metadata": map[string]any{"labels": labels}})
		count := map[string]string{"nvidia.com/gpu": "8", "nvidia.com/mig-1g.18gb": "0"}
		if node == "mig" {
			count = map[string]string{"nvidia.com/gpu": "0", "nvidia.com/mig-1g.18gb": "7"}
		}
		patch(t, c, "/api/v1/nodes/"+node+"/status", map[string]any{"status": map[string]any{"capacity": count, "allocatable": count}})
	}
	files, err := filepath.Glob("examples/*.yaml")
	if err != nil || len(files) != 6 {
		t.Fatalf("examples: %v, %v", files, err)
	}
	for _, file := range files {
		strict(t, c, "-f", file)
		c.Kubectl("apply", "-f", file)
	}
	for pod, node := range map[string]string{
		"pod/node-selector": "h200", "pod/toleration": "h200", "pod/mig-slice": "mig", "pod/nvidia-smi": "node-a",
		"pods --selector=app=memory-and-family": "h200", "pod/resource-claim": "",
	} {
		if strings.HasPrefix(pod, "pod/toleration") {
			// Any node with usable GPUs.
			node = "h200 t4"
		}
		var got string
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
			got = c.Kubectl(append([]string{"get", "-o", "jsonpath={..spec.nodeName}"}, strings.Fields(pod)...)...)
			if got != "" || node == "" {
				break
			}
		}
		if node == "" && got != "" || node != "" && (got == "" || !strings.Contains(node, got)) {
			t.Errorf("%s is on node %q, want %q", pod, got, node)
		}
	}
}

// hostLabels are the labels that a recorded host must give.
func hostLabels(t *testing.T, name string) map[string]string {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("../testdata/hosts", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]string{}
	for _, f := range archive.Files {
		if f.Name != "want.labels" {
			continue
		}
		for line := range strings.Lines(string(f.Data)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
				set[key] = value
			}
		}
	}
	return set
}

// request is one that a policy lets through or refuses.
type request struct {
	name   string
	method string // default PATCH
	path   string
	kind   string // of a patch; default merge
	body   string
	says   string // in the refusal; empty if it is to be allowed
}

const ownNodePath = "/api/v1/nodes/node-a"

// nodeRequests are what an agent on node-a may and may not do, whatever the labels.
var nodeRequests = []request{
	{name: "label", path: ownNodePath, body: `{"metadata":{"labels":{"nvidia.com/gpu.count":"8","gpu.feature.node.kubernetes.io/state":"ok"}}}`},
	{name: "change it", path: ownNodePath, kind: "strategic-merge", body: `{"metadata":{"labels":{"nvidia.com/gpu.count":"7"}}}`},
	{name: "by JSON patch", path: ownNodePath, kind: "json", body: `[{"op":"replace","path":"/metadata/labels/nvidia.com~1gpu.count","value":"6"}]`},
	{name: "remove it", path: ownNodePath, body: `{"metadata":{"labels":{"nvidia.com/gpu.count":null}}}`},
	{name: "MIG label", path: ownNodePath, body: `{"metadata":{"labels":{"nvidia.com/mig-1g.18gb.count":"7"}}}`},
	{name: "apply", path: ownNodePath + "?fieldManager=gpu-labeller", kind: "apply", body: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-a","labels":{"nvidia.com/gpu.product":"NVIDIA-H200"}}}`},

	{name: "another Node", path: "/api/v1/nodes/node-b", body: `{"metadata":{"labels":{"nvidia.com/gpu.count":"8"}}}`, says: `an agent on Node "node-a" may not change Node "node-b"`},
	{name: "foreign label", path: ownNodePath, body: `{"metadata":{"labels":{"example.com/x":"y"}}}`, says: "may not be changed: example.com/x"},
	{name: "foreign beside own", path: ownNodePath, body: `{"metadata":{"labels":{"nvidia.com/gpu.count":"8","node-role.kubernetes.io/control-plane":""}}}`, says: "may not be changed: node-role.kubernetes.io/control-plane"},
	{name: "foreign changed", path: ownNodePath, body: `{"metadata":{"labels":{"kubernetes.io/hostname":"x"}}}`, says: "may not be changed: kubernetes.io/hostname"},
	{name: "foreign removed", path: ownNodePath, body: `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`, says: "may not be changed: kubernetes.io/hostname"},
	{name: "the operator's", path: ownNodePath, body: `{"metadata":{"labels":{"nvidia.com/gpu.deploy.client":"false"}}}`, says: "may not be changed: nvidia.com/gpu.deploy.client"},
	{name: "a user's", path: ownNodePath, body: `{"metadata":{"labels":{"nvidia.com/mig.config":"all-1g.18gb"}}}`, says: "may not be changed: nvidia.com/mig.config"},
	{name: "annotation", path: ownNodePath, body: `{"metadata":{"annotations":{"nvidia.com/x":"y"}}}`, says: "annotations may not be changed"},
	{name: "finalizer", path: ownNodePath, body: `{"metadata":{"finalizers":["nvidia.com/x"]}}`, says: "finalizers may not be changed"},
	{name: "owner", path: ownNodePath, body: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node-b","uid":"00000000-0000-0000-0000-000000000000"}]}}`, says: "owner references may not be changed"},
	{name: "cordon", path: ownNodePath, body: `{"spec":{"unschedulable":true}}`, says: "the spec, its taints included, may not be changed"},
	{name: "taint", path: ownNodePath, body: `{"spec":{"taints":[{"key":"nvidia.com/gpu","effect":"NoSchedule"}]}}`, says: "the spec, its taints included, may not be changed"},
	{name: "taint of --taint", path: ownNodePath, body: `{"spec":{"taints":[{"key":"nvidia.com/gpu","value":"present","effect":"NoSchedule"}]}}`, says: "the spec, its taints included, may not be changed"},
	{name: "status", path: ownNodePath + "/status", body: `{"status":{"capacity":{"nvidia.com/gpu":"8"}}}`, says: `cannot patch resource "nodes/status"`},
	{name: "delete", method: http.MethodDelete, path: ownNodePath, says: "cannot delete resource"},
	{name: "list", method: http.MethodGet, path: "/api/v1/nodes", says: "cannot list resource"},
	{name: "secrets", method: http.MethodGet, path: "/api/v1/namespaces/gpu-labeller/secrets", says: "cannot list resource"},
	{name: "event elsewhere", method: http.MethodPost, path: "/api/v1/namespaces/gpu-labeller/events", body: `{}`, says: "cannot create resource"},
}

func ownNode(t *testing.T, c *cluster.Cluster) {
	c.Kubectl("apply", "-k", "overlays/direct")
	token := c.ServiceAccountToken("gpu-labeller", "gpu-labeller", podOn(t, c, "gpu-labeller", "node-a"))
	enforced(t, c, token, nodeRequests[6])
	for _, r := range nodeRequests {
		t.Run(r.name, func(t *testing.T) { r.check(t, c.ConfigWithToken(token)) })
	}
	t.Run("token of no pod", func(t *testing.T) {
		token := c.ServiceAccountToken("gpu-labeller", "gpu-labeller", "")
		r := nodeRequests[0]
		r.says = `an agent on Node "" may not change Node "node-a"`
		r.check(t, c.ConfigWithToken(token))
	})
	t.Run("others", func(t *testing.T) {
		r := nodeRequests[13]
		r.says = "" // the policy is not about them
		r.check(t, c.Config())
	})
}

func cleanup(t *testing.T, c *cluster.Cluster) {
	patch(t, c, ownNodePath, map[string]any{"metadata": map[string]any{"labels": map[string]any{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.family": "hopper"}}})
	c.Kubectl("apply", "-k", "cleanup/direct")
	token := c.ServiceAccountToken("gpu-labeller", "gpu-labeller-cleanup", "")
	enforced(t, c, token, request{path: ownNodePath, body: `{"metadata":{"labels":{"example.com/x":"y"}}}`, says: "may be removed only"})
	for _, r := range []request{
		{name: "remove", path: ownNodePath, body: `{"metadata":{"labels":{"nvidia.com/gpu.count":null}}}`},
		{name: "change", path: ownNodePath, body: `{"metadata":{"labels":{"nvidia.com/gpu.family":"volta"}}}`, says: "labels may be removed only"},
		{name: "add", path: "/api/v1/nodes/node-b", body: `{"metadata":{"labels":{"nvidia.com/gpu.count":"8"}}}`, says: "labels may be removed only"},
		{name: "foreign", path: ownNodePath, body: `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`, says: "may not be removed: kubernetes.io/hostname"},
		{name: "annotation", path: ownNodePath, body: `{"metadata":{"annotations":{"x":"y"}}}`, says: "annotations may not be changed"},
		{name: "taint", path: ownNodePath, body: `{"spec":{"taints":[{"key":"x","effect":"NoSchedule"}]}}`, says: "of taints, only nvidia.com/gpu=present:NoSchedule may be changed"},
		{name: "taint of --taint", path: ownNodePath, body: `{"spec":{"taints":[{"key":"nvidia.com/gpu","value":"present","effect":"NoSchedule"}]}}`, says: "taints may be removed only"},
		{name: "cordon", path: ownNodePath, body: `{"spec":{"unschedulable":true}}`, says: "may not be changed: unschedulable"},
		{name: "delete", method: http.MethodDelete, path: ownNodePath, says: "cannot delete resource"},
	} {
		t.Run(r.name, func(t *testing.T) { r.check(t, c.ConfigWithToken(token)) })
	}
}

// ownTaint has the policies of taint.enabled take the place of the others.
func ownTaint(t *testing.T, c *cluster.Cluster) {
	const first, second = `{"key":"example.com/a","value":"1","effect":"PreferNoSchedule"}`, `{"key":"example.com/b","effect":"PreferNoSchedule"}`
	const ours = `{"key":"nvidia.com/gpu","value":"present","effect":"NoSchedule"}`
	taints := func(all ...string) string { return `{"spec":{"taints":[` + strings.Join(all, ",") + `]}}` }
	const refused = "of taints, only nvidia.com/gpu=present:NoSchedule may be changed"
	request{path: ownNodePath, body: taints(first, second)}.check(t, c.Config())

	policies := func(template string) {
		c.Apply(tool(t, "helm", "template", "gpu-labeller", "chart/gpu-labeller", "--namespace", "gpu-labeller", "--set", "taint.enabled=true", "--show-only", "templates/"+template))
	}
	policies("policy.yaml")
	token := c.ServiceAccountToken("gpu-labeller", "gpu-labeller", podOn(t, c, "gpu-labeller", "node-a"))
	enforced(t, c, token, request{path: ownNodePath, body: taints(first), says: refused})
	for _, r := range []request{
		{name: "set it", path: ownNodePath, body: taints(first, second, ours)},
		{name: "take it away", path: ownNodePath, kind: "json", body: `[{"op":"remove","path":"/spec/taints/2"}]`},
		{name: "before others, with a label", path: ownNodePath, body: `{"metadata":{"labels":{"nvidia.com/gpu.count":"8"}},"spec":{"taints":[` + ours + `,` + first + `,` + second + `]}}`},
		{name: "all", path: ownNodePath, body: taints(), says: refused},
		{name: "the list", path: ownNodePath, body: `{"spec":{"taints":null}}`, says: refused},
		{name: "another's", path: ownNodePath, body: taints(first, ours), says: refused},
		{name: "another's value", path: ownNodePath, body: taints(strings.Replace(first, "1", "2", 1), second, ours), says: refused},
		{name: "another's effect", path: ownNodePath, body: taints(first, strings.Replace(second, "Prefer", "", 1), ours), says: refused},
		{name: "another's order", path: ownNodePath, body: taints(second, first, ours), says: refused},
		{name: "another's, new", path: ownNodePath, body: taints(first, second, `{"key":"example.com/c","effect":"NoExecute"}`), says: refused},
		{name: "another value", path: ownNodePath, body: taints(first, second, strings.Replace(ours, "present", "true", 1)), says: refused},
		{name: "another effect", path: ownNodePath, body: taints(first, second, strings.Replace(ours, "NoSchedule", "NoExecute", 1)), says: refused},
		{name: "no value", path: ownNodePath, body: taints(first, second, `{"key":"nvidia.com/gpu","effect":"NoSchedule"}`), says: refused},
		{name: "cordon", path: ownNodePath, body: `{"spec":{"unschedulable":true}}`, says: "the spec, but for a taint, may not be changed: unschedulable"},
		{name: "provider", path: ownNodePath, body: `{"spec":{"providerID":"x"}}`, says: "the spec, but for a taint, may not be changed: providerID"},
		{name: "another Node", path: "/api/v1/nodes/node-b", body: taints(ours), says: `may not change Node "node-b"`},
		{name: "foreign label", path: ownNodePath, body: `{"metadata":{"labels":{"example.com/x":"y"}}}`, says: "may not be changed: example.com/x"},
		{name: "annotation", path: ownNodePath, body: `{"metadata":{"annotations":{"x":"y"}}}`, says: "annotations may not be changed"},
	} {
		t.Run(r.name, func(t *testing.T) { r.check(t, c.ConfigWithToken(token)) })
	}

	// What other requests set, under keys of ours, would be in conflict.
	c.Kubectl("label", "node", "node-a", "gpu.feature.node.kubernetes.io/state-", "nvidia.com/gpu.count-", "nvidia.com/gpu.family-", "nvidia.com/mig-1g.18gb.count-")
	node := func(token string) *publish.Node {
		client, err := publish.NewClient(c.ConfigWithToken(token))
		if err != nil {
			t.Fatal(err)
		}
		wanted := func(labels.Set) bool { return true }
		return &publish.Node{Client: client, Name: "node-a", Taint: &publish.NodeTaint{Taint: publish.Taint{Key: "nvidia.com/gpu", Value: "present", Effect: "NoSchedule"}, Wanted: wanted}}
	}
	wantTaints := func(want string) {
		t.Helper()
		if got := c.Kubectl("get", "node", "node-a", "-o", "jsonpath={.spec.taints[*].key}"); got != want {
			t.Errorf("taints are %q, want %q", got, want)
		}
	}
	memory := labels.Set{"nvidia.com/gpu.memory": "1"}
	for _, set := range []labels.Set{nil, memory, nil, memory} {
		if err := node(token).Publish(t.Context(), set); err != nil {
			t.Error(err)
		}
	}
	wantTaints("example.com/a example.com/b nvidia.com/gpu")
	if warnings := c.Kubectl("get", "validatingadmissionpolicies", "-o", "jsonpath={..expressionWarnings}"); warnings != "" {
		t.Errorf("the API server warns of %s", warnings)
	}

	c.Kubectl("delete", "job", "gpu-labeller-cleanup", "-n", "gpu-labeller", "--ignore-not-found") // a Job does not change
	policies("cleanup.yaml")
	token = c.ServiceAccountToken("gpu-labeller", "gpu-labeller-cleanup", "")
	enforced(t, c, token, request{path: ownNodePath, body: taints(ours, first), says: refused})
	for _, r := range []request{
		{name: "remove another's", path: ownNodePath, body: taints(ours, first), says: refused},
		{name: "cordon", path: ownNodePath, body: `{"spec":{"unschedulable":true}}`, says: "may not be changed: unschedulable"},
		{name: "remove it", path: ownNodePath, body: `{"metadata":{"labels":{"nvidia.com/gpu.count":null}},"spec":{"taints":[` + first + `,` + second + `]}}`},
		{name: "set it", path: ownNodePath, body: taints(first, second, ours), says: "taints may be removed only"},
	} {
		t.Run("cleanup, "+r.name, func(t *testing.T) { r.check(t, c.ConfigWithToken(token)) })
	}
	request{path: ownNodePath, body: taints(first, ours, second)}.check(t, c.Config())
	if err := node(token).Publish(t.Context(), nil); err != nil {
		t.Error(err)
	}
	wantTaints("example.com/a example.com/b")
	request{path: ownNodePath, body: taints()}.check(t, c.Config())
}

// notes are what Helm says of a cluster, and of what was installed before.
func notes(t *testing.T, c *cluster.Cluster) {
	c.Kubectl("create", "namespace", "notes")
	helm := func(args ...string) string {
		t.Helper()
		out := tool(t, "helm", append(args, "--namespace=notes", "--kubeconfig", c.Kubeconfig())...)
		return out
	}
	says := func(out string, yes bool, want string) {
		t.Helper()
		if strings.Contains(out, want) != yes {
			t.Errorf("want %q: %v, in\n%s", want, yes, out)
		}
	}
	const chart = "chart/gpu-labeller"
	out := helm("install", "n", chart, "--dry-run=server", "--set", "nvml.runtimeClassName=other,nodeSelector.gpu=yes")
	says(out, true, `NO POD WILL START: the cluster has no RuntimeClass "other"`)
	says(out, true, "runs on the nodes with gpu=yes and publishes")
	out = helm("install", "n", chart, "--set", "taint.enabled=true,sinks={node,feature-file}")
	says(out, false, "NO POD WILL START")
	says(out, true, "runs on every node and publishes")
	says(out, false, "STAY")
	out = helm("upgrade", "n", chart, "--dry-run=server", "--set", "sinks={node-feature}")
	says(out, true, "THE TAINT nvidia.com/gpu=present:NoSchedule STAYS")
	says(out, true, "LABELS STAY that agents published to node until now")
	says(out, true, "gpu-labeller cleanup --all-nodes --sink=node\n")
	says(out, true, "gpu-labeller cleanup --sink=feature-file\n")
	out = helm("upgrade", "n", chart, "--dry-run=server", "--set", "taint.enabled=true,sinks={node,feature-file}")
	says(out, false, "STAY")

	// No kubelet runs, so the clean-up never ends. No Job stays that has lost its rights.
	_, err := tryTool("helm", "uninstall", "n", "--timeout=10s", "--namespace=notes", "--kubeconfig", c.Kubeconfig())
	if err == nil {
		t.Error("the clean-up can not have succeeded")
	}
	const all = "jobs,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
	var left string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if left = c.Kubectl("get", all, "-n", "notes", "-l", "app.kubernetes.io/instance=n", "-o", "name"); left == "" {
			break
		}
	}
	if left != "" {
		t.Errorf("after %v there are still\n%s", err, left)
	}
}

func ownNodeFeature(t *testing.T, c *cluster.Cluster) {
	c.Kubectl("apply", "-k", "overlays/nodefeature")
	token := c.ServiceAccountToken("gpu-labeller", "gpu-labeller", podOn(t, c, "gpu-labeller", "node-a"))
	const all = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gpu-labeller/nodefeatures"
	const own = all + "/gpu-labeller-features-for-node-a"
	object := func(name, node, spec string) string {
		return fmt.Sprintf(`{"apiVersion":"nfd.k8s-sigs.io/v1alpha1","kind":"NodeFeature","metadata":{"name":%q,"labels":{"nfd.node.kubernetes.io/node-name":%q}},"spec":%s}`, name, node, spec)
	}
	const empty = `{"labels":{}}`
	enforced(t, c, token, request{method: http.MethodPost, path: all + "?dryRun=All", body: object("x", "node-a", empty), says: "may not write"})
	for _, r := range []request{
		{name: "create", method: http.MethodPost, path: all, body: object("gpu-labeller-features-for-node-a", "node-a", `{"features":{"flags":{},"attributes":{},"instances":{}},"labels":{"nvidia.com/gpu.count":"8"}}`)},
		{name: "another name", method: http.MethodPost, path: all, body: object("node-a", "node-a", empty), says: `may not write NodeFeature "node-a"`},
		{name: "another Node's", method: http.MethodPost, path: all, body: object("gpu-labeller-features-for-node-b", "node-b", empty), says: `may not write NodeFeature "gpu-labeller-features-for-node-b"`},
		{name: "delete", method: http.MethodDelete, path: own},
		{name: "for another Node", method: http.MethodPost, path: all, body: object("gpu-labeller-features-for-node-a", "node-b", empty), says: "or for another Node"},
		{name: "foreign label", method: http.MethodPost, path: all, body: object("gpu-labeller-features-for-node-a", "node-a", `{"labels":{"example.com/x":"y"}}`), says: "may not be published: example.com/x"},
		{name: "features", method: http.MethodPost, path: all, body: object("gpu-labeller-features-for-node-a", "node-a", `{"features":{"flags":{"a.b":{"elements":{}}}}}`), says: "features may not be published"},
		{name: "the Node", path: ownNodePath, body: `{"metadata":{"labels":{"nvidia.com/gpu.count":"8"}}}`, says: "cannot patch resource"},
	} {
		t.Run(r.name, func(t *testing.T) { r.check(t, c.ConfigWithToken(token)) })
	}
}

// enforced waits until a policy is: the API server takes it up after a moment.
func enforced(t *testing.T, c *cluster.Cluster, token string, refused request) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		dry := refused
		if !strings.Contains(dry.path, "?") {
			dry.path += "?dryRun=All"
		}
		status, answer := dry.send(t, c.ConfigWithToken(token))
		if status == http.StatusForbidden && strings.Contains(answer, refused.says) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no policy is enforced after 30 s: status %d, %s", status, answer)
		}
	}
}

// check sends r and compares the answer.
func (r request) check(t *testing.T, config *rest.Config) {
	t.Helper()
	status, answer := r.send(t, config)
	switch {
	case r.says == "" && status/100 != 2:
		t.Errorf("want it to be allowed, got %d %s", status, answer)
	case r.says != "" && (status != http.StatusForbidden || !strings.Contains(answer, r.says)):
		t.Errorf("want 403 and %q, got %d %s", r.says, status, answer)
	}
}

func (r request) send(t *testing.T, config *rest.Config) (status int, message string) {
	t.Helper()
	method, contentType := r.method, "application/json"
	if method == "" {
		method = http.MethodPatch
		switch r.kind {
		case "":
			contentType = "application/merge-patch+json"
		case "apply":
			contentType = "application/apply-patch+yaml"
		default:
			contentType = "application/" + r.kind + "-patch+json"
		}
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, config.Host+r.path, strings.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Message string }
	_ = json.Unmarshal(body, &answer)
	return resp.StatusCode, answer.Message
}

// podOn waits for the DaemonSet's pod on a Node and returns its name.
func podOn(t *testing.T, c *cluster.Cluster, namespace, node string) string {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		pod := c.Kubectl("get", "pods", "-n", namespace, "--selector=app.kubernetes.io/component=agent", "--field-selector=spec.nodeName="+node, "-o", "jsonpath={.items[*].metadata.name}")
		if pod != "" {
			return strings.Fields(pod)[0]
		}
		if time.Now().After(deadline) {
			t.Fatalf("no pod on %s after 30 s:\n%s", node, c.Kubectl("get", "events", "-A"))
		}
	}
}

// patch merges body with all rights.
func patch(t *testing.T, c *cluster.Cluster, path string, body any) {
	t.Helper()
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(body); err != nil {
		t.Fatal(err)
	}
	request{path: path, body: b.String()}.check(t, c.Config())
}
