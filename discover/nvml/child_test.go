package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-labeller/gpu-labeller/discover/pci/address"
	"github.com/gpu-labeller/gpu-labeller/internal/standin"
)

const twoA100 = `
driver 550.107.02
cuda 12050
gpu bus=00000000:10:00.0 dev=0x20b010de name=NVIDIA~A100-SXM4-40GB mem=40960 cc=8.0 mig=1
gpu bus=00000000:18:00.0 dev=0x20b010de name=NVIDIA~A100-SXM4-40GB mem=40960 cc=8.0 mig=0
mig gpu=0 gi=1 ci=0 gprof=2 cprof=2 slices=3 cslices=3 sm=42 mem=19968 ce=3 dec=2
mig gpu=0 gi=2 ci=0 gprof=2 cprof=0 slices=3 cslices=1 sm=14 mem=19968 ce=3 dec=2
`

func askStandin(t *testing.T, text string, without ...string) Answer {
	t.Helper()
	p := Prober{DriverRoot: standin.DriverRoot(t, text, without...), Timeout: 20 * time.Second}
	return p.Ask(context.Background())
}

func mustAnswer(t *testing.T, a Answer) {
	t.Helper()
	if a.Failure != nil || a.Init != Success {
		t.Fatalf("no answer: init %s %s, failure %+v", a.Init, a.Detail, a.Failure)
	}
}

func TestAsk(t *testing.T) {
	a := askStandin(t, twoA100)
	mustAnswer(t, a)
	if a.DriverVersion != "550.107.02" || a.CUDADriverVersion != 12050 || len(a.GPUs) != 2 {
		t.Fatalf("driver %s, CUDA %d, %d GPUs", a.DriverVersion, a.CUDADriverVersion, len(a.GPUs))
	}
	g := a.GPUs[0]
	if g.Name != "NVIDIA A100-SXM4-40GB" || g.MemoryBytes != 40960<<20 || *g.ComputeCapability != (ComputeCapability{8, 0}) {
		t.Errorf("GPU 0: %+v", g)
	}
	if want := (address.Address{Bus: 0x10}); *g.PCIAddress != want {
		t.Errorf("address %v, want %v", g.PCIAddress, want)
	}
	if g.Architecture != "ampere" || !g.MIG.Enabled || a.GPUs[1].MIG.Enabled {
		t.Errorf("architecture %s, MIG %+v and %+v", g.Architecture, g.MIG, a.GPUs[1].MIG)
	}
	var profiles []string
	for _, m := range g.MIG.Devices {
		profiles = append(profiles, m.Profile)
	}
	if got := strings.Join(profiles, " "); got != "3g.20gb 1c.3g.20gb" {
		t.Errorf("MIG profiles %s", got)
	}
	if !strings.HasSuffix(a.Library, "/usr/lib64/libnvidia-ml.so.1") {
		t.Errorf("library %s", a.Library)
	}
}

func TestFabricNVLinkAddressing(t *testing.T) {
	a := askStandin(t, `
driver 580.95.05
cuda 13000
gpu bus=0:1:0.0 name=H mem=81559 cc=9.0 mig=0 fstate=3 clique=7 cluster=7b968a6d-c8aa-45e1-9e07-e1e51be99c31 addressing=2 nvlinks=18 nvlinkver=4.0
gpu bus=0:2:0.0 name=H mem=81559 cc=9.0 mig=0 fstate=1 nvlinks=18 nvlinkver=4.0
gpu bus=0:3:0.0 name=H mem=81559 cc=9.0 mig=0
p2p 0 1
`)
	mustAnswer(t, a)
	if want := (Fabric{State: FabricCompleted, Status: Success, ClusterUUID: "7b968a6d-c8aa-45e1-9e07-e1e51be99c31", CliqueID: 7}); *a.GPUs[0].Fabric != want {
		t.Errorf("fabric %+v, want %+v", a.GPUs[0].Fabric, want)
	}
	if a.GPUs[1].Fabric.State != "not_started" || a.GPUs[2].Fabric != nil || a.GPUs[2].Errors["fabric"] != NotSupported {
		t.Errorf("fabric of the others: %+v, %+v", a.GPUs[1].Fabric, a.GPUs[2])
	}
	if a.GPUs[0].AddressingMode != "ats" {
		t.Errorf("addressing mode %q", a.GPUs[0].AddressingMode)
	}
	n := a.GPUs[0].NVLink
	if n == nil || n.Version != "4.0" || len(n.Peers) != 1 || n.Peers[0] != 1 || a.GPUs[2].NVLink != nil {
		t.Errorf("NVLink %+v, of the third %+v", n, a.GPUs[2].NVLink)
	}
}

