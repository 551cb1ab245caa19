package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// TestHealthyClusters: in a cluster where all is as it should be, nothing is
// blamed, whatever the MIG strategy.
func TestHealthyClusters(t *testing.T) {
	for name, f := range hostFiles(t) {
		if !healthy(f) && name != "h200x1" && name != "u36-all-passthrough" && name != "u45-no-gpu" {
			continue
		}
		strategies := []labels.MIGStrategy{labels.MIGNone, labels.MIGMixed, labels.MIGSingle}
		if f.NVML == nil || !slices.ContainsFunc(f.NVML.GPUs, func(g nvml.GPU) bool { return g.MIG != nil && g.MIG.Enabled }) {
			strategies = strategies[:1]
		}
		for _, strategy := range strategies {
			t.Run(name+"/"+string(strategy), func(t *testing.T) {
				c := onHost(t, f)
				c.Labels.MIGStrategy = strategy
				fake := newFake(t, &c)
				c.Labels.MIGStrategy = ""
				c.Cluster, c.Node = fake.cluster(), "node-a"
				wantBlamed(t, Run(t.Context(), c))
			})
		}
	}
}

// TestFaultyClusters: one thing is wrong in each, and that is blamed.
func TestFaultyClusters(t *testing.T) {
	hosts := hostFiles(t)
	const plugin = "nvidia-plugin-x"
	tests := []struct {
		name   string
		host   string // default h200x1
		change func(f *fake, c *Config)
		want   []string
		check  string // whose text, evidence or cure contains text
		text   string
	}{
		{name: "NodeNotReady", change: func(f *fake, _ *Config) {
			f.node["status"].(object)["conditions"] = []object{{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}}
		}, want: []string{"components/node"}, check: "node", text: "Kubelet stopped"},
		{name: "NodeNeverReady", change: func(f *fake, _ *Config) {
			f.node["status"].(object)["conditions"] = []object{{"type": "MemoryPressure", "status": "False"}}
		}, want: []string{"components/node"}, check: "node", text: "no condition Ready"},
		{name: "NoSuchNode", change: func(_ *fake, c *Config) { c.Node = "node-b" }, want: []string{"components/node"}, check: "node", text: "--node-name"},
		{name: "Cordoned", change: func(f *fake, _ *Config) { f.node["spec"].(object)["unschedulable"] = true }, check: "node", text: "cordoned"},
		{name: "NoDevicePlugin", change: func(f *fake, _ *Config) { f.remove(plugin); f.unadvertise("nvidia.com/gpu") },
			want: []string{"components/device-plugin"}, check: "device-plugin", text: "no DaemonSet of it"},
		{name: "DevicePluginNotSelected", change: func(f *fake, _ *Config) {
			f.remove(plugin)
			f.unadvertise("nvidia.com/gpu")
			f.daemonSets = []object{{"metadata": object{"namespace": "gpu-operator", "name": "plugin"}, "spec": object{"template": object{
				"metadata": object{"labels": object{"app": "nvidia-device-plugin-daemonset"}},
				"spec":     object{"nodeSelector": object{"nvidia.com/gpu.deploy.device-plugin": "true"}},
			}}}}
		}, want: []string{"components/device-plugin"}, check: "device-plugin", text: "wants nvidia.com/gpu.deploy.device-plugin=true, which the Node does not have"},
		{name: "DevicePluginNotTolerating", change: func(f *fake, _ *Config) {
			f.remove(plugin)
			f.unadvertise("nvidia.com/gpu")
			f.node["spec"].(object)["taints"] = []object{{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}}
			f.daemonSets = []object{{"metadata": object{"namespace": "kube-system", "name": "plugin"}, "spec": object{"template": object{
				"metadata": object{"labels": object{"name": "nvidia-device-plugin-ds"}}, "spec": object{},
			}}}}
		}, want: []string{"components/device-plugin"}, check: "device-plugin", text: "taint nvidia.com/gpu=true:NoSchedule"},
		{name: "DevicePluginCrashes", change: func(f *fake, _ *Config) { crash(f.pod(plugin)); f.advertise("nvidia.com/gpu", 1, 0) },
			want: []string{"components/device-plugin"}, check: "device-plugin", text: "CrashLoopBackOff back-off 5m0s, restarted 7 times, last with exit code 1"},
		{name: "NoRuntimeClass", change: func(f *fake, _ *Config) { f.class = ""; f.unadvertise("nvidia.com/gpu") },
			want: []string{"components/runtime-class"}, check: "runtime-class", text: "there is no RuntimeClass nvidia"},
		{name: "NoRuntimeClassNeeded", change: func(f *fake, _ *Config) { f.class = "" }, check: "runtime-class", text: "are refused"},
		{name: "ToolkitPodFails", change: func(f *fake, _ *Config) {
			f.pods = append(f.pods, runningPod("gpu-operator", "toolkit", "app=nvidia-container-toolkit-daemonset"))
			crash(f.pod("toolkit"))
		}, want: []string{"components/container-toolkit"}, check: "container-toolkit", text: "describe pod toolkit"},
		{name: "NoToolkit", change: func(f *fake, c *Config) {
			c.Recorded = false
			f.advertise("nvidia.com/gpu", 0, 0)
			put(f.t, c, "etc/containerd/config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n")
			f.class = "runc"
		}, want: []string{"components/container-toolkit"}, check: "container-toolkit", text: "nvidia-container-runtime"},
		{name: "RuntimeNotConfigured", change: func(f *fake, c *Config) {
			c.Recorded = false
			f.advertise("nvidia.com/gpu", 0, 0)
			put(f.t, c, "usr/bin/nvidia-container-runtime", "")
			put(f.t, c, "etc/containerd/config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n")
		}, want: []string{"components/container-runtime"}, check: "container-runtime", text: "has no runtime nvidia"},
		{name: "DriverPodFails", change: func(f *fake, _ *Config) {
			f.pods = append(f.pods, runningPod("gpu-operator", "driver", "app=nvidia-driver-daemonset"))
			crash(f.pod("driver"))
		}, want: []string{"components/driver-pod"}, check: "driver-pod", text: "does not run"},
		{name: "NFDWorkerFails", change: func(f *fake, _ *Config) { crash(f.pod("nfd-worker-x")) },
			want: []string{"components/nfd"}, check: "nfd", text: "nfd-worker-x"},
		{name: "NFDMasterFails", change: func(f *fake, _ *Config) { crash(f.pod("nfd-master-x")) },
			want: []string{"components/nfd"}, check: "nfd", text: "no NodeFeature object becomes labels"},
		{name: "OperatorNotReady", change: func(f *fake, _ *Config) {
			f.policies = []object{{"metadata": object{"name": "cluster-policy"}, "status": object{"state": "notReady"}}}
		}, check: "operator", text: "state notReady"},
		{name: "NoAMDPlugin", host: "amd-mi210x8", change: func(f *fake, _ *Config) { f.remove("amd-plugin-x"); f.unadvertise("amd.com/gpu") },
			want: []string{"components/amd-device-plugin"}, check: "amd-device-plugin", text: "AMD's device plugin"},
		{name: "NoIntelPlugin", host: "intel-max1550", change: func(f *fake, _ *Config) { f.remove("intel-plugin-x"); f.unadvertise("gpu.intel.com/i915") },
			want: []string{"components/intel-device-plugin"}, check: "intel-device-plugin", text: "Intel's device plugin"},

		{name: "NoAgent", change: func(f *fake, _ *Config) { f.remove("gpu-labeller-x"); f.labels = map[string]string{} },
			want: []string{"discovery/agent"}, check: "agent", text: "does not run on this Node"},
		{name: "AgentsRuntimeClassIsNotThere", change: func(f *fake, _ *Config) {
			f.remove("gpu-labeller-x")
			f.labels = map[string]string{}
			f.daemonSets = []object{{"metadata": object{"namespace": "gpu-labeller", "name": "gpu-labeller"}, "spec": object{"template": object{
				"metadata": object{"labels": object{"app.kubernetes.io/name": "gpu-labeller"}},
				"spec":     object{"runtimeClassName": "nvidia-cdi"},
			}}}}
		}, want: []string{"discovery/agent"}, check: "agent", text: "install the container runtime that brings RuntimeClass nvidia-cdi"},
		{name: "AgentIsNotMadeForAnUnknownReason", change: func(f *fake, _ *Config) {
			f.remove("gpu-labeller-x")
			f.labels = map[string]string{}
			f.daemonSets = []object{{"metadata": object{"namespace": "gpu-labeller", "name": "gpu-labeller"}, "spec": object{"template": object{
				"metadata": object{"labels": object{"app.kubernetes.io/name": "gpu-labeller"}},
				"spec":     object{"runtimeClassName": "nvidia"},
			}}}}
		}, want: []string{"discovery/agent"}, check: "agent", text: "kubectl -n gpu-labeller describe daemonset gpu-labeller"},
		{name: "OnlyTheCleanupRuns", change: func(f *fake, _ *Config) {
			f.remove("gpu-labeller-x")
			f.labels = map[string]string{}
			job := runningPod("gpu-labeller", "gpu-labeller-cleanup-x", "app.kubernetes.io/name=gpu-labeller", "app.kubernetes.io/component=cleanup")
			job["metadata"].(object)["ownerReferences"] = []object{{"apiVersion": "batch/v1", "kind": "Job", "name": "gpu-labeller-cleanup"}}
			f.pods = append(f.pods, job)
		}, want: []string{"discovery/agent"}, check: "agent", text: "does not run on this Node"},
		{name: "TheCleanupFailed", change: func(f *fake, _ *Config) {
			job := runningPod("gpu-labeller", "gpu-labeller-cleanup-x", "app.kubernetes.io/name=gpu-labeller", "app.kubernetes.io/component=cleanup")
			job["metadata"].(object)["ownerReferences"] = []object{{"apiVersion": "batch/v1", "kind": "Job", "name": "gpu-labeller-cleanup"}}
			job["status"] = object{"phase": "Failed"}
			f.pods = append(f.pods, job)
		}, check: "agent", text: "gpu-labeller's agent runs"},
		{name: "AgentCrashes", change: func(f *fake, _ *Config) { crash(f.pod("gpu-labeller-x")); delete(f.labels, "nvidia.com/gpu.product") },
			want: []string{"discovery/agent"}, check: "agent", text: "CrashLoopBackOff"},
		{name: "AgentCrashesAndItsLabelsAreRight", change: func(f *fake, _ *Config) { crash(f.pod("gpu-labeller-x")) },
			check: "agent", text: "the Node's labels are right, but nobody keeps them so"},
		{name: "AgentGoneAndItsLabelsAreRight", change: func(f *fake, _ *Config) { f.remove("gpu-labeller-x") },
			check: "agent", text: "nobody keeps them so"},
		{name: "AnotherHost", change: func(f *fake, c *Config) {
			put(f.t, c, "proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
			f.node["status"].(object)["nodeInfo"] = object{"bootID": "99999999-2222-3333-4444-555555555555"}
		}, want: []string{"components/same-host"}, check: "same-host", text: "this host is not the Node node-a"},
		{name: "TheSameHost", change: func(f *fake, c *Config) {
			put(f.t, c, "proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
			f.node["status"].(object)["nodeInfo"] = object{"bootID": "11111111-2222-3333-4444-555555555555"}
		}, check: "same-host", text: "this host is the Node"},
		{name: "HostWithoutGPU", change: func(_ *fake, c *Config) { c.Host = onHost(t, hosts["u45-no-gpu"]).Host },
			want: []string{"components/same-host"}, check: "same-host", text: "this host has no GPU, and the Node node-a is labelled with some: is this host the Node?"},
		{name: "GPUsGoneFromTheBus", change: func(f *fake, c *Config) {
			c.Host = onHost(t, hosts["u45-no-gpu"]).Host
			put(f.t, c, "proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
			f.node["status"].(object)["nodeInfo"] = object{"bootID": "11111111-2222-3333-4444-555555555555"}
		}, want: []string{"discovery/labels", "advertisement/nvidia.com/gpu"}, check: "labels", text: "37 labels are stale"},
		{name: "NoLabels", change: func(f *fake, _ *Config) { f.labels = map[string]string{} },
			want: []string{"discovery/labels"}, check: "labels", text: "37 of 38 labels are missing"},
		{name: "LabelOfSomeoneElse", change: func(f *fake, _ *Config) {
			f.labels["nvidia.com/gpu.product"], f.manager["nvidia.com/gpu.product"] = "NVIDIA-H100", "kubectl-label"
		}, want: []string{"discovery/labels"}, check: "labels", text: "label nvidia.com/gpu.product=NVIDIA-H100, expected NVIDIA-H200, set by kubectl-label"},
		{name: "LabelOfNFD", change: func(f *fake, _ *Config) {
			f.labels["nvidia.com/gpu.count"], f.manager["nvidia.com/gpu.count"] = "2", "nfd-master"
		}, want: []string{"discovery/labels"}, check: "labels", text: "another NodeFeature object"},
		{name: "StaleLabelOfOurs", change: func(f *fake, _ *Config) { f.labels["nvidia.com/mig-1g.18gb.count"] = "7" },
			want: []string{"discovery/labels"}, check: "labels", text: "1 label is stale"},
		{name: "LabelOfOthersThatIsNoMatter", change: func(f *fake, _ *Config) {
			f.labels["nvidia.com/mig-1g.18gb.count"], f.manager["nvidia.com/mig-1g.18gb.count"] = "7", "someone"
		}, check: "labels", text: "of others should not be there"},
		{name: "ExtraLabelsLeftOut", change: func(f *fake, _ *Config) {
			for key := range f.labels {
				if strings.HasPrefix(key, "gpu.feature.") {
					delete(f.labels, key)
				}
			}
		}, check: "labels", text: "as expected"},

		{name: "NothingAdvertised", change: func(f *fake, _ *Config) { f.advertise("nvidia.com/gpu", 0, 0) },
			want: []string{"advertisement/nvidia.com/gpu"}, check: "nvidia.com/gpu", text: "capacity 0"},
		{name: "FewerAdvertised", host: "gfd-a100x8", change: func(f *fake, _ *Config) { f.advertise("nvidia.com/gpu", 7, 7) },
			want: []string{"advertisement/nvidia.com/gpu"}, check: "nvidia.com/gpu", text: "fewer are advertised (7) than are there (8)"},
		{name: "UnhealthyForThePlugin", host: "gfd-a100x8", change: func(f *fake, _ *Config) { f.advertise("nvidia.com/gpu", 8, 7) },
			want: []string{"advertisement/nvidia.com/gpu"}, check: "nvidia.com/gpu", text: "1 of 8 are not allocatable"},
		{name: "MoreAdvertised", host: "gfd-t4x4", change: func(f *fake, _ *Config) { f.advertise("nvidia.com/gpu", 5, 5) },
			want: []string{"advertisement/nvidia.com/gpu"}, check: "nvidia.com/gpu", text: "more are allocatable (5)"},
		{name: "SharedWithoutLabels", host: "gfd-t4x4", change: func(f *fake, _ *Config) { f.advertise("nvidia.com/gpu", 16, 16) },
			check: "nvidia.com/gpu", text: "16 are allocatable, 4 times what is there: perhaps they are shared"},
		{name: "SharedWithLabels", host: "gfd-t4x4", change: func(f *fake, _ *Config) {
			f.advertise("nvidia.com/gpu", 16, 16)
			f.labels["nvidia.com/gpu.replicas"], f.labels["nvidia.com/gpu.sharing-strategy"] = "4", "time-slicing"
			f.labels["nvidia.com/gpu.product"] += "-SHARED"
		}, check: "nvidia.com/gpu", text: "each shared by 4"},
		{name: "MIGDevicesThatAreGone", change: func(f *fake, _ *Config) { f.advertise("nvidia.com/mig-1g.18gb", 7, 7) },
			want: []string{"advertisement/nvidia.com/mig-1g.18gb"}, check: "nvidia.com/mig-1g.18gb", text: "more are allocatable"},
		{name: "MIGDevicesNotAdvertised", host: "u14-mig-on-two-of-eight", change: func(f *fake, _ *Config) {
			f.advertise("nvidia.com/mig-1g.5gb", 0, 0)
			f.advertise("nvidia.com/gpu", 6, 6)
			f.labels["nvidia.com/mig.strategy"] = "mixed"
			set, _ := labels.Compute(readHost(f.t.Context(), ptr(onHost(f.t, hosts["u14-mig-on-two-of-eight"]))).inv, labels.Options{MIGStrategy: labels.MIGMixed, OmitPCI: true})
			for key, value := range set {
				f.labels[key] = value
			}
		}, want: []string{"advertisement/nvidia.com/mig-1g.5gb"}, check: "nvidia.com/mig-1g.5gb", text: "14 MIG devices"},
		{name: "AMDFewer", host: "amd-mi210x8", change: func(f *fake, _ *Config) { f.advertise("amd.com/gpu", 6, 6) },
			want: []string{"advertisement/amd.com/gpu"}, check: "amd.com/gpu", text: "8 usable GPUs"},
		{name: "DRAOfAnOldDriver", change: func(f *fake, _ *Config) { f.slices = []object{slice("570.86.10", 1)} },
			want: []string{"advertisement/resource-slices"}, check: "resource-slices", text: "570.86.10"},
		{name: "DRALacksAGPU", host: "gfd-t4x4", change: func(f *fake, _ *Config) { f.slices = []object{slice("", 3)} },
			want: []string{"advertisement/resource-slices"}, check: "resource-slices", text: "3 GPUs"},
		{name: "DRAInsteadOfADevicePlugin", change: func(f *fake, _ *Config) {
			f.remove(plugin)
			f.unadvertise("nvidia.com/gpu")
			f.slices = []object{slice("580.159.4", 1)}
		}, check: "resource-slices", text: "as NVML has them"},

		{name: "DegradedHostExplainsTheRest", host: "u34-one-of-four-lost", change: func(f *fake, _ *Config) {
			f.remove(plugin)
			f.unadvertise("nvidia.com/gpu")
			f.labels = map[string]string{}
		}, want: []string{"host/gpu-health"}, check: "device-plugin", text: "does not run on this Node"},
		{name: "DegradedHostIsAdvertisedAsItIs", host: "u34-one-of-four-lost", change: func(f *fake, _ *Config) { f.advertise("nvidia.com/gpu", 4, 3) },
			want: []string{"host/gpu-health"}, check: "nvidia.com/gpu", text: "3 are allocatable"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if tc.host == "" {
				tc.host = "h200x1"
			}
			c := onHost(t, hosts[tc.host])
			f := newFake(t, &c)
			c.Cluster, c.Node = f.cluster(), "node-a"
			tc.change(f, &c)
			r := Run(t.Context(), c)
			wantBlamed(t, r, tc.want...)
			check := find(t, r, tc.check)
			if all := check.Text + "\n" + strings.Join(check.Evidence, "\n") + "\n" + check.Cure; !strings.Contains(all, tc.text) {
				t.Errorf("%s: %q lacks %q", tc.check, all, tc.text)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// slice is a ResourceSlice of NVIDIA's DRA driver.
func slice(version string, gpus int) object {
	var devices []object
	for i := range gpus {
		attributes := object{"type": object{"string": "gpu"}, "uuid": object{"string": "GPU-" + string(rune('a'+i))}}
		if version != "" {
			attributes["driverVersion"] = object{"version": version}
		}
		devices = append(devices, object{"name": "gpu-" + string(rune('0'+i)), "attributes": attributes})
	}
	return object{"spec": object{"driver": "gpu.nvidia.com", "nodeName": "node-a", "pool": object{"name": "node-a", "generation": 1}, "devices": devices}}
}

// TestMissingRights: each right that is missing is named, and nothing is blamed
// for it.
func TestMissingRights(t *testing.T) {
	f := hostFiles(t)["h200x1"]
	for _, tc := range []struct{ path, check, text string }{
		{"GET /api/v1/nodes/node-a", "node", "get nodes"},
		{"GET /api/v1/pods", "pods", "list pods"},
		{"GET /apis/apps/v1/daemonsets", "node", ""},
		{"GET /apis/node.k8s.io/v1/runtimeclasses/nvidia", "runtime-class", "get runtimeclasses.node.k8s.io"},
		{"GET /apis/nvidia.com/v1/clusterpolicies", "operator", "list clusterpolicies.nvidia.com"},
		{"GET /apis/resource.k8s.io/v1/resourceslices", "resource-slices", "list resourceslices.resource.k8s.io"},
	} {
		t.Run(strings.ReplaceAll(strings.TrimPrefix(tc.path, "GET /"), "/", "_"), func(t *testing.T) {
			c := onHost(t, f)
			fake := newFake(t, &c)
			fake.forbidden = []string{tc.path}
			c.Cluster, c.Node = fake.cluster(), "node-a"
			r := Run(t.Context(), c)
			wantBlamed(t, r)
			if r.Failure != "" {
				t.Errorf("failure: %s", r.Failure)
			}
			if check := find(t, r, tc.check); !strings.Contains(check.Text, tc.text) || tc.text != "" && check.Result != Skipped {
				t.Errorf("%s: %s %q lacks %q", tc.check, check.Result, check.Text, tc.text)
			}
		})
	}
}

// TestNoAnswer: an API server that does not answer is not a fault of the node.
func TestNoAnswer(t *testing.T) {
	c := onHost(t, hostFiles(t)["h200x1"])
	f := newFake(t, &c)
	f.broken = true
	c.Cluster, c.Node = f.cluster(), "node-a"
	r := Run(t.Context(), c)
	wantBlamed(t, r)
	if !strings.Contains(r.Failure, "the API server does not answer") {
		t.Errorf("failure: %q", r.Failure)
	}
}
