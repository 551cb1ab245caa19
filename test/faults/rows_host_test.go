//go:build faults

package faults

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func contains(h *host, text string) bool { return strings.Contains(h.agent.String(), text) }

// says waits until the log has it, from whenever.
func awaitLog(text string) func(*host) {
	return func(h *host) {
		h.until("the log says "+text, 30*time.Second, func() bool { return contains(h, text) })
	}
}

// newHardware changes what NVML says, in a way that is noticed.
func newHardware(h *host) {
	h.says(gpus(newGPU, 1))
	h.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.107.02  y\n")
}

func oldHardware(h *host) {
	h.says(gpus(oldGPU, 1))
	h.driverVersion("550.107.02")
}

// An A100 and a T4.
const (
	a100      = "gpu bus=00000000:10:00.0 dev=0x20b010de name=NVIDIA~A100-SXM4-40GB mem=40960 cc=8.0 mig=0\n"
	twoModels = hardware + a100 + "gpu bus=00000000:18:00.0 dev=0x1eb810de name=Tesla~T4 mem=15360 cc=7.5\n"
)

func migGPU() string { return splitGPUs(1, 2) }

// hardwareRows change what is on the bus.
func hardwareRows() []row {
	const area = "The hardware and the kernel"
	three := but(all, "count", "3", "count.pci", "3", "vendor.nvidia.count", "3", "nvidia.com/gpu.count", "3",
		"model.nvidia-a100-sxm4-40gb.count", "3", "memory.total", "122880").called("all, of three GPUs")
	oneFailed := but(all, "state", "degraded", "count", "3", "count.failed", "1", "vendor.nvidia.count", "3",
		"nvidia.com/gpu.count", "3", "model.nvidia-a100-sxm4-40gb.count", "3", "memory.total", "122880").called("all, of three GPUs, `count.failed=1` `state=degraded`")
	// While the bus and NVML's answer differ.
	t4OnBus := but(other, "count.pci", "2").called("all, of the T4 alone, `count.pci=2`")
	t4Failed := but(other, "count.pci", "2", "count.failed", "1", "state", "degraded").called("all, of the T4 alone, `count.failed=1` `count.pci=2` `state=degraded`")
	oneOfTwoFailed := but(all, "state", "degraded", "count", "1", "count.failed", "1", "vendor.nvidia.count", "1", "nvidia.com/gpu.count", "1",
		"model.nvidia-a100-sxm4-40gb.count", "1", "memory.total", "40960").called("all, of one GPU, `count.failed=1` `state=degraded`")
	devices := func(h *host) string { return filepath.Join(h.root, "sys/bus/pci/devices") }
	aside := func(path func(*host) string) func(*host) {
		return func(h *host) { h.must(os.Rename(path(h), path(h)+".aside")) }
	}
	back := func(path func(*host) string) func(*host) {
		return func(h *host) {
			_ = os.Remove(path(h))
			h.must(os.Rename(path(h)+".aside", path(h)))
		}
	}
	return []row{
		{
			area: area, name: "GPU gone from the bus for a moment", fault: "one of four GPUs is gone from `/sys` for half a second", gpus: 4,
			during: []step{{do: func(h *host) { h.unplug(2); time.Sleep(500 * time.Millisecond); h.plug(2) }, want: want{of: all}}},
		},
		{
			area: area, name: "GPU that comes and goes", fault: "one of four GPUs vanishes from `/sys`, file by file, and comes back, two hundred times, at any time of a scan", gpus: 4,
			during: []step{{do: func(h *host) {
				for i := range 200 {
					h.unplug(2)
					time.Sleep(time.Duration(i%5) * time.Millisecond)
					h.plug(2)
					time.Sleep(time.Duration(i%20) * time.Millisecond)
				}
			}, want: want{of: all}, through: []want{but(all, "count.pci", "3", "nvidia.com/gpu.mode", "unknown")}}}, // two scans that both see it gone
		},
		{
			area: area, name: "GPU removed and back", fault: "one of four GPUs is removed, and put back", gpus: 4,
			during: []step{{do: func(h *host) { h.unplug(3); h.says(gpus(oldGPU, 3)) }, want: three}},
			after: []step{{do: func(h *host) { h.says(gpus(oldGPU, 4)); h.plug(3) }, want: want{of: all},
				through: []want{oneFailed, but(all, "count.pci", "3")}}},
		},
		{
			area: area, name: "one of two models removed and back", fault: "of an A100 and a T4, the A100 is removed, and put back", gpus: 2,
			setup: func(h *host) {
				h.says(twoModels)
				h.sets[all] = h.print()
				h.says(strings.Replace(twoModels, a100, "", 1))
				h.unplug(0)
				h.sets[other] = h.print()
				h.plug(0)
				h.says(twoModels)
			},
			during: []step{{do: func(h *host) { h.says(strings.Replace(twoModels, a100, "", 1)); h.unplug(0) }, want: want{of: other}.called("all, of the T4 alone"),
				through: []want{t4OnBus, t4Failed}}},
			after: []step{{do: func(h *host) { h.says(twoModels); h.plug(0) }, want: want{of: all},
				through: []want{but(all, "count.pci", "1"), t4OnBus, t4Failed}}},
		},
		{
			area: area, name: "last GPU removed and back", fault: "the last GPU is removed, and put back",
			during: []step{{do: func(h *host) { h.unplug(0); h.says(hardware) }, want: want{of: none}}},
			after: []step{{do: func(h *host) { h.says(gpus(oldGPU, 1)); h.plug(0) }, want: want{of: all},
				through: []want{{of: provisional}}}},
		},
		{
			area: area, name: "function that cannot be read", fault: "the class of one of four GPUs cannot be read", gpus: 4,
			during: []step{{do: func(h *host) {
				class := filepath.Join(devices(h), address(1), "class")
				h.must(os.Remove(class))
				h.must(os.Mkdir(class, 0o755))
			}, says: "class", want: want{of: all}}},
			after: whole(func(h *host) {
				h.must(os.Remove(filepath.Join(devices(h), address(1), "class")))
				h.plug(1)
			}),
		},
		{
			area: area, name: "sysfs cannot be read", fault: "`/sys/bus/pci/devices` cannot be listed",
			during: []step{{do: func(h *host) { aside(devices)(h); h.must(os.WriteFile(devices(h), nil, 0o644)) }, says: "what is published stays as it is", want: want{of: all}}},
			after:  whole(back(devices)),
		},
		{
			area: area, name: "sysfs is gone", fault: "`/sys` is empty",
			during: []step{{do: aside(func(h *host) string { return filepath.Join(h.root, "sys/bus") }), says: "is /sys mounted, and readable?", want: want{of: all}}},
			after:  whole(back(func(h *host) string { return filepath.Join(h.root, "sys/bus") })),
		},
		{
			area: area, name: "procfs is gone", fault: "`/proc` is empty",
			during: []step{{do: aside(func(h *host) string { return filepath.Join(h.root, "proc") }), want: want{of: all}}},
			after:  whole(back(func(h *host) string { return filepath.Join(h.root, "proc") })),
		},
		{
			area: area, name: "GPU given to a guest", fault: "one of two GPUs is bound to vfio-pci, and given back", gpus: 2,
			during: []step{{do: func(h *host) {
				h.says(gpus(oldGPU, 1))
				h.bind(1, "vfio-pci")
			}, want: but(all, "count", "1", "count.passthrough", "1", "vendor.nvidia.count", "1", "nvidia.com/gpu.count", "1",
				"model.nvidia-a100-sxm4-40gb.count", "1", "memory.total", "40960").called("all, of one GPU, `count.passthrough=1`"),
				through: []want{oneOfTwoFailed}}},
			after: []step{{do: func(h *host) { h.says(gpus(oldGPU, 2)); h.bind(1, "nvidia") }, want: want{of: all},
				through: []want{but(all, "count.passthrough", "1", "count", "1", "vendor.nvidia.count", "1"), oneOfTwoFailed}}},
		},
		{
			area: area, name: "MIG reconfigured during a scan", fault: "MIG is enabled while NVML is being asked, and disabled",
			setup: func(h *host) {
				h.says(migGPU())
				h.sets[other] = h.print()
				h.says(gpus(oldGPU, 1))
			},
			during: []step{{do: func(h *host) {
				h.says(gpus(oldGPU, 1) + "sleep nvmlDeviceGetMigMode 1500\n")
				h.until("a scan", 20*time.Second, func() bool { return len(h.children()) > 0 })
				h.awaitScans(1)
				h.until("a scan", 20*time.Second, func() bool { return len(h.children()) > 0 })
				h.says(migGPU())
				for i := 1; i <= 2; i++ {
					h.write(fmt.Sprintf("proc/driver/nvidia/capabilities/gpu0/mig/gi%d/ci0/access", i), "")
				}
			}, want: want{of: other}}},
			after: whole(func(h *host) {
				h.says(gpus(oldGPU, 1))
				h.must(os.RemoveAll(filepath.Join(h.root, "proc/driver/nvidia/capabilities")))
			}),
		},
		{
			area: area, name: "no GPU for one scan", fault: "GPUs that are not on PCI are not listed in one scan, and then are", gpus: 2, offBus: true,
			during: []step{{do: func(h *host) {
				log := filepath.Join(h.driver, "calls")
				h.says(hardware + "count 0\nlog " + log + "\n")
				h.until("a scan", 20*time.Second, func() bool { text, _ := os.ReadFile(log); return len(text) > 0 })
				h.says(gpus(oldGPU, 2))
			}, want: want{of: all}}},
		},
		{
			area: area, name: "no GPU for good", fault: "GPUs that are not on PCI are not listed any more, and come back", gpus: 2, offBus: true,
			during: []step{{do: func(h *host) { h.says(hardware) }, want: want{of: none}}},
			after:  whole(func(h *host) { h.says(gpus(oldGPU, 2)) }),
		},
		{
			area: area, name: "driver updated", fault: "the driver is updated: module unloaded, other library, module loaded",
			during: []step{{do: func(h *host) {
				h.says(gpus(oldGPU, 1) + "init DRIVER_NOT_LOADED\n")
				h.must(os.RemoveAll(filepath.Join(h.root, "proc/driver")))
			}, want: held("no-driver")}, {do: func(h *host) {
				h.driverVersion("555.10.1")
				h.says(gpus(oldGPU, 1) + "init LIB_RM_VERSION_MISMATCH\n")
			}, want: held("driver-mismatch")}},
			after: []step{{do: func(h *host) {
				h.says(strings.Replace(gpus(oldGPU, 1), "550.107.02", "555.10.1", 1))
			}, want: but(all, "nvidia.com/cuda.driver-version.full", "555.10.1", "nvidia.com/cuda.driver-version.major", "555", "nvidia.com/cuda.driver-version.minor", "10",
				"nvidia.com/cuda.driver-version.revision", "1", "nvidia.com/cuda.driver.major", "555", "nvidia.com/cuda.driver.minor", "10", "nvidia.com/cuda.driver.rev", "1").called("all, with the new version")}},
		},
	}
}

