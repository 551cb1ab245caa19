package fleet

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pod(name, node string, requests corev1.ResourceList) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "main", Resources: corev1.ResourceRequirements{Requests: requests},
		}}},
	}
}

func gpus(n string) corev1.ResourceList {
	return corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)}
}

// TestUsage counts what holds GPUs: not what has ended or waits, nor the pod that
// is to be placed, and an init container only as far as it asks for more.
func TestUsage(t *testing.T) {
	ended := pod("ended", "node-a", gpus("4"))
	ended.Status.Phase = corev1.PodFailed
	init := pod("init", "node-a", gpus("1"))
	init.Spec.InitContainers = []corev1.Container{{Name: "init", Resources: corev1.ResourceRequirements{Requests: gpus("2")}}}
	me := pod("me", "", gpus("8"))
	me.Status.NominatedNodeName = "node-a"
	nominated := pod("nominated", "", gpus("1"))
	nominated.Status.NominatedNodeName = "node-a"
	c := &Cluster{Pods: []*corev1.Pod{ended, pod("waits", "", gpus("4")), pod("one", "node-a", gpus("1")), init, me, nominated, pod("other", "node-b", gpus("3"))}}

	held := c.Usage(me).Of("node-a", "nvidia.com/gpu")
	want := []Holder{{Pod: "ns/init", Amount: 2}, {Pod: "ns/nominated", Amount: 1, Nominated: true}, {Pod: "ns/one", Amount: 1}}
	if held.Amount != 4 || !slices.Equal(held.Holders, want) {
		t.Errorf("got %d held by %v, want 4 held by %v", held.Amount, held.Holders, want)
	}
	if n := c.Usage(me).Of("node-a", corev1.ResourcePods).Amount; n != 3 {
		t.Errorf("%d pods, want 3", n)
	}
	if n := c.Usage(me).Of("node-c", "nvidia.com/gpu").Amount; n != 0 {
		t.Errorf("%d GPUs on a node without pods", n)
	}
}

func TestResourceVendor(t *testing.T) {
	for name, want := range map[corev1.ResourceName]Vendor{
		"nvidia.com/gpu": NVIDIA, "nvidia.com/gpu.shared": NVIDIA, "nvidia.com/mig-1g.5gb": NVIDIA, "amd.com/gpu": AMD,
		"gpu.intel.com/i915": Intel, "gpu.intel.com/xe": Intel, "gpu.intel.com/i915_monitoring": "",
		"cpu": "", "nvidia.com/hostdev": "", "example.com/gpu": "",
	} {
		if got := ResourceVendor(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestWrite(t *testing.T) {
	for _, test := range []struct {
		name corev1.ResourceName
		text string
	}{{"cpu", "1500m"}, {"cpu", "2"}, {"memory", "3Gi"}, {"nvidia.com/gpu", "8"}, {"hugepages-2Mi", "4Mi"}} {
		if got := Write(test.name, Amount(test.name, resource.MustParse(test.text))); got != test.text {
			t.Errorf("%s: %s becomes %s", test.name, test.text, got)
		}
	}
}

// TestDevices: of a pool only the newest generation counts, and a device may be
// of one Node of those that the slice is of.
func TestDevices(t *testing.T) {
	a, b, yes := "node-a", "node-b", true
	slice := func(name, pool string, generation int64, spec resourcev1.ResourceSliceSpec) *resourcev1.ResourceSlice {
		spec.Driver, spec.Pool = "gpu.nvidia.com", resourcev1.ResourcePool{Name: pool, Generation: generation}
		return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	}
	c := &Cluster{Slices: []*resourcev1.ResourceSlice{
		slice("old", "a", 1, resourcev1.ResourceSliceSpec{NodeName: &a, Devices: []resourcev1.Device{{Name: "gone"}}}),
		slice("new", "a", 2, resourcev1.ResourceSliceSpec{NodeName: &a, Devices: []resourcev1.Device{{Name: "gpu-1"}, {Name: "gpu-0"}}}),
		slice("other", "b", 1, resourcev1.ResourceSliceSpec{NodeName: &b, Devices: []resourcev1.Device{{Name: "gpu-0"}}}),
		slice("each", "each", 1, resourcev1.ResourceSliceSpec{PerDeviceNodeSelection: &yes, Devices: []resourcev1.Device{
			{Name: "mine", NodeName: &a}, {Name: "theirs", NodeName: &b}, {Name: "all", AllNodes: &yes},
		}}),
	}}
	devices, err := c.Devices(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range devices {
		got = append(got, d.Pool+"/"+d.Name)
	}
	if want := []string{"a/gpu-0", "a/gpu-1", "each/all", "each/mine"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestDriver(t *testing.T) {
	for _, test := range []struct {
		labels map[string]string
		want   string
	}{
		{map[string]string{"nvidia.com/cuda.driver-version.full": "580.159.04"}, "580.159.04"},
		{map[string]string{"nvidia.com/cuda.driver.major": "550", "nvidia.com/cuda.driver.minor": "107", "nvidia.com/cuda.driver.rev": "02"}, "550.107.02"},
		{map[string]string{"nvidia.com/cuda.driver.major": "550", "nvidia.com/cuda.driver.minor": "107", "nvidia.com/cuda.driver.rev": ""}, "550.107"},
		{nil, ""},
	} {
		if got := describe(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: test.labels}}, NVIDIA).Driver; got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}
