//go:build faults

package faults

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/internal/logbuf"
	"github.com/gpu-labeller/gpu-labeller/internal/standin"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// host is one made-up host with an agent: a folder of sysfs and procfs, a
// stand-in NVML, a Node or a folder for a feature file. A row's steps change it.
type host struct {
	*testing.T
	w            *world
	name         string // of the Node
	root, driver string // folders
	folder       string // of the feature file, as the agent names it
	flags        []string
	sets         map[base]labels.Set // what each base stands for here
	proxy        *proxy
	kubeconfig   string
	chooses      bool   // no sink is given
	namespace    string // of the NodeFeature
	agent        *process
	history      *history
	seen         int    // how much of the history has been judged
	last         want   // what is published, if all is well
	inFolder     string // prefix by which the test reaches the agent's file system
	mounts       string // shell commands that set up a mount namespace

	token string // the agent's
	other *process

	release  func() // ends what a step holds
	recorded int    // see record
}

const (
	hardware = "driver 550.107.02\ncuda 12050\n"
	// A GPU of the hardware that there is, and of that which takes its place. No
	// A100 is on a fabric: these are, so that a label of every row has a UUID in it,
	// which no log may have.
	oldGPU = "gpu bus=00000000:%02x:00.0 dev=0x20b010de name=NVIDIA~A100-SXM4-40GB mem=40960 cc=8.0 mig=0" + onFabric + "\n"
	newGPU = "gpu bus=00000000:%02x:00.0 dev=0x20b010de name=NVIDIA~A100-SXM4-80GB mem=81920 cc=8.0 mig=0" + onFabric + "\n"

	onFabric = " fstate=3 cluster=5ad00000-0000-4000-8000-00000000fab0 clique=1"
	// linkedGPU is oldGPU with all that a driver may say of one; what follows the GPUs
	// links them with each other.
	linkedGPU = "gpu bus=00000000:%02x:00.0 dev=0x20b010de name=NVIDIA~A100-SXM4-40GB mem=40960 cc=8.0 mig=0 addressing=1 nvlinks=12 nvlinkver=3.0" + onFabric + "\n"
	allLinked = "p2p all\n"
)

// linked is what NVML says of n GPUs that are linked with each other.
func linked(n int) string { return gpus(linkedGPU, n) + allLinked }

// hasLinks is a setup that has the GPUs be linked ones.
func hasLinks(n int) func(*host) {
	return func(h *host) {
		h.says(linked(n))
		h.sets[all] = h.print()
	}
}

// gpus is what NVML says of n GPUs, each as format has it.
func gpus(format string, n int) string {
	text := hardware
	for i := range n {
		text += fmt.Sprintf(format, bus(i))
	}
	return text
}

func bus(i int) int { return 0x10 + 8*i }

func address(i int) string { return fmt.Sprintf("0000:%02x:00.0", bus(i)) }

func (h *host) write(name, content string) {
	path := filepath.Join(h.root, name)
	h.must(os.MkdirAll(filepath.Dir(path), 0o755))
	h.must(os.WriteFile(path, []byte(content), 0o644))
}

func (h *host) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// plug puts a GPU on the bus, file by file. None is ever seen half written, as in
// sysfs.
func (h *host) plug(i int) {
	dir := "sys/bus/pci/devices/" + address(i) + "/"
	for name, content := range map[string]string{
		"vendor": "0x10de", "device": "0x20b0", "revision": "0xa1", "config": strings.Repeat("\x00", 64), "class": "0x030200",
	} {
		h.write("staged", content)
		h.must(os.MkdirAll(filepath.Join(h.root, dir), 0o755))
		h.must(os.Rename(filepath.Join(h.root, "staged"), filepath.Join(h.root, dir, name)))
	}
	_ = os.Symlink("../../../bus/pci/drivers/nvidia", filepath.Join(h.root, dir, "driver"))
}

