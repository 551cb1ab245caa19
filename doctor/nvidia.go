package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// nvidiaChecks are those of NVIDIA's driver, from the kernel up, nil where there
// is no GPU for it. As long as NVML as a whole does not answer, each of them
// stands on the one before, and only the first that fails is blamed.
func (h *host) nvidiaChecks() []Check {
	gpus := h.gpus(discover.NVIDIA)
	if len(gpus) == 0 {
		return nil
	}
	checks := []Check{h.checkKernelDriver(gpus)}
	if checks[0].Result == Fault {
		checks = append(checks, h.checkSecureBoot())
	}
	checks = append(checks, h.checkVersions(), h.checkDeviceNodes(gpus), h.checkLibrary(), h.checkNVML())
	if h.inv.NVIDIA.State == discover.StateOK {
		return append(checks, h.checkHealth(gpus), h.checkMIG(gpus))
	}
	broken := false
	for i := range checks {
		if checks[i].Result != Fault {
			continue
		}
		if broken {
			checks[i].Result = Follows
		}
		broken = true
	}
	return checks
}

// checkKernelDriver tells which kernel driver holds each GPU, and whether
// NVIDIA's is loaded.
func (h *host) checkKernelDriver(gpus []*discover.GPU) Check {
	c := Check{Name: "kernel-driver", Result: OK}
	var unbound, foreign []*discover.GPU
	for _, g := range gpus {
		if g.Function == nil || g.NVML != nil {
			continue // it answers, or is not on the bus
		}
		switch g.Function.Driver {
		case "nvidia":
		case "":
			unbound = append(unbound, g)
		default:
			foreign = append(foreign, g)
		}
	}
	bound := func(some []*discover.GPU) {
		for _, g := range some {
			driver := g.Function.Driver
			if driver == "" {
				driver = "none"
			}
			c.Evidence = append(c.Evidence, fmt.Sprintf("%s/%s/driver: %s", pciFolder, name(g), driver))
		}
	}
	switch {
	case len(foreign) > 0:
		driver := foreign[0].Function.Driver
		bound(foreign)
		c.Result = Fault
		c.Text = fmt.Sprintf("the kernel driver %s holds %s, not nvidia", driver, plural(len(foreign), "GPU"))
		c.Cure = fmt.Sprintf("unbind the GPU from %s and load nvidia", driver)
		if driver == "nouveau" || strings.HasPrefix(driver, "nova") {
			c.Cure = fmt.Sprintf("install NVIDIA's driver, keep %s from loading (blacklist %s in /etc/modprobe.d, build the initramfs anew) and reboot", driver, driver)
		}
	case !h.loaded():
		bound(unbound)
		if h.modules != nil {
			c.Evidence = append(c.Evidence, "/sys/module/nvidia: not there")
		}
		c.Evidence = append(c.Evidence, "/proc/driver/nvidia/version: not there")
		if h.usableByNVML() {
			c.Text = "NVML answers, whatever holds the GPUs" // WSL, Tegra
			return c
		}
		c.Result = Fault
		c.Text = fmt.Sprintf("%s on the bus, but the kernel module nvidia is not loaded", plural(len(gpus), "NVIDIA GPU"))
		c.Cure = "install NVIDIA's driver and load it (modprobe nvidia); dmesg says why it does not load: a kernel that it was not built for, or a GPU that it does not support"
		if h.secureBoot.on {
			c.Cure = "Secure Boot is on: install a signed driver, or sign the module and enrol the key (mokutil --import), then modprobe nvidia"
		}
	case len(unbound) > 0 && h.refusesUnbound():
		bound(unbound)
		c.Result = Fault
		c.Text = fmt.Sprintf("the kernel module nvidia is loaded, but has not taken %s", plural(len(unbound), "GPU"))
		c.Cure = "look in dmesg for NVRM messages: does this driver, or the open kind of its module, support this GPU?"
	default:
		c.Text = "the kernel module nvidia is loaded"
		if v := h.inv.NVIDIA.KernelDriverVersion; v != "" {
			c.Evidence = append(c.Evidence, "/proc/driver/nvidia/version: "+v)
		}
	}
	return c
}

// usableByNVML tells whether NVML answers for any GPU.
func (h *host) usableByNVML() bool {
	return h.inv.NVIDIA.State == discover.StateOK
}

// refusesUnbound tells whether what NVML says agrees with a GPU that no driver
// is bound to; that the link is missing may be the recording's fault.
func (h *host) refusesUnbound() bool {
	if h.answer == nil || h.answer.Failure != nil {
		return false
	}
	switch h.answer.Init {
	case nvml.Success, nvml.DriverNotLoaded:
		return true
	}
	return false
}

func (h *host) checkSecureBoot() Check {
	c := Check{Name: "secure-boot", Result: OK, Text: h.secureBoot.text}
	if h.recorded && !h.root.Exists("/sys/firmware") {
		return skip(c.Name, "it was not recorded")
	}
	if h.secureBoot.on {
		c.Result = Warning
		c.Cure = "only signed kernel modules load"
	}
	return c
}

