package doctor

import (
	"cmp"
	"fmt"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/amd"
	"github.com/gpu-labeller/gpu-labeller/discover/nvidiaids"
)

// checks are those of step 1.
func (h *host) checks() []Check {
	checks := []Check{h.checkPCI()}
	if nvidia := h.nvidiaChecks(); nvidia != nil {
		checks = append(checks, nvidia...)
	}
	checks = append(checks, h.checkVendor(discover.AMD), h.checkVendor(discover.Intel), h.checkPassthrough())
	made := checks[:0]
	for _, c := range checks {
		if c.Name != "" {
			made = append(made, c)
		}
	}
	return made
}

const pciFolder = "/sys/bus/pci/devices"

// checkPCI looks for GPUs on the bus. That there is none is no fault.
func (h *host) checkPCI() Check {
	c := Check{Name: "pci", Result: OK}
	for i := range h.inv.GPUs {
		c.Evidence = append(c.Evidence, describe(&h.inv.GPUs[i]))
	}
	for _, p := range h.problems("pci") {
		switch {
		case h.scanErr != nil && p.Device == "":
			c.Result, c.Text, c.Cure = Fault, p.Text, p.Cure
		case h.noDriver(p.Device):
			continue // has a check of its own
		default:
			c.Evidence = append(c.Evidence, p.String())
			if p.Device != "" {
				c.Result = Warning
			}
		}
	}
	n := len(h.inv.GPUs)
	switch {
	case c.Result == Fault:
	case n == 0 && h.inv.Unread > 0:
		c.Result = Fault
		c.Text = fmt.Sprintf("no GPU was found, and %s that may be one cannot be read", plural(h.inv.Unread, "PCI function"))
		c.Cure = "make " + pciFolder + " readable, or run as root"
	case n == 0:
		c.Text = "no GPU was found in " + pciFolder
	default:
		c.Text = plural(n, "GPU") + " found"
	}
	return c
}

// noDriver tells the GPUs that the check of their vendor speaks of.
func (h *host) noDriver(address string) bool {
	for i := range h.inv.GPUs {
		if g := &h.inv.GPUs[i]; g.Condition == discover.NoDriver && name(g) == address {
			return true
		}
	}
	return false
}

// name is a GPU's PCI address, or its NVML index where it has none.
func name(g *discover.GPU) string {
	switch {
	case g.Function != nil:
		return g.Function.Address.String()
	case g.NVML != nil:
		return fmt.Sprintf("GPU %d", g.NVML.Index)
	}
	return "a GPU"
}

// describe is a line about a GPU: what and where, and who has it.
func describe(g *discover.GPU) string {
	product := g.Product
	if product == "" && g.Vendor == discover.NVIDIA && g.Function != nil {
		m, _ := nvidiaids.Lookup(g.Function.Device)
		product = m.Product
	}
	if product == "" && g.Function != nil {
		product = fmt.Sprintf("%s GPU %04x:%04x", g.Vendor, g.Function.Vendor, g.Function.Device)
	}
	text := name(g) + " " + cmp.Or(product, string(g.Vendor)+" GPU")
	if g.MemoryBytes > 0 {
		text += fmt.Sprintf(", %d MiB", g.MemoryMiB())
	}
	if g.Function != nil && g.Function.Driver != "" {
		text += ", driver " + g.Function.Driver
	}
	if g.Condition != discover.Usable && g.Condition != discover.Failed {
		text += ", " + string(g.Condition)
	}
	return text
}

// checkVendor looks at the GPUs of a vendor whose kernel driver is all that
// there is to look at.
func (h *host) checkVendor(vendor discover.Vendor) Check {
	gpus := h.gpus(vendor)
	if len(gpus) == 0 {
		return Check{}
	}
	driver, source := amd.Driver, discover.SourceAMD
	if vendor == discover.Intel {
		driver, source = "i915 or xe", discover.SourceIntel
	}
	c := Check{Name: string(vendor), Result: OK}
	var without []*discover.GPU
	for _, g := range gpus {
		if g.Condition == discover.NoDriver {
			without = append(without, g)
			c.Evidence = append(c.Evidence, fmt.Sprintf("%s/%s/driver: %s", pciFolder, name(g), cmp.Or(g.Function.Driver, "none")))
		}
	}
	for _, p := range h.problems(source) {
		c.Evidence = append(c.Evidence, p.Text)
		c.Result, c.Cure = Warning, p.Cure
	}
	if len(without) == 0 {
		c.Text = fmt.Sprintf("%s bound to %s", plural(len(gpus), "GPU"), driver)
		return c
	}
	c.Result = Fault
	if len(h.usable(discover.NVIDIA))+len(h.usable(discover.AMD))+len(h.usable(discover.Intel)) > 0 {
		c.Result = Warning // a display, or one held back for a guest, beside GPUs that work
	}
	c.Text = fmt.Sprintf("%s without the kernel driver %s", plural(len(without), "GPU"), driver)
	c.Cure = fmt.Sprintf("load %s: is it installed, or kept from loading (modprobe.blacklist or nomodeset in /proc/cmdline, /etc/modprobe.d)? dmesg says why it does not take the GPU", driver)
	return c
}

func (h *host) checkPassthrough() Check {
	c := Check{Name: "passthrough", Result: OK}
	for i := range h.inv.GPUs {
		if g := &h.inv.GPUs[i]; g.Condition == discover.Passthrough {
			c.Evidence = append(c.Evidence, fmt.Sprintf("%s/%s/driver: %s", pciFolder, name(g), g.Function.Driver))
		}
	}
	n := len(c.Evidence)
	if n == 0 {
		return Check{}
	}
	c.Text = fmt.Sprintf("%s %s passed through to virtual machines, which pods of this host cannot have", plural(n, "GPU"), are(n))
	return c
}