func (h *host) unplug(i int) {
	h.must(os.RemoveAll(filepath.Join(h.root, "sys/bus/pci/devices", address(i))))
}

// driverVersion is what the kernel module says; a change of it is noticed.
func (h *host) driverVersion(version string) {
	h.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+version+"  x\n")
}

func (h *host) library() string { return filepath.Join(h.driver, "usr/lib64/libnvidia-ml.so.1") }

// says changes what NVML answers from the next scan on. The file is replaced at
// once, since a probe may be reading it.
func (h *host) says(text string) {
	h.Helper()
	path := filepath.Join(h.driver, "usr/lib64/nvml.txt")
	h.must(os.WriteFile(path+".new", []byte(text), 0o644))
	h.must(os.Rename(path+".new", path))
}

// fails has NVML say text and lines, which are faults of questions, and waits until
// it was asked each of them, so that a row cannot pass without.
func (h *host) fails(text, lines string) {
	h.Helper()
	asked := h.record(text + lines)
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		question := words[1]
		if strings.HasPrefix(words[2], "gpu=") && question != "nvmlDeviceGetP2PStatus" { // asked of either of two GPUs
			question += " " + words[2]
		}
		h.until("NVML is asked "+question, 30*time.Second, func() bool { return asked(question) })
	}
}

// hangs has NVML say text and hang at a question, and waits until it does.
func (h *host) hangs(text, question string) {
	h.Helper()
	asked := h.record(text + "hang " + question + "\n")
	h.until("NVML is asked "+question, 30*time.Second, func() bool { return asked(question) })
}

// record has NVML say text, and tells what it was asked since.
func (h *host) record(text string) (asked func(question string) bool) {
	h.Helper()
	h.recorded++
	log := filepath.Join(h.driver, fmt.Sprintf("asked-%d", h.recorded))
	h.says(text + "log " + log + "\n")
	return func(question string) bool {
		calls, _ := os.ReadFile(log)
		for call := range strings.Lines(string(calls)) {
			function, gpu, _ := strings.Cut(strings.TrimSpace(version.ReplaceAllString(call, "")), " ")
			if function == question || strings.HasPrefix(function+" "+gpu+" ", question+" ") {
				return true
			}
		}
		return false
	}
}

// version is that of a function of NVML.
var version = regexp.MustCompile(`_v\d`)

// replace puts other bytes in the place of the library, as a new file: what has
// the old one mapped keeps it.
func (h *host) replace(library []byte) {
	h.Helper()
	h.must(os.WriteFile(h.library()+".new", library, 0o755))
	h.must(os.Rename(h.library()+".new", h.library()))
}

// newHost makes a host for a row; nothing runs yet.
func newHost(t *testing.T, w *world, r *row) *host {
	h := &host{T: t, w: w, name: nodeName(r.name), root: t.TempDir(), kubeconfig: w.cluster.Kubeconfig(), chooses: r.chooses}
	if r.gpus == 0 {
		r.gpus = 1
	}
	h.driver = standin.DriverRoot(t, gpus(oldGPU, r.gpus))
	h.write("sys/bus/pci/drivers/nvidia/bind", "")
	h.must(os.MkdirAll(filepath.Join(h.root, "sys/bus/pci/devices"), 0o755))
	if !r.offBus {
		for i := range r.gpus {
			h.plug(i)
		}
	}
	h.driverVersion("550.107.02")
	h.flags = append([]string{"--poll=200ms", "--interval=1s", "--nvml-timeout=8s", "--pci-labels=true", "--mig-strategy=mixed",
		"--listen=127.0.0.1:0", "--log-level=debug", "--root", h.root, "--driver-root", h.driver}, r.flags...)
	h.sets = map[base]labels.Set{none: {}, all: h.print()}
	h.says(gpus(newGPU, r.gpus))
	h.sets[other] = h.print()
	h.says(hardware + "init DRIVER_NOT_LOADED\n")
	h.sets[pciOnly] = h.print()
	provisionalOf(h)
	h.says(gpus(oldGPU, r.gpus))
	switch r.sink {
	case "":
		w.createNode(t, h.name)
		h.history = w.nodes.of(h.name)
	case "node-feature":
		w.createNode(t, h.name)
		h.namespace = h.name
		h.kubectl("create", "namespace", h.namespace)
		h.history = w.objects.of(h.name)
		h.history.add(labels.Set{})
	case "feature-file":
		h.folder = t.TempDir()
		h.history = newHistory()
	}
	return h
}

