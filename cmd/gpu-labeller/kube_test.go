package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKubeconfigList(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	clusters := write("clusters", `{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: "http://a:1"}}]}`)
	rest := write("rest", `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: secret}}]}`)
	whole := write("with:colon", kubeconfigFor("http://b:2"))
	missing := filepath.Join(dir, "missing")
	list := func(files ...string) string { return strings.Join(files, ":") }
	tests := map[string]struct{ variable, kubeconfig, host, wrong string }{
		"one file":                    {rest, whole, "http://b:2", ""},
		"a list":                      {list(clusters, rest), list(clusters, rest), "http://a:1", ""},
		"with gaps and missing files": {list("", missing, rest, clusters, ""), list("", missing, rest, clusters, ""), "http://a:1", ""},
		"none of them is there":       {list(missing, missing+"2"), list(missing, missing+"2"), "", "missing"},
		"one that is not there":       {missing, missing, "", "missing"},
		"a flag is no list":           {"", list(clusters, rest), "", "clusters:"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", test.variable)
			config, err := restConfig(test.kubeconfig)
			switch {
			case test.wrong != "":
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("error %v, want one with %q", err, test.wrong)
				}
			case err != nil:
				t.Error(err)
			case config.Host != test.host:
				t.Errorf("server %s, want %s", config.Host, test.host)
			}
		})
	}
}
