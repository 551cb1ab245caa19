package discover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover/amd"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/discover/pci"
	"github.com/gpu-labeller/gpu-labeller/internal/redact"
)

// DefaultMachineFile is where Linux shows the DMI product name.
const DefaultMachineFile = "/sys/class/dmi/id/product_name"

// Host is a host to scan: this one, one whose file systems are mounted
// somewhere, or a recorded one.
type Host struct {
	// Root holds the host's sys and proc folders; empty means "/".
	Root hostfs.Root
	// NVML answers for NVML; nil leaves it out. It must not be called by two
	// scans at a time.
	NVML func(context.Context) nvml.Answer
	// Class tells which PCI functions to list besides the GPUs, by the 24-bit
	// class; nil means none.
	Class func(class uint32) bool
	// MachineFile is read for the machine's name, below Root, for instance
	// DefaultMachineFile; empty means that nothing is.
	MachineFile string
}

// Scan reads a host once. What cannot be read costs itself and is listed in the
// inventory's problems; an error comes, with all the rest, only when the PCI bus
// cannot be read, so that "no GPU" and "cannot tell" stay apart.
func Scan(ctx context.Context, host Host) (*Inventory, error) {
	if host.Root == "" {
		host.Root = "/"
	}
	var answers chan nvml.Answer
	if host.NVML != nil {
		answers = make(chan nvml.Answer, 1)
		go func() { answers <- host.NVML(ctx) }() // NVML takes the longest
	}

	inv := &Inventory{}
	err := inv.scanPCI(host)
	inv.readMachine(host)
	inv.readMemory(host)
	inv.readDriverVersion(host)
	inv.addFunctions()
	inv.addAMD(host.Root)
	inv.addIntel(host.Root)
	if answers != nil {
		inv.addNVML(<-answers)
	}
	slices.SortStableFunc(inv.GPUs, func(a, b GPU) int { return a.Compare(&b) })
	return inv, err
}

func (inv *Inventory) problem(p Problem) { inv.Problems = append(inv.Problems, p) }

func (inv *Inventory) scanPCI(host Host) error {
	functions, problems, err := pci.Scan(host.Root, func(class uint32, vendor uint16) bool {
		// A vGPU is told by a capability that any NVIDIA function may have.
		return vendor == pci.NVIDIA || isGPUClass(vendor, uint16(class>>8)) || host.Class != nil && host.Class(class)
	})
	inv.Functions = functions
	truncated := false
	found := make(map[string]bool, len(functions))
	for i := range functions {
		found[functions[i].Address.String()] = true
	}
	unread := map[string]bool{}
	for _, p := range problems {
		if errors.Is(p, pci.ErrConfigTruncated) {
			truncated = true
			continue
		}
		problem := Problem{Source: "pci", Text: p.Error()}
		var field *pci.FieldError
		if errors.As(p, &field) {
			problem.Device = field.Address
			if !errors.Is(p, pci.ErrGone) && !found[field.Address] {
				unread[field.Address] = true
			}
			if field.Field == "config" {
				problem.Cure = "see to it that the file can be read; without that of a GPU that works the vgpu labels are left out"
			}
		}
		inv.problem(problem)
	}
	inv.Unread = len(unread)
	if truncated {
		inv.problem(Problem{
			Source: "pci",
			Text:   "whether the GPUs are vGPUs is unknown, since only the first 64 bytes of PCI configuration space can be read",
			Cure:   "run as root with CAP_SYS_ADMIN where the vgpu labels are wanted",
		})
	}
	if err != nil {
		inv.problem(Problem{Source: "pci", Text: err.Error(), Cure: "is /sys mounted, and readable?"})
	}
	return err
}

func (inv *Inventory) readMachine(host Host) {
	if host.MachineFile == "" {
		return
	}
	name, err := host.Root.Attribute(host.MachineFile)
	if err == nil {
		name = redact.Name(name)
		inv.Machine = &name
		return
	}
	// Many virtual and ARM machines have no DMI; a file that was asked for is
	// another matter.
	if host.MachineFile != DefaultMachineFile || !hostfs.Gone(err) {
		inv.problem(Problem{Source: "dmi", Text: fmt.Sprintf("machine name: reading %s: %v", host.MachineFile, err)})
	}
}

