package nvml

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// A Code is the result of an NVML call, as nvml.h names it without NVML_ERROR_:
// SUCCESS, NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, … A symbol that the
// library lacks is FUNCTION_NOT_FOUND. A code that nvml.h 13 does not know is
// its number.
type Code string

// The codes that decide something here.
const (
	Success          Code = "SUCCESS"
	NotSupported     Code = "NOT_SUPPORTED"
	NoPermission     Code = "NO_PERMISSION"
	NotFound         Code = "NOT_FOUND"
	DriverNotLoaded  Code = "DRIVER_NOT_LOADED"
	LibraryNotFound  Code = "LIBRARY_NOT_FOUND"
	FunctionNotFound Code = "FUNCTION_NOT_FOUND"
	GPUIsLost        Code = "GPU_IS_LOST"
	ResetRequired    Code = "RESET_REQUIRED"
	VersionMismatch  Code = "LIB_RM_VERSION_MISMATCH"
	ArgumentVersion  Code = "ARGUMENT_VERSION_MISMATCH"
	Deprecated       Code = "DEPRECATED"
	Unknown          Code = "UNKNOWN"

	// outOfRange is ours: NVML answered what cannot be.
	outOfRange Code = "OUT_OF_RANGE"
)

var codes = map[nvml.Return]Code{
	nvml.SUCCESS:                         Success,
	nvml.ERROR_UNINITIALIZED:             "UNINITIALIZED",
	nvml.ERROR_INVALID_ARGUMENT:          "INVALID_ARGUMENT",
	nvml.ERROR_NOT_SUPPORTED:             NotSupported,
	nvml.ERROR_NO_PERMISSION:             NoPermission,
	nvml.ERROR_ALREADY_INITIALIZED:       "ALREADY_INITIALIZED",
	nvml.ERROR_NOT_FOUND:                 NotFound,
	nvml.ERROR_INSUFFICIENT_SIZE:         "INSUFFICIENT_SIZE",
	nvml.ERROR_INSUFFICIENT_POWER:        "INSUFFICIENT_POWER",
	nvml.ERROR_DRIVER_NOT_LOADED:         DriverNotLoaded,
	nvml.ERROR_TIMEOUT:                   "TIMEOUT",
	nvml.ERROR_IRQ_ISSUE:                 "IRQ_ISSUE",
	nvml.ERROR_LIBRARY_NOT_FOUND:         LibraryNotFound,
	nvml.ERROR_FUNCTION_NOT_FOUND:        FunctionNotFound,
	nvml.ERROR_CORRUPTED_INFOROM:         "CORRUPTED_INFOROM",
	nvml.ERROR_GPU_IS_LOST:               GPUIsLost,
	nvml.ERROR_RESET_REQUIRED:            ResetRequired,
	nvml.ERROR_OPERATING_SYSTEM:          "OPERATING_SYSTEM",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH:   VersionMismatch,
	nvml.ERROR_IN_USE:                    "IN_USE",
	nvml.ERROR_MEMORY:                    "MEMORY",
	nvml.ERROR_NO_DATA:                   "NO_DATA",
	nvml.ERROR_VGPU_ECC_NOT_SUPPORTED:    "VGPU_ECC_NOT_SUPPORTED",
	nvml.ERROR_INSUFFICIENT_RESOURCES:    "INSUFFICIENT_RESOURCES",
	nvml.ERROR_FREQ_NOT_SUPPORTED:        "FREQ_NOT_SUPPORTED",
	nvml.ERROR_ARGUMENT_VERSION_MISMATCH: ArgumentVersion,
	nvml.ERROR_DEPRECATED:                Deprecated,
	nvml.ERROR_NOT_READY:                 "NOT_READY",
	nvml.ERROR_GPU_NOT_FOUND:             "GPU_NOT_FOUND",
	nvml.ERROR_INVALID_STATE:             "INVALID_STATE",
	nvml.ERROR_RESET_TYPE_NOT_SUPPORTED:  "RESET_TYPE_NOT_SUPPORTED",
	nvml.ERROR_UNKNOWN:                   Unknown,
}

func codeOf(r nvml.Return) Code {
	if c, ok := codes[r]; ok {
		return c
	}
	return Code(strconv.Itoa(int(r)))
}

// Known tells whether nvml.h has such a code, or it is a number.
func (c Code) Known() bool {
	for _, known := range codes {
		if c == known {
			return true
		}
	}
	_, err := strconv.Atoi(string(c))
	return err == nil || c == outOfRange
}

// Absent tells whether the code means that the driver or the GPU has no such
// thing, rather than that something is wrong.
func (c Code) Absent() bool {
	switch c {
	case NotSupported, FunctionNotFound, ArgumentVersion, Deprecated:
		return true
	}
	return false
}
