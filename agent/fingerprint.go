package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
)

// Fingerprint stands for what decides whether a scan could find something new.
// Two of the same Fingerprinter are compared; the numbers mean nothing else.
type Fingerprint struct {
	PCI       uint64 // display controllers, accelerators and all of NVIDIA's functions, with their drivers
	Driver    uint64 // NVIDIA's kernel module, its version and state, its device node, its GPUs
	MIG       uint64 // GPU instances and compute instances
	Partition uint64 // compute and memory partitions of AMD's GPUs
}

// diff names the parts that differ.
func (f Fingerprint) diff(g Fingerprint) string {
	var parts []string
	for _, part := range []struct {
		name string
		same bool
	}{
		{"PCI", f.PCI == g.PCI},
		{"driver", f.Driver == g.Driver},
		{"MIG", f.MIG == g.MIG},
		{"partition", f.Partition == g.Partition},
	} {
		if !part.same {
			parts = append(parts, part.name)
		}
	}
	return strings.Join(parts, ", ")
}

// Fingerprinter takes fingerprints of a host, from sysfs and procfs alone: no
// device node is opened. It is for one goroutine at a time.
//
// What a function is, is read when it first appears, and known by the inode of
// its link from then on: sysfs has a new one for each device that is added, also
// at the same address (kernfs, Linux 3.14 and newer).
//
// In a pod of NVIDIA's container runtime in its legacy mode, /proc/driver/nvidia is
// a copy made when the container started. Then MIG layouts go unseen; drivers are
// seen in /sys/module all the same.
type Fingerprinter struct {
	root      hostfs.Root
	seed      maphash.Seed
	functions map[string]*function // by name
	turn      uint64
	dirents   [4][4096]byte // one for each depth at which a folder is listed
	text      [512]byte
}

// function is what is known of a PCI function.
type function struct {
	inode   uint64
	turn    uint64 // when it was last listed
	watched bool
	amd     bool
	nvidia  bool
	virtual bool // of SR-IOV
	guest   bool // bound to vfio-pci or the like
	ids     string
	// Paths below the folder of devices.
	driver, compute, memory, power, config string
}

// NewFingerprinter makes one for the host below root; empty means "/".
func NewFingerprinter(root hostfs.Root) *Fingerprinter {
	if root == "" {
		root = "/"
	}
	return &Fingerprinter{root: root, seed: maphash.MakeSeed(), functions: map[string]*function{}}
}

// manyFunctions are so many that whether their drivers change is looked at every
// minute only: virtual functions, as a rule.
const manyFunctions = 64

// driverCopied tells whether a host's /proc/driver/nvidia is such a copy: a file
// system of its own, mounted over the kernel's.
func driverCopied(root hostfs.Root) bool {
	var proc, driver unix.Stat_t
	return unix.Stat(root.Path("proc"), &proc) == nil && unix.Stat(root.Path("proc/driver/nvidia"), &driver) == nil && proc.Dev != driver.Dev
}

const (
	devicesPath      = "sys/bus/pci/devices"
	capabilitiesPath = "proc/driver/nvidia/capabilities"
	modulePath       = "sys/module/nvidia"
)

// Take takes a fingerprint. The error is for a PCI bus that cannot be listed;
// what else cannot be read is part of the fingerprint. A host without a PCI bus
// has an empty one.
func (f *Fingerprinter) Take() (Fingerprint, error) {
	var p Fingerprint
	if err := f.functionsOf(&p); err != nil {
		return Fingerprint{}, fmt.Errorf("%s: %w", f.root.Path(devicesPath), err)
	}
	p.Driver = f.driver()
	p.MIG = f.mig(unix.AT_FDCWD, f.root.Path(capabilitiesPath), 0, 0)
	return p, nil
}

