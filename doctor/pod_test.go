package doctor

import (
	"strings"
	"testing"
	"time"
)

// TestPods: what keeps a pod from the Node, and what holds it up there.
func TestPods(t *testing.T) {
	hosts := hostFiles(t)
	for _, tc := range []struct {
		name   string
		change func(f *fake, pod object)
		want   []string
		check  string
		text   string
	}{
		{"Waits", func(*fake, object) {}, nil, "pod", "kubectl gpu-labeller explain train-0 -n ml"},
		{"WaitsAndTheSchedulerSaysWhy", func(*fake, object) {}, nil, "pod", "pod ml/train-0 waits for a Node; the scheduler says: Unschedulable 0/3 nodes are available"},
		{"WaitsForAnotherScheduler", func(_ *fake, p object) {
			p["spec"].(object)["schedulerName"] = "volcano"
			p["status"] = object{"phase": "Pending"}
		}, nil, "pod", "its scheduler is volcano"},
		{"TaintWhileLabelsAreWrong", func(f *fake, _ object) {
			f.node["spec"].(object)["taints"] = []object{{"key": "x", "effect": "NoSchedule"}}
			delete(f.labels, "nvidia.com/gpu.product")
		}, []string{"discovery/labels", "scheduling/taints"}, "taints", "x:NoSchedule"},
		{"InUseWhileLabelsAreWrong", func(f *fake, p object) {
			ask(p, "nvidia.com/gpu", "1")
			holder := runningPod("ml", "holder")
			ask(holder, "nvidia.com/gpu", "1")
			f.pods = append(f.pods, holder)
			delete(f.labels, "nvidia.com/gpu.product")
		}, []string{"discovery/labels", "scheduling/requests"}, "requests", "ml/holder (1)"},
		{"SelectsALabelThatIsMissing", func(f *fake, p object) {
			p["spec"].(object)["nodeSelector"] = object{"nvidia.com/gpu.product": "NVIDIA-H200"}
			delete(f.labels, "nvidia.com/gpu.product")
		}, []string{"discovery/labels"}, "node-selector", "which the Node does not have"},
		{"Selector", func(_ *fake, p object) {
			p["spec"].(object)["nodeSelector"] = object{"nvidia.com/gpu.product": "NVIDIA-H100", "zone": "a"}
		}, []string{"scheduling/node-selector"}, "node-selector", "wants nvidia.com/gpu.product=NVIDIA-H100, the Node has NVIDIA-H200"},
		{"Taint", func(f *fake, _ object) {
			f.node["spec"].(object)["taints"] = []object{{"key": "nvidia.com/gpu", "effect": "NoSchedule"}}
		}, []string{"scheduling/taints"}, "taints", "nvidia.com/gpu:NoSchedule"},
		{"TaintTolerated", func(f *fake, p object) {
			f.node["spec"].(object)["taints"] = []object{{"key": "nvidia.com/gpu", "effect": "NoSchedule"}}
			p["spec"].(object)["tolerations"] = []object{{"key": "nvidia.com/gpu", "operator": "Exists"}}
		}, nil, "taints", "no taint"},
		{"Cordoned", func(f *fake, _ object) { f.node["spec"].(object)["unschedulable"] = true }, []string{"scheduling/taints"}, "taints", "cordoned"},
		{"AsksForTooMany", func(_ *fake, p object) { ask(p, "nvidia.com/gpu", "2") }, []string{"scheduling/requests"}, "requests", "asked 2, allocatable 1"},
		{"AsksForWhatThereIsNot", func(_ *fake, p object) { ask(p, "nvidia.com/mig-1g.18gb", "1") }, []string{"scheduling/requests"}, "requests", "allocatable 0"},
		{"InUse", func(f *fake, p object) {
			ask(p, "nvidia.com/gpu", "1")
			holder := runningPod("ml", "holder")
			ask(holder, "nvidia.com/gpu", "1")
			f.pods = append(f.pods, holder)
		}, []string{"scheduling/requests"}, "requests", "ml/holder (1)"},
		{"Elsewhere", func(_ *fake, p object) { p["spec"].(object)["nodeName"] = "node-b" }, nil, "pod", "node-b"},
		{"Runs", func(_ *fake, p object) {
			p["spec"].(object)["nodeName"] = "node-a"
			p["status"] = runningPod("", "")["status"]
		}, nil, "pod", "running"},
		{"ContainerNotMade", func(_ *fake, p object) {
			p["spec"].(object)["nodeName"] = "node-a"
			p["status"] = object{"phase": "Pending", "containerStatuses": []object{{"name": "main", "state": object{"waiting": object{"reason": "CreateContainerError", "message": `no runtime for "nvidia" is configured`}}}}}
		}, []string{"scheduling/pod"}, "pod", `no runtime for "nvidia" is configured`},
		{"Refused", func(_ *fake, p object) {
			p["spec"].(object)["nodeName"] = "node-a"
			p["status"] = object{"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}
		}, []string{"scheduling/pod"}, "pod", "UnexpectedAdmissionError no healthy devices present"},
		{"Gone", func(f *fake, _ object) { f.remove("train-0") }, []string{"scheduling/pod"}, "pod", "there is no pod ml/train-0"},
		{"NotAllowed", func(f *fake, _ object) { f.forbidden = []string{"/pods/train-0"} }, nil, "pod", "not allowed to get pods"},
		{"EventsNotAllowed", func(f *fake, _ object) { f.forbidden = []string{"/events"} }, nil, "pod", "not allowed to list events"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := onHost(t, hosts["h200x1"])
			f := newFake(t, &c)
			p := runningPod("ml", "train-0")
			delete(p["spec"].(object), "nodeName")
			p["status"] = object{"phase": "Pending", "conditions": []object{{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}}}
			f.pods = append(f.pods, p)
			f.events = []object{{"reason": "FailedScheduling", "message": "0/3 nodes are available"}}
			c.Cluster, c.Node, c.Pod = f.cluster(), "node-a", "ml/train-0"
			tc.change(f, p)
			r := Run(t.Context(), c)
			wantBlamed(t, r, tc.want...)
			check := find(t, r, tc.check)
			if all := check.Text + "\n" + strings.Join(check.Evidence, "\n") + "\n" + check.Cure; !strings.Contains(all, tc.text) {
				t.Errorf("%s: %q lacks %q", tc.check, all, tc.text)
			}
		})
	}
}

