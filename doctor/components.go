package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/dra"
	"github.com/gpu-labeller/gpu-labeller/internal/readiness"
)

// componentsStep looks for what brings GPUs into a cluster. Of the many ways to
// do so each is right: what is blamed is what runs and fails, and what is missing
// where nothing else does its work.
func componentsStep(h *host, k *state, no string) Step {
	var s Step
	add := func(c Check) {
		if c.Name != "" {
			s.Checks = append(s.Checks, c)
		}
	}
	if len(h.gpus(discover.NVIDIA)) > 0 {
		add(h.checkCDI())
	}
	if no != "" {
		s.Note = no
		return s
	}
	if k.node == nil {
		c := Check{Name: "node"}
		if errors.Is(k.nodeErr, errAbsent) {
			c.Result, c.Text = Fault, "there is no such Node"
			c.Cure = "give the Node's name as kubectl get nodes shows it with --node-name; or the kubelet has not registered it: look at its log"
		} else {
			c.Result, c.Text = Skipped, because(k.nodeErr)
		}
		add(c)
		return s
	}
	add(checkNode(k.node))
	add(h.checkSameHost(k.node))
	if k.podsErr != nil {
		add(skip("pods", "the components' pods are not looked at: "+because(k.podsErr)))
	}
	if len(h.usable(discover.NVIDIA)) > 0 || len(h.gpus(discover.NVIDIA)) > 0 {
		add(driverPods.check(k.pods))
		add(h.checkToolkit(k))
		add(h.checkRuntimeClass(k))
		add(h.checkRuntime(k))
		add(checkOperator(k))
		add(nvidiaDRA.check(k.pods))
	}
	for _, v := range advertisers {
		if len(v.wanting(h)) > 0 {
			add(v.checkPlugin(k))
		}
	}
	add(checkNFD(k))
	return s
}

// checkNode looks at the kubelet, which everything else here needs.
func checkNode(n *node) Check {
	c := Check{Name: "node", Result: OK, Text: "the Node is ready"}
	ready, why := readiness.Of(n.Status.Conditions, func(c condition) (string, string) { return c.Type, c.Status })
	if !ready {
		c.Result = Fault
		c.Text = "the Node is not ready"
		c.Evidence = []string{"the Node has no condition Ready: no kubelet has reported for it"}
		c.Cure = "look at the kubelet's log on the node"
	}
	if !ready && why != nil {
		c.Evidence = []string{strings.TrimSpace(why.Reason + " " + why.Message)}
	}
	if n.Spec.Unschedulable {
		if c.Result == OK {
			c.Result = Warning
			c.Cure = "kubectl uncordon it when it may have pods again"
		}
		c.Evidence = append(c.Evidence, "the Node is cordoned (spec.unschedulable)")
	}
	return c
}

// checkSameHost asks whether this host is the Node. Each boot of a kernel has an ID,
// which the kubelet tells and containers see. A recorded host has none; then a Node
// with GPUs and a host without make one ask.
func (h *host) checkSameHost(n *node) Check {
	c := Check{Name: "same-host", Result: OK, Text: "this host is the Node"}
	here, err := h.root.Attribute("proc/sys/kernel/random/boot_id")
	there := n.Status.NodeInfo.BootID
	switch known := err == nil && here != "" && there != ""; {
	case known && here == there:
		return c
	case known:
		c.Text = "this host is not the Node " + n.Metadata.Name
		c.Evidence = []string{"/proc/sys/kernel/random/boot_id: " + here, "Node status: boot ID " + there}
		c.Cure = "run doctor on the node itself, or in the agent's pod there, or give it the right --node-name; just after a reboot, wait until the kubelet has told of it"
	default:
		labelled := n.gpuLabels()
		if h.scanErr != nil || len(h.inv.GPUs) > 0 || labelled == 0 {
			return Check{}
		}
		c.Text = fmt.Sprintf("this host has no GPU, and the Node %s is labelled with some: is this host the Node?", n.Metadata.Name)
		c.Evidence = []string{fmt.Sprintf("the Node has %s of GPUs", plural(labelled, "label"))}
		c.Cure = "run doctor on the node itself, or in the agent's pod there, or give it the right --node-name or --host; if this is the node, its GPUs are gone from the bus: lspci"
	}
	c.Result = Fault
	return c
}

// gpuLabels counts the labels that only a node with GPUs that work has.
func (n *node) gpuLabels() int {
	count := 0
	for key := range n.Metadata.Labels {
		if known(key) && family([]string{"nvidia.com/", "amd.com/", "gpu.intel.com/"}, key) != "" {
			count++
		}
	}
	return count
}

