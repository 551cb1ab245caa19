package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// DefaultFeatureFile is a file in the one folder where NFD's worker looks. NFD
// ignores hidden names; of files with the same key the last name wins.
const DefaultFeatureFile = "/etc/kubernetes/node-feature-discovery/features.d/gpu-labeller"

// maxFeatureFile is the size in bytes above which NFD ignores a file (v0.19).
const maxFeatureFile = 65536

// FeatureFile publishes labels in a feature file of NFD's local source. The
// folder is NFD's, and is never made.
//
// The file is replaced at once, or not at all: staged in the hidden folder
// .gpu-labeller beside it, synced, and renamed. Not as a hidden file beside it,
// which is the usual way: NFD (v0.19) watches the folder, hidden files included,
// looks at the first event, and drops what follows within a second. So it looked
// before the rename in 38 of 40 tries, and found the new file after its
// sleep interval only; staged in a sub-folder it found all within 15 ms.
//
// It is readable by everyone, since NFD's worker runs as nobody.
type FeatureFile struct {
	// Path is the file. Default DefaultFeatureFile.
	Path string

	// Expiry, if not 0, makes NFD drop the labels that long after the last write
	// (at its next scan), as when the agent has gone for good. Publish renews it
	// when half of it is over, so it must be called more often than that.
	Expiry time.Duration

	swept  bool // what an earlier process may have left
	repair repair

	now  func() time.Time  // for tests
	step func(step string) // for tests: called after each step of a write
}

func (f *FeatureFile) String() string { return "feature file " + f.path() }

// Publish implements Sink. An empty set removes the file. A symbolic link in its
// place is replaced, not followed. Errors to test for: ErrNoFolder, ErrTooLarge;
// others wrap the system's, such as syscall.ENOSPC.
func (f *FeatureFile) Publish(ctx context.Context, set labels.Set) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%v: %w", f, err)
	}
	f.repair.begin()
	found, more, err := f.publish(set)
	if err != nil {
		return fmt.Errorf("%v: %w", f, err)
	}
	f.repair.finish(found, set, more)
	return nil
}

// publish gives what the file said, and whether more in it was changed than that.
func (f *FeatureFile) publish(set labels.Set) (found labels.Set, more bool, err error) {
	dir, err := f.openFolder()
	if err != nil {
		if len(set) == 0 && errors.Is(err, ErrNoFolder) {
			return nil, false, nil
		}
		return nil, false, err
	}
	defer dir.Close()
	if !f.swept {
		if stage, err := openStage(dir, f.name()); err == nil {
			stage.close()
		}
		f.swept = true
	}
	if len(set) == 0 {
		return nil, false, f.remove(dir)
	}
	if err := checkLines(set); err != nil {
		return nil, false, err
	}
	var expiry time.Time
	if f.Expiry != 0 {
		expiry = f.clock().Add(f.Expiry)
	}
	content := render(set, expiry)
	if len(content) > maxFeatureFile {
		return nil, false, fmt.Errorf("%d labels make %d bytes: %w", len(set), len(content), ErrTooLarge)
	}
	old, err := f.read(dir, 0o644)
	if err != nil { // what cannot be read is to be replaced
		return nil, false, f.replace(dir, content)
	}
	if f.says(old, set) {
		return set, false, nil
	}
	more = !bytes.Equal(old, render(f.repair.left, expiryIn(old)))
	return parse(old), more, f.replace(dir, content)
}

// Touch changes the file's times, if there is one, and nothing else. Called more
// than 1 s after a Publish that wrote, it makes NFD (v0.19) look again: had
// another file in the folder changed within the second before, NFD would
// otherwise see ours after its sleep interval only, by default a minute.
func (f *FeatureFile) Touch() error {
	dir, err := f.openFolder()
	if err != nil {
		return fmt.Errorf("%v: %w", f, err)
	}
	defer dir.Close()
	if fi, err := dir.Lstat(f.name()); err != nil || !fi.Mode().IsRegular() {
		return nil
	}
	now := f.clock()
	if err := dir.Chtimes(f.name(), now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%v: %w", f, err)
	}
	return nil
}

// openFolder opens the folder anew each time: it may be removed and remade.
func (f *FeatureFile) openFolder() (*os.Root, error) {
	path := filepath.Dir(f.path())
	if fi, err := os.Stat(path); err == nil && !fi.IsDir() { // to open a named pipe would wait
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
	}
	dir, err := os.OpenRoot(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s does not exist: mount the host's folder of that name there (a hostPath volume); if the host has none, install Node Feature Discovery",
			ErrNoFolder, path)
	}
	return dir, err
}