// Each fault costs what it concerns, and nothing else.
func TestFaults(t *testing.T) {
	healthy := func(t *testing.T, g GPU) {
		t.Helper()
		if g.Handle != "" || g.Name == "" || g.MemoryBytes == 0 || g.ComputeCapability == nil || g.MIG == nil {
			t.Errorf("GPU %d suffers with the other: %+v", g.Index, g)
		}
	}
	tests := []struct {
		name, text string
		without    []string
		check      func(t *testing.T, a Answer)
	}{
		{"memory not permitted", "error nvmlDeviceGetMemoryInfo gpu=0 NO_PERMISSION", nil, func(t *testing.T, a Answer) {
			if a.GPUs[0].MemoryBytes != 0 || a.GPUs[0].Errors["memory_bytes"] != NoPermission || a.GPUs[0].Name == "" {
				t.Errorf("%+v", a.GPUs[0])
			}
		}},
		{"no handle", "handle 0 GPU_IS_LOST", nil, func(t *testing.T, a Answer) {
			if a.GPUs[0].Handle != GPUIsLost || a.GPUs[0].Name != "" {
				t.Errorf("%+v", a.GPUs[0])
			}
		}},
		{"lost", "lost 0", nil, func(t *testing.T, a Answer) {
			if g := a.GPUs[0]; g.Name == "" || g.Errors["memory_bytes"] != GPUIsLost || g.Errors["pci_address"] != GPUIsLost {
				t.Errorf("%+v", g)
			}
		}},
		{"MIG instances not permitted", "error nvmlDeviceGetMigDeviceHandleByIndex NO_PERMISSION", nil, func(t *testing.T, a Answer) {
			if g := a.GPUs[0]; !g.MIG.Enabled || g.MIG.Devices != nil || g.Errors["mig.devices"] != NoPermission {
				t.Errorf("%+v", g)
			}
		}},
		{"MIG attributes fail", "error nvmlDeviceGetAttributes gpu=0 UNKNOWN", nil, func(t *testing.T, a Answer) {
			if g := a.GPUs[0]; !g.MIG.Enabled || g.Errors["mig.devices"] != Unknown {
				t.Errorf("%+v", g)
			}
		}},
		{"profile cannot be told", "error nvmlDeviceGetGpuInstanceProfileInfo UNKNOWN", nil, func(t *testing.T, a Answer) {
			if g := a.GPUs[0]; g.Errors["mig.devices"] != Unknown || g.MemoryBytes == 0 {
				t.Errorf("%+v", g)
			}
		}},
		{"old library without MIG", "", []string{"nvmlDeviceGetMigMode"}, func(t *testing.T, a Answer) {
			for _, g := range a.GPUs {
				if g.MIG != nil || g.Errors["mig"] != FunctionNotFound || g.Name == "" {
					t.Errorf("%+v", g)
				}
			}
		}},
		{"old library without fabric and addressing mode", "", []string{"nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetAddressingMode"}, func(t *testing.T, a Answer) {
			for _, g := range a.GPUs {
				healthy(t, g)
				if g.Errors["fabric"] != FunctionNotFound || g.Errors["addressing_mode"] != FunctionNotFound {
					t.Errorf("%+v", g.Errors)
				}
			}
		}},
		{"very old library", "", []string{"nvmlDeviceGetArchitecture", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetPciInfo_v3"}, func(t *testing.T, a Answer) {
			for _, g := range a.GPUs {
				healthy(t, g)
				if g.Errors["architecture"] != FunctionNotFound || g.PCIAddress == nil {
					t.Errorf("%+v", g)
				}
			}
		}},
		{"count fails", "error nvmlDeviceGetCount UNKNOWN", nil, func(t *testing.T, a Answer) {
			if len(a.GPUs) != 0 || a.Errors["gpus"] != Unknown || a.DriverVersion == "" {
				t.Errorf("%+v", a)
			}
		}},
		{"driver version fails", "error nvmlSystemGetDriverVersion UNKNOWN", nil, func(t *testing.T, a Answer) {
			if a.DriverVersion != "" || a.Errors["driver_version"] != Unknown || a.CUDADriverVersion == 0 {
				t.Errorf("%+v", a)
			}
		}},
		{"library prints", "garbage nvmlDeviceGetName", nil, func(t *testing.T, a Answer) {
			healthy(t, a.GPUs[0])
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := askStandin(t, twoA100+test.text+"\n", test.without...)
			mustAnswer(t, a)
			if len(a.GPUs) > 1 && test.without == nil {
				healthy(t, a.GPUs[1])
			}
			test.check(t, a)
		})
	}
}

