package doctor

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// TestFaultyHosts: each host is blamed for what is wrong with it and nothing
// else.
func TestFaultyHosts(t *testing.T) {
	hosts := hostFiles(t)
	want := map[string][]string{
		"all-lost":                         {"host/gpu-health"},
		"mixed-nvidia-no-driver-amd":       {"host/kernel-driver"},
		"no-library-in-pod":                {"host/nvml-library"},
		"no-permission":                    {"host/nvml"},
		"nouveau":                          {"host/kernel-driver"},
		"nvml-crashes":                     {"host/nvml"},
		"nvml-lists-none":                  {"host/nvml"},
		"u30-library-without-module":       {"host/kernel-driver"},
		"u30-no-driver-yet":                {"host/kernel-driver"},
		"u32-nvml-hangs":                   {"host/nvml"},
		"u33-driver-mismatch":              {"host/versions"},
		"address-unknown-and-one-lost":     {"host/gpu-health"},
		"integrated-beside-a-lost-one":     {"host/gpu-health"},
		"lists-one-of-two-without-address": {"host/gpu-health"},
		"nvml-does-not-list-one":           {"host/kernel-driver"},
		"u34-first-of-four-unknown-error":  {"host/gpu-health"},
		"u34-lost-in-part":                 {"host/gpu-health"},
		"u34-one-of-four-lost":             {"host/gpu-health"},
		"passthrough-with-a-stale-library": {},
		"u36-all-passthrough":              {},
		"mixed-aspeed-only":                {},
		"u45-no-gpu":                       {},
	}
	for name, f := range hosts {
		if healthy(f) || name == "h200x1" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			blames, ok := want[name]
			if !ok {
				t.Fatal("a host of which this test does not know what is wrong")
			}
			wantBlamed(t, Run(t.Context(), onHost(t, f)), blames...)
		})
	}
}

func TestHealthyHosts(t *testing.T) {
	n := 0
	for name, f := range hostFiles(t) {
		if !healthy(f) && name != "h200x1" {
			continue
		}
		n++
		t.Run(name, func(t *testing.T) {
			wantBlamed(t, Run(t.Context(), onHost(t, f)))
		})
	}
	if n < 150 {
		t.Errorf("%d healthy hosts", n)
	}
}

// TestWarnings: what is worth knowing and is no fault.
func TestWarnings(t *testing.T) {
	hosts := hostFiles(t)
	for _, tc := range []struct{ host, check, text string }{
		{"u16-mig-on-nothing-created", "mig", "no MIG device"},
		{"gfd-mig-mixed-pending", "mig", "changes at the next reset"},
		{"u21-mig-not-permitted", "mig", "may not be listed"},
		{"u21-mig-not-permitted", "gpu-health", "NO_PERMISSION"},
		{"amd-kfd-denied", "amd", "kfd"},
		{"passthrough-with-a-stale-library", "passthrough", "vfio-pci"},
		{"u37-half-passthrough", "passthrough", "vfio-pci"},
	} {
		r := Run(t.Context(), onHost(t, hosts[tc.host]))
		c := find(t, r, tc.check)
		if c.Result != Warning && tc.check != "passthrough" {
			t.Errorf("%s: %s is %s", tc.host, tc.check, c.Result)
		}
		if !strings.Contains(strings.Join(c.Evidence, "\n"), tc.text) {
			t.Errorf("%s: %s: %q lacks %q", tc.host, tc.check, c.Evidence, tc.text)
		}
	}
}

