package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
)

// resourceSlice is one of resource.k8s.io (v1). In v1beta1 a device's description
// is one level deeper.
type resourceSlice struct {
	Spec struct {
		Driver   string `json:"driver"`
		NodeName string `json:"nodeName"`
		Pool     struct {
			Name       string `json:"name"`
			Generation int64  `json:"generation"`
		} `json:"pool"`
		Devices []draDevice `json:"devices"`
	} `json:"spec"`
}

type draDevice struct {
	Name       string                  `json:"name"`
	Attributes map[string]draAttribute `json:"attributes"`
	Basic      *draDevice              `json:"basic"`
	Taints     []taint                 `json:"taints"`
}

type draAttribute struct {
	String  string `json:"string"`
	Version string `json:"version"`
}

func (d *draDevice) attribute(name string) draAttribute {
	if d.Basic != nil {
		return d.Basic.attribute(name)
	}
	return d.Attributes[name]
}

// devicesOf gives the devices that a DRA driver publishes for the Node, of the
// newest generation of each pool.
func (k *state) devicesOf(driver string) []draDevice {
	newest := map[string]int64{}
	for _, s := range k.slices {
		if s.Spec.Driver == driver {
			newest[s.Spec.Pool.Name] = max(newest[s.Spec.Pool.Name], s.Spec.Pool.Generation)
		}
	}
	var devices []draDevice
	for _, s := range k.slices {
		if s.Spec.Driver == driver && s.Spec.Pool.Generation == newest[s.Spec.Pool.Name] {
			devices = append(devices, s.Spec.Devices...)
		}
	}
	return devices
}

func (k *state) draDevices(driver string) int { return len(k.devicesOf(driver)) }

// checkSlices compares what NVIDIA's DRA driver publishes with what NVML says.
func (h *host) checkSlices(k *state) Check {
	const driver = "gpu.nvidia.com"
	c := Check{Name: "resource-slices", Result: OK}
	devices := k.devicesOf(driver)
	gpus := h.usable(discover.NVIDIA)
	running := len(nvidiaDRA.of(k.pods)) > 0
	switch {
	case k.slicesErr == errAbsent && !running:
		return Check{} // the cluster has no DRA
	case k.slicesErr != nil:
		return skip(c.Name, because(k.slicesErr))
	case len(devices) == 0 && !running:
		return Check{}
	}
	uuids := map[string]bool{}
	var versions []string
	for i := range devices {
		d := &devices[i]
		switch d.attribute("type").String {
		case "gpu":
			uuids[cmp.Or(d.attribute("uuid").String, d.Name)] = true
		case "mig":
			uuids[cmp.Or(d.attribute("parentUUID").String, d.Name)] = true
		default:
			continue // passed through
		}
		if v := d.attribute("driverVersion").Version; v != "" && !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
		for _, t := range d.Taints {
			c.Result = Warning
			c.Evidence = append(c.Evidence, fmt.Sprintf("device %s has the taint %v", d.Name, t))
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
	c.Evidence = append(c.Evidence, fmt.Sprintf("ResourceSlices of %s: %s, driver %s; NVML: %s, driver %s", driver,
		plural(published, "GPU"), cmp.Or(strings.Join(versions, ", "), "unknown"), plural(len(gpus), "usable GPU"), cmp.Or(h.driverVersion(), "unknown")))
	restart := "restart the DRA driver's pod on this Node: it publishes what it found at its start"
	mine := h.driverVersion()
	switch {
	case published < least || published > len(gpus):
		c.Result, c.Cure = Fault, restart
		c.Text = fmt.Sprintf("DRA publishes %s, but %d can be used", plural(published, "GPU"), len(gpus))
	case mine != "" && slices.ContainsFunc(versions, func(v string) bool { return !SameVersion(v, mine) }):
		c.Result, c.Cure = Fault, restart
		c.Text = fmt.Sprintf("DRA publishes driver version %s, but NVML says %s", strings.Join(versions, ", "), mine)
	case c.Result == Warning:
		c.Text = "DRA keeps claims away from some devices"
	default:
		c.Text = fmt.Sprintf("DRA publishes %s, as NVML has them", plural(published, "GPU"))
	}
	return c
}

// SameVersion compares versions as numbers, part by part: in semantic versions,
// as DRA wants them, 535.54.03 is 535.54.3, and 13.0 is 13.0.0.
func SameVersion(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	part := func(parts []string, i int) string {
		if i >= len(parts) {
			return "0"
		}
		return cmp.Or(strings.TrimLeft(parts[i], "0"), "0")
	}
	for i := range max(len(x), len(y)) {
		if part(x, i) != part(y, i) {
			return false
		}
	}
	return true
}
