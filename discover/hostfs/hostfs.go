// Package hostfs reads the small files of a host's /sys and /proc below a root
// that is a parameter, so that a recorded host is a folder.
//
// What it reads may be hostile or broken: every read is bounded, only regular
// files are read, and a FIFO, a device or a symbolic link in a file's place is
// an error, not a hang.
package hostfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// PageSize bounds an attribute: sysfs gives a text attribute one page.
const PageSize = 4096

// ErrTooLong reports a file that is longer than its kind can be.
var ErrTooLong = errors.New("longer than the file can be")

// ErrNotRegular reports something other than a file in a file's place.
var ErrNotRegular = errors.New("not a regular file")

// ErrNotLink reports something other than a symbolic link in a link's place.
var ErrNotLink = errors.New("not a symbolic link")

// Root is the folder that holds a host's sys and proc, "/" for this host.
type Root string

// Path joins elem below the root.
func (r Root) Path(elem ...string) string {
	return filepath.Join(append([]string{string(r)}, elem...)...)
}

// ReadFile reads a file of at most max bytes. A longer one gives its first max
// bytes and an error that wraps ErrTooLong.
func (r Root) ReadFile(name string, max int) ([]byte, error) {
	return readAt(unix.AT_FDCWD, r.Path(name), unix.O_RDONLY, max, make([]byte, min(max+1, 512)), false)
}

// Attribute reads a file of one page at most and trims white space and NULs
// from its ends.
func (r Root) Attribute(name string) (string, error) {
	var buf [512]byte
	b, err := readAt(unix.AT_FDCWD, r.Path(name), unix.O_RDONLY, PageSize, buf[:], true)
	return trim(b), err
}

// ReadDir lists the names in a folder, sorted.
func (r Root) ReadDir(name string) ([]string, error) {
	entries, err := os.ReadDir(r.Path(name))
	if err != nil {
		return nil, bare(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// Readlink reads where a symbolic link points; the target need not exist.
func (r Root) Readlink(name string) (string, error) {
	target, err := os.Readlink(r.Path(name))
	if errors.Is(err, unix.EINVAL) {
		return "", ErrNotLink
	}
	return target, bare(err)
}

// Exists tells whether there is anything of that name.
func (r Root) Exists(name string) bool {
	_, err := os.Lstat(r.Path(name))
	return err == nil
}

// Dir is an open folder: several of its files are read without walking the path
// to it again, and all from the same device even if it is unplugged meanwhile.
type Dir struct{ fd int }

// OpenDir opens a folder. The caller closes it.
func (r Root) OpenDir(name string) (Dir, error) { return openDir(unix.AT_FDCWD, r.Path(name)) }

// OpenDir opens a folder in the folder, or one that a symbolic link in it
// points at. The caller closes it.
func (d Dir) OpenDir(name string) (Dir, error) { return openDir(d.fd, name) }

// Close closes the folder.
func (d Dir) Close() error { return unix.Close(d.fd) }

// ReadFile is Root.ReadFile for a file in the folder; a symbolic link is not
// followed.
func (d Dir) ReadFile(name string, max int) ([]byte, error) {
	return readAt(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW, max, make([]byte, min(max+1, 512)), false)
}

// Attribute is Root.Attribute for a file in the folder.
func (d Dir) Attribute(name string) (string, error) {
	var buf [512]byte
	b, err := readAt(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW, PageSize, buf[:], true)
	return trim(b), err
}

// Readlink reads where a symbolic link in the folder points.
func (d Dir) Readlink(name string) (string, error) {
	var buf [PageSize]byte
	n, err := unix.Readlinkat(d.fd, name, buf[:])
	if err == unix.EINVAL {
		return "", ErrNotLink
	}
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func openDir(dir int, name string) (Dir, error) {
	for {
		fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Dir{-1}, err
		}
		return Dir{fd}, nil
	}
}

// readAt reads a file of at most max bytes into buf, which is at most one byte
// longer than that, and a larger one if need be. An attribute comes whole in a
// read that has room for more, so it is not asked for its end.
func readAt(dir int, name string, flags, max int, buf []byte, attribute bool) ([]byte, error) {
	var fd int
	var err error
	for {
		// O_NONBLOCK: opening a FIFO must not wait for a writer.
		fd, err = unix.Openat(dir, name, flags|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != unix.EINTR {
			break
		}
	}
	if err == unix.ELOOP && flags&unix.O_NOFOLLOW != 0 {
		return nil, ErrNotRegular // a symbolic link
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, ErrNotRegular
	}
	n := 0
	for {
		m, err := unix.Read(fd, buf[n:])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return buf[:n], err
		}
		n += m
		switch {
		case n > max:
			return buf[:max], fmt.Errorf("%w (%d bytes)", ErrTooLong, max)
		case m == 0, attribute && n < len(buf):
			return buf[:n], nil
		case n == len(buf):
			// One byte more than allowed tells a full file from a longer one.
			buf = append(buf, make([]byte, min(max+1, 4*len(buf))-len(buf))...)
		}
	}
}

func trim(b []byte) string { return string(bytes.Trim(b, " \t\r\n\v\f\x00")) }

// bare takes the path off an error: callers name the device and the file.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// Gone tells whether err means that the device went away while it was read.
func Gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO)
}
