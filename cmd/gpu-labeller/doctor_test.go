package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/doctor"
)

// TestDoctorExitCodes runs the command against a cluster that has one Node and
// nothing else.
func TestDoctorExitCodes(t *testing.T) {
	node := `{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-a"},"status":{"capacity":{"nvidia.com/gpu":"1"},"allocatable":{"nvidia.com/gpu":"1"},"conditions":[{"type":"Ready","status":"True"}]}}`
	for _, tc := range []struct {
		name   string
		node   string // what the API server says of the Node; empty for an error of its own
		broken int
		code   int
	}{
		{"no labels", node, 3, 13},
		{"not ready", strings.Replace(node, `"True"`, `"False"`, 1), 2, 12},
		{"no answer", "", 0, exitFailure},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case tc.node == "":
					w.WriteHeader(http.StatusInternalServerError)
				case r.URL.Path == "/api/v1/nodes/node-a":
					_, _ = w.Write([]byte(tc.node))
				case r.URL.Path == "/api/v1/pods", r.URL.Path == "/apis/apps/v1/daemonsets":
					_, _ = w.Write([]byte(`{"items":[]}`))
				default:
					w.WriteHeader(http.StatusNotFound)
				}
			}))
			defer server.Close()
			kubeconfig := filepath.Join(t.TempDir(), "config")
			text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: " + server.URL + "}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\ncurrent-context: c\n"
			if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			code := run([]string{"doctor", "--host", "../../testdata/hosts/h200x1.txtar", "--node-name", "node-a", "--kubeconfig", kubeconfig, "-o", "json"}, &stdout, &stderr)
			var report doctor.Report
			if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
				t.Fatalf("%v\n%s\n%s", err, &stdout, &stderr)
			}
			if code != tc.code || report.Broken != tc.broken || len(report.Steps) != 6 {
				t.Errorf("exit code %d, broken at %d: want %d, %d\n%s", code, report.Broken, tc.code, tc.broken, &stdout)
			}
		})
	}
}

// TestDoctorWithoutThePod: a name that is misspelt is an error at once, before
// anything of the host is told.
func TestDoctorWithoutThePod(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "config")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: " + server.URL + "}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\ncurrent-context: c\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	code := run([]string{"doctor", "--host", "../../testdata/hosts/h200x1.txtar", "--node-name", "node-a", "--kubeconfig", kubeconfig, "--pod", "default/nope"}, &stdout, &stderr)
	if code != exitFailure || stdout.Len() > 0 || !strings.Contains(stderr.String(), "there is no pod default/nope") {
		t.Errorf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
}

// TestDoctorTellsOfThePod: what was asked for stands at the end, whatever else is
// broken.
func TestDoctorTellsOfThePod(t *testing.T) {
	report := &doctor.Report{Result: doctor.Fault, Broken: 3, Pod: "ml/train-0", Steps: []doctor.Step{
		{Number: 3, Name: "discovery", Result: doctor.Fault, Checks: []doctor.Check{{Name: "labels", Result: doctor.Fault, Text: "1 label is stale"}}},
		{Number: 5, Name: "scheduling", Result: doctor.Fault, Checks: []doctor.Check{
			{Name: "pod", Result: doctor.Warning, Text: "pod ml/train-0 waits for a Node"},
			{Name: "node-selector", Result: doctor.Follows, Text: "the Node does not have the labels"},
			{Name: "taints", Result: doctor.OK, Text: "none"},
			{Name: "requests", Result: doctor.Fault, Text: "0 of 1 are free"},
		}},
	}}
	var out bytes.Buffer
	if err := writeDoctorTable(&out, report, false); err != nil {
		t.Fatal(err)
	}
	want := `
pod ml/train-0
  pod: pod ml/train-0 waits for a Node
  node-selector: the Node does not have the labels
broken at step 3 (discovery)
  labels: 1 label is stale
broken at step 5 (scheduling)
  requests: 0 of 1 are free
`
	if !strings.HasSuffix(out.String(), want) {
		t.Errorf("got\n%s\nwant at its end\n%s", &out, want)
	}
}

func TestDoctorColours(t *testing.T) {
	report := &doctor.Report{Result: doctor.OK, Steps: []doctor.Step{{
		Number: 1, Name: "host", Result: doctor.OK,
		Checks: []doctor.Check{{Name: "pci", Result: doctor.OK, Text: "\x1b[31m1 GPU"}},
	}}}
	var plain, colour bytes.Buffer
	if err := writeDoctorTable(&plain, report, false); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(plain.String(), "\x1b") {
		t.Errorf("colours, or what firmware says of them: %q", &plain)
	}
	if err := writeDoctorTable(&colour, report, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(colour.String(), "\x1b[32mok\x1b[0m") {
		t.Errorf("no colour: %q", &colour)
	}
	if coloured(&plain) {
		t.Error("a buffer is no terminal")
	}
	t.Setenv("NO_COLOR", "1")
	if coloured(os.Stdout) {
		t.Error("NO_COLOR is not honoured")
	}
}
