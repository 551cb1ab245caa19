// Package faults runs the real binary against a real API server, a stand-in NVML
// and a real file system while all that can fail does, and looks at what is
// published before, during and after. Its rows are the tables of
// docs/reliability.md. It takes minutes: make faults, build tag faults.
package faults
