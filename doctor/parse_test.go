package doctor

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestParseSecureBoot(t *testing.T) {
	for _, tc := range []struct {
		variable string
		on, ok   bool
	}{
		{"\x06\x00\x00\x00\x01", true, true},
		{"\x06\x00\x00\x00\x00", false, true},
		{"\x06\x00\x00\x00\x02", false, false},
		{"\x01", false, false},
		{"", false, false},
	} {
		on, err := parseSecureBoot([]byte(tc.variable))
		if on != tc.on || (err == nil) != tc.ok {
			t.Errorf("%q: %v, %v", tc.variable, on, err)
		}
	}
}

const containerdV3 = `version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "nvidia" # for all
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  # [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
`

func TestParseRuntimes(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		names      []string
		standard   string
		imports    []string
	}{
		{"version 3", containerdV3, []string{"runc", "nvidia"}, "nvidia", []string{"/etc/containerd/conf.d/*.toml"}},
		{"version 2", "imports = [\n  \"/a.toml\", # one\n  '/b.toml',\n]\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.\"nvidia.cdi\"]\n", []string{"nvidia.cdi"}, "", []string{"/a.toml", "/b.toml"}},
		{"CRI-O", "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.nvidia]\nruntime_path = \"/usr/bin/nvidia-container-runtime\"\n", []string{"nvidia"}, "crun", nil},
		{"nothing", "", nil, "", nil},
		{"other tables", "[other.runtimes.nvidia]\n[runtimes]\n[plugins.x.runtimes]\n", nil, "", nil},
	} {
		c := parseRuntimes([]byte(tc.text))
		if !slices.Equal(c.names, tc.names) || c.standard != tc.standard || !slices.Equal(c.imports, tc.imports) {
			t.Errorf("%s: %+v", tc.name, c)
		}
	}
}

// TestReadRuntimes follows imports, and stops.
func TestReadRuntimes(t *testing.T) {
	c := onHost(t, hostFiles(t)["h200x1"])
	c.Recorded = false
	put(t, &c, "etc/containerd/config.toml", "imports = [\"/etc/containerd/config.toml\", \"/etc/extra/*.toml\", \"/etc/gone.toml\"]\n[plugins.x.containerd.runtimes.runc]\n")
	put(t, &c, "etc/extra/99-nvidia.toml", "[plugins.x.containerd.runtimes.nvidia]\n")
	r := readHost(t.Context(), &c).runtimes
	if !slices.Equal(r.names, []string{"nvidia", "runc"}) || len(r.files) != 2 || len(r.unread) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestParseCDI(t *testing.T) {
	s, err := parseCDI([]byte(`{"kind": "nvidia.com/gpu", "devices": [
		{"name": "0", "containerEdits": {"mounts": [{"hostPath": "/usr/lib/libnvidia-ml.so.580.95.05"}]}}, {"name": "all"}],
		"containerEdits": {"mounts": [{"hostPath": "/usr/lib/libcuda.so.580.95.05"}, {"hostPath": "/usr/lib/libcuda.so.1"}]}}`))
	if err != nil || s.kind != "nvidia.com/gpu" || len(s.devices) != 2 || !slices.Equal(s.drivers, []string{"580.95.05"}) {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := parseCDI([]byte("kind: [")); err == nil {
		t.Error("no error")
	}
	for kind, want := range map[string]bool{"nvidia.com/gpu": true, "management.nvidia.com/gpu": true, "amd.com/gpu": true, "gpu.intel.com/gpu": true, "example.com/nic": false, "nvidia.com": false, "": false} {
		if ofGPUs(kind) != want {
			t.Errorf("%q: %v", kind, !want)
		}
	}
}

func TestParseSMI(t *testing.T) {
	got := parseSMI([]byte("GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n  MIG 1g.5gb      Device  0: (UUID: MIG-2)\nsomething else\n"))
	if want := []string{"NVIDIA A100-SXM4-40GB", "MIG 1g.5gb"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzParseSecureBoot(f *testing.F) {
	f.Add([]byte("\x06\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if on, err := parseSecureBoot(text); on && err != nil {
			t.Error("on, and an error")
		}
	})
}

func FuzzParseRuntimes(f *testing.F) {
	f.Add([]byte(containerdV3))
	f.Add([]byte("[plugins.\"runtimes\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := parseRuntimes(text)
		for _, name := range c.names {
			if strings.ContainsAny(name, "\n") {
				t.Errorf("name %q", name)
			}
		}
	})
}

func FuzzParseCDI(f *testing.F) {
	f.Add([]byte("kind: nvidia.com/gpu\ndevices:\n- {name: all}\ncontainerEdits:\n  mounts:\n  - {hostPath: /usr/lib64/libcuda.so.570.86.10}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseCDI(text)
		if err != nil && (s.kind != "" || s.devices != nil) {
			t.Error("an error, and a specification")
		}
		for _, v := range s.drivers {
			if strings.Trim(v, "0123456789.") != "" {
				t.Errorf("version %q", v)
			}
		}
	})
}

func FuzzParseSMI(f *testing.F) {
	f.Add([]byte("GPU 0: NVIDIA H200 (UUID: GPU-1)\n"))
	f.Add([]byte("GPU 0: NVIDIA A100 (UUID: GPU-1)\r\n  MIG 1g.5gb      Device  0: (UUID: MIG-2)\nGPU 1: (UUID: x) (UUID: GPU-5a1b2c3d-0000-1111-2222-333344445555)\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all := parseSMI(text)
		if lines := bytes.Count(text, []byte("\n")) + 1; len(all) > lines {
			t.Errorf("%d devices in %d lines", len(all), lines)
		}
		for _, name := range all {
			if name == "" || strings.Contains(name, "\n") || !bytes.Contains(text, []byte(strings.TrimPrefix(name, "MIG "))) {
				t.Errorf("name %q", name)
			}
			// What is told of a device is told again of a line with it.
			line := "GPU 0: " + name + " (UUID: GPU-1)"
			if again := parseSMI([]byte(line)); !slices.Equal(again, []string{name}) {
				t.Errorf("%q: %q", line, again)
			}
		}
	})
}
