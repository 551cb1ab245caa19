package publish

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// stageName is the folder where new feature files are put together, inside NFD's
// folder: in the same mount, or the rename would fail.
const stageName = ".gpu-labeller"

// stage is that folder, locked (flock) as one who writes there. The lock is
// shared; who can have it alone knows that the files there are left from a crash.
// Where the file system cannot lock, they stay: they are few, small and hidden.
type stage struct {
	dir  *os.Root // NFD's folder
	name string   // the feature file's
	lock *os.File
}

// openStage opens the folder, and removes what crashes left there. Whatever has taken
// its place, and whoever has locked it, is not waited for.
func openStage(dir *os.Root, name string) (*stage, error) {
	lock, err := dir.OpenFile(stageName, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%w: %s is in the place of the folder where the file is put together; remove it", err, stageName)
	}
	if err != nil {
		return nil, err
	}
	s := &stage{dir: dir, name: name, lock: lock}
	if flock(lock, unix.LOCK_EX|unix.LOCK_NB) == nil {
		s.sweep()
	}
	for try := 1; ; try++ {
		err := flock(lock, unix.LOCK_SH|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return s, nil // locked, or nothing can be locked there
		}
		if try == lockTries {
			s.close()
			return nil, fmt.Errorf("locking %s: another process holds it, and no agent does for so long; end that process, or remove the folder", stageName)
		}
		time.Sleep(lockPause) // another agent may be sweeping
	}
}

// The sweep of another agent takes less than all tries.
const (
	lockTries = 20
	lockPause = 50 * time.Millisecond
)

func (s *stage) close() { _ = s.lock.Close() }

// sweep removes files that were staged for our feature file. One that cannot be
// removed is tried again next time.
func (s *stage) sweep() {
	ours := regexp.MustCompile("^" + regexp.QuoteMeta(s.name) + `\.[0-9a-f]{16}$`)
	entries, _ := s.lock.ReadDir(-1)
	for _, e := range entries {
		if e.Type().IsRegular() && ours.MatchString(e.Name()) {
			_ = s.dir.Remove(stageName + "/" + e.Name())
		}
	}
}

// write stages content under a name of its own and returns its path in NFD's folder.
// It calls did after each step. On error nothing is left.
func (s *stage) write(content []byte, did func(step string)) (string, error) {
	var unique [8]byte
	_, _ = rand.Read(unique[:]) // never fails
	path := stageName + "/" + s.name + "." + hex.EncodeToString(unique[:])
	file, err := s.dir.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	did("created")
	err = fill(file, content, did)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = s.dir.Remove(path)
		return "", fmt.Errorf("staging it: %w", err)
	}
	did("closed")
	return path, nil
}

// fill makes file whole, durable, and readable by everyone whatever the umask.
func fill(file *os.File, content []byte, did func(step string)) error {
	if _, err := file.Write(content); err != nil {
		return err
	}
	did("written")
	if err := file.Chmod(0o644); err != nil {
		return err
	}
	did("made readable")
	if err := file.Sync(); err != nil {
		return err
	}
	did("synced")
	return nil
}

// flock applies a lock operation, again if a signal interrupts it.
func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
