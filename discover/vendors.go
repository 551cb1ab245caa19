package discover

import (
	"errors"

	"github.com/gpu-labeller/gpu-labeller/discover/amd"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/intel"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// addAMD adds what amdgpu and KFD say of the AMD GPUs.
func (inv *Inventory) addAMD(root hostfs.Root) {
	gpus, functions := inv.ofVendor(AMD)
	answers, problems := amd.Scan(root, functions)
	for i, g := range gpus {
		a := &answers[i]
		g.AMD = a
		g.Product = a.Product
		g.MemoryBytes = a.OwnMemoryBytes()
		g.Unified = a.APU
	}
	inv.vendorProblems(SourceAMD, problems)
}

// addIntel adds what i915 and xe say of the Intel GPUs.
func (inv *Inventory) addIntel(root hostfs.Root) {
	gpus, functions := inv.ofVendor(Intel)
	answers, problems := intel.Scan(root, functions)
	for i, g := range gpus {
		a := &answers[i]
		g.Intel = a
		g.Product = a.Model.String()
		g.MemoryBytes = a.MemoryBytes
		g.Unified = a.Integrated() && a.MemoryBytes == 0
	}
	inv.vendorProblems(SourceIntel, problems)
}

// ofVendor gives the GPUs of a vendor on the PCI bus, and their functions.
func (inv *Inventory) ofVendor(vendor Vendor) (gpus []*GPU, functions []*pci.Function) {
	for i := range inv.GPUs {
		if g := &inv.GPUs[i]; g.Vendor == vendor && g.Function != nil {
			gpus = append(gpus, g)
			functions = append(functions, g.Function)
		}
	}
	return gpus, functions
}

func (inv *Inventory) vendorProblems(source string, problems []error) {
	for _, err := range problems {
		p := Problem{Source: source, Text: err.Error()}
		var field *pci.FieldError
		if errors.As(err, &field) {
			p.Device = field.Address
		}
		if amd.Denied(err) {
			p.Cure = "the kernel shows them to processes that may use the GPUs: in a pod, ask for the GPUs or run privileged where the simd-count and cu-count labels are wanted"
		}
		inv.problem(p)
	}
}
