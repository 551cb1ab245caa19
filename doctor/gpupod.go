package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-labeller/gpu-labeller/publish"
)

// TestPod is a pod that runs nvidia-smi on a GPU of the Node, to see whether
// containers get one.
type TestPod struct {
	Namespace string
	Image     string        // any with a C library: the runtime adds nvidia-smi
	Timeout   time.Duration // how long it may take to end, the image's pull included
	Poll      time.Duration // time between two looks at it; default one second
}

// DefaultTestImage is small, and NVIDIA's own.
const DefaultTestImage = "nvcr.io/nvidia/cuda:12.6.3-base-ubuntu24.04"

// runtimeStep runs the test pod, when it is asked for.
func runtimeStep(ctx context.Context, c *Config, k *state, no string, broken int) Step {
	switch {
	case c.TestPod == nil:
		return skippedStep("off by default: --gpu-pod runs nvidia-smi in a pod")
	case no != "":
		return skippedStep(no)
	case k.node == nil:
		return skippedStep("the Node cannot be read")
	case broken > 0:
		return skippedStep(fmt.Sprintf("no test pod is made, since step %d (%s) is broken: a container would get no GPU", broken, stepNames[broken-1]))
	}
	resource := testResource(k.node)
	if resource == "" {
		return skippedStep("the Node has no NVIDIA GPU to give to a test pod")
	}
	return Step{Checks: []Check{c.TestPod.run(ctx, c.Cluster, k, resource)}}
}

// testResource is what a test pod can ask for: a whole GPU, else a part of one.
func testResource(n *node) string {
	best := ""
	for _, name := range sortedKeys(n.Status.Allocatable) {
		free, _ := quantity(n.Status.Allocatable, name)
		if free > 0 && advertisers[0].resource(name) && (best == "" || name == "nvidia.com/gpu") {
			best = name
		}
	}
	return best
}

// run makes the pod, waits for its end, reads its log and deletes it, whatever
// happens in between.
func (t *TestPod) run(ctx context.Context, cluster *Cluster, k *state, resource string) (c Check) {
	api := cluster.client.Core()
	c = Check{Name: "test-pod", Result: OK}
	body, err := json.Marshal(t.manifest(k, resource))
	if err != nil {
		return skip(c.Name, err.Error())
	}
	answer, err := api.Post().Namespace(t.Namespace).Resource("pods").Body(body).MaxRetries(0).Do(ctx).Raw()
	if apierrors.IsForbidden(err) {
		// An admission policy says more than that the verb is missing.
		return skip(c.Name, because(&publish.ForbiddenError{Verb: "create", Resource: "pods", Err: err})+fmt.Sprintf(" (%v)", err))
	}
	var p pod
	if err == nil {
		err = json.Unmarshal(answer, &p)
	}
	if err != nil || p.Metadata.Name == "" {
		return skip(c.Name, fmt.Sprintf("the test pod cannot be made in namespace %s: %v", t.Namespace, err))
	}
	defer func() {
		// A signal must not leave the pod behind.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err := api.Delete().Namespace(t.Namespace).Resource("pods").Name(p.Metadata.Name).
			Body([]byte(`{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0}`)).MaxRetries(0).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			c.Evidence = append(c.Evidence, fmt.Sprintf("the test pod is still there: kubectl -n %s delete pod %s (%v)", t.Namespace, p.Metadata.Name, err))
		}
	}()

	path := "/api/v1/namespaces/" + t.Namespace + "/pods/" + p.Metadata.Name
	err = t.wait(ctx, cluster, path, &p)
	c.Evidence = append(c.Evidence, fmt.Sprintf("pod %v, image %s, %s: 1, phase %s", &p, t.Image, resource, p.Status.Phase))
	var log []byte
	if p.over() {
		log, _ = cluster.client.Get(ctx, "get", "pods/log", path+"/log", nil)
	}
	gpus := parseSMI(log)
	switch {
	case p.Status.Phase == "Succeeded" && len(gpus) > 0:
		c.Text = "a container on this Node sees " + strings.Join(gpus, ", ")
	case p.Status.Phase == "Succeeded":
		c.Result = Fault
		c.Text = "nvidia-smi ran in a container on this Node and lists no GPU"
	case p.over():
		c.Result = Fault
		c.Text = "nvidia-smi fails in a container on this Node"
		c.Evidence = append(c.Evidence, p.trouble())
		c.Cure = "is the container toolkit configured in the container runtime, and RuntimeClass nvidia used or the default?"
	case p.Spec.NodeName == "":
		c.Result = Warning
		c.Text = fmt.Sprintf("the test pod found no free %s on this Node in %v", resource, t.Timeout)
		c.Evidence = append(c.Evidence, p.trouble())
		c.Cure = "run it again when a GPU is free"
	default:
		c.Result = Fault
		c.Text = fmt.Sprintf("the test pod did not end in %v", t.Timeout)
		c.Evidence = append(c.Evidence, p.trouble())
		c.Cure = "what holds it up is in the evidence: an image that cannot be pulled (--gpu-pod-image names another), or a runtime that is not configured"
	}
	if err != nil && !errors.Is(err, errTestTimeout) {
		c.Evidence = append(c.Evidence, err.Error())
	}
	for _, line := range lastLines(log, 3) {
		if len(gpus) == 0 {
			c.Evidence = append(c.Evidence, "log: "+line)
		}
	}
	return c
}