// TestMadeUpHosts changes recorded hosts a little.
func TestMadeUpHosts(t *testing.T) {
	hosts := hostFiles(t)
	tests := []struct {
		name, host string
		change     func(t *testing.T, c *Config)
		want       []string
		check      string // whose text, evidence or cure contains text
		text       string
	}{
		{"SecureBoot", "u30-no-driver-yet", func(t *testing.T, c *Config) {
			put(t, c, secureBootFile, "\x06\x00\x00\x00\x01")
		}, []string{"host/kernel-driver"}, "kernel-driver", "mokutil"},
		{"SecureBootUnreadable", "u30-no-driver-yet", func(t *testing.T, c *Config) {
			put(t, c, "sys/firmware/efi/x", "")
		}, []string{"host/kernel-driver"}, "secure-boot", "cannot be read"},
		{"ModuleNamedMissing", "u30-no-driver-yet", func(t *testing.T, c *Config) {
			put(t, c, "sys/module/loop/initstate", "live\n")
		}, []string{"host/kernel-driver"}, "kernel-driver", "/sys/module/nvidia: not there"},
		{"ModuleWithoutGPU", "u30-library-without-module", func(t *testing.T, c *Config) {
			put(t, c, "sys/module/nvidia/version", "580.95.05\n")
		}, []string{"host/kernel-driver"}, "kernel-driver", "has not taken"},
		{"UnpackedModuleOfAnotherVersion", "h200x1", func(t *testing.T, c *Config) {
			put(t, c, "sys/module/nvidia/version", "580.159.03\n")
		}, nil, "versions", "580.159.03"},
		{"NoSysfs", "u45-no-gpu", func(t *testing.T, c *Config) {
			c.Host.Root = c.Host.Root + "/missing"
		}, []string{"host/pci"}, "pci", "is /sys mounted"},
		{"NVMLUnknownError", "h200x1", func(t *testing.T, c *Config) {
			c.Host.NVML = func(context.Context) nvml.Answer {
				return nvml.Answer{Library: "libnvidia-ml.so.1", Init: nvml.Unknown}
			}
		}, []string{"host/nvml"}, "nvml", "UNKNOWN"},
		{"AMDWithoutDriver", "amd-mi210x8", func(t *testing.T, c *Config) { unbind(t, c) }, []string{"host/amd"}, "amd", "amdgpu"},
		{"IntelWithoutDriver", "intel-flex140-flex170", func(t *testing.T, c *Config) { unbind(t, c) }, []string{"host/intel"}, "intel", "i915 or xe"},
		{"StaleCDI", "h200x1", func(t *testing.T, c *Config) {
			c.Recorded = false
			put(t, c, "etc/cdi/nvidia.yaml", "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- {name: all}\ncontainerEdits:\n  mounts:\n  - {hostPath: /usr/lib64/libcuda.so.570.86.10}\n")
		}, []string{"components/cdi"}, "cdi", "570.86.10"},
		{"BrokenCDI", "h200x1", func(t *testing.T, c *Config) {
			c.Recorded = false
			put(t, c, "etc/cdi/nvidia.yaml", "kind: [\n")
		}, nil, "cdi", "/etc/cdi/nvidia.yaml: "},
		{"NoDeviceNodes", "no-permission", func(t *testing.T, c *Config) {
			c.Recorded = false
			put(t, c, "dev/null", "")
		}, []string{"host/device-nodes"}, "device-nodes", "/dev/nvidiactl: no such file"},
		{"DeviceNodesOfAnswering", "h200x1", func(t *testing.T, c *Config) {
			c.Recorded = false
			put(t, c, "dev/nvidiactl", "")
		}, nil, "device-nodes", "not a device node"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			c := onHost(t, hosts[tc.host])
			tc.change(t, &c)
			r := Run(t.Context(), c)
			wantBlamed(t, r, tc.want...)
			check := find(t, r, tc.check)
			if all := check.Text + "\n" + strings.Join(check.Evidence, "\n") + "\n" + check.Cure; !strings.Contains(all, tc.text) {
				t.Errorf("%s: %q lacks %q", tc.check, all, tc.text)
			}
		})
	}
}

// TestDeviceNodes judges nodes that a test cannot make.
func TestDeviceNodes(t *testing.T) {
	hosts := hostFiles(t)
	char := fs.ModeDevice | fs.ModeCharDevice
	for _, tc := range []struct {
		name, host string
		nodes      []deviceNode
		want       Result
		text       string
	}{
		{"all", "h200x1", []deviceNode{{path: "/dev/nvidiactl", mode: char}, {path: "/dev/nvidia0", mode: char}, {path: "/dev/nvidia-uvm", mode: char}}, OK, "are there"},
		{"no uvm", "h200x1", []deviceNode{{path: "/dev/nvidiactl", mode: char}, {path: "/dev/nvidia0", mode: char}}, Warning, "nvidia-uvm"},
		{"no GPU's", "h200x1", []deviceNode{{path: "/dev/nvidiactl", mode: char}}, Warning, "0 device nodes"},
		{"capabilities are not for all", "h200x1", []deviceNode{{path: "/dev/nvidiactl", mode: char}, {path: "/dev/nvidia0", mode: char}, {path: "/dev/nvidia-uvm", mode: char}, {path: "/dev/nvidia-caps/nvidia-cap1", mode: char, denied: true}}, OK, "are there"},
		{"denied", "no-permission", []deviceNode{{path: "/dev/nvidiactl", mode: char | 0o600, denied: true}, {path: "/dev/nvidia0", mode: char}}, Fault, "mode 0600"},
		{"stat fails", "no-permission", []deviceNode{{path: "/dev/nvidiactl", err: errors.New("permission denied")}, {path: "/dev/nvidia10", mode: char}}, Fault, "/dev/nvidiactl: permission denied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := onHost(t, hosts[tc.host])
			h := readHost(t.Context(), &c)
			put(t, &c, "dev/x", "")
			h.nodesWhy, h.nodes = "", tc.nodes
			check := h.checkDeviceNodes(h.gpus("nvidia"))
			if all := check.Text + "\n" + strings.Join(check.Evidence, "\n"); check.Result != tc.want || !strings.Contains(all, tc.text) {
				t.Errorf("%s: %q, want %s: %q", check.Result, all, tc.want, tc.text)
			}
			if tc.want == Fault {
				// What NVML says follows from it.
				for _, c := range h.nvidiaChecks() {
					if c.Name == "nvml" && c.Result != Follows {
						t.Errorf("nvml is %s", c.Result)
					}
				}
			}
		})
	}
}

// A GPU that the kernel driver has not taken is not among those that are well.
func TestUnboundIsNotWell(t *testing.T) {
	c := find(t, Run(t.Context(), onHost(t, hostFiles(t)["nvml-does-not-list-one"])), "gpu-health")
	if c.Result != OK || c.Text != "1 GPU well" {
		t.Errorf("%s: %s", c.Result, c.Text)
	}
}
