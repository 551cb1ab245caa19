package pci

import (
	"errors"
	"fmt"
	"strings"
)

// configSize is the part of configuration space that holds capabilities; what
// PCI Express adds after it is of no concern here.
const configSize = 256

// headerSize is what the kernel lets anyone read of configuration space.
const headerSize = 64

// ErrConfigTruncated reports that a function's capabilities could not be read,
// so whether it is a vGPU is not known. Every function of an unprivileged run
// gives it: tell it once.
var ErrConfigTruncated = errors.New("only the first 64 bytes of configuration space can be read without CAP_SYS_ADMIN")

// ErrConfigUnreadable reports configuration space that reads as ones, as that of
// a function that fell off the bus does.
var ErrConfigUnreadable = errors.New("the function does not answer: its configuration space reads as ones")

// Where things are in configuration space (PCI Local Bus 3.0, section 6 and
// appendix H).
const (
	statusOffset       = 0x06
	statusCapabilities = 1 << 4 // in the status register's low byte
	listOffset         = 0x34
	vendorSpecific     = 0x09 // capability ID
	maxCapabilities    = (configSize - headerSize) / 4
)

// In NVIDIA's vendor-specific capability: id, next, length, 'V', 'F', records.
// In a record: id, length from the record's start, data.
const (
	recordsOffset = 5
	versionRecord = 0 // record ID
	versionSize   = 10
	branchSize    = 10
)

// ParseVGPU tells from an NVIDIA function's configuration space whether it is a
// vGPU, and what its host runs. It takes the first 256 bytes (more are
// ignored), or the first 64 of a function that has no capabilities; else the
// error is ErrConfigTruncated.
//
// With ErrConfigUnreadable, too, nothing is known. With any other error the VGPU
// can be used: a list of capabilities that is broken before it comes to a vGPU's
// makes none, and a broken record costs the versions. GFD takes both so.
func ParseVGPU(config []byte) (VGPU, error) {
	if len(config) >= headerSize && config[0] == 0xff && config[1] == 0xff {
		return VGPU{}, ErrConfigUnreadable
	}
	if len(config) >= headerSize && config[statusOffset]&statusCapabilities == 0 {
		return VGPU{}, nil
	}
	if len(config) < configSize {
		return VGPU{}, ErrConfigTruncated
	}
	config = config[:configSize]
	at, err := findCapability(config, vendorSpecific)
	if at == 0 || err != nil {
		return VGPU{}, err
	}
	// Every capability starts on a multiple of four, so id, next, length and V
	// are inside; a capability in the last four bytes holds no F.
	capability := config[at:]
	length := int(capability[2])
	if min(length, len(capability)) < recordsOffset || capability[3] != 'V' || capability[4] != 'F' {
		return VGPU{}, nil
	}
	vgpu := VGPU{Present: true}
	if length > len(capability) {
		return vgpu, fmt.Errorf("vGPU capability at 0x%02x: length %d, with %d bytes left", at, length, len(capability))
	}
	vgpu.HostDriverVersion, vgpu.HostDriverBranch, err = parseRecords(capability[recordsOffset:length])
	if err != nil {
		return vgpu, fmt.Errorf("vGPU capability at 0x%02x: %w", at, err)
	}
	return vgpu, nil
}

// findCapability gives the offset of the first capability of that ID, 0 if the
// list, which must be whole that far, has none. config is 256 bytes.
func findCapability(config []byte, id byte) (int, error) {
	at := int(config[listOffset] &^ 3) // the low bits are reserved
	for range maxCapabilities {
		switch {
		case at == 0:
			return 0, nil
		case at < headerSize:
			return 0, fmt.Errorf("capability list: pointer 0x%02x into the header", at)
		case config[at] == id:
			return at, nil
		case config[at] == 0xff:
			return 0, fmt.Errorf("capability list: nothing at 0x%02x", at)
		}
		at = int(config[at+1] &^ 3)
	}
	if at == 0 {
		return 0, nil
	}
	return 0, errors.New("capability list: it has a loop")
}

// parseRecords finds the host's driver version and branch.
func parseRecords(records []byte) (version, branch string, err error) {
	for len(records) >= 2 {
		id, length := records[0], int(records[1])
		if length < 2 || length > len(records) {
			return "", "", fmt.Errorf("record %d: length %d, with %d bytes left", id, length, len(records))
		}
		if id == versionRecord {
			// As GFD does, go by the room that is left, not by length.
			if len(records) < 2+versionSize+branchSize {
				return "", "", fmt.Errorf("record %d: %d bytes are too few for a driver version", id, len(records))
			}
			data := records[2:]
			return printable(data[:versionSize]), printable(data[versionSize : versionSize+branchSize]), nil
		}
		records = records[length:]
	}
	return "", "", errors.New("no record of the host's driver version")
}

// printable drops the NULs that pad a text, and whatever else is not ASCII that
// can be printed.
func printable(text []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, string(text))
}