func (inv *Inventory) readMemory(host Host) {
	text, err := host.Root.ReadFile("/proc/meminfo", 64<<10)
	if err == nil {
		inv.SystemMemoryMiB, err = parseMemTotal(text)
	}
	if err != nil && !hostfs.Gone(err) {
		inv.problem(Problem{Source: "procfs", Text: fmt.Sprintf("/proc/meminfo: %v", err)})
	}
}

// parseMemTotal finds MemTotal in /proc/meminfo and turns its kB (which are
// 1,024 bytes) into MiB.
func parseMemTotal(text []byte) (uint64, error) {
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, "MemTotal:")
		if !ok {
			continue
		}
		kB, ok := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		if !ok {
			return 0, fmt.Errorf("MemTotal: want a number of kB, not %q", strings.TrimSpace(rest))
		}
		n, err := strconv.ParseUint(strings.TrimSpace(kB), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("MemTotal: %w", err)
		}
		return n >> 10, nil
	}
	return 0, errors.New("no MemTotal")
}

// readDriverVersion reads the version of the loaded NVIDIA kernel module, from
// the file that the module itself provides.
func (inv *Inventory) readDriverVersion(host Host) {
	const file = "/proc/driver/nvidia/version"
	text, err := host.Root.ReadFile(file, hostfs.PageSize)
	if err == nil {
		inv.NVIDIA.KernelDriverVersion, err = parseDriverVersion(text)
	}
	if err != nil && !hostfs.Gone(err) {
		inv.problem(Problem{Source: "procfs", Text: fmt.Sprintf("%s: %v", file, err)})
	}
}

// The first line names the module, in wordings that change with its kind, and
// its version:
//
//	NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 …
//	NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build …
var driverVersion = regexp.MustCompile(`^\d+\.\d+(\.\d+)*$`)

func parseDriverVersion(text []byte) (string, error) {
	line, _, _ := strings.Cut(string(text), "\n")
	rest, ok := strings.CutPrefix(line, "NVRM version:")
	if !ok {
		return "", errors.New("no line NVRM version")
	}
	for _, word := range strings.Fields(rest) {
		if driverVersion.MatchString(word) {
			return word, nil
		}
	}
	return "", fmt.Errorf("no version in %q", strings.TrimSpace(rest))
}

// addFunctions makes a GPU of every PCI function that is one.
func (inv *Inventory) addFunctions() {
	gpus := map[pci.Address]bool{}
	for i := range inv.Functions {
		if f := &inv.Functions[i]; isGPU(f) {
			gpus[f.Address] = true
		}
	}
	for i := range inv.Functions {
		f := &inv.Functions[i]
		if !gpus[f.Address] {
			continue
		}
		g := GPU{Function: f}
		switch f.Vendor {
		case pci.NVIDIA:
			g.Vendor, g.Condition = NVIDIA, Failed // until NVML says otherwise
		case pci.AMD:
			g.Vendor, g.Condition = AMD, driven(f, amd.Driver)
		case pci.Intel:
			g.Vendor, g.Condition = Intel, driven(f, "i915", "xe")
		}
		switch {
		case f.PhysicalFunction != nil && gpus[*f.PhysicalFunction]:
			g.Condition = Virtual
		case PassesThrough(f.Driver):
			g.Condition = Passthrough
		}
		if g.Condition == NoDriver {
			inv.problem(Problem{
				Source: "pci",
				Device: f.Address.String(),
				Text:   fmt.Sprintf("GPU %s: %s", f.Address, driverText(f.Driver)),
				Cure:   "load " + map[Vendor]string{AMD: "amdgpu", Intel: "i915 or xe"}[g.Vendor] + " to have it counted",
			})
		}
		inv.GPUs = append(inv.GPUs, g)
	}
}

func driverText(driver string) string {
	if driver == "" {
		return "no kernel driver is bound to it"
	}
	return "its kernel driver is " + driver
}

func driven(f *pci.Function, drivers ...string) Condition {
	if slices.Contains(drivers, f.Driver) {
		return Usable
	}
	return NoDriver
}

