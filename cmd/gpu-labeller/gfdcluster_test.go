package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/internal/cluster"
)

const gfdDaemonSet = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: gpu-feature-discovery, namespace: gpu-operator}
spec:
  selector: {matchLabels: {app: gpu-feature-discovery}}
  template:
    metadata: {labels: {app: gpu-feature-discovery}}
    spec: {containers: [{name: gpu-feature-discovery, image: example.com/none}]}
`

const gfdObject = `
apiVersion: nfd.k8s-sigs.io/v1alpha1
kind: NodeFeature
metadata:
  name: nvidia-features-for-node-a
  namespace: gpu-operator
  labels: {nfd.node.kubernetes.io/node-name: node-a}
spec:
  features: {flags: {}, attributes: {}, instances: {}}
  labels: {nvidia.com/gpu.product: NVIDIA-H200, nvidia.com/gfd.timestamp: "1754006400", nvidia.com/gpu.old: "1"}
`

// TestGFDInCluster takes over from GFD with the rights that it has, as when only
// the image is changed, and compares by diff.
func TestGFDInCluster(t *testing.T) {
	c := cluster.Start(t)
	c.CreateNode("node-a")
	c.ApplyNodeFeatures()
	// What the GPU Operator gives to GFD (v26.7.0): no right to write Nodes, and none
	// to delete NodeFeatures.
	token := c.ServiceAccount("gpu-operator", "gfd",
		`{apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}`,
		`{apiGroups: [nfd.k8s-sigs.io], resources: [nodefeatures], verbs: [get, list, watch, create, update]}, {apiGroups: [""], resources: [pods], verbs: [get]}`)
	c.Apply(gfdDaemonSet)
	c.Apply(gfdObject)
	m := newMachine(t, h200, "0000:10:00.0")
	m.write("config.yaml", "version: v1\n")
	kubeconfig := filepath.Join(m.root, "kubeconfig")
	m.write("kubeconfig", string(c.KubeconfigWithToken(token)))
	pod := ""
	for range 600 {
		if pod = strings.TrimSpace(c.Kubectl("-n", "gpu-operator", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")); pod != "" {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}

	p := command(t)
	p.cmd.Args = []string{gfdName}
	p.cmd.Env = append(os.Environ(), "GFD_SLEEP_INTERVAL=60s", "GFD_FAIL_ON_INIT_ERROR=true", "NAMESPACE=gpu-operator", "NODE_NAME=node-a",
		"POD_NAME="+pod, "MIG_STRATEGY=single", "CONFIG_FILE="+filepath.Join(m.root, "config.yaml"), "KUBECONFIG="+kubeconfig,
		"LD_LIBRARY_PATH="+filepath.Join(m.driver, "usr/lib64"))
	elsewhere := command(t)
	elsewhere.cmd.Args, elsewhere.cmd.Env = []string{gfdName, "--root", m.root}, p.cmd.Env
	if err := elsewhere.cmd.Run(); err == nil || !strings.Contains(elsewhere.String(), `this host is not Node "node-a"`) {
		t.Errorf("on a host that is not the Node: %v\n%s", err, elsewhere)
	}
	p.cmd.Args = append(p.cmd.Args, "--root", m.root, "--force-node-name")
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Logf("%s", p)
		}
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	}()
	type object struct {
		Metadata struct {
			Labels          map[string]string `json:"labels"`
			OwnerReferences []struct {
				Kind, Name string
			} `json:"ownerReferences"`
		} `json:"metadata"`
		Spec struct {
			Labels map[string]string `json:"labels"`
		} `json:"spec"`
	}
	read := func() (o object) {
		if err := json.Unmarshal([]byte(c.Kubectl("-n", "gpu-operator", "get", "nodefeature", "nvidia-features-for-node-a", "-o", "json")), &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	await := func(key, value string) object {
		t.Helper()
		for range 300 {
			if o := read(); o.Spec.Labels[key] == value {
				return o
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Fatalf("%s is not %q in 30 s: %v", key, value, read())
		return object{}
	}
	o := await("nvidia.com/gpu.count", "1")
	if o.Spec.Labels["nvidia.com/gpu.old"] != "" || o.Spec.Labels["nvidia.com/mig.strategy"] != "single" ||
		o.Metadata.Labels["nfd.node.kubernetes.io/node-name"] != "node-a" {
		t.Errorf("object is %+v", o)
	}
	if len(o.Metadata.OwnerReferences) != 2 || o.Metadata.OwnerReferences[0].Kind != "DaemonSet" || o.Metadata.OwnerReferences[1].Kind != "Pod" {
		t.Errorf("owners are %+v", o.Metadata.OwnerReferences)
	}

	// The config-manager writes a file and sends a signal.
	m.write("config.yaml", "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n")
	_ = p.cmd.Process.Signal(syscall.SIGHUP)
	o = await("nvidia.com/gpu.product", "NVIDIA-H200-SHARED")
	p.stop(t)
	if after := read(); !maps.Equal(after.Spec.Labels, o.Spec.Labels) {
		t.Errorf("labels changed when it ended: %v", after.Spec.Labels)
	}

	// What NFD would do.
	args := []string{"label", "node", "node-a"}
	for key, value := range o.Spec.Labels {
		args = append(args, key+"="+value)
	}
	c.Kubectl(args...)
	c.Kubectl("label", "node", "node-a", "nvidia.com/gpu.deploy.driver=true", "nvidia.com/gpu.present=true")
	compare := func(want int, says string, more ...string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		code := run(append([]string{"diff", "--root", m.root, "--driver-root", m.driver, "--node-name", "node-a", "--kubeconfig", kubeconfig}, more...), &stdout, &stderr)
		if code != want || !strings.Contains(stdout.String()+stderr.String(), says) {
			t.Errorf("diff %v: exit code %d, want %d and %q\n%s%s", more, code, want, says, &stdout, &stderr)
		}
	}
	config := "--config-file=" + filepath.Join(m.root, "config.yaml")
	compare(0, "equal: ", "--gfd", "--mig-strategy=single", config)
	compare(1, "nvidia.com/gpu.product", "--gfd", "--mig-strategy=single")
	compare(1, "THERE  Node node-a", "--mig-strategy=single", config)
	compare(2, "no such Node", "--node-name=node-z")

	// DRA: the right to list, and a slice as NVIDIA's driver publishes it.
	compare(2, "not allowed to list resourceslices.resource.k8s.io", "--dra")
	kubeconfig = c.Kubeconfig()
	compare(2, "there is no ResourceSlice of the driver gpu.nvidia.com", "--dra")
	c.Apply(`
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-a-gpu}
spec:
  driver: gpu.nvidia.com
  nodeName: node-a
  pool: {name: node-a, generation: 1, resourceSliceCount: 1}
  devices:
  - name: gpu-0
    attributes:
      type: {string: gpu}
      uuid: {string: GPU-0}
      productName: {string: NVIDIA H200}
      architecture: {string: Hopper}
      cudaComputeCapability: {version: 9.0.0}
      driverVersion: {version: 550.107.2}
      cudaDriverVersion: {version: 12.5.0}
    capacity: {memory: {value: 143771Mi}}
`)
	compare(0, "equal: 8 compared", "--dra")
}