// print is what the command prints for the host.
func (h *host) print() labels.Set {
	h.Helper()
	cmd := exec.Command(h.w.binary, "--print", "--mig-strategy=mixed", "--root", h.root, "--driver-root", h.driver)
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() < 3 {
		h.Fatalf("--print: %v", err)
	}
	return parse(out)
}

func parse(text []byte) labels.Set {
	set := labels.Set{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok && key[0] != '#' {
			set[key] = value
		}
	}
	return set
}

// file is where the test finds the feature file.
func (h *host) file() string { return h.inFolder + h.folder + "/gpu-labeller" }

// start starts the agent.
func (h *host) start() {
	h.Helper()
	h.agent = h.run(h.args())
}

func (h *host) args() []string {
	args := append([]string{}, h.flags...)
	if h.folder != "" {
		return append(args, "--sink=feature-file", "--feature-file", h.folder+"/gpu-labeller")
	}
	sink := "node"
	if h.namespace != "" {
		sink = "node-feature"
		args = append(args, "--namespace", h.namespace)
	}
	if !h.chooses {
		args = append(args, "--sink", sink)
	}
	return append(args, "--node-name", h.name, "--force-node-name", "--kubeconfig", h.kubeconfig)
}

// uuid is that of a GPU, a MIG device or a fabric, which name pieces of hardware, or
// an object's; or as much of a GPU's as names it.
var uuid = regexp.MustCompile(`(?i)\b(?:GPU|MIG)-[0-9a-f]{8}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}`)

func (h *host) run(args []string) *process {
	h.Helper()
	p := &process{cmd: exec.Command(h.w.binary, args...)}
	if h.mounts != "" {
		p.cmd = exec.Command("unshare", append([]string{"--mount", "sh", "-ec", h.mounts + `exec "$0" "$@"`, h.w.binary}, args...)...)
	}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	h.must(p.cmd.Start())
	if h.mounts != "" {
		h.inFolder = fmt.Sprintf("/proc/%d/root", p.cmd.Process.Pid)
	}
	h.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		log := p.String()
		if found := uuid.FindString(log); found != "" {
			h.Errorf("the log has a UUID, %s", found)
		}
		for _, secret := range []string{h.token, h.w.cluster.Config().BearerToken} {
			if secret != "" && strings.Contains(log, secret) {
				h.Error("the log has a token")
			}
		}
		if h.Failed() {
			h.Logf("the agent said\n%s", p)
		}
	})
	if h.folder != "" && h.history.reader == nil {
		h.history.read(h.T, func() labels.Set {
			content, err := os.ReadFile(h.file())
			if err != nil {
				return labels.Set{} // none, or no folder
			}
			return parse(content)
		})
	}
	return p
}

// restart ends the agent by a signal, and starts it again.
func (h *host) restart(s syscall.Signal) {
	h.Helper()
	h.end(s)
	h.start()
}