// checkCDI looks for specifications that were made for another driver: the
// libraries that they mount are not there any more.
func (h *host) checkCDI() Check {
	c := Check{Name: "cdi", Result: OK}
	if h.etcWhy != "" {
		return skip(c.Name, h.etcWhy)
	}
	driver := h.driverVersion()
	devices := 0
	var stale []string
	for _, s := range h.cdi {
		if s.err != nil {
			c.Result = Warning
			c.Evidence = append(c.Evidence, fmt.Sprintf("%s: %v", s.path, s.err))
			continue
		}
		text := fmt.Sprintf("%s: %s, %s", s.path, s.kind, plural(len(s.devices), "device"))
		if len(s.drivers) > 0 {
			text += ", driver " + strings.Join(s.drivers, ", ")
		}
		c.Evidence = append(c.Evidence, text)
		devices += len(s.devices)
		if len(s.drivers) > 0 && driver != "" && !slices.ContainsFunc(s.drivers, func(v string) bool { return dra.SameVersion(v, driver) }) {
			stale = append(stale, s.path)
		}
	}
	switch {
	case len(stale) > 0:
		c.Result = Fault
		c.Text = fmt.Sprintf("CDI specifications are of another driver than %s: %s", driver, strings.Join(stale, ", "))
		c.Cure = "make them anew after a driver upgrade: nvidia-ctk cdi generate --output=" + stale[0] + ", or restart nvidia-cdi-refresh, or the operator's toolkit pod"
	case c.Result == Warning:
		c.Text = "a CDI specification cannot be read"
		c.Cure = "correct or remove it: container runtimes pass over it"
	case len(h.cdi) == 0:
		c.Text = "no CDI specification for GPUs below /etc/cdi and /var/run/cdi; none is needed where the nvidia runtime is used"
	default:
		c.Text = fmt.Sprintf("CDI specifications name %s", plural(devices, "device"))
	}
	return c
}

// advertised tells whether the kubelet was told of GPUs of the vendor, by
// whatever told it.
func (k *state) advertised(vendor discover.Vendor) bool {
	for _, v := range advertisers {
		if v.vendor != vendor {
			continue
		}
		for name, quantity := range k.node.Status.Allocatable {
			if v.resource(name) && quantity != "0" {
				return true
			}
		}
		return len(k.draDevices(v.dra)) > 0
	}
	return false
}

// checkToolkit looks at what gives containers the driver.
func (h *host) checkToolkit(k *state) Check {
	c := toolkitPods.check(k.pods)
	if c.Name != "" {
		return c
	}
	c = Check{Name: toolkitPods.name, Result: OK}
	why, _ := toolkitPods.absentBecause(k)
	switch {
	case h.toolkit != "":
		c.Text, c.Evidence = "NVIDIA's container toolkit is installed", []string{h.toolkit}
	case k.advertised(discover.NVIDIA):
		c.Text = "GPUs are advertised, so what gives containers the driver works for the device plugin"
	case h.etcWhy != "" && len(why) == 0:
		return skip(c.Name, "there is no pod of it, and whether it is installed cannot be told: "+h.etcWhy)
	case h.runtimes.has("nvidia") || len(h.cdi) > 0:
		c.Text = "the container runtime is configured for GPUs"
	default:
		c.Result = Fault
		c.Text = "NVIDIA's container toolkit is not installed, so containers do not get the driver"
		c.Evidence = why
		if h.etcWhy == "" {
			c.Evidence = append(c.Evidence, "/"+strings.Join(toolkitPaths[:2], ", /")+": not there")
		}
		c.Cure = "install nvidia-container-toolkit and configure the container runtime (nvidia-ctk runtime configure), or the GPU operator"
	}
	return c
}

// checkRuntimeClass is about the RuntimeClass by which pods ask for NVIDIA's
// runtime. It is needed unless something else gives containers the driver.
func (h *host) checkRuntimeClass(k *state) Check {
	c := Check{Name: "runtime-class", Result: OK}
	switch {
	case k.runtimeClass != nil:
		c.Text = fmt.Sprintf("there is the RuntimeClass %s, with handler %s", nvidiaRuntimeClass, k.runtimeClass.Handler)
		return c
	case !errors.Is(k.runtimeErr, errAbsent):
		return skip(c.Name, because(k.runtimeErr))
	}
	c.Text = fmt.Sprintf("there is no RuntimeClass %s, so pods that name it are refused", nvidiaRuntimeClass)
	c.Evidence = []string{"RuntimeClass " + nvidiaRuntimeClass + ": not there"}
	c.Cure = "create it, with handler: nvidia, unless the nvidia runtime is the container runtime's default, or CDI is used"
	switch {
	case len(h.gpus(discover.NVIDIA)) > 0 && len(h.usable(discover.NVIDIA)) == 0, k.advertised(discover.NVIDIA):
		c.Result = Warning
	case h.runtimes.standard == "nvidia", len(h.cdi) > 0:
		c.Text = "there is no RuntimeClass " + nvidiaRuntimeClass + ", and none is needed"
		c.Cure = ""
	case len(nvidiaPlugin.of(k.pods)) == 0:
		c.Result = Warning // nothing here says that it is wanted
	default:
		c.Result = Fault
	}
	return c
}

