//go:build faults

package faults

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// holdInKernel mounts a file system (FUSE) on folder whose files nobody answers
// for. Who looks one up waits inside the kernel, and SIGKILL does not end that: so
// it is with a driver that hangs. The function that is returned ends it.
func (h *host) holdInKernel(folder string) (release func()) {
	h.Helper()
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	h.must(err)
	h.must(os.Mkdir(folder, 0o755))
	h.must(unix.Mount("hung", folder, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device)))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		request := make([]byte, 1<<17+4096)
		for {
			n, err := unix.Read(device, request)
			switch {
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT):
				continue
			case err != nil || n < 40:
				return // unmounted
			}
			// struct fuse_in_header: length, opcode, unique, ...
			const init = 26
			if binary.NativeEndian.Uint32(request[4:]) != init {
				continue
			}
			answer := make([]byte, 16+24) // fuse_out_header, fuse_init_out of protocol 7.22
			binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
			copy(answer[8:], request[8:16])
			binary.NativeEndian.PutUint32(answer[16:], 7)
			binary.NativeEndian.PutUint32(answer[20:], 22)
			binary.NativeEndian.PutUint32(answer[36:], 4096) // max_write
			_, _ = unix.Write(device, answer)
		}
	}()
	released := false
	release = func() {
		if released {
			return
		}
		released = true
		_ = unix.Unmount(folder, unix.MNT_FORCE) // all that wait are told that it is over
		_ = unix.Unmount(folder, unix.MNT_DETACH)
		<-ended
		_ = unix.Close(device)
	}
	h.Cleanup(release)
	return release
}

// needsFUSE skips a row where the test may not mount a file system of its own.
func needsFUSE(h *host) {
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		h.Skipf("making the kernel hang needs FUSE: %v", err)
	}
	device.Close()
	needsMount(func(*host) {})(h)
}

// unkillable counts the threads of this host's NVML children that wait inside the
// kernel and were sent SIGKILL.
func (h *host) unkillable() (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/status")
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "State:\tD ") {
			continue
		}
		for line := range strings.Lines(string(text)) {
			pending, ok := strings.CutPrefix(line, "SigPnd:\t")
			if !ok {
				continue
			}
			signals, _ := strconv.ParseUint(strings.TrimSpace(pending), 16, 64)
			if signals&(1<<(unix.SIGKILL-1)) != 0 {
				n++
			}
		}
	}
	return n
}

// limitMemory has the agent and its NVML child share so many bytes, as in a
// container.
func (h *host) limitMemory(bytes int) {
	h.Helper()
	name := "gpu-labeller-" + h.name
	for _, c := range []struct{ folder, limit string }{
		{"/sys/fs/cgroup/memory/" + name, "memory.limit_in_bytes"},
		{"/sys/fs/cgroup/" + name, "memory.max"},
	} {
		if os.Mkdir(c.folder, 0o755) != nil {
			continue
		}
		h.Cleanup(func() {
			for range 100 { // until the last process has left it
				if os.Remove(c.folder) == nil {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
		if os.WriteFile(filepath.Join(c.folder, c.limit), []byte(strconv.Itoa(bytes)), 0o644) != nil {
			continue
		}
		h.must(os.WriteFile(filepath.Join(c.folder, "cgroup.procs"), []byte(strconv.Itoa(h.agent.cmd.Process.Pid)), 0o644))
		return
	}
	h.Skip("limiting memory needs a cgroup that this test may make")
}
