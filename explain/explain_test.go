package explain

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// node makes a Node of words: key=value is a label, resource:n is allocatable,
// !key=value:Effect is a taint, cordoned is what it says.
func node(name string, words ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	n.Status.Allocatable = quantities("pods:110", "cpu:64", "memory:256Gi")
	for _, word := range words {
		if taint, ok := strings.CutPrefix(word, "!"); ok {
			key, effect, _ := strings.Cut(taint, ":")
			key, value, _ := strings.Cut(key, "=")
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
			continue
		}
		if key, value, ok := strings.Cut(word, "="); ok {
			n.Labels[key] = value
			continue
		}
		if word == "cordoned" {
			n.Spec.Unschedulable = true
			continue
		}
		for name, q := range quantities(word) {
			n.Status.Allocatable[name] = q
		}
	}
	n.Status.Capacity = n.Status.Allocatable
	return n
}

// bare is a Node of which no kubelet has told.
func bare(name string, words ...string) *corev1.Node {
	n := node(name, words...)
	n.Status = corev1.NodeStatus{}
	return n
}

func quantities(words ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, word := range words {
		name, n, _ := strings.Cut(word, ":")
		list[corev1.ResourceName(name)] = resource.MustParse(n)
	}
	return list
}

// pod makes a pod that requests resource:n.
func pod(name string, requests ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Resources: corev1.ResourceRequirements{Requests: quantities(requests...)},
		}}},
	}
}

func on(p *corev1.Pod, node string) *corev1.Pod {
	p.Spec.NodeName = node
	return p
}

func selecting(p *corev1.Pod, key, value string) *corev1.Pod {
	p.Spec.NodeSelector = map[string]string{key: value}
	return p
}

func requiring(p *corev1.Pod, key string, op corev1.NodeSelectorOperator, values ...string) *corev1.Pod {
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}},
	}}}
	return p
}

func nominated(p *corev1.Pod, node string, priority int32) *corev1.Pod {
	p.Status.NominatedNodeName, p.Spec.Priority = node, &priority
	return p
}

const (
	memory  = "nvidia.com/gpu.memory"
	product = "nvidia.com/gpu.product"
	gpu     = "nvidia.com/gpu"
)