// checkVersions compares the versions of the driver's parts.
func (h *host) checkVersions() Check {
	c := Check{Name: "versions", Result: OK}
	seen := []struct{ where, version string }{
		{"/proc/driver/nvidia/version", h.inv.NVIDIA.KernelDriverVersion},
		{"/sys/module/nvidia/version", h.moduleVersion},
		{"NVML, driver version", h.inv.NVIDIA.DriverVersion},
	}
	if h.answer != nil {
		if _, v, ok := strings.Cut(filepath.Base(h.answer.Library), ".so."); ok && strings.Contains(v, ".") {
			seen = append(seen, struct{ where, version string }{h.answer.Library, v})
		}
	}
	var versions []string
	for _, s := range seen {
		if s.version != "" {
			c.Evidence = append(c.Evidence, s.where+": "+s.version)
			if !slices.Contains(versions, s.version) {
				versions = append(versions, s.version)
			}
		}
	}
	p := h.nvmlProblem()
	switch {
	case h.inv.NVIDIA.State == discover.StateDriverMismatch:
		c.Result, c.Text, c.Cure = Fault, p.Text, p.Cure
	case len(versions) == 0:
		return skip(c.Name, "no version of the driver can be read")
	case len(versions) > 1:
		c.Result = Warning
		c.Text = "the driver's parts tell different versions: " + strings.Join(versions, ", ")
		c.Cure = "after a driver upgrade, reboot the node or unload the old module"
	default:
		c.Text = "driver " + versions[0]
	}
	return c
}

// checkDeviceNodes looks at what a process opens to use the GPUs. Missing nodes
// are a fault only where NVML misses them.
func (h *host) checkDeviceNodes(gpus []*discover.GPU) Check {
	c := Check{Name: "device-nodes", Result: OK}
	if h.nodesWhy != "" {
		return skip(c.Name, h.nodesWhy)
	}
	if len(h.nodes) == 1 && !h.root.Exists("dev") {
		return skip(c.Name, h.root.Path("dev")+": not there")
	}
	if h.root.Exists("dev/dxg") {
		return skip(c.Name, "the GPUs are used through /dev/dxg")
	}
	bad := 0
	for i := range h.nodes {
		if n := &h.nodes[i]; strings.HasPrefix(n.path, "/dev/nvidia") && !n.usable() {
			// Capabilities are opened by those who use a MIG device.
			if n.denied && strings.HasPrefix(n.path, "/dev/nvidia-caps/") {
				continue
			}
			c.Evidence = append(c.Evidence, n.String())
			bad++
		}
	}
	onBus := 0
	for _, g := range gpus {
		if g.Function != nil {
			onBus++
		}
	}
	have := len(numberedNodes(h.nodes, "/dev/nvidia"))
	if have < onBus {
		c.Evidence = append(c.Evidence, fmt.Sprintf("%s of the form /dev/nvidia0, for %s", plural(have, "device node"), plural(onBus, "GPU")))
		bad++
	}
	if bad > 0 {
		c.Text = "device nodes of the GPUs are missing or may not be used"
		c.Cure = "make them (nvidia-modprobe -c0 -u, or nvidia-persistenced at boot) and let the process read and write them; in a pod, set runtimeClassName: nvidia"
		c.Result = Warning
		switch h.inv.NVIDIA.State {
		case discover.StateNoPermission, discover.StateError:
			c.Result = Fault
		case discover.StateNoDriver:
			if h.answer != nil && h.answer.Init == nvml.DriverNotLoaded && h.loaded() {
				c.Result = Fault
			}
		}
		return c
	}
	if uvm := findNode(h.nodes, "/dev/nvidia-uvm"); uvm == nil {
		c.Result = Warning
		c.Text = "/dev/nvidia-uvm is not there, without which CUDA does not start"
		c.Cure = "load the module nvidia_uvm and make the node: nvidia-modprobe -c0 -u"
		if h.inPod {
			c.Result, c.Cure = OK, "" // it is given to those who compute
			c.Text = "/dev/nvidiactl and a node for each GPU are there"
		}
		return c
	}
	c.Text = "/dev/nvidiactl, /dev/nvidia-uvm and a node for each GPU are there"
	return c
}

func (h *host) checkLibrary() Check {
	c := Check{Name: "nvml-library", Result: OK}
	switch {
	case h.answer == nil:
		return skip(c.Name, "NVML was not asked")
	case h.answer.Failure != nil:
		return skip(c.Name, "NVML gave no answer")
	case h.answer.Init == nvml.LibraryNotFound:
		p := h.nvmlProblem()
		c.Result, c.Text, c.Cure = Fault, "NVML's library was not found", p.Cure
		if h.loaded() {
			c.Cure = "on the host, install the part of the driver that is not the kernel module; in a pod, set runtimeClassName: nvidia, or mount the driver and name it with --driver-root"
		}
		c.Evidence = []string{h.answer.Detail}
		if h.driverRoot != "" {
			c.Evidence = append(c.Evidence, "looked for below "+h.driverRoot)
		}
	default:
		c.Text = "NVML's library was found"
		c.Evidence = []string{h.answer.Library}
	}
	return c
}

