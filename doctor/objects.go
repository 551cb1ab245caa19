package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The objects below hold what doctor reads of Kubernetes' (v1, v1.37).

type list[T any] struct {
	Items []T `json:"items"`
}

type metadata struct {
	Name          string                      `json:"name"`
	Namespace     string                      `json:"namespace"`
	Labels        map[string]string           `json:"labels"`
	Annotations   map[string]string           `json:"annotations"`
	ManagedFields []metav1.ManagedFieldsEntry `json:"managedFields"`
	Owners        []metav1.OwnerReference     `json:"ownerReferences"`
}

type condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"lastTransitionTime"`
}

type node struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		Taints        []taint `json:"taints"`
		Unschedulable bool    `json:"unschedulable"`
	} `json:"spec"`
	Status struct {
		Capacity    map[string]string `json:"capacity"`
		Allocatable map[string]string `json:"allocatable"`
		Conditions  []condition       `json:"conditions"`
		NodeInfo    struct {
			ContainerRuntimeVersion string `json:"containerRuntimeVersion"`
			BootID                  string `json:"bootID"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

type taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

func (t taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

type toleration struct {
	Key      string `json:"key"`
	Operator string `json:"operator"`
	Value    string `json:"value"`
	Effect   string `json:"effect"`
}

func (t toleration) tolerates(taint taint) bool {
	return (t.Effect == "" || t.Effect == taint.Effect) &&
		(t.Key == "" && t.Operator == "Exists" || t.Key == taint.Key && (t.Operator == "Exists" || t.Value == taint.Value))
}

type container struct {
	Name      string `json:"name"`
	Image     string `json:"image"`
	Resources struct {
		Limits   map[string]string `json:"limits"`
		Requests map[string]string `json:"requests"`
	} `json:"resources"`
}

type podSpec struct {
	NodeName         string            `json:"nodeName"`
	SchedulerName    string            `json:"schedulerName"`
	NodeSelector     map[string]string `json:"nodeSelector"`
	RuntimeClassName string            `json:"runtimeClassName"`
	Tolerations      []toleration      `json:"tolerations"`
	Containers       []container       `json:"containers"`
	InitContainers   []container       `json:"initContainers"`
	Affinity         *struct{}         `json:"affinity"`
}

type containerState struct {
	Waiting *struct {
		Reason  string `json:"reason"`
		Message string `json:"message"`
	} `json:"waiting"`
	Terminated *struct {
		Reason   string `json:"reason"`
		Message  string `json:"message"`
		ExitCode int    `json:"exitCode"`
	} `json:"terminated"`
}

type containerStatus struct {
	Name         string         `json:"name"`
	Ready        bool           `json:"ready"`
	RestartCount int            `json:"restartCount"`
	State        containerState `json:"state"`
	LastState    containerState `json:"lastState"`
}

type pod struct {
	Metadata metadata `json:"metadata"`
	Spec     podSpec  `json:"spec"`
	Status   struct {
		Phase                 string            `json:"phase"`
		Reason                string            `json:"reason"`
		Message               string            `json:"message"`
		Conditions            []condition       `json:"conditions"`
		ContainerStatuses     []containerStatus `json:"containerStatuses"`
		InitContainerStatuses []containerStatus `json:"initContainerStatuses"`
	} `json:"status"`
}

func (p *pod) String() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// ofJob tells a pod that is to do something once, and end.
func (p *pod) ofJob() bool {
	return slices.ContainsFunc(p.Metadata.Owners, func(o metav1.OwnerReference) bool { return o.Kind == "Job" })
}

// ready tells a pod whose containers all are.
func (p *pod) ready() bool {
	if p.Status.Phase != "Running" {
		return false
	}
	for _, s := range p.Status.ContainerStatuses {
		if !s.Ready {
			return false
		}
	}
	return true
}

// over tells a pod that has ended and holds nothing.
func (p *pod) over() bool { return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" }

// trouble says what holds a pod up: the first container that waits or failed.
func (p *pod) trouble() string {
	for _, all := range [][]containerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, s := range all {
			text := s.trouble()
			if text != "" {
				return fmt.Sprintf("pod %v: container %s: %s", p, s.Name, text)
			}
		}
	}
	if p.Status.Reason != "" || p.Status.Message != "" {
		return fmt.Sprintf("pod %v: %s", p, strings.TrimSpace(p.Status.Reason+" "+p.Status.Message))
	}
	for _, c := range p.Status.Conditions {
		if c.Status == "False" && c.Message != "" && (c.Type == "PodScheduled" || c.Type == "PodReadyToStartContainers") {
			return fmt.Sprintf("pod %v: %s", p, c.Message)
		}
	}
	return fmt.Sprintf("pod %v: %s", p, cmp.Or(p.Status.Phase, "no status"))
}

func (s *containerStatus) trouble() string {
	var text string
	switch w, t := s.State.Waiting, s.State.Terminated; {
	case w != nil:
		text = strings.TrimSpace(w.Reason + " " + w.Message)
	case t != nil && t.ExitCode != 0:
		text = strings.TrimSpace(fmt.Sprintf("%s, exit code %d %s", t.Reason, t.ExitCode, t.Message))
	case t != nil || s.Ready:
		return ""
	default:
		text = "not ready"
	}
	if s.RestartCount > 0 {
		text += fmt.Sprintf(", restarted %d times", s.RestartCount)
		if last := s.LastState.Terminated; last != nil {
			text += fmt.Sprintf(", last with exit code %d", last.ExitCode)
			if last.Message != "" {
				text += ": " + last.Message
			}
		}
	}
	return text
}

type daemonSet struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		Template struct {
			Metadata metadata `json:"metadata"`
			Spec     podSpec  `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

func (d *daemonSet) String() string { return d.Metadata.Namespace + "/" + d.Metadata.Name }

// keptOut says why a Node gets no pod of the template, as far as the node
// selector and taints tell; empty if they do not.
func (s *podSpec) keptOut(n *node) []string {
	var why []string
	for _, key := range sortedKeys(s.NodeSelector) {
		want := s.NodeSelector[key]
		got, ok := n.Metadata.Labels[key]
		switch {
		case !ok:
			why = append(why, fmt.Sprintf("its node selector wants %s=%s, which the Node does not have", key, want))
		case got != want:
			why = append(why, fmt.Sprintf("its node selector wants %s=%s, the Node has %s", key, want, cmp.Or(got, `""`)))
		}
	}
	return append(why, s.untolerated(n)...)
}

// untolerated gives the taints that keep a pod away from the Node.
func (s *podSpec) untolerated(n *node) []string {
	var why []string
	for _, t := range n.Spec.Taints {
		tolerated := t.Effect == "PreferNoSchedule"
		for _, toleration := range s.Tolerations {
			tolerated = tolerated || toleration.tolerates(t)
		}
		if !tolerated {
			why = append(why, fmt.Sprintf("it does not tolerate the Node's taint %v", t))
		}
	}
	return why
}

type runtimeClass struct {
	Handler string `json:"handler"`
}

// clusterPolicy is the GPU operator's configuration and state.
type clusterPolicy struct {
	Metadata metadata `json:"metadata"`
	Status   struct {
		State string `json:"state"`
	} `json:"status"`
}

// event is what the scheduler and the kubelet say of a pod.
type event struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Type    string `json:"type"`
}
