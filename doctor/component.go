package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// component is a piece of software that runs as pods, known by a label that its
// makers give them, or by its image.
type component struct {
	name   string // of the check
	title  string
	labels []string // key=value, any of them
	images []string // parts of an image's name, any of them
}

// The components, under the labels of the GPU operator (v26.7), the static
// manifests and the Helm charts.
var (
	nvidiaPlugin = component{"device-plugin", "NVIDIA's device plugin",
		[]string{"app=nvidia-device-plugin-daemonset", "name=nvidia-device-plugin-ds", "app.kubernetes.io/name=nvidia-device-plugin", "k8s-app=nvidia-gpu-device-plugin"}, nil}
	amdPlugin = component{"amd-device-plugin", "AMD's device plugin",
		[]string{"name=amdgpu-dp-ds"}, []string{"rocm/k8s-device-plugin", "/amdgpu-device-plugin"}}
	intelPlugin = component{"intel-device-plugin", "Intel's device plugin",
		[]string{"app=intel-gpu-plugin"}, []string{"/intel-gpu-plugin"}}
	driverPods     = component{"driver-pod", "the GPU operator's driver", []string{"app=nvidia-driver-daemonset", "app.kubernetes.io/component=nvidia-driver"}, nil}
	toolkitPods    = component{"container-toolkit", "NVIDIA's container toolkit", []string{"app=nvidia-container-toolkit-daemonset"}, nil}
	validatorPods  = component{"operator", "the GPU operator's validator", []string{"app=nvidia-operator-validator"}, nil}
	nvidiaDRA      = component{"dra-driver", "NVIDIA's DRA driver", []string{"app.kubernetes.io/name=nvidia-dra-driver-gpu", "nvidia-dra-driver-gpu-component=kubelet-plugin", "app.kubernetes.io/name=dra-driver-nvidia-gpu"}, []string{"/k8s-dra-driver", "/dra-driver-nvidia-gpu"}}
	nfdWorker      = component{"nfd", "NFD's worker", []string{"app=nfd-worker", "role=worker", "app.kubernetes.io/component=worker"}, nil}
	nfdMaster      = component{"nfd", "NFD's master", []string{"app=nfd-master", "role=master", "app.kubernetes.io/component=master"}, nil}
	labellerPods   = component{"agent", "gpu-labeller's agent", []string{"app.kubernetes.io/name=gpu-labeller"}, []string{"/gpu-labeller"}}
	gfdPods        = component{"agent", "GPU Feature Discovery", []string{"app=gpu-feature-discovery", "app.kubernetes.io/name=gpu-feature-discovery"}, []string{"/gpu-feature-discovery"}}
	nodeFeatureApp = "app.kubernetes.io/name=node-feature-discovery"
)

func hasLabel(labels map[string]string, pair string) bool {
	key, value, _ := strings.Cut(pair, "=")
	got, ok := labels[key]
	return ok && got == value
}

func (c *component) is(labels map[string]string, spec *podSpec) bool {
	if slices.ContainsFunc(c.labels, func(pair string) bool { return hasLabel(labels, pair) }) {
		return true
	}
	return slices.ContainsFunc(spec.Containers, func(k container) bool {
		image, _, _ := strings.Cut(k.Image, "@")
		return slices.ContainsFunc(c.images, func(part string) bool { return strings.Contains("/"+image, part) })
	})
}

// of gives the component's pods that have not ended. No component is a Job's: the
// clean-up has its image and labels of the agent's, too. NFD's own labels are
// common words, so its pods must be NFD's by name, too.
func (c *component) of(pods []pod) []*pod {
	var some []*pod
	for i := range pods {
		p := &pods[i]
		if p.Status.Phase == "Succeeded" || p.ofJob() || !c.is(p.Metadata.Labels, &p.Spec) {
			continue
		}
		if c.name == "nfd" && !strings.HasPrefix(p.Metadata.Labels["app"], "nfd-") && !hasLabel(p.Metadata.Labels, nodeFeatureApp) {
			continue
		}
		some = append(some, p)
	}
	return some
}

// check looks at the component's pods on the Node. There is none of a component
// that need not be there: the result is zero then.
func (c *component) check(pods []pod) Check {
	own := c.of(pods)
	if len(own) == 0 {
		return Check{}
	}
	check := Check{Name: c.name, Result: OK, Text: c.title + " runs"}
	for _, p := range own {
		if p.ready() {
			check.Evidence = append(check.Evidence, fmt.Sprintf("pod %v", p))
			continue
		}
		if check.Result == OK {
			check.Evidence = nil
		}
		check.Result = Fault
		check.Text = c.title + " does not run"
		check.Evidence = append(check.Evidence, p.trouble())
		check.Cure = fmt.Sprintf("look at kubectl -n %s describe pod %s, and at its log", p.Metadata.Namespace, p.Metadata.Name)
	}
	return check
}

// absentBecause explains why a DaemonSet of the component has no pod on the
// Node, and what would give it one; nil where there is no such DaemonSet.
func (c *component) absentBecause(k *state) (why []string, cure string) {
	var cures []string
	for i := range k.daemonSets {
		d := &k.daemonSets[i]
		t := &d.Spec.Template
		if !c.is(t.Metadata.Labels, &t.Spec) {
			continue
		}
		keptOut := t.Spec.keptOut(k.node)
		noClass := slices.Contains(k.noClasses, t.Spec.RuntimeClassName)
		if noClass {
			why = append(why, fmt.Sprintf("DaemonSet %v: its pods are refused, since the cluster has no RuntimeClass %s, which it names", d, t.Spec.RuntimeClassName))
			cures = append(cures, fmt.Sprintf("install the container runtime that brings RuntimeClass %s (kubectl get runtimeclass), or let DaemonSet %v name one that is there, or none", t.Spec.RuntimeClassName, d))
		}
		for _, reason := range keptOut {
			why = append(why, fmt.Sprintf("DaemonSet %v: %s", d, reason))
		}
		switch {
		case len(keptOut) > 0:
			cures = append(cures, fmt.Sprintf("let DaemonSet %v select and tolerate the Node", d))
		case !noClass:
			why = append(why, fmt.Sprintf("DaemonSet %v has no pod here", d))
			cures = append(cures, fmt.Sprintf("find out why in kubectl -n %s describe daemonset %s: a pod is refused, or its affinity keeps it from the Node", d.Metadata.Namespace, d.Metadata.Name))
		}
	}
	return why, strings.Join(cures, "; ")
}
