package pci

import (
	"errors"
	"fmt"
	"strconv"
)

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

// Parsing says what text could not be parsed, in ASCII and however long it is. It
// wraps err, or what a *strconv.NumError wraps.
func Parsing(text string, err error) error {
	if n := (*strconv.NumError)(nil); errors.As(err, &n) {
		err = n.Err
	}
	return fmt.Errorf("parsing %s: %w", strconv.QuoteToASCII(text[:min(len(text), 40)]), err)
}
