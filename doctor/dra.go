package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/dra"
)

// draDevices gives the devices that a DRA driver publishes for the Node.
func (k *state) draDevices(driver string) []dra.Device { return dra.Devices(k.slices, driver) }

// checkSlices compares what NVIDIA's DRA driver publishes with what NVML says.
func (h *host) checkSlices(k *state) Check {
	c := Check{Name: "resource-slices", Result: OK}
	devices := k.draDevices(dra.NVIDIA)
	gpus := h.usable(discover.NVIDIA)
	running := len(nvidiaDRA.of(k.pods)) > 0
	switch {
	case k.slicesErr == dra.ErrAbsent && !running:
		return Check{} // the cluster has no DRA
	case k.slicesErr != nil:
		return skip(c.Name, because(k.slicesErr))
	case len(devices) == 0 && !running:
		return Check{}
	}
	uuids := map[string]bool{}
	var versions []string
	for _, d := range devices {
		switch d.Attributes["type"].String {
		case "gpu":
			uuids[cmp.Or(d.Attributes["uuid"].String, d.Name)] = true
		case "mig":
			uuids[cmp.Or(d.Attributes["parentUUID"].String, d.Name)] = true
		default:
			continue // passed through
		}
		if v := d.Attributes["driverVersion"].Version; v != "" && !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
		for _, t := range d.Taints {
			c.Result = Warning
			c.Evidence = append(c.Evidence, fmt.Sprintf("device %s has the taint %v", d.Name, taint(t)))
			c.Cure = "look at the DRA driver's log and the kernel log for Xid messages"
		}
	}
	published := len(uuids)
	// A GPU with MIG enabled and no MIG device is no device of DRA's.
	least := 0
	for _, g := range gpus {
		if m := g.NVML; m == nil || m.MIG == nil || !m.MIG.Enabled || len(m.MIG.Devices) > 0 {
			least++
		}
	}
	c.Evidence = append(c.Evidence, fmt.Sprintf("ResourceSlices of %s: %s, driver %s; NVML: %s, driver %s", dra.NVIDIA,
		plural(published, "GPU"), cmp.Or(strings.Join(versions, ", "), "unknown"), plural(len(gpus), "usable GPU"), cmp.Or(h.driverVersion(), "unknown")))
	restart := "restart the DRA driver's pod on this Node: it publishes what it found at its start"
	mine := h.driverVersion()
	switch {
	case published < least || published > len(gpus):
		c.Result, c.Cure = Fault, restart
		c.Text = fmt.Sprintf("DRA publishes %s, but %d can be used", plural(published, "GPU"), len(gpus))
	case mine != "" && slices.ContainsFunc(versions, func(v string) bool { return !dra.SameVersion(v, mine) }):
		c.Result, c.Cure = Fault, restart
		c.Text = fmt.Sprintf("DRA publishes driver version %s, but NVML says %s", strings.Join(versions, ", "), mine)
	case c.Result == Warning:
		c.Text = "DRA keeps claims away from some devices"
	default:
		c.Text = fmt.Sprintf("DRA publishes %s, as NVML has them", plural(published, "GPU"))
	}
	return c
}