// says reports whether the file, as it was read, says set already, with enough time
// left.
func (f *FeatureFile) says(old []byte, set labels.Set) bool {
	expiry := expiryIn(old)
	return bytes.Equal(old, render(set, expiry)) && f.fresh(expiry)
}

// errNotOurs reports something in the file's place that we did not write.
var errNotOurs = errors.New("not a file as we write it")

// read reads the file, if it has the mode and the size that ours has.
func (f *FeatureFile) read(dir *os.Root, mode fs.FileMode) ([]byte, error) {
	fi, err := dir.Lstat(f.name())
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm() != mode || fi.Size() > maxFeatureFile {
		return nil, errNotOurs
	}
	// What has taken its place since must not be waited for.
	file, err := dir.OpenFile(f.name(), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if fi, err = file.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errNotOurs
	}
	return io.ReadAll(io.LimitReader(file, maxFeatureFile))
}

func (f *FeatureFile) fresh(expiry time.Time) bool {
	if f.Expiry == 0 || expiry.IsZero() {
		return f.Expiry == 0 && expiry.IsZero()
	}
	left := expiry.Sub(f.clock())
	// More than all of it: the clock was set back, or Expiry shortened.
	return left > f.Expiry/2 && left <= f.Expiry
}

// remove removes the file and the stage.
func (f *FeatureFile) remove(dir *os.Root) error {
	if err := f.takenBy(dir); err != nil {
		return err
	}
	_ = dir.Remove(stageName) // unless something is being staged
	err := dir.Remove(f.name())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncFolder(dir)
}

// replace makes content the file's.
func (f *FeatureFile) replace(dir *os.Root, content []byte) error {
	if err := f.takenBy(dir); err != nil {
		return err
	}
	if err := dir.Mkdir(stageName, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		if errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w: is the folder mounted read-write, and does the agent run as a user who may write there?", err)
		}
		return err
	}
	f.did("made the stage")
	stage, err := openStage(dir, f.name())
	if err != nil {
		return err
	}
	defer stage.close()
	f.did("opened the stage")
	staged, err := stage.write(content, f.did)
	if err != nil {
		return err
	}
	if err := dir.Rename(staged, f.name()); err != nil {
		_ = dir.Remove(staged)
		return err
	}
	f.did("renamed")
	if err := syncFolder(dir); err != nil {
		return err
	}
	f.did("synced the folder")
	return nil
}

// takenBy returns an error if a folder or a device, such as /dev/null, has the
// file's name.
func (f *FeatureFile) takenBy(dir *os.Root) error {
	fi, err := dir.Lstat(f.name())
	switch {
	case err != nil:
		return nil
	case fi.IsDir():
		return errors.New("there is a folder of that name; remove it, or name another file")
	case fi.Mode()&fs.ModeDevice != 0:
		return errors.New("there is a device of that name; name another file")
	}
	return nil
}

// syncFolder makes a rename or removal durable, where the file system can.
func syncFolder(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

func (f *FeatureFile) path() string {
	if f.Path == "" {
		return DefaultFeatureFile
	}
	return f.Path
}

func (f *FeatureFile) name() string { return filepath.Base(f.path()) }

func (f *FeatureFile) clock() time.Time {
	if f.now == nil {
		return time.Now()
	}
	return f.now()
}

func (f *FeatureFile) did(step string) {
	if f.step != nil {
		f.step(step)
	}
}

const (
	firstLine  = "# Written by gpu-labeller, which overwrites changes.\n"
	expiryLine = "# +expiry-time="
)

// render returns the file. An expiry applies to the lines below it, to the
// second; a zero one is left out.
func render(set labels.Set, expiry time.Time) []byte {
	var b bytes.Buffer
	b.WriteString(firstLine)
	if !expiry.IsZero() {
		b.WriteString(expiryLine + expiry.UTC().Format(time.RFC3339) + "\n")
	}
	_, _ = set.WriteTo(&b) // a Buffer takes everything
	return b.Bytes()
}

// expiryIn returns the expiry in a file as render made it; zero if there is none.
func expiryIn(content []byte) time.Time {
	rest, ok := bytes.CutPrefix(content, []byte(firstLine+expiryLine))
	if !ok {
		return time.Time{}
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	expiry, err := time.Parse(time.RFC3339, string(line))
	if err != nil {
		return time.Time{}
	}
	return expiry
}

// checkLines refuses what would be read back as something else: values come
// from firmware and drivers.
func checkLines(set labels.Set) error {
	for key, value := range set {
		if key == "" || strings.ContainsAny(key, "=#\r\n") || strings.ContainsAny(value, "\r\n") ||
			strings.TrimSpace(key) != key || strings.TrimSpace(value) != value {
			return fmt.Errorf("label %q=%q cannot be written as a line", key, value)
		}
	}
	return nil
}
