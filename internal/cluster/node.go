package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Addresses in the node's network. The first is that of the Service kubernetes.
const (
	serviceAddress = "10.96.0.1"
	nodeAddress    = "10.99.0.1"
	podSubnet      = "10.244.0.0/24"
)

// cgroupPrefix begins the names of nodes' folders of cgroups; the test's PID follows.
const cgroupPrefix = "gpu-labeller-test-"

// Node is a Node on which pods run: a kubelet and containerd beside the control
// plane. They have network, mount and PID namespaces of their own, so the machine
// sees nothing of them but processes and one folder of cgroups, and all ends with the
// first process of the PID namespace.
type Node struct {
	Name string

	c       *Cluster
	dir     string
	process *process
	cgroup  string // the folder of cgroups below each hierarchy
}

// StartNode starts a node and waits until it is Ready. Its images are the tar files
// given: nothing is pulled. One of them is pause, the image that holds a pod's
// namespaces. It needs root, containerd, runc and CNI plugins, which it installs with
// apt-get where they are missing; where it cannot, the test is skipped.
func (c *Cluster) StartNode(name, pause string, images ...string) *Node {
	c.tb.Helper()
	programs := c.nodePrograms()
	kubelet, err := buildKubelet()
	if err != nil {
		c.tb.Fatalf("cluster: building the kubelet: %v", err)
	}
	n := &Node{Name: name, c: c, dir: c.path("node"), cgroup: fmt.Sprintf("%s%d", cgroupPrefix, os.Getpid())}
	begin := time.Now()
	sweepCgroups()
	if err := n.prepare(programs, pause); err != nil {
		c.tb.Fatalf("cluster: node %s: %v", name, err)
	}
	c.tb.Cleanup(n.stop)

	n.process, err = c.reaper.start("node", c.logfile("node"), exec.Command("unshare",
		"--net", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc",
		"/bin/sh", "-eu", n.path("init.sh"), n.dir, programs["containerd"], kubelet, name))
	if err != nil {
		c.tb.Fatalf("cluster: %v", err)
	}
	n.forwardAPI()
	for _, image := range images {
		n.Import(image)
	}
	c.wait("Node "+name, 2*time.Minute, func(ctx context.Context) error {
		var node struct {
			Status struct {
				Conditions []struct{ Type, Status, Message string }
			}
			Spec struct{ Taints []struct{ Key string } }
		}
		if err := c.get(ctx, "/api/v1/nodes/"+name, &node); err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == "Ready" && condition.Status == "True" && len(node.Spec.Taints) == 0 {
				return nil
			}
		}
		return fmt.Errorf("not ready: %v, tainted %v", node.Status.Conditions, node.Spec.Taints)
	})
	c.tb.Logf("cluster: node %s up in %.1f s", name, time.Since(begin).Seconds())
	return n
}

// Import adds the images of a tar file, OCI layout or docker-archive.
func (n *Node) Import(image string) {
	n.c.tb.Helper()
	n.c.wait("image "+image, time.Minute, func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, "ctr", "--address="+n.path("containerd.sock"), "--namespace=k8s.io",
			"images", "import", "--snapshotter=overlayfs", image).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ctr images import: %w: %s", err, out)
		}
		return nil
	})
}

// Memory is what a pod used at most since its containers started, and what it may use
// at most, in bytes. The kernel counts what was mapped from files, too.
func (n *Node) Memory(podUID string) (peak, limit int64) {
	n.c.tb.Helper()
	v2, v1 := "/sys/fs/cgroup/"+n.cgroup, "/sys/fs/cgroup/memory/"+n.cgroup
	for root, files := range map[string][2]string{
		v2: {"memory.peak", "memory.max"},
		v1: {"memory.max_usage_in_bytes", "memory.limit_in_bytes"},
	} {
		pods, _ := filepath.Glob(root + "/kubepods/*/pod" + podUID)
		if len(pods) != 1 {
			continue
		}
		var values [2]int64
		for i, file := range files {
			content, err := os.ReadFile(filepath.Join(pods[0], file))
			if err != nil {
				n.c.tb.Fatalf("cluster: %v", err)
			}
			if values[i], err = strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64); err != nil {
				n.c.tb.Fatalf("cluster: %s: %v", file, err)
			}
		}
		return values[0], values[1]
	}
	n.c.tb.Fatalf("cluster: no cgroup of pod %s below %s or %s", podUID, v1, v2)
	return 0, 0
}

// Log is all that the containers of a pod wrote, those that ended included.
func (n *Node) Log(namespace, pod string) string {
	n.c.tb.Helper()
	var all strings.Builder
	logs, _ := filepath.Glob(n.path("pods", namespace+"_"+pod+"_*", "*", "*.log"))
	for _, log := range logs {
		content, err := os.ReadFile(log)
		if err != nil {
			n.c.tb.Fatalf("cluster: %v", err)
		}
		all.Write(content)
	}
	return all.String()
}

// Get asks a URL from the node, where pods' addresses are reached.
func (n *Node) Get(url string) (status int, body string, err error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			if inside := n.inside(func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) }); inside != nil {
				return nil, inside
			}
			return conn, err
		},
	}}
	resp, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(content), err
}