func ask(p object, resource, n string) {
	p["spec"].(object)["containers"].([]object)[0]["resources"] = object{"limits": object{resource: n}}
}

func TestTestPod(t *testing.T) {
	hosts := hostFiles(t)
	for _, tc := range []struct {
		name   string
		change func(f *fake)
		want   []string
		result Result
		text   string
	}{
		{"SeesTheGPU", func(f *fake) {
			f.phases = []string{"Pending", "Running", "Succeeded"}
			f.log = "GPU 0: NVIDIA H200 (UUID: GPU-deadbeef)\n"
		}, nil, OK, "sees NVIDIA H200"},
		{"SeesNone", func(f *fake) { f.phases = []string{"Succeeded"}; f.log = "No devices found.\n" }, []string{"runtime/test-pod"}, Fault, "No devices found."},
		{"Fails", func(f *fake) { f.phases = []string{"Failed"}; f.log = "nvidia-smi: not found\n" }, []string{"runtime/test-pod"}, Fault, "nvidia-smi: not found"},
		{"NoGPUFree", func(f *fake) { f.phases = []string{"Unscheduled"} }, nil, Warning, "Insufficient nvidia.com/gpu"},
		{"DoesNotStart", func(f *fake) { f.phases = []string{"Pending"} }, []string{"runtime/test-pod"}, Fault, "did not end in"},
		{"NotAllowed", func(f *fake) { f.forbidden = []string{"POST /api/v1/namespaces/default/pods"} }, nil, Skipped, "not allowed to create pods"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := onHost(t, hosts["h200x1"])
			f := newFake(t, &c)
			c.Cluster, c.Node = f.cluster(), "node-a"
			c.TestPod = &TestPod{Namespace: "default", Image: "image", Timeout: time.Minute, Poll: 5 * time.Millisecond}
			tc.change(f)
			if n := len(f.phases); n > 0 && f.phases[n-1] != "Succeeded" && f.phases[n-1] != "Failed" {
				c.TestPod.Timeout = 300 * time.Millisecond // it never ends
			}
			r := Run(t.Context(), c)
			if tc.want == nil {
				wantBlamed(t, r)
			} else if got := blamed(r); len(got) != 1 || got[0] != tc.want[0] {
				t.Errorf("blames %q, want %q", got, tc.want)
			}
			check := find(t, r, "test-pod")
			if all := check.Text + "\n" + strings.Join(check.Evidence, "\n"); check.Result != tc.result || !strings.Contains(all, tc.text) || strings.Contains(all, "deadbeef") {
				t.Errorf("%s %q, want %s with %q", check.Result, all, tc.result, tc.text)
			}
			if f.made != nil {
				if !f.deleted {
					t.Error("the test pod was left behind")
				}
				spec := f.made["spec"].(object)
				if spec["runtimeClassName"] != "nvidia" || spec["restartPolicy"] != "Never" {
					t.Errorf("pod: %v", spec)
				}
			}
		})
	}
}

// TestTestPodIsMadeWithoutLabels: they have no part in whether a container gets a
// GPU.
func TestTestPodIsMadeWithoutLabels(t *testing.T) {
	c := onHost(t, hostFiles(t)["h200x1"])
	f := newFake(t, &c)
	f.labels = map[string]string{}
	f.phases, f.log = []string{"Succeeded"}, "GPU 0: NVIDIA H200 (UUID: GPU-deadbeef)\n"
	c.Cluster, c.Node = f.cluster(), "node-a"
	c.TestPod = &TestPod{Namespace: "default", Image: "image", Timeout: time.Minute, Poll: time.Millisecond}
	r := Run(t.Context(), c)
	wantBlamed(t, r, "discovery/labels")
	if check := find(t, r, "test-pod"); check.Result != OK || !f.deleted {
		t.Errorf("%+v", check)
	}
}

func TestHasPod(t *testing.T) {
	c := onHost(t, hostFiles(t)["h200x1"])
	f := newFake(t, &c)
	k := f.cluster()
	if err := k.HasPod(t.Context(), "gpu-labeller/gpu-labeller-x"); err != nil {
		t.Error(err)
	}
	if err := k.HasPod(t.Context(), "ml/nope"); err == nil || !strings.Contains(err.Error(), "there is no pod ml/nope") {
		t.Errorf("%v", err)
	}
	f.forbidden = []string{"/pods/nope"}
	if err := k.HasPod(t.Context(), "ml/nope"); err != nil {
		t.Error(err)
	}
}

// TestTestPodIsNotMade where it cannot end well.
func TestTestPodIsNotMade(t *testing.T) {
	c := onHost(t, hostFiles(t)["u34-one-of-four-lost"])
	f := newFake(t, &c)
	c.Cluster, c.Node = f.cluster(), "node-a"
	c.TestPod = &TestPod{Namespace: "default", Image: "image", Timeout: time.Second}
	r := Run(t.Context(), c)
	wantBlamed(t, r, "host/gpu-health")
	if f.made != nil || !strings.Contains(r.Steps[5].Note, "step 1 (host) is broken") {
		t.Errorf("made %v, note %q", f.made, r.Steps[5].Note)
	}
}
