package doctor

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
)

// host is what was read of the host, before anything is concluded from it.
type host struct {
	inv     *discover.Inventory
	scanErr error
	answer  *nvml.Answer // nil: NVML was not asked

	root       hostfs.Root
	driverRoot string
	recorded   bool
	inPod      bool

	modules       map[string]bool // of those that matter; nil where /sys/module is not there
	moduleVersion string          // /sys/module/nvidia/version, empty without it
	secureBoot    secureBoot

	// nodes are the device nodes of GPUs that are there; nodesWhy says why they
	// were not looked at.
	nodes    []deviceNode
	nodesWhy string

	// What holds for containers; etcWhy says why it was not looked at.
	etcWhy   string
	cdi      []cdiSpec
	runtimes containerRuntimes
	toolkit  string // path of the container toolkit's runtime, empty when there is none
}

// The kernel modules that matter for who holds a GPU.
var moduleNames = []string{"nvidia", "nvidia_uvm", "nouveau", "nova_core", "amdgpu", "i915", "xe", "vfio_pci"}

func readHost(ctx context.Context, c *Config) *host {
	h := &host{root: cmp.Or(c.Host.Root, "/"), driverRoot: c.DriverRoot, recorded: c.Recorded, inPod: c.InPod}
	scanned := c.Host
	if ask := scanned.NVML; ask != nil {
		scanned.NVML = func(ctx context.Context) nvml.Answer {
			a := ask(ctx)
			h.answer = &a
			return a
		}
	}
	scanned.Class = c.Labels.WantsClass
	h.inv, h.scanErr = discover.Scan(ctx, scanned)

	if _, err := h.root.ReadDir("sys/module"); err == nil {
		h.modules = map[string]bool{}
		for _, name := range moduleNames {
			h.modules[name] = h.root.Exists("sys/module/" + name)
		}
	}
	h.moduleVersion, _ = h.root.Attribute("sys/module/nvidia/version")
	h.secureBoot = readSecureBoot(h.root)
	h.readNodes()
	h.readEtc()
	return h
}

func (h *host) readNodes() {
	if h.recorded {
		h.nodesWhy = "a recorded host has no device nodes"
		return
	}
	h.nodes = readDeviceNodes(h.root)
}

// toolkitPaths are where the container toolkit puts its runtime: a package, and
// the GPU operator.
var toolkitPaths = []string{"usr/bin/nvidia-container-runtime", "usr/local/nvidia/toolkit/nvidia-container-runtime", "usr/bin/nvidia-ctk", "usr/bin/nvidia-cdi-hook"}

func (h *host) readEtc() {
	switch {
	case h.recorded:
		h.etcWhy = "a recorded host has no /etc"
		return
	case h.inPod:
		h.etcWhy = "this is a pod, whose files are not the host's: mount the host's and name them with --root"
		return
	}
	h.cdi = h.readCDI()
	h.runtimes = h.readRuntimes()
	for _, name := range toolkitPaths {
		if path, err := h.inside(name); err == nil && hostfs.Root("").Exists(path) {
			h.toolkit = "/" + name
			return
		}
	}
}

// inside resolves a path below the root, whose absolute links are the host's own.
func (h *host) inside(name string) (string, error) {
	return securejoin.SecureJoin(string(h.root), name)
}

func (h *host) readFile(name string, max int) ([]byte, error) {
	path, err := h.inside(name)
	if err != nil {
		return nil, err
	}
	return hostfs.Root("").ReadFile(path, max)
}

func (h *host) readDir(name string) ([]string, error) {
	path, err := h.inside(name)
	if err != nil {
		return nil, err
	}
	names, err := hostfs.Root("").ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

// gpus gives the host's GPUs of a vendor that pods of this host could have: not
// those of guests, and no virtual function.
func (h *host) gpus(vendor discover.Vendor) []*discover.GPU {
	var gpus []*discover.GPU
	for i := range h.inv.GPUs {
		if g := &h.inv.GPUs[i]; g.Vendor == vendor && g.Condition != discover.Passthrough && g.Condition != discover.Virtual {
			gpus = append(gpus, g)
		}
	}
	return gpus
}

func (h *host) usable(vendor discover.Vendor) []*discover.GPU {
	return slices.DeleteFunc(h.gpus(vendor), func(g *discover.GPU) bool { return g.Condition != discover.Usable })
}

// loaded tells whether NVIDIA's kernel module is, by any of its traces: a
// recorded host has not all of them.
func (h *host) loaded() bool {
	if h.modules["nvidia"] || h.inv.NVIDIA.KernelDriverVersion != "" {
		return true
	}
	return slices.ContainsFunc(h.inv.Functions, func(f pci.Function) bool { return f.Driver == "nvidia" })
}

// driverVersion is the NVIDIA driver's, empty when unknown.
func (h *host) driverVersion() string {
	return cmp.Or(h.inv.NVIDIA.DriverVersion, h.inv.NVIDIA.KernelDriverVersion, h.moduleVersion)
}

// nvmlProblem is what is wrong with NVML as a whole, empty where nothing is.
func (h *host) nvmlProblem() discover.Problem {
	for _, p := range h.inv.Problems {
		if p.Source == "nvml" && p.Device == "" && h.inv.NVIDIA.State != discover.StateOK {
			return p
		}
	}
	return discover.Problem{}
}

// problems gives what the scan found of a source.
func (h *host) problems(source string) []discover.Problem {
	return slices.DeleteFunc(slices.Clone(h.inv.Problems), func(p discover.Problem) bool { return p.Source != source })
}
