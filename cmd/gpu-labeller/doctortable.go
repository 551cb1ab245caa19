package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/doctor"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

func writeDoctor(out io.Writer, format string, r *doctor.Report) error {
	switch format {
	case "json":
		return cli.WriteJSON(out, r)
	case "yaml":
		e := yaml.NewEncoder(out)
		e.SetIndent(2)
		return errors.Join(e.Encode(r), e.Close())
	}
	return writeDoctorTable(out, r, coloured(out))
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
	switch faults := r.Faults(); {
	case len(faults) > 0:
		fmt.Fprintf(w, "broken at step %d (%s)\n", r.Broken, r.Steps[r.Broken-1].Name)
		for _, c := range faults {
			fmt.Fprintf(w, "  %s: %s\n", cli.Printable(c.Name), cli.Printable(c.Text))
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
