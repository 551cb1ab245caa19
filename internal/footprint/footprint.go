// Package footprint keeps a process that runs on every node of a cluster small.
package footprint

import (
	"bytes"
	"errors"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Limit has one thread at a time run Go code, unless $GOMAXPROCS says otherwise.
// An agent has little to do, and the runtime keeps memory for each processor of a
// host that may have hundreds; already for a second one it wakes a thread with
// each event, which finds nothing to do and costs as much as the event.
func Limit() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}

// Trim unmaps the pages of our own program file. Start-up touches nearly all of
// them, once: the runtime checks its tables, and every package initialises; and a
// scan many. Those that are needed again come back from the page cache, a
// microsecond each.
//
// Errors do no harm: the process stays as large as it was.
func Trim() error {
	pages, err := ownPages()
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range pages {
		// Where the page cache has the file in huge pages, one fault would map 2 MB.
		// A kernel that has no such pages refuses.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_NOHUGEPAGE)
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			errs = append(errs, errno)
		}
	}
	return errors.Join(errs...)
}

// ownPages does not change while the process lives: what cannot be written stays
// as it is.
var ownPages = sync.OnceValues(func() ([]mapping, error) {
	executable, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	defer maps.Close()
	text, err := io.ReadAll(io.LimitReader(maps, 4<<20))
	if err != nil {
		return nil, err
	}
	return programPages(text, executable), nil
})

type mapping struct{ start, end uintptr }

// programPages finds in /proc/self/smaps the mappings of the program file that
// cannot be written and have not been: those without anonymous pages, in memory or
// in swap. What the loader relocated has some, and would be lost.
func programPages(smaps []byte, executable string) []mapping {
	var found []mapping
	var current mapping
	candidate := false
	for line := range bytes.Lines(smaps) {
		fields := strings.Fields(string(line))
		if len(fields) >= 5 && strings.Contains(fields[0], "-") && !strings.HasSuffix(fields[0], ":") {
			// 00411000-00817000 r-xp 00011000 fe:00 123   /usr/bin/gpu-labeller
			candidate = false
			if len(fields) == 6 && fields[5] == executable && strings.HasPrefix(fields[1], "r-") {
				from, to, _ := strings.Cut(fields[0], "-")
				start, err1 := strconv.ParseUint(from, 16, 64)
				end, err2 := strconv.ParseUint(to, 16, 64)
				current = mapping{uintptr(start), uintptr(end)}
				candidate = err1 == nil && err2 == nil && end > start
			}
			continue
		}
		if !candidate || len(fields) != 3 {
			continue
		}
		switch fields[0] {
		case "Anonymous:":
			candidate = fields[1] == "0"
		case "Swap:": // which comes later
			if fields[1] == "0" {
				found = append(found, current)
			}
			candidate = false
		}
	}
	return found
}