// PassesThrough tells whether a kernel driver gives functions to guests: vfio-pci and
// the variants of it that vendors make, such as nvgrace_gpu_vfio_pci.
func PassesThrough(driver string) bool {
	return driver == "vfio-pci" || strings.HasSuffix(driver, "_vfio_pci")
}

// addNVML joins NVML's answer with the GPUs on the bus.
func (inv *Inventory) addNVML(a nvml.Answer) {
	waiting := 0 // GPUs on the bus that NVML should know
	for i := range inv.GPUs {
		if g := &inv.GPUs[i]; g.Vendor == NVIDIA && g.Condition == Failed {
			waiting++
		}
	}
	if !inv.nvmlState(a, waiting) {
		return
	}
	inv.NVIDIA.DriverVersion, inv.NVIDIA.CUDADriverVersion = a.DriverVersion, a.CUDADriverVersion
	for _, field := range slices.Sorted(maps.Keys(a.Errors)) {
		inv.problem(Problem{Source: "nvml", Text: fmt.Sprintf("NVML: %s: %s", field, a.Errors[field])})
	}

	byAddress := map[pci.Address]int{}
	for i := range inv.GPUs {
		if g := &inv.GPUs[i]; g.Vendor == NVIDIA && g.Function != nil {
			byAddress[g.Function.Address] = i
		}
	}
	var rest []*nvml.GPU // those that name no function of ours, by index
	skip := map[pci.Address]bool{}
	for i := range a.GPUs {
		n := &a.GPUs[i]
		switch at, placed := inv.place(byAddress, n); {
		case skipped(n.Name):
			if n.PCIAddress != nil {
				skip[*n.PCIAddress] = true
			}
		case placed:
			inv.answer(&inv.GPUs[at], n)
		default:
			rest = append(rest, n)
		}
	}
	inv.GPUs = slices.DeleteFunc(inv.GPUs, func(g GPU) bool {
		return g.Vendor == NVIDIA && g.Function != nil && skip[g.Function.Address]
	})
	inv.settle(rest)
}

// place finds the function that NVML says a GPU is.
func (inv *Inventory) place(byAddress map[pci.Address]int, n *nvml.GPU) (at int, ok bool) {
	if !n.HasHandle() || n.PCIAddress == nil {
		return 0, false
	}
	at, ok = byAddress[*n.PCIAddress]
	if ok && inv.GPUs[at].NVML != nil {
		inv.problem(Problem{
			Source: "nvml",
			Device: n.PCIAddress.String(),
			Text:   fmt.Sprintf("GPU %s: NVML gives its address to GPU %d, too", n.PCIAddress, n.Index),
		})
		return 0, false
	}
	return at, ok
}

// settle finds a place for what names no function on the bus: GPUs that NVML
// gives no handle for, whose address it cannot tell, or tells otherwise than
// sysfs (WSL, some hypervisors), and GPUs that are not on PCI at all. Each but
// the last stands for one of the functions that nothing was said of, as long as
// there are any, so that no GPU is counted twice; NVML counts in the order of
// addresses, mostly.
func (inv *Inventory) settle(rest []*nvml.GPU) {
	var silent []int
	for i := range inv.GPUs {
		if g := &inv.GPUs[i]; g.Vendor == NVIDIA && g.Condition == Failed && g.NVML == nil {
			silent = append(silent, i)
		}
	}
	onBus := 0
	for _, n := range rest {
		if !n.OffBus() {
			onBus++
		}
	}
	sure := onBus == len(silent) // else which is which is a guess
	for _, n := range rest {
		g := &GPU{Vendor: NVIDIA, Condition: Failed}
		placed := false
		if !n.OffBus() && len(silent) > 0 {
			g, placed = &inv.GPUs[silent[0]], true
			silent = silent[1:]
		}
		if n.HasHandle() {
			inv.answer(g, n)
		} else {
			p := Problem{Source: "nvml", Text: fmt.Sprintf("NVML gives no handle for GPU %d: %s", n.Index, n.Handle), Cure: cureFor(n.Handle)}
			if placed && sure {
				p.Device = g.Function.Address.String()
				p.Text = fmt.Sprintf("GPU %s: NVML gives no handle for it (index %d): %s", p.Device, n.Index, n.Handle)
			}
			inv.problem(p)
		}
		if !placed {
			inv.GPUs = append(inv.GPUs, *g)
		}
	}
	if onBus > 0 && !sure {
		return // what is silent may be one of those that were named
	}
	for _, i := range silent {
		f := inv.GPUs[i].Function
		inv.problem(Problem{
			Source: "nvml",
			Device: f.Address.String(),
			Text:   fmt.Sprintf("GPU %s is on the PCI bus, but NVML does not list it", f.Address),
			Cure:   silentCure(f),
		})
	}
}

