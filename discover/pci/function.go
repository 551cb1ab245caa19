// Package pci reads the PCI functions of a host from sysfs.
//
// The kernel documents the files in
// Documentation/ABI/testing/sysfs-bus-pci. IDs and classes are decoded by ghw,
// one function at a time; what ghw lacks is read from the same folder.
package pci

// Vendor IDs of the GPU makers.
const (
	NVIDIA = 0x10de
	AMD    = 0x1002
	Intel  = 0x8086
)

// Function is one PCI function as sysfs shows it. A field that the kernel does
// not give, or that could not be read, has its zero value; pointers stand where
// zero is a real value.
type Function struct {
	Address Address

	Vendor          uint16 // vendor ID
	Device          uint16 // device ID
	SubsystemVendor uint16
	SubsystemDevice uint16
	Class           uint32 // 24 bits: base class, subclass, programming interface
	Revision        uint8

	// Driver is the name of the kernel driver bound to the function, empty
	// when there is none. The link's target need not exist.
	Driver string
	// NUMANode is nil when the platform names none (the kernel says -1).
	NUMANode *int
	// IOMMUGroup is the number of the function's IOMMU group, empty without one.
	IOMMUGroup string
	// PhysicalFunction is the PF of a VF whose PF is on the same host.
	PhysicalFunction *Address
	// TotalVFs and NumVFs are sriov_totalvfs and sriov_numvfs; nil where the
	// function has no SR-IOV capability (or the kernel no support for it).
	TotalVFs *int
	NumVFs   *int

	LinkSpeed    string // current_link_speed, e.g. "32.0 GT/s PCIe"
	LinkWidth    int    // current_link_width, lanes
	MaxLinkSpeed string
	MaxLinkWidth int

	// VGPU is what the vendor-specific capability of an NVIDIA function says.
	// It is nil for other vendors, and where configuration space could not be
	// read beyond its first 64 bytes (which takes CAP_SYS_ADMIN).
	VGPU *VGPU
}

// VGPU tells whether a function is an NVIDIA vGPU, and what its host runs.
type VGPU struct {
	Present           bool
	HostDriverVersion string
	HostDriverBranch  string
}

// ClassID is the class in the four digits that labels use: base class and
// subclass.
func (f *Function) ClassID() uint16 { return uint16(f.Class >> 8) }