var errTestTimeout = errors.New("it did not end in time")

func (t *TestPod) wait(ctx context.Context, cluster *Cluster, path string, p *pod) error {
	limit := time.NewTimer(t.Timeout)
	defer limit.Stop()
	poll := t.Poll
	if poll <= 0 {
		poll = time.Second
	}
	for {
		var now pod
		if err := cluster.get(ctx, "get", "pods", path, nil, &now); err != nil {
			if errors.Is(err, errAbsent) || lacksRight(err) || ctx.Err() != nil {
				return err
			}
		} else if *p = now; p.over() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return errTestTimeout
		case <-time.After(poll):
		}
	}
}

// manifest is the pod. It is bound to the Node by affinity, not by name, so that
// the scheduler sees to it that there is a free GPU.
func (t *TestPod) manifest(k *state, resource string) map[string]any {
	spec := map[string]any{
		"restartPolicy":                 "Never",
		"activeDeadlineSeconds":         int(t.Timeout.Seconds()) + 60, // should we not come to delete it
		"automountServiceAccountToken":  false,
		"terminationGracePeriodSeconds": 0,
		"tolerations":                   []any{map[string]any{"operator": "Exists"}},
		"affinity": map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{
			"nodeSelectorTerms": []any{map[string]any{"matchFields": []any{map[string]any{
				"key": "metadata.name", "operator": "In", "values": []string{k.node.Metadata.Name},
			}}}},
		}}},
		"securityContext": map[string]any{
			"runAsNonRoot": true, "runAsUser": 65534, "seccompProfile": map[string]any{"type": "RuntimeDefault"},
		},
		"containers": []any{map[string]any{
			"name":    "nvidia-smi",
			"image":   t.Image,
			"command": []string{"nvidia-smi", "-L"},
			"env":     []any{map[string]any{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"}},
			"resources": map[string]any{
				"limits":   map[string]any{resource: "1"},
				"requests": map[string]any{"cpu": "10m", "memory": "32Mi"},
			},
			"securityContext": map[string]any{
				"allowPrivilegeEscalation": false, "capabilities": map[string]any{"drop": []string{"ALL"}},
			},
			"terminationMessagePolicy": "FallbackToLogsOnError",
		}},
	}
	if k.runtimeClass != nil {
		spec["runtimeClassName"] = nvidiaRuntimeClass
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{
			"generateName": "gpu-labeller-doctor-",
			"labels":       map[string]any{"app.kubernetes.io/name": "gpu-labeller-doctor"},
		},
		"spec": spec,
	}
}

// smiLine is a line of nvidia-smi -L: "GPU 0: NVIDIA H200 (UUID: GPU-…)", or
// "  MIG 1g.10gb     Device  0: (UUID: MIG-…)". The UUID is not taken.
var smiLine = regexp.MustCompile(`^\s*(?:GPU \d+: (.+?)|(MIG \S+)\s+Device\s+\d+:) \(UUID: [^)]*\)\s*$`)

// parseSMI gives the GPUs and MIG devices in the output of nvidia-smi -L.
func parseSMI(log []byte) []string {
	var all []string
	for s := bufio.NewScanner(bytes.NewReader(log)); s.Scan(); {
		if m := smiLine.FindStringSubmatch(s.Text()); m != nil {
			all = append(all, m[1]+strings.Join(strings.Fields(m[2]), " "))
		}
	}
	return all
}

func lastLines(text []byte, n int) []string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	if len(lines) == 1 && lines[0] == "" {
		return nil
	}
	return lines
}
