package main

import (
	"strings"
	"testing"
)

func TestList(t *testing.T) {
	const (
		config   = `{"config": {"protocol_version": "v1.0.0"}}`
		osv      = `{"osv": {"id": "GO-1", "summary": "it reads too much"}}`
		imported = `{"finding": {"osv": "GO-1", "trace": [{"module": "golang.org/x/net", "version": "v0.61.0", "package": "golang.org/x/net/html"}]}}`
		library  = `{"finding": {"osv": "GO-1", "fixed_version": "v1.26.9", "trace": [{"module": "stdlib", "version": "v1.26.8", "package": "net/http", "function": "Read"}, {"module": "m", "package": "m/a", "function": "F"}]}}`
		module   = `{"finding": {"osv": "GO-1", "fixed_version": "v0.62.0", "trace": [{"module": "golang.org/x/net", "version": "v0.61.0", "package": "golang.org/x/net/html", "function": "Parse"}, {"module": "m", "package": "m/a", "function": "F"}]}}`
		unfixed  = `{"finding": {"osv": "GO-1", "trace": [{"module": "a/b", "version": "v1.0.0", "package": "a/b", "function": "F"}]}}`
	)
	const ofLibrary = "GO-1 in Go's standard library v1.26.8, fixed in v1.26.9: it reads too much\n"
	for _, test := range []struct {
		name, in, out string
		bad           bool
		wrong         string
	}{
		{"none", config, "", false, ""},
		{"imported, not called", config + osv + imported, "", false, ""},
		{"standard library, twice", config + osv + library + library, ofLibrary, false, ""},
		{"dependency", config + osv + module + library, "GO-1 in golang.org/x/net/html of golang.org/x/net v0.61.0, called by m/a, fixed in v0.62.0: it reads too much\n" + ofLibrary, true, "is vulnerable"},
		{"no fix", config + osv + unfixed, "GO-1 in a/b of a/b v1.0.0, called by a/b, there is no fix: it reads too much\n", true, "is vulnerable"},
		{"nothing", "", "", false, "wrote nothing"},
		{"cut", config + module[:40], "", false, "unexpected EOF"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			bad, err := list(strings.NewReader(test.in), &out)
			if bad != test.bad || out.String() != test.out || (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("%v, %v\n%s", bad, err, out.String())
			}
		})
	}
}