// bind puts a GPU's driver link elsewhere.
func (h *host) bind(i int, driver string) {
	h.Helper()
	link := filepath.Join(h.root, "sys/bus/pci/devices", address(i), "driver")
	h.must(os.Symlink("../../../bus/pci/drivers/"+driver, link+".new"))
	h.must(os.Rename(link+".new", link))
}

// fileRows break the folder of the feature file.
func fileRows() []row {
	const area = "The feature file"
	rows := []row{
		{
			name: "folder missing", fault: "its folder is missing, and is made later",
			setup: func(h *host) { h.must(os.Remove(h.folder)) }, before: want{of: none},
			during: []step{{do: awaitLog("no folder for feature files"), want: want{of: none}}},
			after:  whole(func(h *host) { h.must(os.Mkdir(h.folder, 0o755)) }),
		},
		{
			name: "folder removed and remade", fault: "its folder is removed, and remade",
			during: []step{{do: func(h *host) { h.removeFolder() }, want: want{of: none}}},
			after:  whole(func(h *host) { h.must(os.Mkdir(h.folder, 0o755)) }),
		},
		{
			name: "folder is a symlink", fault: "its folder is a symbolic link, which leads elsewhere later",
			setup: func(h *host) {
				real := h.TempDir()
				h.must(os.Remove(h.folder))
				h.must(os.Symlink(real, h.folder))
			},
			during: []step{{do: func(h *host) {
				elsewhere := h.TempDir()
				h.must(os.Remove(h.folder))
				h.must(os.Symlink(elsewhere, h.folder))
			}, want: want{of: all}, through: []want{{of: none}}}},
		},
		{
			name: "file removed", fault: "it is removed",
			during: []step{{do: func(h *host) { h.must(os.Remove(h.file())); time.Sleep(50 * time.Millisecond) }, want: want{of: all}, through: []want{{of: none}}}},
		},
		{
			name: "file changed", fault: "somebody writes another value into it",
			during: []step{{do: func(h *host) {
				text, err := os.ReadFile(h.file())
				h.must(err)
				text = []byte(strings.Replace(string(text), "gpu.count=1", "gpu.count=8", 1))
				h.must(os.WriteFile(h.file()+".theirs", text, 0o644))
				h.must(os.Rename(h.file()+".theirs", h.file()))
				time.Sleep(50 * time.Millisecond)
			}, want: want{of: all}, through: []want{but(all, "nvidia.com/gpu.count", "8")}}},
		},
		{
			name: "file becomes a symlink", fault: "a symbolic link to another file takes its place; that file stays as it is",
			during: []step{{do: func(h *host) {
				victim := filepath.Join(h.TempDir(), "victim")
				h.must(os.WriteFile(victim, []byte("important"), 0o600))
				h.must(os.Symlink(victim, h.file()+".theirs"))
				h.must(os.Rename(h.file()+".theirs", h.file()))
				h.until("a file again", 30*time.Second, func() bool { fi, err := os.Lstat(h.file()); return err == nil && fi.Mode().IsRegular() })
				text, err := os.ReadFile(victim)
				h.must(err)
				if string(text) != "important" {
					h.Errorf("the link was followed: %q", text)
				}
			}, want: want{of: all}, through: []want{{of: none}}}},
		},
		{
			name: "folder in its place", fault: "a folder takes its place, and is removed",
			during: []step{{do: func(h *host) { h.must(os.Remove(h.file())); h.must(os.Mkdir(h.file(), 0o755)) },
				says: "there is a folder of that name", want: want{of: none}, through: []want{{of: all}}}},
			after: whole(func(h *host) { h.must(os.RemoveAll(h.file())) }),
		},
		{
			name: "folder read-only", fault: "its file system becomes read-only, the hardware changes; and read-write",
			setup: needsMount(func(h *host) { h.mounts = "mount -t tmpfs -o size=256k,mode=0755 tmpfs " + h.folder + "\n" }),
			during: []step{{do: func(h *host) {
				h.enter("mount -o remount,ro " + h.folder)
				newHardware(h)
			}, says: "read-only file system", want: want{of: all}}},
			after: []step{{do: func(h *host) { h.enter("mount -o remount,rw " + h.folder) }, want: want{of: other}}},
		},
		{
			name: "disk full", fault: "its file system is full, the hardware changes; and has room again",
			setup: needsMount(func(h *host) { h.mounts = "mount -t tmpfs -o size=256k,mode=0755 tmpfs " + h.folder + "\n" }),
			during: []step{{do: func(h *host) {
				h.enter("head -c 1M /dev/zero > " + h.folder + "/filler || true")
				newHardware(h)
			}, says: "no space left on device", want: want{of: all}}},
			after: []step{{do: func(h *host) { h.enter("rm " + h.folder + "/filler") }, want: want{of: other}}},
		},
		{
			name: "no inodes left", fault: "its file system has no inode left, the hardware changes; and has some again",
			setup: needsMount(func(h *host) { h.mounts = "mount -t tmpfs -o nr_inodes=32,mode=0755 tmpfs " + h.folder + "\n" }),
			during: []step{{do: func(h *host) {
				h.enter("mkdir " + h.folder + "/many; for i in $(seq 40); do touch " + h.folder + "/many/$i || true; done")
				newHardware(h)
			}, says: "no space left on device", want: want{of: all}}},
			after: []step{{do: func(h *host) { h.enter("rm -r " + h.folder + "/many") }, want: want{of: other}}},
		},
		{
			name: "named pipe for the stage", fault: "a named pipe takes the place of the hidden folder where it is put together, the hardware changes; it is removed",
			during: []step{{do: func(h *host) {
				h.must(os.RemoveAll(h.folder + "/.gpu-labeller"))
				h.must(unix.Mkfifo(h.folder+"/.gpu-labeller", 0o666))
				newHardware(h)
			}, says: "is in the place of the folder", want: want{of: all}}},
			after: []step{{do: func(h *host) { h.must(os.Remove(h.folder + "/.gpu-labeller")) }, want: want{of: other}}},
		},
		{
			name: "stage locked", fault: "somebody locks that hidden folder (flock), the hardware changes; and unlocks it",
			during: []step{{do: func(h *host) {
				folder, err := os.Open(h.folder + "/.gpu-labeller")
				h.must(err)
				h.release = func() { folder.Close() }
				h.must(unix.Flock(int(folder.Fd()), unix.LOCK_EX))
				newHardware(h)
			}, says: "another process holds it", want: want{of: all}}},
			after: []step{{do: func(h *host) { h.release() }, want: want{of: other}}},
		},
		{
			name: "killed while it writes", fault: "the agent is killed twenty times while it writes it, the hardware changing",
			during: []step{{do: func(h *host) {
				for i := range 20 {
					if i%2 == 0 {
						newHardware(h)
					} else {
						oldHardware(h)
					}
					time.Sleep(time.Duration(i*60) * time.Millisecond)
					h.end(syscall.SIGKILL)
					h.start()
				}
				oldHardware(h)
			}, want: want{of: all}, through: []want{{of: other}}}},
			after: []step{{do: func(h *host) {
				left, err := os.ReadDir(filepath.Join(h.folder, ".gpu-labeller"))
				if err == nil && len(left) > 0 {
					h.Errorf("%d files are left over, such as %s", len(left), left[0].Name())
				}
			}, want: want{of: all}}},
		},
		{
			name: "two agents write it", fault: "two agents write it, each for other hardware: they take turns, and each reading finds a whole file; one ends, the other is started again",
			during: []step{{do: func(h *host) {
				second := h.second()
				time.Sleep(8 * time.Second)
				h.stopSecond(second)
				h.restart(syscall.SIGTERM)
			}, want: want{of: all}, through: []want{{of: other}}}},
		},
	}
	for i := range rows {
		rows[i].area, rows[i].sink, rows[i].name = area, "feature-file", "file: "+rows[i].name
	}
	return rows
}