// nodePrograms finds what a node needs, and installs what is missing.
func (c *Cluster) nodePrograms() map[string]string {
	c.tb.Helper()
	if os.Geteuid() != 0 {
		c.tb.Skip("a node with a kubelet needs root")
	}
	programs, err := findNodePrograms()
	if err == nil {
		return programs
	}
	apt, aptErr := exec.LookPath("apt-get")
	if aptErr != nil {
		c.tb.Skipf("a node with a kubelet cannot be started: %v, and there is no apt-get to install it", err)
	}
	cmd := exec.Command(apt, "install", "--yes", "--no-install-recommends", "containerd", "runc", "containernetworking-plugins", "iproute2", "util-linux")
	cmd.Env = append(cmd.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, aptErr := cmd.CombinedOutput(); aptErr != nil {
		c.tb.Skipf("a node with a kubelet cannot be started: %v, and %s: %v\n%s", err, cmd, aptErr, out)
	}
	if programs, err = findNodePrograms(); err != nil {
		c.tb.Skipf("a node with a kubelet cannot be started: %v, although it was installed", err)
	}
	return programs
}

func findNodePrograms() (map[string]string, error) {
	found := map[string]string{}
	for _, name := range []string{"containerd", "ctr", "runc", "unshare", "ip"} {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, err
		}
		found[name] = path
	}
	for _, folder := range []string{"/usr/lib/cni", "/opt/cni/bin"} {
		if _, err := os.Stat(filepath.Join(folder, "bridge")); err == nil {
			found["cni"] = folder
			return found, nil
		}
	}
	return nil, errors.New("no CNI plugins in /usr/lib/cni or /opt/cni/bin")
}

// prepare writes everything that the programs read.
func (n *Node) prepare(programs map[string]string, pause string) error {
	for _, folder := range []string{"", "cni", "cni.d", "kubelet", "pods"} {
		if err := os.MkdirAll(n.path(folder), 0o755); err != nil {
			return err
		}
	}
	if err := n.c.serveAlso(net.ParseIP(serviceAddress)); err != nil {
		return err
	}
	cert, key, err := n.c.pki.issue("system:node:"+n.Name, []string{"system:nodes"})
	if err != nil {
		return err
	}
	for _, hierarchy := range cgroupHierarchies() {
		if err := os.MkdirAll(filepath.Join(hierarchy, n.cgroup), 0o755); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"client.crt": string(cert),
		"client.key": string(key),
		"kubeconfig": fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {server: "https://%s", certificate-authority: %q}
users:
- name: node
  user: {client-certificate: %q, client-key: %q}
contexts:
- name: test
  context: {cluster: test, user: node}
current-context: test
`, serviceAddress, n.c.path("ca.crt"), n.path("client.crt"), n.path("client.key")),
		"containerd.toml": containerdConfig(n.dir, pause, programs),
		"cni.d/test.conflist": fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "test", "plugins": [{
  "type": "bridge", "bridge": "cni0", "isGateway": true, "isDefaultGateway": true,
  "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]]}}]}
`, n.path("cni"), podSubnet),
		"kubelet.yaml": fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%[1]s/containerd.sock
podLogsDir: %[1]s/pods
volumePluginDir: %[1]s/plugins
cgroupDriver: cgroupfs
cgroupRoot: /%[2]s
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
address: 127.0.0.1
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: "1%%", nodefs.available: "1%%", imagefs.available: "1%%"}
imageGCHighThresholdPercent: 100
resolvConf: ""
nodeStatusUpdateFrequency: 5s
`, n.dir, n.cgroup),
		"init.sh": nodeScript,
	} {
		if err := os.WriteFile(n.path(name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func containerdConfig(dir, pause string, programs map[string]string) string {
	runtimes := ""
	// A RuntimeClass nvidia finds its handler, which is none of NVIDIA's.
	for _, name := range []string{"runc", "nvidia"} {
		runtimes += fmt.Sprintf(`
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.%s]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.%[1]s.options]
      BinaryName = %q
      SystemdCgroup = false
`, name, programs["runc"])
	}
	return fmt.Sprintf(`version = 2
root = "%[1]s/containerd"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "%[1]s/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[2]q
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[3]q
    conf_dir = "%[1]s/cni.d"
`, dir, pause, programs["cni"]) + runtimes
}

// nodeScript is the first process of the namespaces. The kubelet would set sysctls of
// the machine: it gets copies. A container cannot have /run/containerd from the
// machine's containerd.
const nodeScript = `cd "$1"
mount --make-rshared / # among these namespaces: hostPath volumes may propagate mounts
for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	mkdir -p "sysctl/${f%/*}"
	cat "/proc/sys/$f" >"sysctl/$f"
	mount --bind "sysctl/$f" "/proc/sys/$f"