// TestMisses has a row for each thing that can be in the way, with the words for
// how close the closest Node comes.
func TestMisses(t *testing.T) {
	a, b := node("node-a", memory+"=40960", gpu+":4"), node("node-b", memory+"=81559", gpu+":8")
	for _, test := range []struct {
		name  string
		nodes []*corev1.Node
		pods  []*corev1.Pod
		pod   *corev1.Pod
		want  []string // check: text, and cure where it has one
	}{
		{"nothing", []*corev1.Node{a, b}, nil, pod("p", gpu+":1"), nil},
		{"no node", nil, nil, pod("p"), nil},
		{"Gt", []*corev1.Node{a, b}, nil, requiring(pod("p"), memory, "Gt", "100000"),
			[]string{"node affinity: needs nvidia.com/gpu.memory Gt 100000; closest node-b has 81559"}},
		{"Lt", []*corev1.Node{a, b}, nil, requiring(pod("p"), memory, "Lt", "20000"),
			[]string{"node affinity: needs nvidia.com/gpu.memory Lt 20000; closest node-a has 40960"}},
		{"Gt of some", []*corev1.Node{a, b}, nil, requiring(pod("p"), memory, "Gt", "50000"),
			[]string{"node affinity: needs nvidia.com/gpu.memory Gt 50000; node-b has it; node-a has 40960"}},
		{"Gt of words", []*corev1.Node{node("node-a", memory+"=40G")}, nil, requiring(pod("p"), memory, "Gt", "1"),
			[]string{"node affinity: needs nvidia.com/gpu.memory Gt 1; node-a has 40G, which is no whole number, so Gt never holds"}},
		{"Gt of AMD's memory", []*corev1.Node{node("node-a", "amd.com/gpu.vram=192G", "gpu.feature.node.kubernetes.io/memory.min=196592"), node("node-b")}, nil, requiring(pod("p"), "amd.com/gpu.vram", "Gt", "100"),
			[]string{"node affinity: needs amd.com/gpu.vram Gt 100; node-a has 192G, which is no whole number, so Gt never holds (ask for gpu.feature.node.kubernetes.io/memory.min, which is a whole number of MiB: node-a has 196592)"}},
		{"Gt of some that are numbers", []*corev1.Node{node("node-a", memory+"=40G"), node("node-b", memory+"=1")}, nil, requiring(pod("p"), memory, "Gt", "5"),
			[]string{"node affinity: needs nvidia.com/gpu.memory Gt 5; closest node-b has 1"}},
		{"Gt of no number", []*corev1.Node{a}, nil, requiring(pod("p"), memory, "Gt", "much"),
			[]string{`node affinity: nvidia.com/gpu.memory Gt much is not valid, and so matches no node: *`}},
		{"Exists", []*corev1.Node{a, b}, nil, requiring(pod("p"), "nvidia.com/mig.capable", "Exists"),
			[]string{"node affinity: needs nvidia.com/mig.capable Exists; no node has this label (is the key spelt right, and does gpu-labeller run on the nodes?)"}},
		{"DoesNotExist", []*corev1.Node{a}, nil, requiring(pod("p"), memory, "DoesNotExist"),
			[]string{"node affinity: needs nvidia.com/gpu.memory DoesNotExist; node-a has 40960"}},
		{"NotIn", []*corev1.Node{a}, nil, requiring(pod("p"), memory, "NotIn", "40960", "1"),
			[]string{"node affinity: needs nvidia.com/gpu.memory NotIn [40960, 1]; node-a has 40960"}},
		{"selector", []*corev1.Node{node("node-a", product+"=Tesla-T4"), node("node-b", product+"=NVIDIA-H200")}, nil, selecting(pod("p"), product, "nvidia-h200"),
			[]string{"node selector: needs nvidia.com/gpu.product=nvidia-h200; closest node-b has NVIDIA-H200 (is NVIDIA-H200 meant?)"}},
		{"selector, in its case on another", []*corev1.Node{node("node-a", product+"=NVIDIA-H200"), node("node-b", product+"=nvidia-h200", "cordoned")}, nil, selecting(pod("p"), product, "nvidia-h200"),
			[]string{"cordon: node-b is cordoned (kubectl uncordon node-b)", "node selector: needs nvidia.com/gpu.product=nvidia-h200; node-b has it; node-a has NVIDIA-H200"}},
		{"In", []*corev1.Node{node("node-a", product+"=NVIDIA-H200")}, nil, requiring(pod("p"), product, "In", "x", "nvidia-H200"),
			[]string{"node affinity: needs nvidia.com/gpu.product In [x, nvidia-H200]; node-a has NVIDIA-H200 (is NVIDIA-H200 meant?)"}},
		{"no such node", []*corev1.Node{a, b}, nil, on(pod("p"), "node-aa"), []string{"node name: asks for node-aa; is node-a meant?"}},
		{"no node of such a name", []*corev1.Node{a, b}, nil, on(pod("p"), "elsewhere"), []string{"node name: asks for elsewhere"}},
		{"the node", []*corev1.Node{a, b}, nil, on(pod("p"), "node-a"), nil},
		{"key", []*corev1.Node{a}, nil, selecting(pod("p"), "nvidia.com/gpu.memori", "40960"),
			[]string{"node selector: needs nvidia.com/gpu.memori=40960; no node has this label (is nvidia.com/gpu.memory meant?)"}},
		{"taint", []*corev1.Node{node("node-a", "!nvidia.com/gpu=present:NoSchedule")}, nil, pod("p"),
			[]string{`taints: taint nvidia.com/gpu=present:NoSchedule is not tolerated (tolerations: [{key: nvidia.com/gpu, operator: Equal, value: "present", effect: NoSchedule}])`}},
		{"not ready", []*corev1.Node{node("node-a", "!node.kubernetes.io/not-ready:NoExecute")}, nil, pod("p"),
			[]string{"taints: taint node.kubernetes.io/not-ready:NoExecute is not tolerated (the node is not ready: kubectl describe node tells why)"}},
		{"preferred taint", []*corev1.Node{node("node-a", "!x:PreferNoSchedule")}, nil, pod("p"), nil},
		{"cordon", []*corev1.Node{node("node-a", "cordoned", "!node.kubernetes.io/unschedulable:NoSchedule")}, nil, pod("p"),
			[]string{"cordon: node-a is cordoned (kubectl uncordon node-a)"}},
		{"held", []*corev1.Node{a}, []*corev1.Pod{on(pod("x", gpu+":1"), "node-a"), on(pod("y", gpu+":3"), "node-a")}, pod("p", gpu+":2"),
			[]string{"resources: needs 2 nvidia.com/gpu; 0 of 4 free on node-a: held by default/y (3), default/x (1)"}},
		{"held by many", []*corev1.Node{node("node-a", gpu+":6")}, []*corev1.Pod{
			on(pod("1", gpu+":1"), "node-a"), on(pod("2", gpu+":1"), "node-a"), on(pod("3", gpu+":1"), "node-a"),
			on(pod("4", gpu+":1"), "node-a"), on(pod("5", gpu+":1"), "node-a"), on(pod("6", gpu+":1"), "node-a")}, pod("p", gpu+":1"),
			[]string{"resources: needs 1 nvidia.com/gpu; 0 of 6 free on node-a: held by default/1 (1), default/2 (1), default/3 (1), default/4 (1), 2 more"}},
		{"nominated", []*corev1.Node{a}, []*corev1.Pod{nominated(pod("x", gpu+":4"), "node-a", 10)}, pod("p", gpu+":1"),
			[]string{"resources: needs 1 nvidia.com/gpu; 0 of 4 free on node-a: held by default/x (4, which pods are being evicted for)"}},
		{"nominated, less important", []*corev1.Node{a}, []*corev1.Pod{nominated(pod("x", gpu+":4"), "node-a", -10)}, pod("p", gpu+":1"), nil},
		{"itself", []*corev1.Node{a}, []*corev1.Pod{pod("p", gpu+":4")}, pod("p", gpu+":4"), nil},
		{"more than there is", []*corev1.Node{a, b}, nil, pod("p", gpu+":16"),
			[]string{"resources: needs 16 nvidia.com/gpu; the most a node has is 8 on node-b (ask for no more than one node has)"}},
		{"MIG instead", []*corev1.Node{node("node-a", "nvidia.com/mig-1g.5gb:7")}, nil, pod("p", gpu+":1"),
			[]string{"resources: needs 1 nvidia.com/gpu; no node offers it (nodes offer nvidia.com/mig-1g.5gb: ask for that instead)"}},
		{"unlike", []*corev1.Node{node("node-a")}, nil, pod("p", "example.com/fpga:1"),
			[]string{"resources: needs 1 example.com/fpga; no node offers it (is the name spelt right?)"}},
		{"resource spelt wrong", []*corev1.Node{a}, nil, pod("p", "nvidia.com/gpus:1"),
			[]string{"resources: needs 1 nvidia.com/gpus; no node offers it (is nvidia.com/gpu meant?)"}},
		{"another profile is no typing error", []*corev1.Node{node("node-a", "nvidia.com/mig-1g.5gb:7")}, nil, pod("p", "nvidia.com/mig-2g.5gb:1"),
			[]string{"resources: needs 1 nvidia.com/mig-2g.5gb; no node offers it (nodes offer nvidia.com/mig-1g.5gb: ask for that instead)"}},
		{"no device plugin on one of those without", []*corev1.Node{node("amd-0", "amd.com/gpu:8"), node("cpu-0"), node("node-a", gpu+":4", "cordoned"), node("rtx-0", "nvidia.com/gpu.count=2")}, nil, pod("p", gpu+":1"),
			[]string{"resources: needs 1 nvidia.com/gpu; none of them offers it (rtx-0: by its label nvidia.com/gpu.count it has 2: does the device plugin run there?)",
				"cordon: node-a is cordoned (kubectl uncordon node-a)"}},
		{"no device plugin, and one has enough by its label", []*corev1.Node{node("rtx-0", "nvidia.com/gpu.count=1"), node("rtx-1", "nvidia.com/gpu.count=2")}, nil, pod("p", gpu+":2"),
			[]string{"resources: needs 2 nvidia.com/gpu; no node offers it (rtx-1: by its label nvidia.com/gpu.count it has 2: does the device plugin run there?)"}},
		{"no device plugin where there are too few, the others are in use", []*corev1.Node{a, node("rtx-0", "nvidia.com/gpu.count=1")}, []*corev1.Pod{on(pod("x", gpu+":4"), "node-a")}, pod("p", gpu+":2"),
			[]string{"resources: needs 2 nvidia.com/gpu; 0 of 4 free on node-a: held by default/x (4)"}},
		{"no device plugin on some, the others are in use", []*corev1.Node{a, node("rtx-0", "nvidia.com/gpu.count=2"), node("rtx-1", "nvidia.com/gpu.count=2")}, []*corev1.Pod{on(pod("x", gpu+":4"), "node-a")}, pod("p", gpu+":1"),
			[]string{"resources: needs 1 nvidia.com/gpu; 0 of 4 free on node-a: held by default/x (4) (rtx-0 and rtx-1 have GPUs by their labels: does the device plugin run there?)"}},
		{"AMD", []*corev1.Node{node("node-a", "amd.com/gpu:8")}, []*corev1.Pod{on(pod("x", "amd.com/gpu:8"), "node-a")}, pod("p", "amd.com/gpu:1"),
			[]string{"resources: needs 1 amd.com/gpu; 0 of 8 free on node-a: held by default/x (8)"}},
		{"closest where all else holds", []*corev1.Node{node("node-a", product+"=x", gpu+":1"), node("node-b", gpu+":3")},
			nil, selecting(pod("p", gpu+":4"), product, "x"),
			[]string{"resources: needs 4 nvidia.com/gpu; node-a has 1 in all (ask for no more than one node has)",
				"node selector: needs nvidia.com/gpu.product=x; node-a has it"}},
		{"processors", []*corev1.Node{node("node-a", "cpu:4")}, []*corev1.Pod{on(pod("x", "cpu:3500m"), "node-a")}, pod("p", "cpu:1"),
			[]string{"resources: needs 1 cpu; 500m of 4 free on node-a: held by default/x (3500m)"}},
		{"pods", []*corev1.Node{node("node-a", "pods:1")}, []*corev1.Pod{on(pod("x"), "node-a")}, pod("p"),
			[]string{"resources: no room for another pod; node-a has 1 of 1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := Explain(t.Context(), &fleet.Cluster{Nodes: test.nodes, Pods: test.pods}, test.pod)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range r.Misses {
				text := string(m.Check) + ": " + m.Text
				if m.Cure != "" {
					text += " (" + m.Cure + ")"
				}
				got = append(got, text)
			}
			if !slices.EqualFunc(got, test.want, func(got, want string) bool {
				if prefix, ok := strings.CutSuffix(want, "*"); ok {
					return strings.HasPrefix(got, prefix)
				}
				return got == want
			}) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// TestNearest: what is curable now comes before what must be waited for, and a
// Node without such GPUs is near to nothing.
func TestNearest(t *testing.T) {
	const mig = "nvidia.com/mig-1g.5gb"
	const count, own = "nvidia.com/gpu.count", fleet.OwnPrefix
	cordonTaint := "!node.kubernetes.io/unschedulable:NoSchedule"
	held := func(node, what string) []*corev1.Pod { return []*corev1.Pod{on(pod("x", what), node)} }
	for _, test := range []struct {
		name  string
		nodes []*corev1.Node
		pods  []*corev1.Pod
		pod   *corev1.Pod
		want  string
	}{
		{"a cordoned node that has it", []*corev1.Node{node("amd-0", "amd.com/gpu:8"), node("h200-0", gpu+":4"), node("mig-0", mig+":7", "cordoned", cordonTaint)}, nil, pod("p", mig+":1"), "mig-0"},
		{"cordoned and tainted", []*corev1.Node{node("amd-0", "amd.com/gpu:8"), node("mig-0", mig+":7", "cordoned", cordonTaint, "!a:NoSchedule", "!b:NoSchedule")}, nil, pod("p", mig+":1"), "mig-0"},
		{"a taint before what is in use", []*corev1.Node{node("a", gpu+":4"), node("b", gpu+":4", "!x:NoSchedule")}, held("a", gpu+":4"), pod("p", gpu+":1"), "b"},
		{"what is in use before another label", []*corev1.Node{node("a", gpu+":4"), node("b", gpu+":4", product+"=x")}, held("b", gpu+":4"), selecting(pod("p", gpu+":1"), product, "x"), "b"},
		{"a node that is well before one that is not ready", []*corev1.Node{node("a", gpu+":4", "!node.kubernetes.io/not-ready:NoSchedule"), node("b", gpu+":4", "!x:NoSchedule")}, nil, pod("p", gpu+":1"), "b"},
		{"too many for any", []*corev1.Node{node("amd-0", "amd.com/gpu:16"), node("a", gpu+":4"), node("b", gpu+":8")}, nil, pod("p", gpu+":16"), ""},
		{"too many for all but one in use", []*corev1.Node{node("a", gpu+":4"), node("b", gpu+":8", product+"=x")}, held("b", gpu+":8"), pod("p", gpu+":8"), "b"},
		{"no such node", []*corev1.Node{node("node-a"), node("node-b")}, nil, on(pod("p"), "node-aa"), ""},
		{"another profile", []*corev1.Node{node("amd-0", "amd.com/gpu:16"), node("h200-0", gpu+":4"), node("mig-0", mig+":4", "cordoned"), node("rtx-0", "nvidia.com/gpu.count=1")}, nil, pod("p", "nvidia.com/mig-7g.40gb:1"), ""},
		{"spelt wrong", []*corev1.Node{node("amd-0", "amd.com/gpu:16"), node("a", gpu+":4", "!x:NoSchedule"), node("rtx-0", "nvidia.com/gpu.count=1")}, nil, pod("p", "nvidia.com/gpus:1"), ""},
		{"nobody has such a thing", []*corev1.Node{node("amd-0", "amd.com/gpu:16"), node("cpu-0")}, nil, pod("p", gpu+":1"), ""},
		{"no device plugin", []*corev1.Node{node("amd-0", "amd.com/gpu:16"), node("rtx-0", "nvidia.com/gpu.count=1")}, nil, pod("p", gpu+":1"), "rtx-0"},
		{"no device plugin, and too few by the label", []*corev1.Node{bare("rtx-0", count+"=1"), bare("rtx-1", own+"vendor.nvidia.count=1")}, nil, pod("p", gpu+":2"), ""},
		{"no device plugin, and enough by the label of one", []*corev1.Node{bare("rtx-0", count+"=1"), bare("rtx-1", count+"=2")}, nil, pod("p", gpu+":2"), "rtx-1"},
		{"no device plugin, too few, and one in use", []*corev1.Node{node("a", gpu+":2"), bare("rtx-0", count+"=1")}, held("a", gpu+":2"), pod("p", gpu+":2"), "a"},
		{"no device plugin, shared", []*corev1.Node{bare("rtx-0", count+"=1"), bare("rtx-1", count+"=1", "nvidia.com/gpu.replicas=4")}, nil, pod("p", gpu+":2"), "rtx-1"},
		{"no device plugin, MIG devices as GPUs", []*corev1.Node{bare("rtx-0", own+"vendor.nvidia.count=1", own+"mig.devices=7")}, nil, pod("p", gpu+":2"), "rtx-0"},
		{"no device plugin, partitioned", []*corev1.Node{bare("amd-0", "amd.com/gpu.count=1", "amd.com/gpu.compute-memory-partition=spx_nps1"), bare("amd-1", "amd.com/gpu.count=1", "amd.com/gpu.compute-memory-partition=cpx_nps4")}, nil, pod("p", "amd.com/gpu:2"), "amd-1"},
		{"no device plugin, and a label that is no number", []*corev1.Node{bare("rtx-0", count+"=some")}, nil, pod("p", gpu+":2"), "rtx-0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := Explain(t.Context(), &fleet.Cluster{Nodes: test.nodes, Pods: test.pods}, test.pod)
			if err != nil {
				t.Fatal(err)
			}
			if r.Nearest != test.want {
				t.Errorf("got %q, want %q: %+v", r.Nearest, test.want, r.Nodes)
			}
			for _, n := range r.Nodes {
				if n.Name == "mig-0" && len(test.nodes) == 3 && (n.Checks[Taints] != NotAsked || len(n.Reasons) != 1) {
					t.Errorf("the cordon counts twice: %+v", n)
				}
			}
		})
	}
}

// waiting is a pod of which the scheduler has said something.
func waiting(p *corev1.Pod, message string) *corev1.Pod {
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message}}
	return p
}

