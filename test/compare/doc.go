// Package compare measures what an agent costs on one node, beside NVIDIA's GPU
// Feature Discovery if its binary is given: the built binaries, a real control
// plane, this host's GPUs. What needs changes of the hardware is measured on a
// made-up host with a library that stands in for NVML.
//
// It is no part of go test ./...: make compare.
package compare