// removeFolder removes the folder of the feature file, into which the agent may be
// writing.
func (h *host) removeFolder() {
	h.Helper()
	h.until("no folder", time.Minute, func() bool { return os.RemoveAll(h.folder) == nil })
}

// needsMount skips a row where the test may not mount.
func needsMount(setup func(*host)) func(*host) {
	return func(h *host) {
		if out, err := exec.Command("unshare", "--mount", "true").CombinedOutput(); err != nil {
			h.Skipf("mounting needs root: unshare: %v %s", err, out)
		}
		setup(h)
	}
}

// enter runs a shell command in the agent's mount namespace.
func (h *host) enter(script string) {
	h.Helper()
	out, err := exec.Command("nsenter", "--mount", "--target", strconv.Itoa(h.agent.cmd.Process.Pid), "sh", "-c", script).CombinedOutput()
	if err != nil {
		h.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// second starts another agent for the same Node or file, on other hardware.
func (h *host) second() *process {
	h.Helper()
	there := newMachine(h)
	return h.run(append(h.args(), "--root", there.root, "--driver-root", there.driver)) // the last of a flag counts
}

// newMachine is h with other hardware.
func newMachine(h *host) *host {
	there := &host{T: h.T, root: h.TempDir(), driver: h.TempDir()}
	h.must(os.CopyFS(filepath.Join(there.root, "sys"), os.DirFS(filepath.Join(h.root, "sys"))))
	h.must(os.CopyFS(filepath.Join(there.root, "proc"), os.DirFS(filepath.Join(h.root, "proc"))))
	h.must(os.CopyFS(there.driver, os.DirFS(h.driver)))
	there.says(gpus(newGPU, 1))
	return there
}

func (h *host) stopSecond(p *process) {
	h.Helper()
	h.must(p.cmd.Process.Signal(syscall.SIGTERM))
	if err := p.cmd.Wait(); err != nil {
		h.Errorf("the second agent ended with %v", err)
	}
}

// agentRows end the agent, and starve it.
func agentRows() []row {
	const area = "The agent"
	same := want{of: all}
	hang := func(h *host) { h.says(gpus(oldGPU, 1) + "hang nvmlInit\n") }
	hanging := func(h *host) {
		hang(h)
		h.until("a child that hangs", 20*time.Second, func() bool { return len(h.children()) > 0 })
		h.awaitScans(1)
		h.until("a child that hangs", 20*time.Second, func() bool { return len(h.children()) > 0 })
	}
	rows := []row{
		{
			name: "SIGTERM and a new start", fault: "it is ended (SIGTERM), and started again",
			during: []step{{do: quietly(func(h *host) { h.restart(syscall.SIGTERM) }), want: same}},
		},
		{
			name: "SIGKILL and a new start", fault: "it is killed (SIGKILL, as for want of memory), and started again",
			during: []step{{do: quietly(func(h *host) { h.restart(syscall.SIGKILL) }), want: same}},
		},
		{
			name: "SIGTERM while NVML hangs", fault: "it is ended while NVML hangs, and started again while it still does", flags: []string{"--nvml-timeout=2s"},
			during: []step{{do: func(h *host) { hanging(h); h.restart(syscall.SIGTERM) }, want: held("timeout")}},
			after:  whole(oldHardware),
		},
		{
			name: "SIGKILL while NVML hangs", fault: "it is killed while NVML hangs, and started again while it still does", flags: []string{"--nvml-timeout=2s"},
			during: []step{{do: func(h *host) { hanging(h); h.restart(syscall.SIGKILL) }, want: held("timeout")}},
			after:  whole(oldHardware),
		},
		atQuestions("SIGTERM while NVML is asked", "it is ended (SIGTERM) while NVML hangs at a question, at each of %d, and started again", syscall.SIGTERM),
		atQuestions("SIGKILL while NVML is asked", "it is killed (SIGKILL) while NVML hangs at a question, at each of %d, and started again", syscall.SIGKILL),
		{
			name: "killed with an answer unread", fault: "it is killed while NVML's answer waits to be read, and started again",
			during: []step{{do: quietly(func(h *host) {
				asked := h.record(gpus(oldGPU, 1) + "sleep nvmlInit 500\n")
				h.until("a scan", 30*time.Second, func() bool { return asked("nvmlInit") })
				h.must(h.agent.cmd.Process.Signal(syscall.SIGSTOP))
				h.until("the end of the child", 30*time.Second, func() bool { return len(h.children()) == 0 })
				h.restart(syscall.SIGKILL)
			}), want: same}},
		},
		{
			name: "new start without a driver", fault: "it is started again while there is no driver",
			during: []step{{do: func(h *host) { h.says("init DRIVER_NOT_LOADED\n"); h.restart(syscall.SIGTERM) }, want: held("no-driver")}},
			after:  whole(oldHardware),
		},
		{
			name: "killed at any time", fault: "it is killed twenty times, at any time, the hardware changing",
			during: []step{{do: killedAtAnyTime(syscall.SIGKILL), want: same, through: []want{{of: other}}}},
		},
		{
			name: "ended at any time", fault: "it is ended twenty times (SIGTERM), at any time, the hardware changing",
			during: []step{{do: killedAtAnyTime(syscall.SIGTERM), want: same, through: []want{{of: other}}}},
		},
		{
			name: "frozen", fault: "it is frozen for ten seconds (SIGSTOP), as by a virtual machine that pauses",
			during: []step{{do: quietly(func(h *host) {
				h.must(h.agent.cmd.Process.Signal(syscall.SIGSTOP))
				time.Sleep(10 * time.Second)
				h.must(h.agent.cmd.Process.Signal(syscall.SIGCONT))
			}), want: same}},
		},
		{
			name: "no descriptors", fault: "it may open no file, for five seconds",
			during: []step{{do: func(h *host) {
				var was unix.Rlimit
				pid := h.agent.cmd.Process.Pid
				h.must(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
				h.must(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}, nil))
				time.Sleep(5 * time.Second)
				h.must(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil))
				if !contains(h, "too many open files") {
					h.Error("it had files to open")
				}
			}, want: same, through: []want{held("error"), held("no-driver"), held("timeout")}}},
		},
		{
			name: "told to reload all the time", fault: "it is told to reload a hundred times (SIGHUP)",
			during: []step{{do: quietly(func(h *host) {
				for range 100 {
					h.must(h.agent.cmd.Process.Signal(syscall.SIGHUP))
					time.Sleep(10 * time.Millisecond)
				}
			}), want: same}},
		},
	}
	for i := range rows {
		rows[i].area = area
	}
	return rows
}

