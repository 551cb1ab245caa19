package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/internal/cluster"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// TestCluster looks at a real control plane, whose answers and managed fields are
// not of our making; there is no kubelet in it.
func TestCluster(t *testing.T) {
	k := cluster.Start(t)
	k.CreateNode("node-a")
	advertise := func(n string) {
		k.Kubectl("patch", "node", "node-a", "--subresource=status", "--type=merge", "-p",
			`{"status":{"capacity":{"nvidia.com/gpu":"`+n+`"},"allocatable":{"nvidia.com/gpu":"`+n+`"}}}`)
	}
	advertise("1")
	c := onHost(t, hostFiles(t)["h200x1"])
	h := readHost(t.Context(), &c)
	set, _ := labels.Compute(h.inv, labels.Options{OmitPCI: true})
	client, err := publish.NewClient(k.Config())
	if err != nil {
		t.Fatal(err)
	}
	sink := &publish.Node{Client: client, Name: "node-a"}
	if err := sink.Publish(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	admin, err := NewCluster(k.Config())
	if err != nil {
		t.Fatal(err)
	}
	c.Cluster, c.Node = admin, "node-a"
	blames := func(want ...string) *Report {
		t.Helper()
		r := Run(t.Context(), c)
		wantBlamed(t, r, want...)
		return r
	}
	says := func(r *Report, name string, result Result, text string) {
		t.Helper()
		check := find(t, r, name)
		if all := check.Text + "\n" + strings.Join(check.Evidence, "\n") + "\n" + check.Cure; check.Result != result || !strings.Contains(all, text) {
			t.Errorf("%s: %s %q, want %s with %q", name, check.Result, all, result, text)
		}
	}

	says(blames(), "labels", OK, "labels are as expected")

	k.Kubectl("label", "--overwrite", "node", "node-a", "nvidia.com/gpu.product=NVIDIA-H100")
	says(blames("discovery/labels"), "labels", Fault, "set by kubectl-label")
	k.Kubectl("label", "--overwrite", "node", "node-a", "nvidia.com/gpu.product=NVIDIA-H200")

	advertise("0")
	says(blames("components/device-plugin"), "nvidia.com/gpu", Follows, "advertises none")
	advertise("1")

	k.Apply(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"name":"s"},"spec":{"driver":"gpu.nvidia.com","nodeName":"node-a",
		"pool":{"name":"node-a","generation":1,"resourceSliceCount":1},"devices":[{"name":"gpu-0","attributes":{
		"type":{"string":"gpu"},"uuid":{"string":"GPU-1"},"driverVersion":{"version":"570.86.10"}}}]}}`)
	says(blames("advertisement/resource-slices"), "resource-slices", Fault, "570.86.10")
	k.Kubectl("delete", "resourceslice", "s")

	// A pod that the scheduler really does not place.
	k.Apply(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"train-0","namespace":"default"},"spec":{"nodeSelector":{"nvidia.com/gpu.product":"NVIDIA-B200"},
		"containers":[{"name":"main","image":"image","resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}`)
	c.Pod = "default/train-0"
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) && !strings.Contains(k.Kubectl("get", "pod", "train-0", "-o", "jsonpath={.status.conditions}"), "Unschedulable") {
		time.Sleep(200 * time.Millisecond)
	}
	r := blames("scheduling/node-selector")
	says(r, "pod", Warning, "Unschedulable")
	says(r, "requests", OK, "asked 1, allocatable 1, in use 0")
	k.Kubectl("delete", "pod", "train-0", "--now")
	c.Pod = ""

	// The API server takes the test pod, the scheduler binds it, nobody runs it.
	c.TestPod = &TestPod{Namespace: "default", Image: "image", Timeout: 5 * time.Second, Poll: 100 * time.Millisecond}
	says(blames("runtime/test-pod"), "test-pod", Fault, "did not end")
	if left := k.Kubectl("get", "pods", "-o", "name"); strings.TrimSpace(left) != "" {
		t.Errorf("the test pod was left behind: %s", left)
	}
	c.TestPod = nil

	// The agent's own rights.
	token := k.ServiceAccount("default", "agent", `{apiGroups: [""], resources: [nodes], verbs: [get, patch, watch]}`, "")
	if c.Cluster, err = NewCluster(k.ConfigWithToken(token)); err != nil {
		t.Fatal(err)
	}
	r = blames()
	says(r, "labels", OK, "labels are as expected")
	says(r, "nvidia.com/gpu", OK, "1 are allocatable")
	says(r, "pods", Skipped, "not allowed to list pods")
	says(r, "resource-slices", Skipped, "not allowed to list resourceslices.resource.k8s.io")
	says(r, "runtime-class", Skipped, "not allowed to get runtimeclasses.node.k8s.io")
}