func (h *host) checkNVML() Check {
	c := Check{Name: "nvml", Result: OK}
	if h.answer == nil {
		return skip(c.Name, "NVML was not asked")
	}
	if p := h.nvmlProblem(); p.Text != "" {
		c.Result, c.Text, c.Cure = Fault, p.Text, p.Cure
		if h.answer.Failure == nil {
			c.Evidence = []string{"nvmlInit: " + string(h.answer.Init)}
		}
		return c
	}
	for _, p := range h.problems("nvml") {
		if ofDriver(p) {
			c.Result = Warning
			c.Evidence = append(c.Evidence, p.Text)
			c.Cure = p.Cure
		}
	}
	c.Text = "NVML answers and lists " + plural(len(h.answer.GPUs), "GPU")
	return c
}

// ofDriver tells what concerns no GPU, but a query about the driver.
func ofDriver(p discover.Problem) bool {
	return p.Device == "" && strings.HasPrefix(p.Text, "NVML: ")
}

// checkHealth looks at each GPU by itself, where NVML as a whole answers.
func (h *host) checkHealth(gpus []*discover.GPU) Check {
	c := Check{Name: "gpu-health", Result: OK}
	var failed []string
	well := 0
	for _, g := range gpus {
		switch {
		case g.Condition != discover.Failed:
			well++
		case !h.unbound(g): // which the kernel driver's check tells
			failed = append(failed, name(g))
		}
	}
	partly := false
	for _, p := range h.problems("nvml") {
		if ofDriver(p) || h.unboundAt(p.Device) {
			continue
		}
		c.Evidence = append(c.Evidence, p.Text)
		if c.Cure == "" {
			c.Cure = p.Cure
		}
		partly = true
	}
	switch {
	case len(failed) > 0:
		c.Result = Fault
		c.Text = fmt.Sprintf("%s of %d %s not answer: %s", plural(len(failed), "GPU"), len(gpus), does(len(failed)), listed(failed, 8))
	case partly:
		c.Result = Warning
		c.Text = "not everything can be read of every GPU"
	default:
		c.Text = fmt.Sprintf("%s well", plural(well, "GPU"))
	}
	return c
}

func does(n int) string {
	if n == 1 {
		return "does"
	}
	return "do"
}

// unbound tells the GPUs that checkKernelDriver speaks of.
func (h *host) unbound(g *discover.GPU) bool {
	return g.Function != nil && g.NVML == nil && g.Function.Driver != "nvidia" && (g.Function.Driver != "" || h.refusesUnbound())
}

func (h *host) unboundAt(address string) bool {
	return slices.ContainsFunc(h.gpus(discover.NVIDIA), func(g *discover.GPU) bool { return name(g) == address && h.unbound(g) })
}

// checkMIG tells the MIG states in which a GPU that works serves nobody.
func (h *host) checkMIG(gpus []*discover.GPU) Check {
	c := Check{Name: "mig", Result: OK}
	capable, enabled, devices := 0, 0, 0
	var empty, pending, unread []string
	for _, g := range gpus {
		if g.NVML == nil || g.NVML.MIG == nil {
			continue
		}
		m := g.NVML.MIG
		capable++
		if m.Pending != m.Enabled {
			pending = append(pending, name(g))
		}
		if !m.Enabled {
			continue
		}
		enabled++
		devices += len(m.Devices)
		switch {
		case g.NVML.Errors["mig.devices"] != "":
			unread = append(unread, name(g))
		case len(m.Devices) == 0:
			empty = append(empty, name(g))
		}
	}
	if capable == 0 {
		return Check{}
	}
	c.Text = fmt.Sprintf("MIG is enabled on %d of %s, with %s", enabled, plural(capable, "GPU"), plural(devices, "MIG device"))
	if enabled == 0 {
		c.Text = "MIG is disabled"
	}
	var cures []string
	note := func(gpus []string, text, cure string) {
		if len(gpus) > 0 {
			c.Result = Warning
			c.Evidence = append(c.Evidence, text+": "+listed(gpus, 8))
			cures = append(cures, cure)
		}
	}
	note(empty, "MIG is enabled, but there is no MIG device", "no pod can use a GPU with MIG enabled and no MIG device: create some (nvidia-smi mig -cgi … -C, or the label nvidia.com/mig.config for the MIG manager), or disable MIG")
	note(pending, "the MIG mode changes at the next reset", "reset the GPU while nothing uses it (nvidia-smi --gpu-reset), or reboot")
	note(unread, "the MIG devices may not be listed", "give the process access to the device nodes below /dev/nvidia-caps; in a pod, set NVIDIA_MIG_MONITOR_DEVICES=all")
	c.Cure = strings.Join(cures, "; ")
	return c
}