func silentCure(f *pci.Function) string {
	switch f.Driver {
	case "nvidia":
		return "look for Xid messages in the kernel log; in a pod, is NVIDIA_VISIBLE_DEVICES=all set?"
	case "":
		return driverText("") + ": does the installed driver support this GPU?"
	}
	return driverText(f.Driver) + ", not nvidia"
}

// skipped names the display adapters of DGX stations, which NVIDIA's own tools
// do not count as GPUs.
func skipped(name string) bool { return name == "DGX Display" || name == "NVIDIA DGX Display" }

// maxMemory is more bytes than any GPU has.
const maxMemory = 1 << 50

// answer takes over what NVML said of a GPU.
func (inv *Inventory) answer(g *GPU, n *nvml.GPU) {
	reported := n.MemoryBytes
	if reported > maxMemory {
		without := *n
		without.MemoryBytes = 0
		n = &without
	}
	g.NVML = n
	g.Product = n.Name
	g.MemoryBytes = n.MemoryBytes
	g.Unified = n.MemoryBytes == 0 && n.Errors["memory_bytes"] == nvml.NotSupported
	g.Condition = Usable
	name := fmt.Sprintf("GPU %d", n.Index)
	device := ""
	if g.Function != nil {
		device = g.Function.Address.String()
		name = "GPU " + device
	}
	if reported > maxMemory {
		inv.problem(Problem{Source: "nvml", Device: device, Text: fmt.Sprintf("%s: memory_bytes: %d is more than any GPU has", name, reported)})
	}
	fields := map[nvml.Code][]string{}
	for _, field := range slices.Sorted(maps.Keys(n.Errors)) {
		code := n.Errors[field]
		if fatal(field, code) {
			g.Condition = Failed
		} else if code.Absent() || auxiliary(field) {
			continue // as on other GPUs of its kind
		}
		fields[code] = append(fields[code], field)
	}
	for _, code := range slices.Sorted(maps.Keys(fields)) {
		inv.problem(Problem{
			Source: "nvml",
			Device: device,
			Text:   fmt.Sprintf("%s: %s: %s", name, strings.Join(fields[code], ", "), code),
			Cure:   cureFor(code),
		})
	}
}

// fatal tells the failures that mean that the GPU itself does not work: those
// that say so, and those of what NVIDIA's own tools do not go without. Pardoned
// is what the driver does not support or does not let us see.
func fatal(field string, code nvml.Code) bool {
	switch {
	case field == "nvlink":
		return false // either of two GPUs may be at fault
	case code == nvml.GPUIsLost || code == nvml.ResetRequired:
		return true
	case code.Absent() || code == nvml.NoPermission:
		return false
	}
	switch field {
	case "name", "compute_capability", "mig":
		return true
	}
	return false
}

// auxiliary fields decide no label by themselves.
func auxiliary(field string) bool {
	switch field {
	case "uuid", "architecture", "brand", "addressing_mode":
		return true
	}
	return false
}

func cureFor(code nvml.Code) string {
	switch code {
	case nvml.GPUIsLost:
		return "the GPU has fallen off the bus: reset it or reboot the node, and look for Xid messages in the kernel log"
	case nvml.ResetRequired:
		return "reset the GPU (nvidia-smi --gpu-reset) or reboot the node"
	case nvml.NoPermission:
		return "give the process access to the GPU's device nodes, those below /dev/nvidia-caps included"
	case nvml.Unknown:
		return "look for Xid and NVRM messages in the kernel log"
	}
	return ""
}

