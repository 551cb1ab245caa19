package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
)

// Where the kernel lists buses, and the functions on the PCI bus, below the
// root.
const (
	busPath     = "sys/bus"
	devicesPath = "sys/bus/pci/devices"
)

// Scan reads the PCI functions that wanted says yes to, sorted by address. Of
// the others it reads the class and the vendor ID only.
//
// What fails costs one field or one function and is listed in problems, as a
// *FieldError where a function is concerned. Files that not every function has
// may be missing. A function whose class or vendor ID cannot be had is left
// out.
//
// The error is for a list that could not be read: then nothing is known. It
// wraps fs.ErrNotExist, fs.ErrPermission and the like. A host that has no PCI
// bus has no functions, and that is no error.
func Scan(root hostfs.Root, wanted func(class uint32, vendor uint16) bool) (functions []Function, problems []error, err error) {
	names, err := root.ReadDir(devicesPath)
	if errors.Is(err, fs.ErrNotExist) {
		// Some ARM boards have no PCI. That other buses are listed tells
		// them from a host whose sysfs is not there.
		buses, err := root.ReadDir(busPath)
		if err != nil {
			return nil, nil, fmt.Errorf("/%s: %w", busPath, err)
		}
		if !slices.Contains(buses, "pci") {
			return nil, nil, nil
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("/%s: %w", devicesPath, err)
	}
	devices, err := root.OpenDir(devicesPath)
	if err != nil {
		return nil, nil, fmt.Errorf("/%s: %w", devicesPath, err)
	}
	defer devices.Close()

	for _, name := range names {
		address, err := ParseAddress(name)
		if err != nil {
			problems = append(problems, fmt.Errorf("/%s: %w", devicesPath, err))
			continue
		}
		function, failures := scanFunction(devices, name, wanted)
		problems = append(problems, failures...)
		if function != nil {
			function.Address = address
			functions = append(functions, *function)
		}
	}
	slices.SortStableFunc(functions, func(a, b Function) int { return a.Address.Compare(b.Address) })
	for i := len(functions) - 1; i > 0; i-- {
		if functions[i].Address == functions[i-1].Address {
			problems = append(problems, &FieldError{Address: functions[i].Address.String(), Err: errors.New("its address is listed twice, in two spellings")})
			functions = slices.Delete(functions, i, i+1)
		}
	}
	return functions, problems, nil
}

// scanFunction reads one function. It gives nil for one that is not wanted, and
// for one that cannot be had.
func scanFunction(devices hostfs.Dir, name string, wanted func(class uint32, vendor uint16) bool) (*Function, []error) {
	dir, err := devices.OpenDir(name)
	if err != nil {
		return nil, []error{folderError(name, err)}
	}
	defer dir.Close()
	r := reader{dir: dir, address: name}
	function := r.function(wanted)
	if slices.ContainsFunc(r.problems, hostfs.Gone) {
		// Is it a file that is missing, or all of the function?
		again, err := devices.OpenDir(name)
		if err != nil {
			return nil, []error{folderError(name, err)}
		}
		again.Close()
	}
	return function, r.problems
}

// folderError is the one problem of a function whose folder cannot be opened.
func folderError(name string, err error) error {
	if hostfs.Gone(err) {
		err = fmt.Errorf("%w: %w", ErrGone, err)
	}
	return &FieldError{Address: name, Err: err}
}

// reader reads the files of one function and keeps what went wrong.
type reader struct {
	dir      hostfs.Dir
	address  string
	problems []error
}

// function reads all of a function. It gives nil for one that is not wanted,
// and for one whose class or vendor ID cannot be had.
func (r *reader) function(wanted func(class uint32, vendor uint16) bool) *Function {
	found, ok := r.ids(wanted)
	if !ok {
		return nil
	}
	f := &Function{
		Vendor:          found.vendor,
		Device:          found.device,
		SubsystemVendor: found.subsystemVendor,
		SubsystemDevice: found.subsystemDevice,
		Class:           found.class,
	}
	link(r, "driver", parseName, &f.Driver)
	link(r, "iommu_group", parseName, &f.IOMMUGroup)
	link(r, "physfn", parsePhysicalFunction, &f.PhysicalFunction)
	attribute(r, "numa_node", optional, parseNUMANode, &f.NUMANode)
	if f.PhysicalFunction == nil {
		// A virtual function has neither of its own, and there may be thousands.
		attribute(r, "sriov_totalvfs", optional, parseVFs, &f.TotalVFs)
		attribute(r, "sriov_numvfs", optional, parseVFs, &f.NumVFs)
		attribute(r, "current_link_speed", optional, parseLinkSpeed, &f.LinkSpeed)
		attribute(r, "current_link_width", optional, parseLinkWidth, &f.LinkWidth)
		attribute(r, "max_link_speed", optional, parseLinkSpeed, &f.MaxLinkSpeed)
		attribute(r, "max_link_width", optional, parseLinkWidth, &f.MaxLinkWidth)
	}
	if f.Vendor == NVIDIA {
		f.VGPU = r.vgpu()
	}
	// Every function has a revision. It is read last: if it is there, so was
	// all the rest, and a file that was missing is one the function hasn't.
	attribute(r, "revision", required, parseRevision, &f.Revision)
	return f
}

// ids reads what identifies the function, and stops early at one that is not
// wanted.
func (r *reader) ids(wanted func(class uint32, vendor uint16) bool) (found ids, ok bool) {
	var class uint32
	var vendor uint16
	hasClass := attribute(r, "class", required, parseClass, &class)
	hasVendor := attribute(r, "vendor", required, parseID, &vendor)
	if hasClass && hasVendor && !wanted(class, vendor) {
		return ids{}, false
	}
	hasModalias := attribute(r, "modalias", optional, parseModalias, &found)

	// Single files win over the modalias. The kernel makes both of the same
	// numbers, so where they differ somebody edited a recorded host; NFD and
	// GFD go by the single files, and our labels are to equal theirs.
	if hasClass {
		found.class = class
	}
	if hasVendor {
		found.vendor = vendor
	}
	if !hasClass || !hasVendor {
		if !hasModalias || !wanted(found.class, found.vendor) {
			return ids{}, false
		}
	}
	attribute(r, "device", required, parseID, &found.device)
	attribute(r, "subsystem_vendor", optional, parseID, &found.subsystemVendor)
	attribute(r, "subsystem_device", optional, parseID, &found.subsystemDevice)
	if !hasModalias {
		// ghw decodes one put together of the files, so that there is one
		// way for all functions.
		decoded, err := parseModalias(found.modalias())
		if err != nil {
			r.problem("modalias", err)
			return found, true
		}
		found = decoded
	}
	return found, true
}

// vgpu gives nil where it could not be told whether the function is a vGPU.
func (r *reader) vgpu() *VGPU {
	config, err := r.dir.ReadFile("config", configSize)
	if err != nil && !errors.Is(err, hostfs.ErrTooLong) { // PCI Express has 4096 bytes
		r.problem("config", err)
		return nil
	}
	vgpu, err := ParseVGPU(config)
	if err != nil {
		r.problem("config", err)
		if errors.Is(err, ErrConfigTruncated) || errors.Is(err, ErrConfigUnreadable) {
			return nil
		}
	}
	return &vgpu
}

func (r *reader) problem(file string, err error) {
	r.problems = append(r.problems, &FieldError{Address: r.address, Field: file, Err: err})
}

// need says whether a file that is missing is a problem.
type need bool

const (
	required need = true
	optional need = false
)

// attribute reads and parses a file into value, and tells whether it could.
// Otherwise value is left as it is.
func attribute[T any](r *reader, file string, need need, parse func(string) (T, error), value *T) bool {
	text, err := r.dir.Attribute(file)
	if err == nil {
		var v T
		if v, err = parse(text); err == nil {
			*value = v
			return true
		}
	}
	if need == required || !errors.Is(err, fs.ErrNotExist) {
		r.problem(file, err)
	}
	return false
}

// link parses where a symbolic link points into value. There may be no link,
// and nothing where it points.
func link[T any](r *reader, file string, parse func(string) (T, error), value *T) {
	target, err := r.dir.Readlink(file)
	if err == nil {
		var v T
		if v, err = parse(target); err == nil {
			*value = v
			return
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		r.problem(file, err)
	}
}
