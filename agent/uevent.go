package agent

import (
	"bytes"
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// listen takes the kernel's announcements of devices and modules as a reason to
// look. They reach every network namespace that belongs to the initial user
// namespace (Linux 4.18), so most pods, and need no capability. Where they do
// not come, the next fingerprint sees the same a little later.
func (a *Agent) listen(ctx context.Context) {
	err := a.hear(ctx)
	if err != nil && ctx.Err() == nil {
		a.log.Debug("no uevents: " + err.Error())
	}
}

func (a *Agent) hear(ctx context.Context) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	socket := os.NewFile(uintptr(fd), "uevents")
	defer socket.Close()
	// Group 1 is the kernel's; the second is udev's.
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	stop := context.AfterFunc(ctx, func() { socket.Close() })
	defer stop()
	buf := make([]byte, 4096) // a uevent has 2048 bytes at most
	for {
		n, err := socket.Read(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS): // some were lost
			signal(a.nudges)
		case err != nil:
			return err
		case relevant(buf[:n]):
			signal(a.nudges)
		}
	}
}

// relevant tells a uevent that may concern a GPU or its driver. It reads
// ACTION@DEVPATH and then KEY=VALUE, each ended by a NUL. Anyone in the network
// namespace may send one, so it decides nothing but when to look.
func relevant(uevent []byte) bool {
	for field := range bytes.SplitSeq(uevent, []byte{0}) {
		subsystem, ok := bytes.CutPrefix(field, []byte("SUBSYSTEM="))
		if !ok {
			continue
		}
		switch string(subsystem) {
		case "pci", "drm", "module", "accel":
			return true
		}
	}
	return false
}