// checkRuntime compares the RuntimeClass with the container runtime's own
// configuration, where that can be read.
func (h *host) checkRuntime(k *state) Check {
	c := Check{Name: "container-runtime", Result: OK}
	r := &h.runtimes
	switch {
	case h.etcWhy != "":
		return skip(c.Name, h.etcWhy)
	case len(r.files) == 0 && len(r.unread) == 0:
		return skip(c.Name, "no configuration of containerd or CRI-O was found below "+string(h.root))
	case len(r.unread) > 0 && len(r.names) == 0:
		return skip(c.Name, "its configuration cannot be read: "+strings.Join(r.unread, "; "))
	}
	c.Evidence = []string{strings.Join(r.files, ", ") + ": runtimes " + strings.Join(r.names, ", ")}
	if r.standard != "" {
		c.Evidence = append(c.Evidence, "its default is "+r.standard)
	}
	handler := ""
	if k.runtimeClass != nil {
		handler = k.runtimeClass.Handler
	}
	switch {
	case handler != "" && !r.has(handler):
		c.Result = Fault
		if k.advertised(discover.NVIDIA) {
			c.Result = Warning
		}
		c.Text = fmt.Sprintf("the container runtime has no runtime %s, which the RuntimeClass %s names", handler, nvidiaRuntimeClass)
		c.Cure = "configure it and restart it: nvidia-ctk runtime configure --runtime=containerd (or crio), then systemctl restart containerd"
	case r.has("nvidia"):
		c.Text = "the container runtime has the runtime nvidia"
	default:
		c.Text = "the container runtime has no runtime nvidia; GPUs reach containers by CDI or not at all"
	}
	return c
}

// checkOperator looks at the GPU operator, where it is installed.
func checkOperator(k *state) Check {
	c := Check{Name: "operator", Result: OK, Text: "the GPU operator is ready"}
	if errors.Is(k.policiesErr, errAbsent) {
		c.Text = "the GPU operator is not installed"
		return c
	}
	if k.policiesErr != nil {
		return skip(c.Name, because(k.policiesErr))
	}
	if len(k.policies) == 0 {
		c.Text = "there is no ClusterPolicy, so the GPU operator does nothing"
		return c
	}
	for _, p := range k.policies {
		c.Evidence = append(c.Evidence, fmt.Sprintf("ClusterPolicy %s: state %s", p.Metadata.Name, p.Status.State))
		if p.Status.State != "ready" && p.Status.State != "" {
			c.Result = Warning // of the whole cluster, not of this Node
			c.Text = "the GPU operator is not ready"
			c.Cure = "look at the operator's log, and at its pods that are not ready"
		}
	}
	if v := validatorPods.check(k.pods); v.Result == Fault {
		c.Result = Warning
		c.Text = "the GPU operator's validator does not pass on this Node"
		c.Evidence = append(c.Evidence, v.Evidence...)
		c.Cure = v.Cure
	}
	for _, key := range []string{"nvidia.com/gpu.deploy.operands", "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.container-toolkit", "nvidia.com/gpu.present"} {
		if value := k.node.Metadata.Labels[key]; value != "" && value != "true" {
			c.Result = Warning
			c.Evidence = append(c.Evidence, fmt.Sprintf("label %s=%s", key, value))
		}
	}
	return c
}

// checkNFD looks at Node Feature Discovery, which is no must: without it labels
// go to the Node directly.
func checkNFD(k *state) Check {
	c := Check{Name: "nfd", Result: OK}
	switch {
	case k.nfdErr != nil:
		return skip(c.Name, because(k.nfdErr))
	case !k.nodeFeatures:
		c.Text = "Node Feature Discovery is not installed; labels go to the Node directly"
		return c
	}
	c.Text = "Node Feature Discovery is installed"
	if own := nfdWorker.check(k.pods); own.Result == Fault {
		return own
	}
	masters := nfdMaster.of(k.masters)
	ready := slices.ContainsFunc(masters, func(p *pod) bool { return p.ready() })
	for _, p := range masters {
		if !p.ready() {
			c.Evidence = append(c.Evidence, p.trouble())
		}
	}
	switch {
	case k.mastersErr != nil:
		c.Evidence = append(c.Evidence, "its pods are not looked at: "+because(k.mastersErr))
	case len(masters) > 0 && !ready:
		c.Result = Fault
		c.Text = "NFD's master does not run, so no NodeFeature object becomes labels"
		c.Cure = "look at its pod: kubectl -n " + masters[0].Metadata.Namespace + " describe pod " + masters[0].Metadata.Name
	}
	return c
}