func TestInitFails(t *testing.T) {
	for _, code := range []Code{VersionMismatch, DriverNotLoaded, NoPermission, Unknown, "TIMEOUT", "GPU_NOT_FOUND", "IRQ_ISSUE", "MEMORY", "77"} {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			a := askStandin(t, twoA100+"init "+string(code)+"\n")
			if a.Failure != nil || a.Init != code || a.GPUs != nil {
				t.Errorf("init %s, failure %+v, GPUs %v", a.Init, a.Failure, a.GPUs)
			}
		})
	}
}

func TestChildFails(t *testing.T) {
	tests := []struct {
		name, text string
		kind       FailureKind
		want       string // in the text
	}{
		{"hangs at init", "hang nvmlInit", Timeout, "did not answer within"},
		{"hangs at a query", "hang nvmlDeviceGetMemoryInfo", Timeout, "did not answer within"},
		{"crashes at init", "crash nvmlInit", Crash, "SIGSEGV"},
		{"crashes at a query", "crash nvmlDeviceGetName", Crash, "SIGSEGV"},
		{"exits", "exit nvmlDeviceGetCount 3", Crash, "exit status 3"},
		{"prints for ever", "flood nvmlDeviceGetName", Timeout, "did not answer within"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := Prober{DriverRoot: standin.DriverRoot(t, twoA100+test.text+"\n"), Timeout: 2 * time.Second}
			a := p.Ask(context.Background())
			if a.Failure == nil || a.Failure.Kind != test.kind || !strings.Contains(a.Failure.Text, test.want) {
				t.Errorf("failure %+v, want %s with %q", a.Failure, test.kind, test.want)
			}
			if p.stuck != nil {
				t.Error("the child was not ended")
			}
		})
	}
}

func TestSymbolMissingThatEveryNVMLHas(t *testing.T) {
	a := askStandin(t, twoA100, "nvmlDeviceGetCount", "nvmlDeviceGetCount_v2")
	if a.Failure == nil || a.Failure.Kind != Crash || !strings.Contains(a.Failure.Text, "nvmlDeviceGetCount") {
		t.Errorf("answer %+v", a)
	}
}