// end ends the agent. It must go within two seconds, and its NVML child, too.
func (h *host) end(s syscall.Signal) {
	h.Helper()
	begin := time.Now()
	h.must(h.agent.cmd.Process.Signal(s))
	done := make(chan error, 1)
	go func() { done <- h.agent.cmd.Wait() }()
	select {
	case err := <-done:
		if s == syscall.SIGTERM && err != nil && h.agent.String() != "" { // else it had not begun
			h.Errorf("the agent ended with %v", err)
		}
	case <-time.After(15 * time.Second):
		h.Fatalf("the agent goes on after %v", s)
	}
	if took := time.Since(begin); took > 5*time.Second {
		h.Errorf("the agent took %v to end", took)
	}
	for range 100 {
		if len(h.children()) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	h.Errorf("NVML children %v outlive the agent", h.children())
}

// children are the process IDs of this host's NVML children.
func (h *host) children() []int {
	var pids []int
	all, _ := filepath.Glob("/proc/*/cmdline")
	for _, path := range all {
		words, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(words, []byte("gpu-labeller-nvml\x00")) || !bytes.Contains(words, []byte(h.driver)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// process is the command as a process.
type process struct {
	logbuf.Buffer
	cmd *exec.Cmd
}

var listening = regexp.MustCompile(`serving /healthz, /readyz and /metrics" address=(\S+)`)

// get asks the agent itself.
func (p *process) get(path string) (string, error) {
	m := listening.FindStringSubmatch(p.String())
	if m == nil {
		return "", fmt.Errorf("it does not serve %s yet", path)
	}
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + m[1] + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, body)
	}
	return string(body), err
}

var scanCount = regexp.MustCompile(`(?m)^gpu_labeller_scan_duration_seconds_count\{source="host"\} (\d+)`)

// scans is how many scans of the host have ended.
func (p *process) scans() int {
	text, err := p.get("/metrics")
	if err != nil {
		return 0
	}
	m := scanCount.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// until waits for something that must come.
func (h *host) until(what string, limit time.Duration, is func() bool) {
	h.Helper()
	for begin := time.Now(); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Since(begin) > limit {
			h.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// awaitScans waits until n more scans have ended; the first may have begun before.
func (h *host) awaitScans(n int) {
	h.Helper()
	from := h.agent.scans()
	h.until(fmt.Sprintf("%d scans after the %dth", n, from), 2*time.Minute, func() bool { return h.agent.scans() >= from+n })
}

// set is the labels that w stands for.
func (h *host) set(w want) labels.Set {
	set := maps.Clone(h.sets[w.of])
	for key, value := range w.but {
		if !strings.Contains(key, "/") {
			key = ownPrefix + key
		}
		if value == "" {
			delete(set, key)
		} else {
			set[key] = value
		}
	}
	return set
}

// await waits until the labels are as wanted, and judges all that there were
// since the last call: each must be what was, what is wanted, or what is allowed
// on the way.
func (h *host) await(phase string, w want, through ...want) {
	h.Helper()
	target := h.set(w)
	allowed := []labels.Set{h.set(h.last), target}
	for _, t := range through {
		allowed = append(allowed, h.set(t))
	}
	// A sink that failed several times is tried again after two minutes at most.
	if !h.history.await(target, 150*time.Second) {
		h.Fatalf("%s: the labels do not become as wanted:\n%s", phase, difference(h.history.newest(), target))
	}
	sets := h.history.since(h.seen)
	for i, set := range sets {
		ok := false
		for _, a := range allowed {
			ok = ok || maps.Equal(a, set)
		}
		if !ok {
			h.Errorf("%s: set %d of %d on the way is none that may be; from the wanted one it differs by\n%s", phase, i+1, len(sets), difference(set, target))
		}
	}
	h.seen += len(sets)
	h.last = w
}

// difference is got against want, one key a line.
func difference(got, want labels.Set) string {
	var b strings.Builder
	for key, value := range got {
		if w, ok := want[key]; !ok {
			fmt.Fprintf(&b, "  has  %s=%s\n", key, value)
		} else if w != value {
			fmt.Fprintf(&b, "  has  %s=%s, not %s\n", key, value, w)
		}
	}
	for key, value := range want {
		if _, ok := got[key]; !ok {
			fmt.Fprintf(&b, "  lacks %s=%s\n", key, value)
		}
	}
	return b.String()
}
