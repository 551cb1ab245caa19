package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// schedulingStep says what keeps a pod from this Node, in short.
func schedulingStep(ctx context.Context, c *Config, k *state, no string) Step {
	switch {
	case c.Pod == "":
		return skippedStep("no pod was named: give --pod NAMESPACE/NAME")
	case no != "":
		return skippedStep(no)
	}
	namespace, name, _ := strings.Cut(c.Pod, "/")
	var p pod
	if err := c.Cluster.get(ctx, "get", "pods", podPath(namespace, name), nil, &p); err != nil {
		check := skip("pod", because(err))
		if errors.Is(err, errAbsent) {
			check.Result, check.Text = Fault, "there is no pod "+c.Pod
			check.Cure = "name it as kubectl get pods -A shows it, with --pod NAMESPACE/NAME"
			check.after = []int{}
		}
		return Step{Checks: []Check{check}}
	}
	checks := []Check{checkPod(&p, c.Node)}
	waits := p.Spec.NodeName == "" && !p.over()
	if waits && k.node != nil {
		checks = append(checks, checkSelector(&p, k.node), checkTaints(&p, k.node), checkRequests(&p, k))
		blamed := false
		for _, c := range checks[1:] {
			blamed = blamed || c.Result == Fault
		}
		if !blamed {
			checks[0].Cure = "this Node is right for it as far as its node selector, taints and GPUs go; kubectl gpu-labeller explain " + name + " -n " + namespace +
				" looks at affinity and device claims and at the other Nodes. What the scheduler says of ports, volumes, spread and other pods is neither's matter: change that in the pod"
		}
	}
	events := url.Values{"fieldSelector": {"involvedObject.kind=Pod,involvedObject.name=" + name}}
	var all list[event]
	if err := c.Cluster.get(ctx, "list", "events", "/api/v1/namespaces/"+url.PathEscape(namespace)+"/events", events, &all); err != nil {
		checks[0].Evidence = append(checks[0].Evidence, "its events are not looked at: "+because(err))
	}
	for i := max(0, len(all.Items)-3); i < len(all.Items); i++ {
		checks[0].Evidence = append(checks[0].Evidence, fmt.Sprintf("event %s: %s", all.Items[i].Reason, all.Items[i].Message))
	}
	return Step{Checks: checks}
}

// HasPod asks for a pod, NAMESPACE/NAME. The error says that there is none; that
// it may not be asked for is none.
func (c *Cluster) HasPod(ctx context.Context, pod string) error {
	namespace, name, _ := strings.Cut(pod, "/")
	var p struct{}
	if err := c.get(ctx, "get", "pods", podPath(namespace, name), nil, &p); errors.Is(err, errAbsent) {
		return fmt.Errorf("there is no pod %s: name it as kubectl get pods -A shows it", pod)
	}
	return nil
}

func podPath(namespace, name string) string {
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name)
}

// checkPod tells where the pod stands.
func checkPod(p *pod, node string) Check {
	c := Check{Name: "pod", Result: OK, after: []int{1, 2}}
	says := ""
	for _, condition := range p.Status.Conditions {
		if condition.Type == "PodScheduled" && condition.Status == "False" {
			says = strings.TrimSpace(condition.Reason + " " + condition.Message)
		}
	}
	switch {
	case p.Spec.NodeName == "" && says != "":
		c.Result = Warning
		c.Text = fmt.Sprintf("pod %v waits for a Node; the scheduler says: %s", p, says)
	case p.Spec.NodeName == "":
		c.Result = Warning
		c.Text = fmt.Sprintf("pod %v waits for a Node, and the scheduler has said nothing of it", p)
		c.Evidence = append(c.Evidence, "its scheduler is "+cmp.Or(p.Spec.SchedulerName, "default-scheduler"))
	case p.Spec.NodeName != node:
		c.Text = fmt.Sprintf("pod %v is on Node %s, not on this one", p, p.Spec.NodeName)
	case p.ready() || p.Status.Phase == "Succeeded":
		c.Text = fmt.Sprintf("pod %v is on this Node, %s", p, strings.ToLower(p.Status.Phase))
	default:
		c.Result = Fault
		c.Text = fmt.Sprintf("pod %v is on this Node, but does not run", p)
		c.Evidence = append(c.Evidence, p.trouble())
		c.Cure = fmt.Sprintf("look at kubectl -n %s describe pod %s", p.Metadata.Namespace, p.Metadata.Name)
	}
	return c
}

