// Command vulns reads what govulncheck -format json writes, from standard input,
// and lists the known vulnerabilities that the code calls. It ends with 1 if one of
// them is in a dependency: that is raised in go.mod. Go's standard library is the
// toolchain's, which is not this repository's to raise: its are only listed.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

func main() {
	bad, err := list(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulns:", err)
	}
	if bad || err != nil {
		os.Exit(1)
	}
}

// message is one of those that govulncheck v1.9 writes, as far as it matters here.
type message struct {
	Config *struct{} `json:"config"` // the first one
	OSV    *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string `json:"osv"`
		FixedVersion string `json:"fixed_version"` // empty: there is no fix
		// Trace begins with what is vulnerable, and ends with our code. The first has
		// a function if that is called.
		Trace []struct {
			Module   string `json:"module"`
			Version  string `json:"version"`
			Package  string `json:"package"`
			Function string `json:"function"`
		} `json:"trace"`
	} `json:"finding"`
}

// called is a vulnerability in a package that is called.
type called struct {
	module, id, version, pkg, fixed, from string
}

func list(in io.Reader, out io.Writer) (bad bool, err error) {
	summaries := map[string]string{}
	found := map[called]bool{}
	begun := false
	for d := json.NewDecoder(in); ; {
		var m message
		err := d.Decode(&m)
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, fmt.Errorf("reading what govulncheck wrote: %w", err)
		}
		begun = begun || m.Config != nil
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if f := m.Finding; f != nil && len(f.Trace) > 0 && f.Trace[0].Function != "" {
			t := f.Trace[0]
			c := called{module: t.Module, id: f.OSV, version: t.Version, fixed: f.FixedVersion}
			if !standard(c) {
				c.pkg, c.from = t.Package, f.Trace[len(f.Trace)-1].Package
			}
			found[c] = true
		}
	}
	if !begun {
		return false, errors.New("govulncheck wrote nothing: did it end with an error?")
	}
	for _, c := range slices.SortedFunc(maps.Keys(found), func(a, b called) int {
		return cmp.Or(cmp.Compare(a.module, b.module), cmp.Compare(a.id, b.id), cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.from, b.from))
	}) {
		fix := "there is no fix"
		if c.fixed != "" {
			fix = "fixed in " + c.fixed
		}
		if standard(c) {
			fmt.Fprintf(out, "%s in Go's standard library %s, %s: %s\n", c.id, c.version, fix, summaries[c.id])
			continue
		}
		bad = true
		fmt.Fprintf(out, "%s in %s of %s %s, called by %s, %s: %s\n", c.id, c.pkg, c.module, c.version, c.from, fix, summaries[c.id])
	}
	if bad {
		return true, errors.New("a dependency is vulnerable where the code calls it: raise it (go get MODULE@VERSION), or do without")
	}
	return false, nil
}

func standard(c called) bool { return c.module == "stdlib" || c.module == "toolchain" }