// nvmlState turns what came of asking NVML into the driver's state, for a host
// with n NVIDIA GPUs on the bus that should answer. It is true when there is an
// answer to use.
func (inv *Inventory) nvmlState(a nvml.Answer, n int) bool {
	report := func(state State, text, cure string) bool {
		inv.NVIDIA.State = state
		inv.problem(Problem{Source: "nvml", Text: text, Cure: cure})
		return false
	}
	if f := a.Failure; f != nil {
		switch f.Kind {
		case nvml.Timeout, nvml.Stuck:
			return report(StateTimeout, f.Text, "is the driver hung? look for NVRM and Xid messages in the kernel log; without persistence mode, raise --nvml-timeout")
		}
		if f.Kind == nvml.NotStarted {
			return report(StateError, f.Text, f.Cure)
		}
		return report(StateError, f.Text, "does nvidia-smi work? look for NVRM and Xid messages in the kernel log")
	}
	kernel := inv.NVIDIA.KernelDriverVersion
	switch a.Init {
	case nvml.Success:
		if len(a.GPUs) > 0 {
			inv.NVIDIA.State = StateOK
			return true
		}
		if n == 0 {
			return false
		}
		if code, bad := a.Errors["gpus"]; bad {
			return report(StateError, fmt.Sprintf("NVML does not count its GPUs: %s", code), cureFor(code))
		}
		return report(StateError, fmt.Sprintf("PCI has %s but NVML lists none", gpuCount(n)),
			"in a pod, is NVIDIA_VISIBLE_DEVICES=all set? on the host, does the installed driver support them?")
	case nvml.VersionMismatch:
		text := "NVML's library and the kernel module are of different driver versions"
		if kernel != "" {
			text = fmt.Sprintf("NVML's library %s and the kernel module %s are of different driver versions", libraryVersion(a.Library), kernel)
		}
		return report(StateDriverMismatch, text, "reboot the node, or unload the old module, after a driver upgrade")
	}
	if n == 0 {
		return false // no hardware that a driver would be for
	}
	switch a.Init {
	case nvml.LibraryNotFound:
		if kernel != "" {
			return report(StateNoDriver, fmt.Sprintf("PCI has %s and kernel module %s is loaded, but NVML's library was not found (%s)", gpuCount(n), kernel, a.Detail),
				"in a pod, set runtimeClassName: nvidia, or mount the driver and name it with --driver-root")
		}
		return report(StateNoDriver, fmt.Sprintf("PCI has %s but there is no NVIDIA driver (%s)", gpuCount(n), a.Detail), inv.noDriverCure())
	case nvml.DriverNotLoaded:
		return report(StateNoDriver, fmt.Sprintf("PCI has %s but the NVIDIA kernel module is not loaded", gpuCount(n)), inv.noDriverCure())
	case nvml.NoPermission:
		return report(StateNoPermission, "NVML may not open the GPUs' device nodes", "give the process access to /dev/nvidiactl and /dev/nvidia*: in a pod, set runtimeClassName: nvidia")
	}
	return report(StateError, fmt.Sprintf("initialising NVML (%s): %s", a.Library, a.Init), cureFor(a.Init))
}

func (inv *Inventory) noDriverCure() string {
	for i := range inv.Functions {
		if f := &inv.Functions[i]; f.Vendor == pci.NVIDIA && f.Driver == "nouveau" {
			return "nouveau holds " + f.Address.String() + ": install NVIDIA's driver, which keeps nouveau from loading, and reboot"
		}
	}
	return "install the driver and load its module (with Secure Boot, the module must be signed); in a pod, set runtimeClassName: nvidia, or mount the driver and name it with --driver-root"
}

// libraryVersion is the version in the name of the library's file, or the whole
// path.
func libraryVersion(path string) string {
	if _, version, ok := strings.Cut(filepath.Base(path), ".so."); ok && driverVersion.MatchString(version) {
		return version
	}
	return path
}

func gpuCount(n int) string {
	if n == 1 {
		return "1 NVIDIA GPU"
	}
	return strconv.Itoa(n) + " NVIDIA GPUs"
}
