package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpu-labeller/gpu-labeller/doctor"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

func writeDoctor(out io.Writer, format string, r *doctor.Report) error {
	if format == "table" {
		return writeDoctorTable(out, r, coloured(out))
	}
	return encode(out, format, r)
}

// coloured tells whether colours are of use: on a terminal whose user has not
// said otherwise (no-color.org).
func coloured(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

var resultColours = map[doctor.Result]string{
	doctor.OK: "32", doctor.Warning: "33", doctor.Fault: "1;31", doctor.Follows: "35", doctor.Skipped: "2",
}

// aboutPod is what was found of the pod that was asked about, but for faults, which
// are told as such.
func aboutPod(r *doctor.Report) []doctor.Check {
	for _, s := range r.Steps {
		if s.Name == "scheduling" {
			return slices.DeleteFunc(slices.Clone(s.Checks), func(c doctor.Check) bool {
				return c.Name != "pod" && c.Result != doctor.Follows || c.Result == doctor.Fault
			})
		}
	}
	return nil
}

// writeDoctorTable writes a page for people: the steps with their checks, and
// what to do first.
func writeDoctorTable(out io.Writer, r *doctor.Report, colour bool) error {
	w := bufio.NewWriter(out)
	paint := func(result doctor.Result, width int) string {
		text := fmt.Sprintf("%-*s", width, result)
		if !colour {
			return text
		}
		return "\x1b[" + resultColours[result] + "m" + text + "\x1b[0m"
	}
	for _, s := range r.Steps {
		fmt.Fprintf(w, "%d  %-15s%s\n", s.Number, s.Name, paint(s.Result, 0))
		if s.Note != "" {
			fmt.Fprintln(w, "     "+cli.Printable(s.Note))
		}
		for _, c := range s.Checks {
			fmt.Fprintf(w, "   %s  %s: %s\n", paint(c.Result, 7), cli.Printable(c.Name), cli.Printable(c.Text))
			for _, e := range c.Evidence {
				fmt.Fprintln(w, "              "+cli.Printable(e))
			}
			if c.Cure != "" && c.Result != doctor.Follows {
				fmt.Fprintln(w, "              cure: "+cli.Printable(c.Cure))
			}
		}
	}
	fmt.Fprintln(w)
	writeLines := func(checks []doctor.Check) {
		for _, c := range checks {
			fmt.Fprintf(w, "  %s: %s\n", cli.Printable(c.Name), cli.Printable(c.Text))
		}
	}
	if r.Pod != "" {
		if pod := aboutPod(r); len(pod) > 0 {
			fmt.Fprintf(w, "pod %s\n", cli.Printable(r.Pod))
			writeLines(pod)
		}
	}
	switch {
	case r.Broken > 0:
		for _, s := range r.Steps {
			if faults := s.Faults(); len(faults) > 0 {
				fmt.Fprintf(w, "broken at step %d (%s)\n", s.Number, s.Name)
				writeLines(faults)
			}
		}
	case r.Failure != "":
		fmt.Fprintln(w, cli.Printable(r.Failure))
	case r.Result == doctor.Warning:
		fmt.Fprintln(w, "no fault, but warnings")
	default:
		fmt.Fprintln(w, "no fault")
	}
	return w.Flush()
}
