package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/agent"
	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/internal/cluster"
	"github.com/gpu-labeller/gpu-labeller/internal/logbuf"
	"github.com/gpu-labeller/gpu-labeller/internal/standin"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// machine is a host for an agent: a folder of sysfs and procfs, and a stand-in
// NVML, that a test changes while the agent runs.
type machine struct {
	t            *testing.T
	root, driver string
}

func newMachine(t *testing.T, nvml string, addresses ...string) *machine {
	t.Helper()
	m := &machine{t: t, root: t.TempDir(), driver: standin.DriverRoot(t, nvml)}
	m.write("sys/bus/pci/drivers/nvidia/bind", "")
	for _, a := range addresses {
		dir := "sys/bus/pci/devices/" + a + "/"
		for name, content := range map[string]string{
			"class": "0x030200", "vendor": "0x10de", "device": "0x20b0", "revision": "0xa1", "config": strings.Repeat("\x00", 64),
		} {
			m.write(dir+name, content)
		}
		if err := os.Symlink("../../../bus/pci/drivers/nvidia", filepath.Join(m.root, dir, "driver")); err != nil {
			t.Fatal(err)
		}
	}
	m.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.107.02  x\n")
	return m
}

func (m *machine) write(name, content string) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// says changes what NVML answers.
func (m *machine) says(nvml string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.driver, "usr/lib64/nvml.txt"), []byte(nvml), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// process is the real command as a process of its own.
type process struct {
	logbuf.Buffer
	cmd *exec.Cmd
}

func (p *process) stop(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the agent ended with %v\n%s", err, p)
	}
}

// command runs gpu-labeller, which the test binary is under that name.
func command(t *testing.T, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(self)}
	p.cmd.Args = append([]string{"gpu-labeller"}, args...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p
}

func (m *machine) agent(c *cluster.Cluster, node string, more ...string) *process {
	m.t.Helper()
	p := command(m.t, append([]string{
		"--sink=node", "--node-name", node, "--force-node-name", "--kubeconfig", c.Kubeconfig(),
		"--root", m.root, "--driver-root", m.driver, "--poll=500ms", "--interval=30s",
	}, more...)...)
	if err := p.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if m.t.Failed() {
			m.t.Logf("agent of %s:\n%s", node, p)
		}
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	return p
}