// atQuestions ends the agent while its child hangs in each of some questions.
func atQuestions(name, fault string, s syscall.Signal) row {
	return row{name: name, fault: fmt.Sprintf(fault, len(someQuestions)), gpus: 2, flags: []string{"--nvml-timeout=2s"}, setup: hasLinks(2),
		during: []step{{do: func(h *host) {
			for _, question := range someQuestions {
				h.hangs(linked(2), question)
				h.restart(s)
			}
		}, want: held("timeout")}},
		after: whole(func(h *host) { h.says(linked(2)) }),
	}
}

// quietly has do change nothing that is published, without a write.
func quietly(do func(*host)) func(*host) {
	return func(h *host) {
		before := h.history.ours()
		do(h)
		h.awaitScans(2)
		if n := h.history.ours() - before; n > 0 {
			h.Errorf("it was written %d times, and nothing had changed", n)
		}
	}
}

// killedAtAnyTime restarts the agent twenty times while the hardware changes.
func killedAtAnyTime(s syscall.Signal) func(*host) {
	return func(h *host) {
		for i := range 20 {
			if i%2 == 0 {
				newHardware(h)
			} else {
				oldHardware(h)
			}
			time.Sleep(time.Duration(i*60) * time.Millisecond)
			h.restart(s)
		}
		oldHardware(h)
	}
}

// provisionalOf is what the bus alone tells before NVML was asked.
func provisionalOf(h *host) {
	h.sets[provisional] = maps.Clone(h.sets[pciOnly])
	for key := range h.sets[provisional] {
		if strings.HasPrefix(key, ownPrefix) {
			delete(h.sets[provisional], key)
		}
	}
}
