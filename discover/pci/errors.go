package pci

import "errors"

// FieldError is a failure that concerns one PCI function, and of that one field
// at most. Err is what went wrong, without the path: errors.Is tells
// fs.ErrNotExist, fs.ErrPermission, ErrConfigTruncated and so on.
type FieldError struct {
	Address string // as sysfs names the function
	Field   string // the sysfs file, empty when the whole function is concerned
	Err     error
}

// Error is a sentence such as
//
//	PCI device 0000:1b:00.0: class: parsing "zz": invalid syntax
func (e *FieldError) Error() string {
	if e.Field == "" {
		return "PCI device " + e.Address + ": " + e.Err.Error()
	}
	return "PCI device " + e.Address + ": " + e.Field + ": " + e.Err.Error()
}

// Unwrap gives Err.
func (e *FieldError) Unwrap() error { return e.Err }

// ErrGone reports a function whose folder is not there (any more): it was
// unplugged, or unbound from its PF, while it was looked at.
var ErrGone = errors.New("it went away while it was read")
