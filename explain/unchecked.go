package explain

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// unchecked is what the scheduler looks at and Explain does not, as far as the
// pod asks for it.
func (p *problem) unchecked() []string {
	var not []string
	spec := &p.pod.Spec
	if p.hostPorts() {
		not = append(not, "host ports")
	}
	if slices.ContainsFunc(spec.Volumes, needsPlace) {
		not = append(not, "volumes: persistent volume claims, and how many volumes a node can attach")
	}
	if slices.ContainsFunc(spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == corev1.DoNotSchedule
	}) {
		not = append(not, "topology spread constraints")
	}
	if a := spec.Affinity; a != nil {
		if a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			not = append(not, "required affinity to other pods")
		}
		if a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			not = append(not, "required anti-affinity to other pods")
		}
	}
	if name := p.otherScheduler(); name != "" {
		not = append(not, "what the scheduler "+name+" goes by")
	}
	if pods := p.repelling(); len(pods) > 0 {
		not = append(not, "required anti-affinity of "+some(pods)+" to this pod")
	}
	return not
}

func (p *problem) hostPorts() bool {
	hostPort := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.HostPort != 0 })
	}
	return slices.ContainsFunc(p.pod.Spec.Containers, hostPort) || slices.ContainsFunc(p.pod.Spec.InitContainers, hostPort)
}

// needsPlace tells of volumes that not every Node can have.
func needsPlace(v corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil || v.GCEPersistentDisk != nil ||
		v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

// repelling is the pods whose required anti-affinity may be to this pod. Selectors
// of namespaces are not evaluated: they may select this pod's.
func (p *problem) repelling() []string {
	var pods []string
	for _, other := range p.cluster.Pods {
		if other.Spec.NodeName == "" || fleet.Ended(other) || other.Spec.Affinity == nil || other.Spec.Affinity.PodAntiAffinity == nil {
			continue
		}
		for _, t := range other.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			namespaces := t.Namespaces
			if len(namespaces) == 0 && t.NamespaceSelector == nil {
				namespaces = []string{other.Namespace}
			}
			if t.NamespaceSelector == nil && !slices.Contains(namespaces, p.pod.Namespace) {
				continue
			}
			selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
			if err == nil && selector.Matches(labels.Set(p.pod.Labels)) {
				pods = append(pods, fleet.PodName(other))
				break
			}
		}
	}
	slices.Sort(pods)
	return pods
}

// otherScheduler is the pod's scheduler, if it is not Kubernetes' own.
func (p *problem) otherScheduler() string {
	if name := p.pod.Spec.SchedulerName; name != corev1.DefaultSchedulerName {
		return name
	}
	return ""
}

// notes is what is worth knowing beside the verdict.
func (p *problem) notes() []string {
	var notes []string
	if name := p.otherScheduler(); name != "" {
		notes = append(notes, "spec.schedulerName is "+name+": all this is how Kubernetes' own scheduler would decide; "+name+" may decide otherwise, and must run for the pod to be placed at all")
	}
	if pods := p.evictable(); len(pods) > 0 {
		notes = append(notes, "some of what is lacking is held by pods of lower priority, which the scheduler may evict: "+some(pods))
	}
	return notes
}