type node struct {
	Metadata struct {
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
}

func getNode(c *cluster.Cluster, name string) (n node, err error) {
	text, err := c.TryKubectl("get", "node", name, "-o", "json")
	if err != nil {
		return n, err
	}
	return n, json.Unmarshal([]byte(text), &n)
}

// unwritten fails the test when the node is written while f runs.
func unwritten(t *testing.T, c *cluster.Cluster, name string, f func()) {
	t.Helper()
	before, err := getNode(c, name)
	if err != nil {
		t.Fatal(err)
	}
	f()
	after, err := getNode(c, name)
	if err != nil {
		t.Fatal(err)
	}
	if before.Metadata.ResourceVersion != after.Metadata.ResourceVersion {
		t.Errorf("%s was written, from version %s to %s", name, before.Metadata.ResourceVersion, after.Metadata.ResourceVersion)
	}
}

// eventually waits until a label of a node has a value; an empty value means
// that it is not there.
func eventually(t *testing.T, c *cluster.Cluster, name, key, value string) {
	t.Helper()
	start := time.Now()
	for {
		n, err := getNode(c, name)
		got, there := n.Metadata.Labels[key]
		if err == nil && (there && got == value || !there && value == "") {
			t.Logf("%s: %s=%s after %.1f s", name, key, value, time.Since(start).Seconds())
			return
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("%s: %s=%q (there: %v, %v) after a minute, want %q", name, key, got, there, err, value)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// bound waits until the scheduler has bound a pod, and gives the node.
func bound(t *testing.T, c *cluster.Cluster, pod string) string {
	t.Helper()
	for range 600 {
		if node := strings.TrimSpace(c.Kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")); node != "" {
			return node
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("pod %s is still pending:\n%s", pod, c.Kubectl("describe", "pod", pod))
	return ""
}

const (
	a100 = "driver 550.107.02\ncuda 12050\ngpu bus=00000000:10:00.0 dev=0x20b010de name=NVIDIA~A100-SXM4-40GB mem=40960 cc=8.0 mig=%d\n"
	h200 = "driver 550.107.02\ncuda 12050\ngpu bus=00000000:10:00.0 dev=0x233510de name=NVIDIA~H200 mem=143771 cc=9.0 mig=0\n"
	mig  = "mig gpu=0 gi=%d ci=0 gprof=0 cprof=0 slices=1 cslices=1 sm=14 mem=4864 ce=1\n"
)

// TestAgentInCluster runs real agents against a real API server and scheduler.
func TestAgentInCluster(t *testing.T) {
	c := cluster.Start(t)
	for _, name := range []string{"node-a", "node-b", "node-c"} {
		c.CreateNode(name)
	}
	c.Apply(pods)
	c.Kubectl("label", "node", "node-a", "nvidia.com/gpu=true", "example.com/rack=7")

	a := newMachine(t, fmt.Sprintf(a100, 0), "0000:10:00.0")
	b := newMachine(t, h200, "0000:10:00.0")
	agentA := a.agent(c, "node-a", "--mig-strategy=mixed")
	agentB := b.agent(c, "node-b")
	eventually(t, c, "node-a", "nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB")
	eventually(t, c, "node-b", "nvidia.com/gpu.product", "NVIDIA-H200")

	t.Run("pods are bound where the labels say", func(t *testing.T) {
		c.Apply(preferring) // with both nodes to choose from
		for pod, want := range map[string]string{"by-product": "node-a", "by-memory": "node-b", "by-preferred-family": "node-b"} {
			if got := bound(t, c, pod); got != want {
				t.Errorf("pod %s is bound to %s, want %s", pod, got, want)
			}
		}
	})
	t.Run("a label that is removed or changed returns", func(t *testing.T) {
		c.Kubectl("label", "node", "node-a", "nvidia.com/gpu.product-", "--field-manager=somebody")
		eventually(t, c, "node-a", "nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB")
		const want = `msg="labels were removed or changed, and are put right" sink="Node \"node-a\"" times=1 labels=1 keys=[nvidia.com/gpu.product]`
		for begin := time.Now(); !strings.Contains(agentA.String(), want); time.Sleep(100 * time.Millisecond) {
			if time.Since(begin) > 10*time.Second {
				t.Fatalf("the log does not tell of it:\n%s", agentA)
			}
		}
	})
	t.Run("a label that is given another value is left alone until it is removed", func(t *testing.T) {
		c.Kubectl("label", "node", "node-a", "--overwrite", "nvidia.com/gpu.product=Fake")
		const want = `is left alone: kubectl-label set it to "Fake", and it would be "NVIDIA-A100-SXM4-40GB"; to have ours back: kubectl label node node-a nvidia.com/gpu.product-`
		var events string
		for begin := time.Now(); !strings.Contains(events, want); time.Sleep(100 * time.Millisecond) {
			if time.Since(begin) > time.Minute {
				t.Fatalf("events:\n%s", events)
			}
			events = c.Kubectl("get", "events", "--field-selector=reason=LabelConflict", "-o", "jsonpath={.items[*].message}")
		}
		c.Kubectl("label", "node", "node-a", "nvidia.com/gpu.product-")
		eventually(t, c, "node-a", "nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB")
	})
	t.Run("another host does not label the Node", func(t *testing.T) {
		before, err := getNode(c, "node-a")
		if err != nil {
			t.Fatal(err)
		}
		laptop := newMachine(t, "driver 550.107.02\n")
		for _, wrong := range []string{"the host's name is laptop", "the machine ID is not the Node's"} {
			laptop.write("proc/sys/kernel/hostname", "laptop\n")
			laptop.write("etc/machine-id", "cafe\n")
			p := command(t, "--sink=node", "--node-name=node-a", "--kubeconfig", c.Kubeconfig(), "--root", laptop.root, "--driver-root", laptop.driver)
			if err := p.cmd.Run(); err == nil || p.cmd.ProcessState.ExitCode() != 2 || !strings.Contains(p.String(), wrong) || !strings.Contains(p.String(), "--force-node-name") {
				t.Errorf("%v\n%s\nwant a refusal: %s", err, p, wrong)
			}
			c.Kubectl("patch", "node", "node-a", "--subresource=status", "--patch", `{"status":{"nodeInfo":{"machineID":"beef","bootID":"1"}}}`)
		}
		after, err := getNode(c, "node-a")
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(before.Metadata.Labels, after.Metadata.Labels) {
			t.Errorf("labels are %v, were %v", after.Metadata.Labels, before.Metadata.Labels)
		}
		laptop.write("proc/sys/kernel/random/boot_id", "1\n")
		p := command(t, "--sink=node-feature", "--namespace=default", "--node-name=node-a", "--kubeconfig", c.Kubeconfig(), "--root", laptop.root, "--driver-root", laptop.driver)
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for begin := time.Now(); !strings.Contains(p.String(), "msg=labelling"); time.Sleep(100 * time.Millisecond) {
			if time.Since(begin) > time.Minute {
				t.Fatalf("the same boot is refused, or hangs:\n%s", p)
			}
		}
		p.stop(t)
	})
	t.Run("a MIG layout arrives and goes", func(t *testing.T) {
		a.says(fmt.Sprintf(a100, 1) + fmt.Sprintf(mig, 1) + fmt.Sprintf(mig, 2))
		a.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", "")
		a.write("proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access", "")
		eventually(t, c, "node-a", "nvidia.com/mig-1g.5gb.count", "2")
		eventually(t, c, "node-a", "gpu.feature.node.kubernetes.io/mig.state", "enabled")
		a.says(fmt.Sprintf(a100, 0))
		if err := os.RemoveAll(filepath.Join(a.root, "proc/driver/nvidia/capabilities")); err != nil {
			t.Fatal(err)
		}
		eventually(t, c, "node-a", "nvidia.com/mig-1g.5gb.count", "")
		eventually(t, c, "node-a", "gpu.feature.node.kubernetes.io/mig.state", "disabled")
	})
	t.Run("a driver that hangs takes no label", func(t *testing.T) {
		a.says(fmt.Sprintf(a100, 0) + "init LIB_RM_VERSION_MISMATCH\n")
		a.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.144.03  x\n")
		eventually(t, c, "node-a", "gpu.feature.node.kubernetes.io/state", "driver-mismatch")
		eventually(t, c, "node-a", "nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB")
		a.says(strings.Replace(fmt.Sprintf(a100, 0), "550.107.02", "550.144.03", 1))
		a.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.144.03  y\n")
		eventually(t, c, "node-a", "gpu.feature.node.kubernetes.io/state", "ok")
		eventually(t, c, "node-a", "nvidia.com/cuda.driver-version.full", "550.144.03")
	})
	t.Run("a Node that joins again is labelled", func(t *testing.T) {
		c.Kubectl("delete", "node", "node-b")
		c.CreateNode("node-b")
		eventually(t, c, "node-b", "nvidia.com/gpu.product", "NVIDIA-H200")
	})
	t.Run("the API server restarts", func(t *testing.T) {
		c.StopAPIServer()
		b.says(strings.Replace(h200, "NVIDIA~H200", "NVIDIA~H200~NVL", 1))
		b.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.107.02  z\n")
		time.Sleep(2 * time.Second)
		c.StartAPIServer()
		eventually(t, c, "node-b", "nvidia.com/gpu.product", "NVIDIA-H200-NVL")
		eventually(t, c, "node-a", "nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB")
	})
	t.Run("two agents on one node do not take turns", func(t *testing.T) {
		other := newMachine(t, h200, "0000:10:00.0")
		second := other.agent(c, "node-a")
		const says = "another agent publishes other labels"
		for begin := time.Now(); !strings.Contains(agentA.String()+second.String(), says); time.Sleep(100 * time.Millisecond) {
			if time.Since(begin) > 2*time.Minute {
				t.Fatalf("neither says so:\n%s\n%s", agentA, second)
			}
		}
		unwritten(t, c, "node-a", func() { time.Sleep(10 * time.Second) })
		second.stop(t)
	})
	t.Run("cleanup sees an agent that runs", func(t *testing.T) {
		p := command(t, "cleanup", "--sink=node", "--node-name=node-b", "--kubeconfig", c.Kubeconfig())
		if err := p.cmd.Run(); err == nil || p.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(p.String(), "an agent is running there") {
			t.Errorf("cleanup ends with %v\n%s", err, p)
		}
		eventually(t, c, "node-b", "nvidia.com/gpu.product", "NVIDIA-H200-NVL")
	})
	t.Run("labels whose owner is not known any more go with the hardware", func(t *testing.T) {
		c.Kubectl("patch", "node", "node-a", "--type=merge", "-p", `{"metadata":{"managedFields":[{}]}}`)
		a.says(strings.Replace(fmt.Sprintf(a100, 1), "550.107.02", "550.144.03", 1) + fmt.Sprintf(mig, 1))
		a.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", "")
		eventually(t, c, "node-a", "nvidia.com/mig-1g.5gb.count", "1")
		c.Kubectl("patch", "node", "node-a", "--type=merge", "-p", `{"metadata":{"managedFields":[{}]}}`)
		a.says(strings.Replace(fmt.Sprintf(a100, 0), "550.107.02", "550.144.03", 1))
		if err := os.RemoveAll(filepath.Join(a.root, "proc/driver/nvidia/capabilities")); err != nil {
			t.Fatal(err)
		}
		eventually(t, c, "node-a", "nvidia.com/mig-1g.5gb.count", "")
		eventually(t, c, "node-a", "gpu.feature.node.kubernetes.io/mig.state", "disabled")
	})
	t.Run("the end of the agents and a new start change nothing", func(t *testing.T) {
		unwritten(t, c, "node-b", func() {
			agentA.stop(t)
			agentB.stop(t)
			agentB = b.agent(c, "node-b")
			time.Sleep(5 * time.Second)
		})
		agentB.stop(t)
	})
	t.Run("cleanup names what others set under keys of ours", func(t *testing.T) {
		c.Kubectl("label", "node", "node-b", "nvidia.com/mig.strategy=single", "--field-manager=kubectl-create")
		p := command(t, "cleanup", "--all-nodes", "--kubeconfig", c.Kubeconfig())
		if err := p.cmd.Run(); err == nil || p.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(p.String(), "nvidia.com/mig.strategy (set by kubectl-create)") {
			t.Errorf("cleanup ends with %v\n%s", err, p)
		}
		p = command(t, "cleanup", "--all-nodes", "--force-conflicts", "--kubeconfig", c.Kubeconfig())
		if err := p.cmd.Run(); err != nil {
			t.Errorf("cleanup ends with %v\n%s", err, p)
		}
	})
	t.Run("cleanup withdraws what is ours", func(t *testing.T) {
		for range 2 {
			p := command(t, "cleanup", "--all-nodes", "--kubeconfig", c.Kubeconfig())
			if err := p.cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, p)
			}
		}
		for _, name := range []string{"node-a", "node-b"} {
			n, err := getNode(c, name)
			if err != nil {
				t.Fatal(err)
			}
			for key := range n.Metadata.Labels {
				if key != "nvidia.com/gpu" && (strings.HasPrefix(key, "nvidia.com/") || strings.Contains(key, "feature.node")) {
					t.Errorf("%s still has %s", name, key)
				}
			}
			if name == "node-a" && (n.Metadata.Labels["nvidia.com/gpu"] != "true" || n.Metadata.Labels["example.com/rack"] != "7") {
				t.Errorf("%s lost a label that is not ours: %v", name, n.Metadata.Labels)
			}
		}
	})
	t.Run("a taint comes and goes with the GPUs", func(t *testing.T) { taint(t, c) })
	t.Run("NFD's CRD comes later", func(t *testing.T) { sinkStays(t, c) })
	t.Run("a thousand passes write nothing", func(t *testing.T) { steady(t, c) })
}

// taint has an agent keep a taint on a node of its own.
func taint(t *testing.T, c *cluster.Cluster) {
	c.CreateNode("node-d")
	m := newMachine(t, h200, "0000:10:00.0")
	p := m.agent(c, "node-d", "--taint")
	taints := func(want string) {
		t.Helper()
		var got string
		for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(100 * time.Millisecond) {
			got = strings.TrimSpace(c.Kubectl("get", "node", "node-d", "-o", `jsonpath={range .spec.taints[*]}{.key}={.value}:{.effect} {end}`))
			if got == want {
				return
			}
		}
		t.Fatalf("taints are %q after a minute, want %q", got, want)
	}
	const ours, other = "nvidia.com/gpu=present:NoSchedule", "example.com/x=1:NoSchedule"
	taints(ours)
	c.Kubectl("taint", "node", "node-d", other)
	c.Kubectl("taint", "node", "node-d", "nvidia.com/gpu-")
	taints(other + " " + ours)

	// NVML fails: the labels are held, and so is the taint, by a new agent, too.
	m.says(h200 + "init LIB_RM_VERSION_MISMATCH\n")
	m.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.144.03  x\n")
	eventually(t, c, "node-d", "gpu.feature.node.kubernetes.io/state", "driver-mismatch")
	p.stop(t)
	p = m.agent(c, "node-d", "--taint")
	time.Sleep(3 * time.Second)
	taints(other + " " + ours)
	if strings.Contains(p.String(), `msg="taint `) {
		t.Errorf("the taint was touched:\n%s", p)
	}

	// The last GPU goes, and comes back.
	device := filepath.Join(m.root, "sys/bus/pci/devices/0000:10:00.0")
	if err := os.Rename(device, filepath.Join(m.root, "gone")); err != nil {
		t.Fatal(err)
	}
	m.says("driver 550.107.02\ncuda 12050\n")
	taints(other)
	if err := os.Rename(filepath.Join(m.root, "gone"), device); err != nil {
		t.Fatal(err)
	}
	m.says(h200)
	taints(other + " " + ours)
	p.stop(t)
	taints(other + " " + ours)

	// An agent that is not to keep it says that it stays.
	p = m.agent(c, "node-d")
	for begin := time.Now(); !strings.Contains(p.String(), "kubectl taint node node-d "+ours+"-"); time.Sleep(100 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("not a word about the taint:\n%s", p)
		}
	}
	p.stop(t)

	cleanup := func(want string, more ...string) {
		t.Helper()
		p := command(t, append([]string{"cleanup", "--kubeconfig", c.Kubeconfig()}, more...)...)
		err := p.cmd.Run()
		got := p.String()
		if says := strings.Contains(got, "node-d"); want == "" && says || !strings.Contains(got, want) || (err != nil) != strings.HasPrefix(want, "Error") {
			t.Errorf("cleanup %v: %v\n%swant %s", more, err, got, want)
		}
	}
	cleanup(`Error: Node "nope": no such Node`, "--node-name=nope")
	const both = `Node "node-d": 40 labels and the taint ` + ours
	cleanup(both+" would be withdrawn\n", "--all-nodes", "--dry-run")
	cleanup(both+" would be withdrawn\n", "--node-name=node-d", "--dry-run")
	cleanup("\n  nvidia.com/gpu.product=NVIDIA-H200\n", "--node-name=node-d", "--dry-run")
	taints(other + " " + ours)
	eventually(t, c, "node-d", "nvidia.com/gpu.product", "NVIDIA-H200")
	cleanup(both+" withdrawn\n", "--all-nodes")
	taints(other)
	eventually(t, c, "node-d", "nvidia.com/gpu.product", "")
	cleanup("", "--all-nodes")
	cleanup("nothing of ours was there\n", "--node-name=node-d", "--taint")

	// Somebody else's, on a Node without labels of ours.
	c.Kubectl("taint", "node", "node-d", ours)
	cleanup("", "--all-nodes")
	taints(ours + " " + other)
	cleanup(`Node "node-d": the taint `+ours+" withdrawn\n", "--all-nodes", "--taint")
	taints(other)

	// As kubectl finds the cluster.
	home := t.TempDir()
	config, err := os.ReadFile(c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(home, ".kube"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".kube/config"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	p = command(t, "cleanup", "--all-nodes", "--sink=node")
	p.cmd.Env = []string{"HOME=" + home}
	if err := p.cmd.Run(); err != nil || strings.Contains(p.String(), "node-d") {
		t.Errorf("~/.kube/config: %v\n%s", err, p)
	}
}

// sinkStays has an agent choose its sink before and after the cluster knows
// NodeFeature objects, and leaves labels in the place that it does not choose.
func sinkStays(t *testing.T, c *cluster.Cluster) {
	c.CreateNode("node-e")
	client, err := publish.NewClient(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	choose := func() (string, string) {
		var said bytes.Buffer
		f := &sinkFlags{kubeconfig: c.Kubeconfig(), nodeName: "node-e", namespace: "default", featureFile: filepath.Join(t.TempDir(), "file")}
		s, err := f.open(t.Context(), slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(s.names, ","), said.String() + strings.Join(f.leftovers(t.Context(), s), "\n")
	}
	want := func(sink, says string) {
		t.Helper()
		got, said := choose()
		if got != sink || !strings.Contains(said, says) || says == "" && said != "" {
			t.Errorf("the sink is %s, want %s; it says %q, want %q", got, sink, said, says)
		}
	}
	want(sinkNode, "")
	onNode := &publish.Node{Client: client, Name: "node-e"}
	set := map[string]string{"nvidia.com/gpu.count": "1"}
	if err := onNode.Publish(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	crd, err := os.ReadFile("../../testdata/cluster/nodefeature-crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(string(crd))
	c.Kubectl("wait", "crd/nodefeatures.nfd.k8s-sigs.io", "--for=condition=Established", "--timeout=30s")
	defer c.Kubectl("delete", "crd", "nodefeatures.nfd.k8s-sigs.io")
	for range 100 {
		if has, err := client.HasNodeFeatures(t.Context()); err == nil && has {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	want(sinkNode, "gpu-labeller cleanup --sink=node --node-name node-e")
	object := &publish.NodeFeature{Client: client, NodeName: "node-e", Namespace: "default"}
	if err := object.Publish(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	want(sinkNode, "gpu-labeller cleanup --sink=node-feature --node-name node-e --namespace default")
	f := &sinkFlags{nodeName: "node-e"}
	if got := f.leftovers(t.Context(), &sinks{client: client, names: []string{sinkNodeFeature}}); len(got) != 1 || !strings.Contains(got[0], "--sink=node ") {
		t.Errorf("left: %v", got)
	}
	if err := onNode.Publish(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	want(sinkNodeFeature, "")
}

// steady lets an agent pass a thousand times over a host that does not change.
func steady(t *testing.T, c *cluster.Cluster) {
	client, err := publish.NewClient(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	var passes atomic.Int64
	enough := make(chan struct{})
	answer := nvml.Answer{Init: nvml.Success, DriverVersion: "550.107.02", GPUs: []nvml.GPU{{Name: "NVIDIA H200", MemoryBytes: 143771 << 20}}}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a := agent.New(agent.Config{
		Host:     discover.Host{Root: hostfs.Root(t.TempDir())},
		Sinks:    []publish.Sink{&publish.Node{Client: client, Name: "node-c"}},
		Interval: 5 * time.Millisecond,
		Poll:     time.Hour,
		Logger:   slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Scan: func(context.Context, discover.Host) (*discover.Inventory, error) {
			if passes.Add(1) == 1100 {
				close(enough)
			}
			inv := &discover.Inventory{GPUs: []discover.GPU{{Vendor: discover.NVIDIA, Condition: discover.Usable, Product: "NVIDIA H200", NVML: &answer.GPUs[0]}}}
			inv.NVIDIA.State = discover.StateOK
			return inv, nil
		},
		Fingerprint: func() (agent.Fingerprint, error) { return agent.Fingerprint{}, nil },
	})
	done := make(chan struct{})
	go func() {
		a.Run(ctx)
		close(done)
	}()
	eventually(t, c, "node-c", "nvidia.com/gpu.product", "NVIDIA-H200")
	before, err := getNode(c, "node-c")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-enough:
	case <-time.After(2 * time.Minute):
		t.Fatal("no thousand passes in two minutes")
	}
	after, err := getNode(c, "node-c")
	if err != nil {
		t.Fatal(err)
	}
	if before.Metadata.ResourceVersion != after.Metadata.ResourceVersion || !maps.Equal(before.Metadata.Labels, after.Metadata.Labels) {
		t.Errorf("node-c was written, from version %s to %s", before.Metadata.ResourceVersion, after.Metadata.ResourceVersion)
	}
	cancel()
	<-done
}

const pods = `
apiVersion: v1
kind: Pod
metadata: {name: by-product}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB}
  containers: [{name: c, image: none}]
---
apiVersion: v1
kind: Pod
metadata: {name: by-memory}
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions:
          - {key: nvidia.com/gpu.memory, operator: Gt, values: ["100000"]}
  containers: [{name: c, image: none}]
`

const preferring = `
apiVersion: v1
kind: Pod
metadata: {name: by-preferred-family}
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions:
          - {key: nvidia.com/gpu.memory, operator: Gt, values: ["40000"]}
      preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        preference:
          matchExpressions:
          - {key: nvidia.com/gpu.family, operator: In, values: [hopper]}
  containers: [{name: c, image: none}]
`