done
mkdir -p /run/containerd /var/log/containers containers
mount -t tmpfs -o mode=0711 tmpfs /run/containerd
mount --bind containers /var/log/containers
ip link set lo up
ip address add ` + serviceAddress + `/32 dev lo
ip address add ` + nodeAddress + `/32 dev lo
: >network-up
"$2" --config containerd.toml >../containerd.log 2>&1 </dev/null &
while [ ! -S containerd.sock ]; do sleep 0.1; done
exec "$3" --config=kubelet.yaml --kubeconfig=kubeconfig --root-dir="$1/kubelet" --cert-dir="$1/kubelet/pki" \
	--hostname-override="$4" --node-ip=` + nodeAddress + ` --v=2 >../kubelet.log 2>&1 </dev/null
`

// forwardAPI gives the node a way to the API server, whose port is on the machine's
// loopback: a listener in the node's network that connects outside of it.
func (n *Node) forwardAPI() {
	tb := n.c.tb
	n.c.wait("the node's network", 30*time.Second, func(context.Context) error {
		_, err := os.Stat(n.path("network-up"))
		return err
	})
	var listener net.Listener
	var err error
	if inside := n.inside(func() { listener, err = net.Listen("tcp", serviceAddress+":443") }); cmp.Or(inside, err) != nil {
		tb.Fatalf("cluster: node %s: %v", n.Name, cmp.Or(inside, err))
	}
	tb.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.c.ports.api))
				if err != nil {
					return // the API server is down
				}
				defer out.Close()
				go func() {
					_, _ = io.Copy(out, in)
					_ = out.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
}

// inside calls f on a thread in the node's network. The thread ends with it.
func (n *Node) inside(f func()) error {
	child, err := n.first()
	if err != nil {
		return err
	}
	network, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", child))
	if err != nil {
		return err
	}
	defer network.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		f()
		done <- nil
	}()
	return <-done
}

// first is the first process of the namespaces, the child of unshare.
func (n *Node) first() (int, error) {
	pid := n.process.cmd.Process.Pid
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return 0, err
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0, fmt.Errorf("unshare has no child: %q", content)
	}
	return child, nil
}

// stop ends all processes of the node, and removes its cgroups.
func (n *Node) stop() {
	if n.process != nil {
		n.process.kill()
	}
	for _, hierarchy := range cgroupHierarchies() {
		// The kernel takes a moment to empty them.
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			if removeCgroups(filepath.Join(hierarchy, n.cgroup)) {
				break
			}
		}
	}
}

// sweepCgroups removes those of tests that were killed.
func sweepCgroups() {
	for _, hierarchy := range cgroupHierarchies() {
		left, _ := filepath.Glob(filepath.Join(hierarchy, cgroupPrefix+"*"))
		for _, root := range left {
			pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(root), cgroupPrefix))
			if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
				removeCgroups(root)
			}
		}
	}
}

// removeCgroups removes a folder of cgroups as far as they are empty, and reports
// whether all of it is gone.
func removeCgroups(root string) bool {
	var folders []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			folders = append(folders, path)
		}
		return nil
	})
	for _, folder := range slices.Backward(folders) {
		_ = unix.Rmdir(folder)
	}
	_, err := os.Stat(root)
	return errors.Is(err, fs.ErrNotExist)
}

// cgroupHierarchies are the folders where cgroups are made: one with cgroup v2, one a
// controller with v1.
func cgroupHierarchies() []string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		return []string{root}
	}
	all, _ := filepath.Glob(root + "/*/cgroup.procs")
	for i := range all {
		all[i] = filepath.Dir(all[i])
	}
	return all
}

func (n *Node) path(elem ...string) string {
	return filepath.Join(append([]string{n.dir}, elem...)...)
}

// serveAlso gives the API server a certificate for another address. It reads the
// files again when they change.
func (c *Cluster) serveAlso(address net.IP) error {
	cert, key, err := c.pki.issueFor("kube-apiserver", nil, net.IPv4(127, 0, 0, 1), address)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("apiserver.key"), key, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("apiserver.crt"), cert, 0o600); err != nil {
		return err
	}
	c.StopAPIServer()
	c.StartAPIServer()
	return nil
}

// buildKubelet builds the kubelet where it is missing and returns its path.
func buildKubelet() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(filepath.Join(root, "testdata", "cluster", "build.sh"), "kubelet")
	cmd.Stderr = os.Stderr // progress
	out, err := cmd.Output()
	return filepath.Join(strings.TrimSpace(string(out)), "kubelet"), err
}

// Token is the ServiceAccount token that the kubelet mounted in a pod.
func (n *Node) Token(podUID string) string {
	n.c.tb.Helper()
	first, err := n.first()
	if err != nil {
		n.c.tb.Fatalf("cluster: %v", err)
	}
	// A tmpfs, so in the node's mount namespace only.
	pattern := fmt.Sprintf("/proc/%d/root%s", first, n.path("kubelet", "pods", podUID, "volumes", "kubernetes.io~projected", "*", "token"))
	tokens, _ := filepath.Glob(pattern)
	if len(tokens) != 1 {
		n.c.tb.Fatalf("cluster: the kubelet mounted %d tokens in pod %s", len(tokens), podUID)
	}
	token, err := os.ReadFile(tokens[0])
	if err != nil {
		n.c.tb.Fatalf("cluster: %v", err)
	}
	return string(token)
}