// A child that hangs after its answer costs nothing but the wait.
func TestAnswerBeforeTheEnd(t *testing.T) {
	p := Prober{Executable: script(t, `printf '{"init":"SUCCESS","driver_version":"1.2"}'; exec 1>&-; exec sleep 60`)}
	a := p.Ask(context.Background())
	mustAnswer(t, a)
	if p.stuck != nil {
		t.Error("the child was not ended")
	}
}

func TestNonsense(t *testing.T) {
	tests := []struct{ name, script, want string }{
		{"nothing", `exit 0`, "wrote nothing"},
		{"no JSON", `echo hello`, "invalid character"},
		{"half of it", `printf '{"init":"SUCCESS","gpus":[{"index"'`, "unexpected EOF"},
		{"wrong types", `printf '{"init":"SUCCESS","gpus":"many"}'`, "cannot unmarshal"},
		{"empty object", `printf '{}'`, "says nothing"},
		{"100 MB", `head -c 104857600 /dev/zero; exit 0`, "invalid character"},
		{"100 MB of JSON", `printf '{"init":"'; head -c 104857600 /dev/zero | tr '\000' a; exit 0`, "more than"},
		{"endless", `while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done`, "invalid character"},
		{"does not end", `trap '' PIPE; echo hello; while :; do sleep 1; done`, "invalid character"},
		{"too many GPUs", `printf '{"init":"SUCCESS","gpus":['; i=0; while [ $i -lt 1024 ]; do printf '{"index":0},'; i=$((i+1)); done; printf '{"index":0}]}'`, "more than 1024 gpus"},
		{"bad address", `printf '{"init":"SUCCESS","gpus":[{"index":0,"pci_address":"here"}]}'`, "parsing PCI address"},
		{"stderr is told", `echo 'undefined symbol: nvmlX' >&2; exit 127`, "undefined symbol: nvmlX"},
		{"stderr has a UUID and a serial number", `echo 'GPU-5a1b2c3d-0000-1111-2222-333344445555 serial 1652923033445' >&2; exit 1`, "(GPU-(UUID) serial (number))"},
		{"stderr has a UUID where it is cut", `head -c 180 /dev/zero | tr '\000' x >&2; echo ' GPU-5a1b2c3d-0000-1111-2222-333344445555' >&2; exit 1`, "x GPU-(UUID))"},
		{"terminal escapes", `printf '\033[2Jboo\n' >&2; exit 1`, "[2Jboo"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := Prober{Executable: script(t, test.script)}
			a := p.Ask(context.Background())
			if a.Failure == nil || a.Failure.Kind != Crash || !strings.Contains(a.Failure.Text, test.want) {
				t.Errorf("failure %+v, want a crash with %q", a.Failure, test.want)
			}
			if strings.ContainsRune(a.Failure.Text, 0x1b) || len(a.Failure.Text) > 1000 {
				t.Errorf("unfit for a message: %q", a.Failure.Text)
			}
		})
	}
}

// NVML starts helpers, such as nvidia-modprobe, that may outlive the child with
// its pipes open.
func TestHelpersOutliveTheChild(t *testing.T) {
	p := Prober{Executable: script(t, `sleep 60 & printf '{"init":"SUCCESS"}'`)}
	start := time.Now()
	for range 2 {
		mustAnswer(t, p.Ask(context.Background()))
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("waited for the helper: %v", took)
	}
}