func checkSelector(p *pod, n *node) Check {
	c := Check{Name: "node-selector", Result: OK, Text: "its node selector is met", after: []int{1, 3}}
	selector := podSpec{NodeSelector: p.Spec.NodeSelector}
	untainted := *n
	untainted.Spec.Taints = nil
	if c.Evidence = selector.keptOut(&untainted); len(c.Evidence) > 0 {
		c.Result = Fault
		c.Text = "the Node does not have the labels that the pod selects"
		c.Cure = "change the pod's nodeSelector to what the Node has: kubectl get node " + n.Metadata.Name + " --show-labels"
	}
	if p.Spec.Affinity != nil {
		c.Evidence = append(c.Evidence, "its affinity is not looked at: kubectl gpu-labeller explain does")
	}
	return c
}

func checkTaints(p *pod, n *node) Check {
	c := Check{Name: "taints", Result: OK, Text: "the Node has no taint that it does not tolerate", after: []int{}}
	if c.Evidence = p.Spec.untolerated(n); len(c.Evidence) > 0 {
		c.Result = Fault
		c.Text = "the pod does not tolerate the Node's taints"
		c.Cure = "give it tolerations, or remove the taints"
	}
	if n.Spec.Unschedulable {
		c.Result = Fault
		c.Text = "the Node is cordoned"
		c.Cure = "kubectl uncordon " + n.Metadata.Name
	}
	return c
}

// gpuRequests adds up what a pod asks of the GPUs' resources. Extended resources
// have equal requests and limits; init containers run one after another, so they
// ask for the most that one of them does.
func gpuRequests(p *pod) map[string]int {
	sum, most := map[string]int{}, map[string]int{}
	of := func(c *container, add func(name string, n int)) {
		for name := range c.Resources.Limits {
			for _, v := range advertisers {
				if v.resource(name) {
					n, _ := quantity(c.Resources.Limits, name)
					add(name, n)
				}
			}
		}
	}
	for i := range p.Spec.Containers {
		of(&p.Spec.Containers[i], func(name string, n int) { sum[name] += n })
	}
	for i := range p.Spec.InitContainers {
		of(&p.Spec.InitContainers[i], func(name string, n int) { most[name] = max(most[name], n) })
	}
	for name, n := range most {
		sum[name] = max(sum[name], n)
	}
	return sum
}

func checkRequests(p *pod, k *state) Check {
	c := Check{Name: "requests", Result: OK, after: []int{}}
	wanted := gpuRequests(p)
	if len(wanted) == 0 {
		c.Text = "it asks for no GPU as a resource"
		return c
	}
	used := map[string]int{}
	var holders []string
	for i := range k.pods {
		if other := &k.pods[i]; !other.over() {
			for name, n := range gpuRequests(other) {
				used[name] += n
				if wanted[name] > 0 && n > 0 {
					holders = append(holders, fmt.Sprintf("%v (%d)", other, n))
				}
			}
		}
	}
	c.Text = "the Node has what it asks for"
	for _, name := range sortedKeys(wanted) {
		n := wanted[name]
		allocatable, _ := quantity(k.node.Status.Allocatable, name)
		c.Evidence = append(c.Evidence, fmt.Sprintf("%s: asked %d, allocatable %d, in use %d", name, n, allocatable, used[name]))
		switch {
		case n > allocatable:
			c.Result = Fault
			c.Text = fmt.Sprintf("it asks for %d of %s, and the Node has %d", n, name, allocatable)
			c.after = []int{1, 2, 4}
			c.Cure = "ask for what the Node advertises: kubectl describe node " + k.node.Metadata.Name
		case n > allocatable-used[name] && c.Result != Fault:
			c.Result = Fault
			c.Text = fmt.Sprintf("it asks for %d of %s, and %d of %d are free", n, name, allocatable-used[name], allocatable)
			c.Cure = "wait, or end a pod that holds them: " + listed(holders, 6)
		}
	}
	if k.podsErr != nil {
		c.Evidence = append(c.Evidence, "what is in use is not known: "+because(k.podsErr))
	}
	return c
}