// functionsOf sums over the functions, since the order in which they are listed
// means nothing.
func (f *Fingerprinter) functionsOf(p *Fingerprint) error {
	dir, err := openFolder(unix.AT_FDCWD, f.root.Path(devicesPath))
	if errors.Is(err, fs.ErrNotExist) && f.root.Exists("sys/bus") {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	f.turn++
	err = f.list(dir, 0, func(inode uint64, name []byte) {
		known := f.functions[string(name)]
		if known == nil || known.inode != inode {
			known = f.identify(dir, string(name), inode)
			f.functions[string(name)] = known
		}
		known.turn = f.turn
	})
	if err != nil {
		return err
	}
	for name, known := range f.functions {
		switch {
		case known.turn != f.turn:
			delete(f.functions, name)
		case known.watched:
			f.watch(p, dir, name, known)
		}
	}
	return nil
}

// identify reads what a function is. One that cannot be read is not watched, and
// read again when it is next listed.
func (f *Fingerprinter) identify(dir int, name string, inode uint64) *function {
	vendor, ok := f.attribute(dir, name+"/vendor")
	class, okClass := f.attribute(dir, name+"/class")
	if !ok || !okClass {
		return &function{}
	}
	device, _ := f.attribute(dir, name+"/device")
	known := &function{inode: inode, ids: vendor + device + class}
	known.watched = vendor == "0x10de" || watchedClass(class)
	if known.watched {
		known.driver = name + "/driver"
	}
	if known.watched {
		_, err := unix.Readlinkat(dir, name+"/physfn", f.text[:])
		known.virtual = err == nil
	}
	if known.watched && vendor == "0x10de" {
		known.nvidia = true
		known.power = name + "/power/runtime_status"
		known.config = name + "/config"
	}
	if known.watched && vendor == "0x1002" {
		known.amd = true
		known.compute = name + "/current_compute_partition"
		known.memory = name + "/current_memory_partition"
	}
	return known
}

// watchedClass tells display controllers, co-processors and accelerators, as
// sysfs writes their classes.
func watchedClass(class string) bool {
	for _, prefix := range []string{"0x03", "0x0b40", "0x12"} {
		if strings.HasPrefix(class, prefix) {
			return true
		}
	}
	return false
}

func (f *Fingerprinter) watch(p *Fingerprint, dir int, name string, known *function) {
	var h maphash.Hash
	h.SetSeed(f.seed)
	h.WriteString(name)
	var inode [8]byte
	binary.LittleEndian.PutUint64(inode[:], known.inode)
	h.Write(inode[:])
	h.WriteString(known.ids)
	known.guest = false
	if n, err := unix.Readlinkat(dir, known.driver, f.text[:]); err == nil {
		driver := f.text[:n]
		driver = driver[bytes.LastIndexByte(driver, '/')+1:]
		known.guest = discover.PassesThrough(string(driver))
		h.Write(driver)
	}
	if known.answers() && f.lost(dir, known) {
		h.WriteByte(1)
	}
	p.PCI += h.Sum64()
	if known.amd {
		h.Reset()
		h.WriteString(name)
		h.Write(f.read(dir, known.compute))
		h.WriteByte(0)
		h.Write(f.read(dir, known.memory))
		p.Partition += h.Sum64()
	}
}

// answers tells what NVIDIA's driver of this host should have an answer from.
func (known *function) answers() bool { return known.nvidia && !known.virtual && !known.guest }

// lost tells a function that has fallen off the bus: what is read of it is all
// ones, since PCI has no other answer for want of one. One that sleeps is not
// woken for the question.
func (f *Fingerprinter) lost(dir int, known *function) bool {
	if status := f.read(dir, known.power); bytes.HasPrefix(status, []byte("suspend")) {
		return false
	}
	fd, err := unix.Openat(dir, known.config, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, f.text[:4]) // vendor ID and device ID; each four bytes are a question to the device
	return err == nil && n == 4 && binary.NativeEndian.Uint32(f.text[:]) == 0xffffffff
}

// Watched lists the files whose change would change the fingerprint taken last.
func (f *Fingerprinter) Watched() Watched {
	var w Watched
	w.Often.file(f.root.Path("proc/driver/nvidia/version"))
	if driverCopied(f.root) {
		w.Often.file(f.root.Path("sys/module/nvidia/version"))
	}
	f.watchMIG(&w.Often, capabilitiesPath, 0)
	w.Seldom.folder(f.root.Path(devicesPath))
	w.Rarely.file(f.root.Path("sys/module/nvidia/version"))
	drivers, watched := &w.Seldom, 0
	for _, known := range f.functions {
		if known.watched {
			watched++
		}
	}
	if watched > manyFunctions {
		drivers = &w.Rarely
	}
	for _, name := range slices.Sorted(maps.Keys(f.functions)) {
		known := f.functions[name]
		if known.watched {
			drivers.link(f.root.Path(devicesPath, known.driver))
		}
		if known.answers() {
			w.Rarely.function(f.root.Path(devicesPath, name))
		}
		if known.amd {
			w.Often.file(f.root.Path(devicesPath, known.compute))
			w.Often.file(f.root.Path(devicesPath, known.memory))
		}
	}
	w.Seldom.file(f.root.Path("sys/module/nvidia/initstate"))
	w.Seldom.folder(f.root.Path(modulePath))    // another one has another inode
	w.Seldom.link(f.root.Path("dev/nvidiactl")) // is it there?
	w.Seldom.folder(f.root.Path("proc/driver/nvidia/gpus"))
	return w
}

// watchMIG adds the folders that mig reads. In those of GPUs only mig matters, be it
// there or not.
func (f *Fingerprinter) watchMIG(l *pathList, path string, depth int) {
	if depth == 1 {
		f.watchMIG(l, path+"/mig", 2)
		return
	}
	l.folder(f.root.Path(path))
	if depth+1 == len(migLevels) {
		return
	}
	names, _ := f.root.ReadDir(path) // what is not there has no folders
	for _, name := range names {
		if strings.HasPrefix(name, migLevels[depth]) {
			f.watchMIG(l, path+"/"+name, depth+1)
		}
	}
}

// driver sums up NVIDIA's kernel module. One that was loaded again is another one,
// of which GPUs may work that did not before: sysfs makes a new folder for it.
func (f *Fingerprinter) driver() uint64 {
	var h maphash.Hash
	h.SetSeed(f.seed)
	var module unix.Stat_t
	if unix.Stat(f.root.Path(modulePath), &module) == nil {
		var inode [8]byte
		binary.LittleEndian.PutUint64(inode[:], module.Ino)
		h.Write(inode[:])
	}
	for _, path := range []string{"sys/module/nvidia/initstate", "sys/module/nvidia/version", "proc/driver/nvidia/version"} {
		h.Write(f.read(unix.AT_FDCWD, f.root.Path(path)))
		h.WriteByte(0)
	}
	if f.root.Exists("dev/nvidiactl") { // never opened
		h.WriteByte(1)
	}
	sum := h.Sum64()
	if dir, err := openFolder(unix.AT_FDCWD, f.root.Path("proc/driver/nvidia/gpus")); err == nil {
		_ = f.list(dir, 0, func(_ uint64, name []byte) { sum += maphash.Bytes(f.seed, name) })
		unix.Close(dir)
	}
	return sum
}

// migLevels are how the names of folders begin below capabilities: those of
// GPUs, and in them of GPU instances, and in those of compute instances (driver
// 450 and newer).
var migLevels = []string{"gpu", "mig", "gi", "ci"}

// mig sums over the GPU instances and compute instances in a folder.
func (f *Fingerprinter) mig(parent int, path string, depth int, above uint64) (sum uint64) {
	dir, err := openFolder(parent, path)
	if err != nil {
		return 0
	}
	defer unix.Close(dir)
	_ = f.list(dir, depth, func(_ uint64, name []byte) {
		if !bytes.HasPrefix(name, []byte(migLevels[depth])) {
			return
		}
		here := maphash.Bytes(f.seed, name) + 31*above
		sum += maphash.Comparable(f.seed, here)
		if depth+1 < len(migLevels) {
			sum += f.mig(dir, string(name), depth+1, here)
		}
	})
	return sum
}

// list calls each for every entry of an open folder.
func (f *Fingerprinter) list(dir, depth int, each func(inode uint64, name []byte)) error {
	buf := f.dirents[depth][:]
	for {
		n, err := unix.Getdents(dir, buf)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return nil
		}
		parseDirents(buf[:n], each)
	}
}

// parseDirents reads what getdents64 gives: inode, offset, length of the record,
// type, and a name that ends in a NUL. It leaves out "." and "..".
func parseDirents(b []byte, each func(inode uint64, name []byte)) {
	const header = 8 + 8 + 2 + 1
	for len(b) > header {
		length := int(binary.NativeEndian.Uint16(b[16:]))
		if length <= header || length > len(b) {
			return
		}
		name, _, _ := bytes.Cut(b[header:length], []byte{0})
		if len(name) > 0 && string(name) != "." && string(name) != ".." {
			each(binary.NativeEndian.Uint64(b), name)
		}
		b = b[length:]
	}
}

// attribute reads a short file.
func (f *Fingerprinter) attribute(dir int, path string) (string, bool) {
	b := f.read(dir, path)
	return string(bytes.TrimSpace(b)), len(b) > 0
}

// read reads the beginning of a file; nothing where there is none. It is valid
// until the next call.
func (f *Fingerprinter) read(dir int, path string) []byte {
	// O_NONBLOCK: opening a FIFO must not wait for a writer.
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, f.text[:])
	if err != nil {
		return nil
	}
	return f.text[:n]
}

func openFolder(parent int, path string) (int, error) {
	for {
		fd, err := unix.Openat(parent, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}
