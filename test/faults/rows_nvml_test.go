//go:build faults

package faults

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-labeller/gpu-labeller/internal/standin"
)

func rows() []row {
	var all []row
	for _, some := range [][]row{libraryRows(), initRows(), queryRows(), childRows(), hardwareRows(), fileRows(), serverRows(), nodeFeatureRows(), writerRows(), agentRows()} {
		all = append(all, some...)
	}
	return all
}

// held is that all labels stay and the state says why.
func held(state string) want { return but(all, "state", state) }

// whole is a step that mends, after which all is as before.
func whole(do func(*host)) []step { return []step{{do: do, want: want{of: all}}} }

// libraryRows break the library's file.
func libraryRows() []row {
	const area = "The library"
	broken := func(name, fault, says, state string, do func(h *host, library []byte)) row {
		var library []byte
		return row{
			area: area, name: name, fault: fault,
			during: []step{{
				do: func(h *host) {
					var err error
					library, err = os.ReadFile(h.library())
					h.must(err)
					do(h, library)
				},
				says: says, want: held(state),
			}},
			after: whole(func(h *host) {
				h.must(os.RemoveAll(h.library()))
				h.replace(library)
			}),
		}
	}
	return []row{
		broken("library missing", "it is missing", "NVML's library was not found", "no-driver", func(h *host, _ []byte) { h.must(os.Remove(h.library())) }),
		broken("library empty", "it is an empty file", "file too short", "no-driver", func(h *host, _ []byte) { h.replace(nil) }),
		broken("library is text", "it is no library", "invalid ELF header", "no-driver", func(h *host, _ []byte) { h.replace(bytes.Repeat([]byte("404 page not found\n"), 100)) }),
		broken("library of 32 bits", "it is one of 32 bits", "wrong ELF class", "no-driver", func(h *host, l []byte) {
			l = append([]byte{}, l...)
			l[4] = 1 // ELFCLASS32
			h.replace(l)
		}),
		broken("library of another architecture", "it is one of another architecture", "NVML's library was not found", "no-driver", func(h *host, l []byte) {
			l = append([]byte{}, l...)
			l[18], l[19] = 0xf3, 0 // e_machine: RISC-V
			h.replace(l)
		}),
		broken("library cut", "half of it is there", "the NVML child process ended", "error", func(h *host, l []byte) { h.replace(l[:len(l)/2]) }),
		broken("library a folder", "a folder has its name", "NVML's library was not found", "no-driver", func(h *host, _ []byte) {
			h.must(os.Remove(h.library()))
			h.must(os.Mkdir(h.library(), 0o755))
		}),
		broken("library a pipe", "a named pipe has its name", "NVML's library was not found", "no-driver", func(h *host, _ []byte) {
			h.must(os.Remove(h.library()))
			h.must(syscall.Mkfifo(h.library(), 0o644))
		}),
		broken("library without init", "it has no nvmlInit", "nvmlInit", "no-driver", func(h *host, _ []byte) {
			without := standin.DriverRoot(h.T, "", "nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags")
			l, err := os.ReadFile(filepath.Join(without, "usr/lib64/libnvidia-ml.so.1"))
			h.must(err)
			h.replace(l)
		}),
		broken("library hangs while it is loaded", "loading it hangs", "NVML did not answer within", "timeout", func(h *host, _ []byte) {
			h.compile("#include <unistd.h>\n__attribute__((constructor)) static void hang(void) { for (;;) pause(); }\n")
		}),
		broken("library crashes while it is loaded", "loading it crashes", "SIGABRT", "error", func(h *host, _ []byte) {
			h.compile("#include <stdlib.h>\n__attribute__((constructor)) static void crash(void) { abort(); }\n")
		}),
		broken("library writes everywhere", "loading it writes to every descriptor", "its answer: invalid character", "error", func(h *host, _ []byte) {
			h.compile(writesEverywhere("!"))
		}),
		broken("library writes blanks everywhere", "loading it writes blanks to every descriptor, without end", "it wrote more than 1048576 bytes", "error", func(h *host, _ []byte) {
			h.compile(writesEverywhere(" "))
		}),
		broken("library without end of memory", "loading it takes memory without end, at a limit of 64 MiB for agent and NVML process", "killed", "error", func(h *host, _ []byte) {
			h.limitMemory(64 << 20)
			h.compile("#include <stdlib.h>\n#include <string.h>\n__attribute__((constructor)) static void eat(void) { for (;;) { char *p = malloc(1 << 20); if (p) memset(p, 1, 1 << 20); } }\n")
		}),
		{
			area: area, name: "library of an older driver", fault: "it is an older one, without the calls for MIG, architecture, fabric and peers",
			during: []step{{do: func(h *host) {
				old := standin.DriverRoot(h.T, "", "nvmlDeviceGetMigMode", "nvmlDeviceGetArchitecture", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetMemoryInfo_v2")
				l, err := os.ReadFile(filepath.Join(old, "usr/lib64/libnvidia-ml.so.1"))
				h.must(err)
				h.must(os.Rename(h.library(), h.library()+".newer"))
				h.replace(l)
			}, want: but(all, "nvidia.com/gpu.clique", "", "nvidia.com/mig.capable", "false", "mig.state", "", "mig.gpus", "", "mig.devices", "")}},
			after: whole(func(h *host) { h.must(os.Rename(h.library()+".newer", h.library())) }),
		},
		{
			area: area, name: "driver comes later", fault: "no driver at the start; later there is one",
			setup: func(h *host) {
				h.must(os.Rename(h.library(), h.library()+".later"))
				h.must(os.RemoveAll(filepath.Join(h.root, "proc/driver")))
			},
			before: want{of: pciOnly},
			after: whole(func(h *host) {
				h.must(os.Rename(h.library()+".later", h.library()))
				h.driverVersion("550.107.02")
			}),
		},
	}
}

func writesEverywhere(text string) string {
	return fmt.Sprintf("#include <string.h>\n#include <unistd.h>\n__attribute__((constructor)) static void flood(void) {\n"+
		"static char b[65536]; memset(b, '%s', sizeof b); for (;;) for (int fd = 1; fd < 32; fd++) if (write(fd, b, sizeof b) < 0) continue; }\n", text)
}

// compile makes the library of C source.
func (h *host) compile(source string) {
	h.Helper()
	c := filepath.Join(h.driver, "library.c")
	h.must(os.WriteFile(c, []byte(source), 0o644))
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", h.library()+".new", c).CombinedOutput()
	if err != nil {
		h.Fatalf("gcc: %v\n%s", err, out)
	}
	h.must(os.Rename(h.library()+".new", h.library()))
}

// initRows have nvmlInit return each error that nvml.h 13 has.
func initRows() []row {
	const area = "nvmlInit"
	states := map[string]string{
		"LIBRARY_NOT_FOUND": "no-driver", "DRIVER_NOT_LOADED": "no-driver",
		"NO_PERMISSION": "no-permission", "LIB_RM_VERSION_MISMATCH": "driver-mismatch",
	}
	says := map[string]string{
		"LIBRARY_NOT_FOUND": "NVML's library was not found", "DRIVER_NOT_LOADED": "kernel module is not loaded",
		"NO_PERMISSION": "may not open the GPUs' device nodes", "LIB_RM_VERSION_MISMATCH": "are of different driver versions",
	}
	var all []row
	for _, code := range []string{
		"LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "NO_PERMISSION", "LIB_RM_VERSION_MISMATCH",
		"UNINITIALIZED", "INVALID_ARGUMENT", "NOT_SUPPORTED", "ALREADY_INITIALIZED", "NOT_FOUND", "INSUFFICIENT_SIZE",
		"INSUFFICIENT_POWER", "TIMEOUT", "IRQ_ISSUE", "FUNCTION_NOT_FOUND", "CORRUPTED_INFOROM", "GPU_IS_LOST",
		"RESET_REQUIRED", "OPERATING_SYSTEM", "IN_USE", "MEMORY", "NO_DATA", "VGPU_ECC_NOT_SUPPORTED",
		"INSUFFICIENT_RESOURCES", "FREQ_NOT_SUPPORTED", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED", "NOT_READY",
		"GPU_NOT_FOUND", "INVALID_STATE", "RESET_TYPE_NOT_SUPPORTED", "UNKNOWN", "77",
	} {
		state, text := states[code], says[code]
		if state == "" {
			state, text = "error", "initialising NVML ("
		}
		all = append(all, row{
			area: area, name: "init " + code, fault: "it returns %s", item: code,
			during: []step{{do: func(h *host) { h.says(gpus(oldGPU, 1) + "init " + code + "\n") }, says: text, want: held(state)}},
			after:  whole(func(h *host) { h.says(gpus(oldGPU, 1)) }),
		})
	}
	for _, code := range []string{"NO_PERMISSION", "LIB_RM_VERSION_MISMATCH", "UNKNOWN"} {
		state := states[code]
		if state == "" {
			state = "error"
		}
		all = append(all, row{
			area: area, name: "init " + code + " from the start", fault: "it returns %s from the start, and later works", item: code,
			setup:  func(h *host) { h.says(gpus(oldGPU, 1) + "init " + code + "\n") },
			before: but(pciOnly, "state", state),
			after:  whole(func(h *host) { h.says(gpus(oldGPU, 1)) }),
		})
	}
	return all
}

// queryRows have each question fail on each of four GPUs in turn.
func queryRows() []row {
	const area = "Questions to NVML, on each of four GPUs in turn"
	degraded := but(all, "state", "degraded", "count", "3", "count.failed", "1", "vendor.nvidia.count", "3",
		"nvidia.com/gpu.count", "3", "model.nvidia-a100-sxm4-40gb.count", "3", "memory.total", "122880").called("all, of three GPUs, `count.failed=1` `state=degraded`")
	noMemory := but(all, "homogeneous", "", "memory.type", "", "memory.min", "", "memory.max", "", "memory.total", "").
		called("all, without `homogeneous` and `memory.*`")
	noFabric := but(all, "nvidia.com/gpu.clique", "").called("all but `nvidia.com/gpu.clique`")
	// As GFD does it, the last GPU decides about the memory of one.
	lastMemory := but(all, "homogeneous", "", "memory.type", "", "memory.min", "", "memory.max", "", "memory.total", "", "nvidia.com/gpu.memory", "").
		called("of the last GPU, also without `nvidia.com/gpu.memory`, as with GFD")
	same := want{of: all}
	noVersion := but(all, "nvlink.version", "")
	var list []row
	for _, q := range []struct {
		name, fault, line string
		want              want
	}{
		{"handle", "its handle cannot be had (GPU_IS_LOST)", "handle %d GPU_IS_LOST", degraded},
		{"handle unknown", "its handle cannot be had (UNKNOWN)", "handle %d UNKNOWN", degraded},
		{"lost", "it has fallen off the bus", "lost %d", degraded},
		{"name", "its name (UNKNOWN)", "error nvmlDeviceGetName gpu=%d UNKNOWN", degraded},
		{"compute capability", "its compute capability (UNKNOWN)", "error nvmlDeviceGetCudaComputeCapability gpu=%d UNKNOWN", degraded},
		{"MIG mode", "its MIG mode (UNKNOWN)", "error nvmlDeviceGetMigMode gpu=%d UNKNOWN", degraded},
		{"reset required", "its memory (RESET_REQUIRED)", "error nvmlDeviceGetMemoryInfo gpu=%d RESET_REQUIRED", degraded},
		{"memory", "its memory (UNKNOWN)", "error nvmlDeviceGetMemoryInfo gpu=%d UNKNOWN", noMemory},
		{"memory denied", "its memory (NO_PERMISSION)", "error nvmlDeviceGetMemoryInfo gpu=%d NO_PERMISSION", noMemory},
		{"PCI address", "its PCI address (UNKNOWN)", "error nvmlDeviceGetPciInfo gpu=%d UNKNOWN", but(all, "nvidia.com/gpu.mode", "unknown")},
		{"UUID", "its UUID (UNKNOWN)", "error nvmlDeviceGetUUID gpu=%d UNKNOWN", same},
		{"brand", "its brand (UNKNOWN)", "error nvmlDeviceGetBrand gpu=%d UNKNOWN", same},
		{"architecture", "its architecture (UNKNOWN)", "error nvmlDeviceGetArchitecture gpu=%d UNKNOWN", same},
		{"fabric", "its fabric (UNKNOWN)", "error nvmlDeviceGetGpuFabricInfo gpu=%d UNKNOWN", noFabric},
		{"fabric by the later call", "its fabric, by the call of later libraries (UNKNOWN)", "error nvmlDeviceGetGpuFabricInfoV gpu=%d UNKNOWN", noFabric},
		{"addressing mode", "its addressing mode (UNKNOWN)", "error nvmlDeviceGetAddressingMode gpu=%d UNKNOWN", same},
		{"peers", "its peers (UNKNOWN)", "error nvmlDeviceGetP2PStatus gpu=%d UNKNOWN", but(all, "nvlink", "", "nvlink.version", "")},
		{"NVLink", "whether its NVLinks are active (UNKNOWN)", "error nvmlDeviceGetNvLinkState gpu=%d UNKNOWN", noVersion},
		{"NVLink version", "the version of its NVLinks (UNKNOWN)", "error nvmlDeviceGetNvLinkVersion gpu=%d UNKNOWN", noVersion},
	} {
		r := row{area: area, name: "query " + q.name, fault: q.fault, gpus: 4, setup: hasLinks(4), after: whole(func(h *host) { h.says(linked(4)) })}
		if strings.HasSuffix(q.name, "later call") {
			r.setup = func(h *host) {
				later := standin.DriverRoot(h.T, "", "nvmlDeviceGetGpuFabricInfo")
				l, err := os.ReadFile(filepath.Join(later, "usr/lib64/libnvidia-ml.so.1"))
				h.must(err)
				h.replace(l)
				hasLinks(4)(h)
			}
		}
		ask := func(lines string, want want) {
			r.asks(lines)
			r.during = append(r.during, step{want: want, do: func(h *host) {
				if strings.HasPrefix(lines, "error") {
					h.fails(linked(4), lines)
				} else {
					h.says(linked(4) + lines)
				}
			}})
		}
		for i := range 4 {
			line := fmt.Sprintf(q.line, i) + "\n"
			want := q.want
			if strings.HasPrefix(q.name, "memory") && i == 3 {
				want = lastMemory
			}
			ask(line, want)
		}
		list = append(list, r)
	}
	split := splitGPUs(4, 2)
	for _, q := range []struct{ name, fault, function string }{
		{"number of MIG devices", "how many MIG devices it may have (UNKNOWN)", "nvmlDeviceGetMaxMigDeviceCount"},
		{"MIG device", "the handle of its MIG devices (UNKNOWN)", "nvmlDeviceGetMigDeviceHandleByIndex"},
		{"GPU instance", "the numbers of their GPU instances (UNKNOWN)", "nvmlDeviceGetGpuInstanceId"},
		{"compute instance", "the numbers of their compute instances (UNKNOWN)", "nvmlDeviceGetComputeInstanceId"},
		{"MIG attributes", "their memory and engines (UNKNOWN)", "nvmlDeviceGetAttributes"},
		{"handle of a GPU instance", "the handles of their GPU instances (UNKNOWN)", "nvmlDeviceGetGpuInstanceById"},
		{"handle of a compute instance", "the handles of their compute instances (UNKNOWN)", "nvmlGpuInstanceGetComputeInstanceById"},
		{"GPU instance's profile", "the profile of their GPU instances (UNKNOWN)", "nvmlGpuInstanceGetInfo"},
		{"compute instance's profile", "the profile of their compute instances (UNKNOWN)", "nvmlComputeInstanceGetInfo"},
		{"profiles", "the profiles that its GPU instances can have (UNKNOWN)", "nvmlDeviceGetGpuInstanceProfileInfo"},
		{"profiles of compute instances", "the profiles that their compute instances can have (UNKNOWN)", "nvmlGpuInstanceGetComputeInstanceProfileInfo"},
	} {
		r := row{area: "Questions to NVML about two MIG devices, on each of four GPUs in turn", name: "query " + q.name, fault: q.fault, gpus: 4,
			setup: func(h *host) { h.says(split); h.sets[all] = h.print() },
			after: whole(func(h *host) { h.says(split) }),
		}
		for i := range 4 {
			line := fmt.Sprintf("error %s gpu=%d UNKNOWN\n", q.function, i)
			r.asks(line)
			r.during = append(r.during, step{do: func(h *host) { h.fails(split, line) },
				want: but(all, "mig.state", "unknown", "mig.devices", "", "nvidia.com/mig-1g.5gb.count", "6")})
		}
		list = append(list, r)
	}
	for _, q := range []struct {
		name, fault, line string
		want              want
	}{
		{"count", "how many GPUs there are (UNKNOWN)", "error nvmlDeviceGetCount UNKNOWN", held("error")},
		{"none", "it says that there is no GPU", "count 0", held("error")},
		{"thousands", "it says that there are 2,147,483,647 GPUs", "count 2147483647", held("error")},
		{"fewer", "it lists two of four", "count 2", but(all, "state", "degraded", "count", "2", "count.failed", "2", "vendor.nvidia.count", "2",
			"nvidia.com/gpu.count", "2", "model.nvidia-a100-sxm4-40gb.count", "2", "memory.total", "81920").called("all, of two GPUs, `count.failed=2` `state=degraded`")},
		{"driver version", "the driver's version (UNKNOWN)", "error nvmlSystemGetDriverVersion UNKNOWN", same},
		{"NVML version", "the library's version (UNKNOWN)", "error nvmlSystemGetNVMLVersion UNKNOWN", same},
		{"CUDA version", "the driver's version of CUDA (UNKNOWN)", "error nvmlSystemGetCudaDriverVersion UNKNOWN", but(all, "nvidia.com/cuda.runtime-version.full", "",
			"nvidia.com/cuda.runtime-version.major", "", "nvidia.com/cuda.runtime-version.minor", "", "nvidia.com/cuda.runtime.major", "", "nvidia.com/cuda.runtime.minor", "").
			called("all, without `nvidia.com/cuda.runtime*`")},
	} {
		r := row{area: "Questions to NVML as a whole", name: "query " + q.name, fault: q.fault, gpus: 4,
			during: []step{{want: q.want, do: func(h *host) { h.says(gpus(oldGPU, 4) + q.line + "\n") }}},
			after:  whole(func(h *host) { h.says(gpus(oldGPU, 4)) })}
		if strings.HasPrefix(q.line, "error") {
			r.asks(q.line + "\n")
			r.during[0].do = func(h *host) { h.fails(gpus(oldGPU, 4), q.line+"\n") }
		}
		list = append(list, r)
	}
	return list
}

// splitGPUs is what NVML says of n GPUs with so many MIG devices each.
func splitGPUs(n, devices int) string {
	text := strings.ReplaceAll(gpus(oldGPU, n), "mig=0", "mig=1")
	for i := range n {
		for gi := 1; gi <= devices; gi++ {
			text += fmt.Sprintf("mig gpu=%d gi=%d ci=0 gprof=0 cprof=0 slices=1 cslices=1 sm=14 mem=4864 ce=1\n", i, gi)
		}
	}
	return text
}

// asks notes the questions that lines have fail.
func (r *row) asks(lines string) {
	for line := range strings.Lines(lines) {
		if words := strings.Fields(line); words[0] == "error" {
			r.questions = append(r.questions, words[1])
		}
	}
}

// A scan of linked GPUs asks each of these.
var someQuestions = []string{"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetNvLinkVersion"}

// killedAtQuestions kills the child in each of some questions.
func killedAtQuestions(area string) row {
	r := row{area: area, name: "killed at a question", fault: fmt.Sprintf("it is killed (SIGKILL) at a question, at each of %d", len(someQuestions)), gpus: 2,
		setup: hasLinks(2), after: whole(func(h *host) { h.says(linked(2)) })}
	for _, question := range someQuestions {
		r.during = append(r.during, step{do: func(h *host) {
			h.hangs(linked(2), question)
			h.says(linked(2) + "exit nvmlInit 9\n") // the next one fails otherwise
			for _, pid := range h.children() {
				h.must(syscall.Kill(pid, syscall.SIGKILL))
			}
		}, says: "ended by signal killed", want: held("error")})
	}
	return r
}

// idle tells whether a process has used no processor time for half a second.
func idle(pid int) bool {
	used := func() string {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		words := strings.Fields(string(text))
		if len(words) < 15 {
			return "" // it is gone
		}
		return words[13] + " " + words[14]
	}
	before := used()
	time.Sleep(500 * time.Millisecond)
	return before != "" && used() == before
}

// childRows have the process that asks NVML go wrong.
func childRows() []row {
	const area = "The process that asks NVML"
	short := []string{"--nvml-timeout=2s"}
	// What the library says before it goes wrong, of which the log has a line.
	const uuids = "say nvmlInit NVRM:~GPU-5ad00000-0000-4000-8000-000000000000,~MIG-5ad00000-0000-4000-8000-000000000001,~5ad00000-0000-4000-8000-000000000002\n"
	broken := func(name, fault, line, says, state string) row {
		return row{
			area: area, name: name, fault: fault, gpus: 2, flags: short,
			during: []step{{do: func(h *host) { h.says(gpus(oldGPU, 2) + line + "\n") }, says: says, want: held(state)}},
			after:  whole(func(h *host) { h.says(gpus(oldGPU, 2)) }),
		}
	}
	harmless := func(name, fault, line string) row {
		return row{
			area: area, name: name, fault: fault, gpus: 2, flags: short,
			during: []step{{do: func(h *host) { h.says(gpus(oldGPU, 2) + line + "\n") }, want: want{of: all}}},
			after:  whole(func(h *host) { h.says(gpus(oldGPU, 2)) }),
		}
	}
	return []row{
		broken("hang at init", "it hangs in nvmlInit", "hang nvmlInit", "NVML did not answer within", "timeout"),
		broken("hang at a question", "it hangs at a question to one GPU", "hang nvmlDeviceGetName gpu=1", "NVML did not answer within", "timeout"),
		broken("answer too late", "it takes longer than the timeout", "sleep nvmlDeviceGetCount 6000", "NVML did not answer within", "timeout"),
		harmless("hang in shutdown", "it would hang in nvmlShutdown, which is never called", "hang nvmlShutdown"),
		broken("crash at init", "it crashes in nvmlInit, after a message with UUIDs", uuids+"crash nvmlInit", "(NVRM: GPU-(UUID), MIG-(UUID), (UUID))", "error"),
		broken("crash at a question", "it crashes at a question to one GPU", "crash nvmlDeviceGetMemoryInfo gpu=1", "SIGSEGV", "error"),
		broken("exit at init", "the library ends it in nvmlInit, status 0, after a message with UUIDs", uuids+"exit nvmlInit 0", "(NVRM: GPU-(UUID), MIG-(UUID), (UUID))", "error"),
		broken("exit at a question", "the library ends it at a question, status 3", "exit nvmlDeviceGetName 3", "exit status 3", "error"),
		harmless("garbage", "the library writes to standard output", "garbage nvmlInit\ngarbage nvmlDeviceGetName"),
		harmless("slow", "it takes a second, within the timeout", "sleep nvmlDeviceGetCount 1000"),
		{
			area: area, name: "flood", fault: "the library writes to standard output without end", gpus: 2, flags: short,
			during: []step{{do: func(h *host) { h.says(gpus(oldGPU, 2) + "flood nvmlInit\n") }, says: "NVML did not answer within", want: held("timeout")}},
			after:  whole(func(h *host) { h.says(gpus(oldGPU, 2)) }),
		},
		{
			area: area, name: "killed", fault: "it is killed, as for want of memory", gpus: 2,
			during: []step{{
				do: func(h *host) {
					h.says(gpus(oldGPU, 2) + "hang nvmlInit\n")
					h.until("a child", 20*time.Second, func() bool {
						time.Sleep(500 * time.Millisecond) // until it hangs
						killed := false
						for _, pid := range h.children() {
							killed = syscall.Kill(pid, syscall.SIGKILL) == nil
						}
						return killed && len(h.agent.String()) > 0 && contains(h, "ended by signal killed")
					})
					h.says(gpus(oldGPU, 2) + "exit nvmlInit 9\n")
				},
				want: held("error"), through: []want{held("timeout")},
			}},
			after: whole(func(h *host) { h.says(gpus(oldGPU, 2)) }),
		},
		killedAtQuestions(area),
		{
			area: area, name: "killed while it answers", fault: "it is killed (SIGKILL) when a part of its answer is written", gpus: 2, flags: []string{"--nvml-timeout=1m"},
			during: []step{{do: func(h *host) {
				// More than a pipe holds, so that it cannot end before it is read.
				asked := h.record(splitGPUs(64, 7) + "sleep nvmlInit 1000\n")
				h.until("a child", 30*time.Second, func() bool { return asked("nvmlInit") })
				h.must(h.agent.cmd.Process.Signal(syscall.SIGSTOP))
				pid := h.children()[0]
				h.until("the end of its questions", 30*time.Second, func() bool { return asked("nvmlDeviceGetP2PStatus") && idle(pid) })
				h.says(gpus(oldGPU, 2) + "exit nvmlInit 9\n")
				h.must(syscall.Kill(pid, syscall.SIGKILL))
				h.until("its end", 30*time.Second, func() bool { return len(h.children()) == 0 }) // or it writes on once there is room
				h.must(h.agent.cmd.Process.Signal(syscall.SIGCONT))
			}, says: "ended by signal killed", want: held("error")}},
			after: whole(func(h *host) { h.says(gpus(oldGPU, 2)) }),
		},
		{
			area: area, name: "NVML process killed at any time", fault: "it is killed (SIGKILL) fifteen times, at any time, also after its answer", gpus: 2,
			// Slow enough to be met by a test that looks for it.
			setup: func(h *host) { h.says(gpus(oldGPU, 2) + "sleep nvmlInit 25\nsleep nvmlDeviceGetName 25\n") },
			during: []step{{do: func(h *host) {
				for i := range 15 {
					h.driverVersion(fmt.Sprintf("550.107.02  %d", i)) // so that it asks at once
					for begin := time.Now(); len(h.children()) == 0; time.Sleep(time.Millisecond) {
						if time.Since(begin) > 30*time.Second {
							h.Fatal("no child within 30 s")
						}
					}
					time.Sleep(time.Duration(6*i) * time.Millisecond)
					for _, pid := range h.children() {
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
					time.Sleep(100 * time.Millisecond) // until it is gone
				}
			}, want: want{of: all}, through: []want{held("error")}}},
		},
		{
			area: area, name: "held in the kernel", fault: "it waits inside the kernel, and SIGKILL does not end it; the agent is ended and started again while it does", gpus: 2, flags: short,
			setup: needsFUSE,
			during: []step{{
				do: func(h *host) {
					h.release = h.holdInKernel(filepath.Join(h.driver, "hung"))
					h.must(os.Rename(h.library(), h.library()+".aside"))
					h.must(os.Symlink("../../hung/library", h.library()))
				},
				says: "has still not ended: the driver holds it", want: held("timeout"),
			}, {
				do: func(h *host) {
					before := h.unkillable()
					h.awaitScans(5)
					if after := h.unkillable(); before == 0 || after != before {
						h.Errorf("%d threads that cannot be killed, and %d after five scans", before, after)
					}
				},
				want: held("timeout"),
			}, {
				do: func(h *host) {
					begin := time.Now()
					h.must(h.agent.cmd.Process.Signal(syscall.SIGTERM))
					if err := h.agent.cmd.Wait(); err != nil || time.Since(begin) > 5*time.Second {
						h.Errorf("the agent took %v to end: %v", time.Since(begin), err)
					}
					h.start()
				},
				says: "has still not ended: the driver holds it", want: held("timeout"),
			}},
			after: whole(func(h *host) {
				h.release()
				h.must(os.Rename(h.library()+".aside", h.library()))
			}),
		},
		{
			area: area, name: "hang from the start", fault: "it hangs from the start, and later does not", gpus: 2, flags: short,
			setup:  func(h *host) { h.says(gpus(oldGPU, 2) + "hang nvmlInit\n") },
			before: but(pciOnly, "state", "timeout"),
			after:  whole(func(h *host) { h.says(gpus(oldGPU, 2)) }),
		},
	}
}
