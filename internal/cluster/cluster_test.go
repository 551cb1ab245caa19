package cluster

import (
	"strings"
	"testing"
	"time"
)

// TestCluster starts a control plane and does what other packages' tests do.
func TestCluster(t *testing.T) {
	c := Start(t)
	c.CreateNode("node-a")
	c.Apply(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: agent, namespace: default}
---
apiVersion: v1
kind: Pod
metadata: {name: agent, namespace: default}
spec:
  serviceAccountName: agent
  nodeSelector: {kubernetes.io/hostname: node-a}
  containers: [{name: agent, image: agent}]
`)
	c.Kubectl("wait", "pod/agent", "--for=condition=PodScheduled", "--timeout=30s")
	if got := c.Kubectl("get", "pod", "agent", "-o", "jsonpath={.spec.nodeName}"); got != "node-a" {
		t.Errorf("pod is bound to %q, want node-a", got)
	}

	token := c.ServiceAccountToken("default", "agent", "agent")
	out := c.Kubectl("--token", token, "auth", "whoami", "-o", "yaml")
	for _, want := range []string{"system:serviceaccount:default:agent", "authentication.kubernetes.io/node-name", "node-a"} {
		if !strings.Contains(out, want) {
			t.Errorf("whoami lacks %q:\n%s", want, out)
		}
	}

	begin := time.Now()
	c.StopAPIServer()
	if _, err := c.TryKubectl("get", "nodes", "--request-timeout=2s"); err == nil {
		t.Error("the API server answers although it is stopped")
	}
	c.StartAPIServer()
	t.Logf("API server stopped and started in %.1f s", time.Since(begin).Seconds())
	if got := c.Kubectl("get", "nodes", "-o", "name"); strings.TrimSpace(got) != "node/node-a" {
		t.Errorf("after the restart the nodes are %q", got)
	}
}