func TestHelpersEndWithAHungChild(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	p := Prober{Executable: script(t, `sleep 60 & echo $! >`+pid+`; wait`), Timeout: time.Second}
	if a := p.Ask(context.Background()); a.Failure == nil || a.Failure.Kind != Timeout {
		t.Fatalf("failure %+v", a.Failure)
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	// It was sent SIGKILL; when it ends is the scheduler's business.
	var stat []byte
	for range 100 {
		stat, err = os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("the helper is still there: %s", stat)
}

// NVIDIA's code learns nothing of the cluster from the child's environment.
func TestChildEnvironment(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", "/opt/nvidia/lib64")
	t.Setenv("KUBECONFIG", "/etc/kubernetes/admin.conf")
	t.Setenv("SECRET", "hunter2")
	said := filepath.Join(t.TempDir(), "environment")
	p := Prober{Executable: script(t, "cat /proc/$$/environ > "+said), Timeout: 20 * time.Second}
	p.Ask(context.Background())
	text, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	slices.Sort(got)
	if want := []string{"GOMAXPROCS=1", "GOTRACEBACK=none", childVariable + "=1", "LD_LIBRARY_PATH=/opt/nvidia/lib64"}; !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
}

func script(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "child")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestCannotStart(t *testing.T) {
	p := Prober{Executable: filepath.Join(t.TempDir(), "missing")}
	a := p.Ask(context.Background())
	if a.Failure == nil || a.Failure.Kind != NotStarted || !strings.Contains(a.Failure.Text, "could not be started") || !strings.Contains(a.Failure.Cure, "/proc") {
		t.Errorf("failure %+v", a.Failure)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	p := Prober{Executable: script(t, "exec sleep 60")}
	a := p.Ask(ctx)
	if a.Failure == nil || !strings.Contains(a.Failure.Text, "cancelled") {
		t.Errorf("failure %+v", a.Failure)
	}
}

// A child that SIGKILL does not end is left alone, and no other is started
// before it has ended.
func TestStuckChild(t *testing.T) {
	stuck := &child{process: &os.Process{Pid: 4711}, ended: make(chan struct{})}
	p := Prober{Executable: script(t, `printf '{"init":"SUCCESS"}'`), stuck: stuck}
	for range 3 {
		a := p.Ask(context.Background())
		if a.Failure == nil || a.Failure.Kind != Stuck || !strings.Contains(a.Failure.Text, "4711") {
			t.Fatalf("failure %+v", a.Failure)
		}
	}
	stuck.err = errors.New("killed")
	close(stuck.ended)
	mustAnswer(t, p.Ask(context.Background()))
}

func TestLibrary(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		root := t.TempDir()
		p := Prober{DriverRoot: root}
		a := p.Ask(context.Background())
		if a.Init != LibraryNotFound || !strings.Contains(a.Detail, root) {
			t.Errorf("init %s: %s", a.Init, a.Detail)
		}
	})
	for _, folder := range []string{
		"usr/lib/x86_64-linux-gnu", "run/nvidia/driver/usr/lib64", "usr/lib/wsl/lib", "usr/local/nvidia/lib64",
	} {
		t.Run(folder, func(t *testing.T) {
			from, root := standin.DriverRoot(t, twoA100), t.TempDir()
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, folder)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(from, "usr/lib64"), filepath.Join(root, folder)); err != nil {
				t.Fatal(err)
			}
			p := Prober{DriverRoot: root}
			mustAnswer(t, p.Ask(context.Background()))
		})
	}
	t.Run("absolute link inside another root", func(t *testing.T) {
		root := standin.DriverRoot(t, twoA100)
		dir := filepath.Join(root, "usr/lib64")
		if err := os.MkdirAll(filepath.Join(root, "opt/driver"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"libnvidia-ml.so.1", "nvml.txt"} {
			if err := os.Rename(filepath.Join(dir, name), filepath.Join(root, "opt/driver", name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("/opt/driver/libnvidia-ml.so.1", filepath.Join(dir, "libnvidia-ml.so.1")); err != nil {
			t.Fatal(err)
		}
		p := Prober{DriverRoot: root}
		mustAnswer(t, p.Ask(context.Background()))
	})
	t.Run("not a library", func(t *testing.T) {
		root := standin.DriverRoot(t, twoA100)
		if err := os.WriteFile(filepath.Join(root, "usr/lib64/libnvidia-ml.so.1"), []byte("\x7fELF of some sort"), 0o755); err != nil {
			t.Fatal(err)
		}
		p := Prober{DriverRoot: root}
		a := p.Ask(context.Background())
		if a.Init != LibraryNotFound || a.Detail == "" {
			t.Errorf("init %s: %s", a.Init, a.Detail)
		}
	})
	t.Run("another library of that name", func(t *testing.T) {
		root := standin.DriverRoot(t, twoA100, "nvmlInit", "nvmlInit_v2")
		p := Prober{DriverRoot: root}
		a := p.Ask(context.Background())
		if a.Init != LibraryNotFound || !strings.Contains(a.Detail, "not NVML") {
			t.Errorf("init %s: %s", a.Init, a.Detail)
		}
	})
}

// Without descriptors left there is no child, and that is said.
func TestNoDescriptors(t *testing.T) {
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	few := old
	few.Cur = 1
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	a := (&Prober{Executable: "/bin/true"}).Ask(t.Context())
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if a.Failure == nil || a.Failure.Kind != NotStarted || !strings.Contains(a.Failure.Cure, "open files") {
		t.Errorf("answer %+v", a.Failure)
	}
}

// What NVML starts may outlive the child, and is then the agent's, where that is the
// init process of a container.
func TestOrphansAreReaped(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	for what, program := range map[string]string{
		"it answers": `sleep 0.2 & echo $! >PID; printf '{"init":"SUCCESS"}'`,
		"it hangs":   `sleep 60 & echo $! >PID; sleep 60`,
	} {
		file := filepath.Join(t.TempDir(), "pid")
		p := Prober{Executable: script(t, strings.ReplaceAll(program, "PID", file)), Timeout: time.Second}
		p.Ask(t.Context())
		pid, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		orphan := "/proc/" + strings.TrimSpace(string(pid))
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(orphan); err != nil {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: what it started is still there", what)
				break
			}
		}
	}
}

// What lives on, such as a helper that the driver holds, costs the agent no threads.
func TestOrphansHoldNoThreads(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	threads := func() int {
		all, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	file := filepath.Join(t.TempDir(), "pids")
	defer func() {
		pids, _ := os.ReadFile(file)
		for _, pid := range strings.Fields(string(pids)) {
			if n, err := strconv.Atoi(pid); err == nil {
				_ = unix.Kill(n, unix.SIGKILL)
			}
		}
	}()
	const asked = 40
	before := threads()
	for range asked {
		p := Prober{Executable: script(t, "sleep 600 & echo $! >>"+file+`; printf '{"init":"SUCCESS"}'`), Timeout: 20 * time.Second}
		mustAnswer(t, p.Ask(t.Context()))
	}
	if more := threads() - before; more >= asked/2 {
		t.Errorf("%d threads more after %d questions", more, asked)
	}
}

// A process that is frozen beyond the timeout, as by a virtual machine that pauses,
// takes the answer that came meanwhile.
func TestAnswerWhileFrozen(t *testing.T) {
	p := Prober{
		Executable: script(t, `kill -STOP $PPID; printf '{"init":"SUCCESS"}'; sleep 2; kill -CONT $PPID`),
		Timeout:    time.Second,
	}
	for range 5 {
		mustAnswer(t, p.Ask(t.Context()))
	}
}

// Where what is kept ends within a UUID or a serial number, its part is not told.
func TestFirstLineTellsNoPart(t *testing.T) {
	const secret = "GPU-8f2b0c8e-1234-4321-abcd-123456789abc 1650122003415"
	for n := range len(secret) {
		text := "it failed " + strings.Repeat("\x01", maxStderr) + " " + secret
		text = text[len(text)-maxStderr-n:][:maxStderr]
		if got := firstLine([]byte(text)); strings.Contains(got, "8f2b") || strings.Contains(got, "165") {
			t.Errorf("%q", got)
		}
	}
	if got := firstLine([]byte("it failed: " + strings.Repeat(".", maxStderr))[:maxStderr]); got != "it failed: " {
		t.Errorf("%q", got)
	}
}
