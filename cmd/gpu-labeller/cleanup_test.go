package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// TestCleanupNamespace: a namespace that is not there is an error, but only where
// the API server says so.
func TestCleanupNamespace(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		code, reason := http.StatusNotFound, "NotFound"
		switch r.URL.Path {
		case "/api/v1/namespaces/there":
			fmt.Fprint(w, `{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "there"}}`)
			return
		case "/api/v1/namespaces/hidden":
			code, reason = http.StatusForbidden, "Forbidden"
		}
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d}`, reason, code)
	}))
	t.Cleanup(server.Close)
	client, err := publish.NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]string{
		"": "", "there": "", "hidden": "", "nope": "--namespace nope: the cluster has no such namespace",
	} {
		f := cleanupFlags{namespace: namespace}
		if err := f.noNamespace(t.Context(), client); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", namespace, err, want)
		}
	}
}

// TestCleanupListsAgain: an API server that is busy while it is asked for the Nodes is
// asked again.
func TestCleanupListsAgain(t *testing.T) {
	lists := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if lists[r.URL.Path]++; lists[r.URL.Path] == 1 {
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "TooManyRequests", "code": 429}`)
			return
		}
		fmt.Fprint(w, `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": []}`)
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := cleanupFlags{allNodes: true, kubeconfig: kubeconfig}
	if err := f.run(t.Context(), io.Discard); err != nil {
		t.Errorf("%v after %v", err, lists)
	}
}

// What stands in a feature file is foreign: it must not steer a terminal.
func TestCleanupListsSafely(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpu")
	file := &publish.FeatureFile{Path: path}
	if err := file.Publish(t.Context(), labels.Set{"nvidia.com/gpu.product": "Tesla-T4"}); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content = append(content, "nvidia.com/x=\x1b[2J\x1b]0;owned\a\n"...)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	f := cleanupFlags{featureFile: path, dryRun: true}
	if err := f.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\n  nvidia.com/gpu.product=Tesla-T4\n") || strings.ContainsAny(out.String(), "\x1b\a") {
		t.Errorf("%q", out.String())
	}
}

// What gpu-labeller did not write in the place of a feature file stays, whatever
// --feature-file names.
func TestCleanupLeavesForeignFiles(t *testing.T) {
	const theirs = "vendor.io/feature=1\n"
	dir := t.TempDir()
	path, link := filepath.Join(dir, "theirs"), filepath.Join(dir, "link")
	if err := os.WriteFile(path, []byte(theirs), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, link} {
		var out strings.Builder
		f := cleanupFlags{featureFile: name}
		if err := f.run(t.Context(), &out); err != nil || !strings.Contains(out.String(), "left alone") {
			t.Errorf("%s: %v, %q", name, err, out.String())
		}
		if got, err := os.ReadFile(name); string(got) != theirs {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}

	ours := &publish.FeatureFile{Path: filepath.Join(dir, "ours")}
	if err := ours.Publish(t.Context(), labels.Set{"nvidia.com/gpu.count": "1"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(ours.Path, 0o600); err != nil {
		t.Fatal(err)
	}
	f := cleanupFlags{featureFile: ours.Path}
	if err := f.run(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(ours.Path); !os.IsNotExist(err) {
		t.Errorf("ours is still there: %v", err)
	}
}

// The agent's pod has $NODE_NAME and, with feature files, no way to the API server.
func TestCleanupOfFileNeedsNoCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "missing"))
	file := &publish.FeatureFile{Path: filepath.Join(t.TempDir(), "gpu")}
	if err := file.Publish(t.Context(), labels.Set{"nvidia.com/gpu.count": "1"}); err != nil {
		t.Fatal(err)
	}
	f := cleanupFlags{nodeName: "node-a", sinks: []string{sinkFeatureFile}, featureFile: file.Path}
	if err := f.run(t.Context(), io.Discard); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(file.Path); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}