func by(p *corev1.Pod, scheduler string, speaks bool) *corev1.Pod {
	p.Spec.SchedulerName = scheduler
	if !speaks {
		p.Status.Conditions = nil
	}
	return p
}

func withVolume(p *corev1.Pod) *corev1.Pod {
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	return p
}

// TestRoom: how many pods of a kind fit in all.
func TestRoom(t *testing.T) {
	nodes := []*corev1.Node{node("a", gpu+":8"), node("b", gpu+":3"), node("c"), node("d", gpu+":4", "cordoned")}
	ports := pod("p", gpu+":2")
	ports.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
	for _, test := range []struct {
		pod  *corev1.Pod
		want int64
	}{{pod("p", gpu+":2"), 4}, {pod("p", gpu+":2", "cpu:32"), 3}, {pod("p", gpu+":9"), 0}, {ports, 2}} {
		r, err := Explain(t.Context(), &fleet.Cluster{Nodes: nodes, Pods: []*corev1.Pod{on(pod("x", gpu+":1"), "a")}}, test.pod)
		if err != nil {
			t.Fatal(err)
		}
		if r.Room == nil || *r.Room != test.want {
			t.Errorf("got %v, want %d", r.Room, test.want)
		}
	}
}

func TestVerdicts(t *testing.T) {
	a := node("node-a", gpu+":4")
	ended := pod("p", gpu+":8")
	ended.Status.Phase = corev1.PodSucceeded
	for _, test := range []struct {
		name string
		c    fleet.Cluster
		pod  *corev1.Pod
		want Verdict
		says string
	}{
		{"fits", fleet.Cluster{Nodes: []*corev1.Node{a}}, pod("p", gpu+":4"), Schedulable, "Pod default/p fits on node-a."},
		{"does not fit", fleet.Cluster{Nodes: []*corev1.Node{a}}, pod("p", gpu+":5"), Pending, "Pod default/p is pending: it does not fit on node-a, the only node."},
		{"no node", fleet.Cluster{}, pod("p"), Pending, "Pod default/p is pending: the cluster has no node."},
		{"bound", fleet.Cluster{Nodes: []*corev1.Node{a}}, on(pod("p", gpu+":5"), "node-a"), Bound, "Pod default/p is bound to node-a: the scheduler is done with it."},
		{"bound to nothing", fleet.Cluster{Nodes: []*corev1.Node{a}}, on(pod("p"), "node-x"), Pending, "Pod default/p is pending: spec.nodeName asks for node-x, and there is no such node."},
		{"ended", fleet.Cluster{Nodes: []*corev1.Node{a}}, ended, Ended, "Pod default/p has ended (Succeeded)."},
		{"pods unread", fleet.Cluster{Nodes: []*corev1.Node{a}, Unread: []fleet.Unread{{Kind: fleet.Pods}}}, pod("p", gpu+":1"), Unknown, "It cannot be told whether pod default/p fits: not all could be read."},
		{"pods unread, and too few anyway", fleet.Cluster{Nodes: []*corev1.Node{a}, Unread: []fleet.Unread{{Kind: fleet.Pods}}}, pod("p", gpu+":5"), Pending, "Pod default/p is pending: it does not fit on node-a, the only node."},
		{"the scheduler knows better", fleet.Cluster{Nodes: []*corev1.Node{a}}, withVolume(waiting(pod("p", gpu+":4"), `persistentvolumeclaim "data" not found`)), Pending, "Pod default/p is pending, though by all that is checked here it fits on node-a. Not checked: volumes: persistent volume claims, and how many volumes a node can attach."},
		{"another scheduler, silent", fleet.Cluster{Nodes: []*corev1.Node{a}}, by(waiting(pod("p", gpu+":4"), ""), "volcano", false), Pending, "Pod default/p is pending: its scheduler volcano has not placed it, and has said nothing of it. Does it run?"},
		{"another scheduler, of a pod to be", fleet.Cluster{Nodes: []*corev1.Node{a}}, by(pod("p", gpu+":4"), "volcano", false), Schedulable, "Pod default/p fits on node-a."},
		{"another scheduler", fleet.Cluster{Nodes: []*corev1.Node{a}}, by(waiting(pod("p", gpu+":4"), "not enough of the gang"), "volcano", true), Pending, "Pod default/p is pending, though by all that is checked here it fits on node-a. Not checked: what the scheduler volcano goes by."},
		{"the scheduler knew something else", fleet.Cluster{Nodes: []*corev1.Node{a}}, waiting(pod("p", gpu+":4"), "0/1 nodes are available."), Pending, "Pod default/p is pending, though by all that is checked here it fits on node-a. The cluster may have changed since the scheduler looked."},
		{"pods unread, and the scheduler has spoken", fleet.Cluster{Nodes: []*corev1.Node{a}, Unread: []fleet.Unread{{Kind: fleet.Pods}}}, waiting(pod("p", gpu+":1"), "0/1 nodes are available."), Pending, "Pod default/p is pending; where it fits cannot be told: not all could be read."},
		{"claims unread, and not needed", fleet.Cluster{Nodes: []*corev1.Node{a}, Unread: []fleet.Unread{{Kind: fleet.Claims}, {Kind: fleet.Slices}}}, pod("p", gpu+":1"), Schedulable, "Pod default/p fits on node-a."},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := Explain(t.Context(), &test.c, test.pod)
			if err != nil {
				t.Fatal(err)
			}
			if r.Verdict != test.want || r.Summary != test.says {
				t.Errorf("got %s: %s\nwant %s: %s", r.Verdict, r.Summary, test.want, test.says)
			}
		})
	}
}

// TestDeviceCounts: init containers that end use what the containers after them
// have, sidecars keep theirs.
func TestDeviceCounts(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	container := func(n string, sidecar bool) corev1.Container {
		c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: quantities(gpu + ":" + n)}}
		if sidecar {
			c.RestartPolicy = &always
		}
		return c
	}
	p := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{container("5", false), container("1", true), container("2", false)},
		Containers:     []corev1.Container{container("1", false), container("1", false)},
	}}
	if got, want := deviceCounts(p, gpu), []int64{2, 1, 0, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestEditDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"NVIDIA-H100", "nvidia-h100", 0}, {"H100", "H200", 1}, {"kitten", "sitting", 3}, {"dpeloyment", "deployment", 1}} {
		if got := editDistance(test.a, test.b); got != test.want {
			t.Errorf("%q, %q: got %d, want %d", test.a, test.b, got, test.want)
		}
	}
}
