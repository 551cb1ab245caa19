package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// CreateNode makes a Node and waits until the scheduler would bind pods to it:
// condition Ready, capacity for pods, no taint.
func (c *Cluster) CreateNode(name string) {
	c.tb.Helper()
	ctx := c.tb.Context()
	node := map[string]any{
		"apiVersion": "v1",
		"kind":       "Node",
		"metadata": map[string]any{
			"name": name,
			"labels": map[string]string{
				"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			},
		},
	}
	if err := c.do(ctx, http.MethodPost, "/api/v1/nodes", "application/json", node, nil); err != nil {
		c.tb.Fatalf("cluster: creating Node %q: %v", name, err)
	}
	capacity := map[string]string{"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi"}
	now := time.Now().UTC().Format(time.RFC3339)
	var conditions []map[string]string
	for kind, status := range map[string]string{
		"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False",
	} {
		conditions = append(conditions, map[string]string{
			"type": kind, "status": status, "reason": "NoKubelet",
			"lastHeartbeatTime": now, "lastTransitionTime": now,
		})
	}
	status := map[string]any{"status": map[string]any{
		"capacity": capacity, "allocatable": capacity, "conditions": conditions,
	}}
	path := "/api/v1/nodes/" + name
	if err := c.do(ctx, http.MethodPatch, path+"/status", "application/merge-patch+json", status, nil); err != nil {
		c.tb.Fatalf("cluster: status of Node %q: %v", name, err)
	}
	c.wait("Node "+name+" without taints", 30*time.Second, func(ctx context.Context) error {
		var node struct {
			Spec struct{ Taints []struct{ Key string } }
		}
		if err := c.get(ctx, path, &node); err != nil {
			return err
		}
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("tainted %v", node.Spec.Taints)
		}
		return nil
	})
}

// ServiceAccount makes a ServiceAccount, and its namespace where there is none, and
// returns a token of it. The rules are those of a ClusterRole and of a Role in its
// namespace, in YAML; empty for no Role.
func (c *Cluster) ServiceAccount(namespace, name, clusterRules, rules string) string {
	c.tb.Helper()
	manifest := fmt.Sprintf(`
{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: %[2]s, namespace: %[1]s}}
`, namespace, name)
	grant := func(kind, metadata, rules string) {
		manifest += fmt.Sprintf(`---
{apiVersion: rbac.authorization.k8s.io/v1, kind: %[1]s, metadata: %[2]s, rules: [%[3]s]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: %[1]sBinding
metadata: %[2]s
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %[1]s, name: %[4]s}
subjects: [{kind: ServiceAccount, name: %[4]s, namespace: %[5]s}]
`, kind, metadata, rules, name, namespace)
	}
	grant("ClusterRole", "{name: "+name+"}", clusterRules)
	if rules != "" {
		grant("Role", "{name: "+name+", namespace: "+namespace+"}", rules)
	}
	c.Apply(manifest)
	return c.ServiceAccountToken(namespace, name, "")
}

// ApplyNodeFeatures makes NFD's NodeFeature objects known to the API server.
func (c *Cluster) ApplyNodeFeatures() {
	c.tb.Helper()
	root, err := moduleRoot()
	if err != nil {
		c.tb.Fatalf("cluster: %v", err)
	}
	c.Kubectl("apply", "--filename="+filepath.Join(root, "testdata", "cluster", "nodefeature-crd.yaml"))
	c.Kubectl("wait", "crd/nodefeatures.nfd.k8s-sigs.io", "--for=condition=Established", "--timeout=30s")
}

// ServiceAccountToken returns a token of an existing ServiceAccount, good for a
// day. With a pod's name, which must exist, the token is bound to that pod and
// names the Node it runs on, as the ones are that the kubelet mounts.
func (c *Cluster) ServiceAccountToken(namespace, name, pod string) string {
	c.tb.Helper()
	args := []string{"create", "token", name, "--namespace", namespace, "--duration=24h"}
	if pod != "" {
		args = append(args, "--bound-object-kind=Pod", "--bound-object-name="+pod)
	}
	return strings.TrimSpace(c.Kubectl(args...))
}

// Kubectl runs kubectl with all rights and returns its output; an exit status
// other than 0 fails the test.
func (c *Cluster) Kubectl(args ...string) string {
	c.tb.Helper()
	out, err := c.TryKubectl(args...)
	if err != nil {
		c.tb.Fatalf("cluster: %v", err)
	}
	return out
}

// TryKubectl is Kubectl that returns the error, with kubectl's own words.
func (c *Cluster) TryKubectl(args ...string) (string, error) {
	return c.kubectl(nil, args...)
}

// Apply gives a manifest to kubectl apply.
func (c *Cluster) Apply(manifest string) {
	c.tb.Helper()
	if _, err := c.kubectl(strings.NewReader(manifest), "apply", "--filename=-"); err != nil {
		c.tb.Fatalf("cluster: %v", err)
	}
}

// Refuse has a ValidatingAdmissionPolicy refuse updates of the object by anybody,
// unless an expression in CEL is true of them, and waits until kubectl with the
// arguments of probe, a dry run, is refused. A resource with a group has that in
// front, as "nfd.k8s-sigs.io/v1alpha1/nodefeatures".
func (c *Cluster) Refuse(resource, name, unless string, probe ...string) {
	c.tb.Helper()
	group, version, plural := "", "v1", resource
	if parts := strings.Split(resource, "/"); len(parts) == 3 {
		group, version, plural = parts[0], parts[1], parts[2]
	}
	c.Apply(fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]q}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [%[2]q], apiVersions: [%[3]q], operations: [UPDATE], resources: [%[4]q]}
  matchConditions:
  - {name: this-object, expression: "object.metadata.name == '%[1]s'"}
  validations:
  - {expression: %[5]q, message: "refused by the test"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]q}
spec: {policyName: %[1]q, validationActions: [Deny]}
`, name, group, version, plural, unless))
	c.wait("policy", time.Minute, func(context.Context) error {
		if _, err := c.TryKubectl(probe...); err == nil {
			return errors.New("not in force")
		}
		return nil
	})
}

// StopRefusing ends what Refuse began, within a moment.
func (c *Cluster) StopRefusing(name string) {
	c.tb.Helper()
	c.Kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name)
}

func (c *Cluster) kubectl(stdin io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(c.tb.Context(), filepath.Join(c.bin, "kubectl"), args...)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+c.Kubeconfig(), "HOME="+c.dir)
	cmd.Stdin = stdin
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("kubectl %s: %s", strings.Join(args, " "), bytes.TrimSpace(exit.Stderr))
	}
	return string(out), err
}

func (c *Cluster) get(ctx context.Context, path string, into any) error {
	return c.do(ctx, http.MethodGet, path, "", nil, into)
}

// do sends body as JSON with all rights, and decodes the answer into into.
func (c *Cluster) do(ctx context.Context, method, path, contentType string, body, into any) error {
	client, err := rest.HTTPClientFor(c.Config())
	if err != nil {
		return err
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url("https", c.ports.api)+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(answer))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}
