//go:build faults

package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// installNFD installs what there is of NFD here: the resource that we publish.
func (w *world) installNFD(t *testing.T) {
	t.Helper()
	crd, err := os.ReadFile("../../testdata/cluster/nodefeature-crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w.cluster.Apply(string(crd))
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		code, answer := w.api(t, http.MethodGet, nodeFeaturesPath, "application/json", nil)
		if code == http.StatusOK {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("the API server does not serve NodeFeatures: %d %s", code, answer)
		}
	}
}

func (w *world) removeNFD(t *testing.T) {
	t.Helper()
	if _, err := w.cluster.TryKubectl("delete", "crd", "nodefeatures.nfd.k8s-sigs.io", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
}

func (h *host) objectName() string { return "gpu-labeller-features-for-" + h.name }

func (h *host) objectPath() string {
	return strings.Replace(nodeFeaturesPath, "/nodefeatures", "/namespaces/"+h.namespace+"/nodefeatures/"+h.objectName(), 1)
}

// edit changes the object as another field manager.
func (h *host) edit(patch any) {
	h.Helper()
	code, answer := h.w.api(h.T, http.MethodPatch, h.objectPath()+"?fieldManager=somebody", "application/merge-patch+json", patch)
	if code != http.StatusOK {
		h.Fatalf("editing the NodeFeature: %d %s", code, answer)
	}
}

// object reads the NodeFeature's metadata; it is empty when there is no object.
func (h *host) object() (meta struct {
	Labels, Annotations map[string]string
	OwnerReferences     []struct{ Kind, Name, UID string }
}) {
	h.Helper()
	_, answer := h.w.api(h.T, http.MethodGet, h.objectPath(), "application/json", nil)
	o := struct{ Metadata any }{&meta}
	h.must(json.Unmarshal(answer, &o))
	return meta
}

// nodeFeatureRows are about the sink node-feature.
func nodeFeatureRows() []row {
	const faulty = "NodeFeature: the API server, while the hardware changes"
	const others = "NodeFeature: others, and NFD"
	objects := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/nodefeatures") }
	writes := func(r *http.Request) bool { return objects(r) && r.Method == http.MethodPut }
	reads := func(r *http.Request) bool { return objects(r) && r.Method == http.MethodGet }
	broken := func(name, fault string, which func(*http.Request) bool, f fault, hits int64) row {
		return row{
			area: faulty, name: name, fault: fault,
			setup: func(h *host) { h.viaProxy() },
			during: []step{{do: func(h *host) {
				h.proxy.set(only(which, f))
				newHardware(h)
				h.until("requests", 100*time.Second, func() bool { return h.proxy.hits.Load() >= hits })
			}, want: want{of: all}}},
			after: []step{{do: func(h *host) { h.proxy.set(nil) }, want: want{of: other}}},
		}
	}
	rows := append(lateRows(faulty, "", writes), []row{
		broken("401", "401, token not accepted", objects, status(401, "Unauthorized"), 3),
		broken("403", "403 for each request", objects, status(403, "Forbidden"), 3),
		broken("403 for update", "403 for update alone", writes, status(403, "Forbidden"), 2),
		broken("404", "404 for each request, as if there were no such object", objects, status(404, "NotFound"), 3),
		broken("409 for update", "409 for update, each time", writes, status(409, "Conflict"), 8),
		broken("410", "410 for each request", objects, status(410, "Gone"), 3),
		broken("422 for update", "422 for update", writes, status(422, "Invalid"), 2),
		patient(broken("429", "429, Retry-After: 3", objects, statusWith(429, "TooManyRequests", 3), 2), 3*time.Second),
		patient(broken("429 of priority and fairness", "429 of priority and fairness, Retry-After: 3", objects, unfair(3), 2), 3*time.Second),
		broken("500", "500", objects, status(500, "InternalError"), 3),
		patient(broken("503", "503, Retry-After: 1", objects, statusWith(503, "ServiceUnavailable", 1), 3), time.Second),
		broken("504", "504", objects, status(504, "Timeout"), 3),
		broken("a page for each request", "200 with a page of HTML", objects, raw("text/html", "<html><body>Sign in</body></html>"), 3),
		broken("nothing for each request", "200 with nothing", objects, raw("application/json", ""), 3),
		broken("another object", "200 with an object without UID", reads, raw("application/json", `{"kind":"NodeFeature","metadata":{"name":"x"},"spec":{}}`), 3),
		broken("answer cut", "half an answer", objects, cut, 3),
		broken("connection reset", "the connection is reset", objects, reset, 3),
		broken("silent", "no answer at all, for half a minute", objects, silent, 1),
		broken("slow", "a byte now and then, for half a minute", objects, slow, 1),
		{
			area: faulty, name: "admission refuses a label", fault: "a ValidatingAdmissionPolicy refuses one of the labels, so the object stays as it is; it is deleted",
			during: []step{{do: func(h *host) {
				h.w.cluster.Refuse("nfd.k8s-sigs.io/v1alpha1/nodefeatures", h.objectName(), "object.spec.labels['nvidia.com/gpu.memory'] != '81920'",
					"patch", "--namespace", h.namespace, "nodefeature", h.objectName(), "--type=merge", "--dry-run=server",
					"--patch", `{"spec":{"labels":{"nvidia.com/gpu.memory":"81920"}}}`)
				newHardware(h)
			}, says: "labels could not be published", want: want{of: all}}},
			after: []step{{do: func(h *host) { h.w.cluster.StopRefusing(h.objectName()) }, want: want{of: other}}},
		},
		{
			area: others, name: "object deleted", fault: "somebody deletes the object",
			during: []step{{do: func(h *host) { h.kubectl("delete", "--namespace", h.namespace, "nodefeature", h.objectName()) },
				want: want{of: all}, through: []want{{of: none}}}},
		},
		{
			area: others, name: "object edited", fault: "another field manager sets a label in it to another value, adds one, and features; its own metadata labels and annotations stay",
			during: []step{{do: func(h *host) {
				h.edit(map[string]any{
					"metadata": map[string]any{"labels": map[string]string{"team": "ml"}, "annotations": map[string]string{"note": "keep"}},
					"spec": map[string]any{
						"labels":   map[string]string{"nvidia.com/gpu.product": "theirs", "example.com/theirs": "1"},
						"features": map[string]any{"attributes": map[string]any{"theirs": map[string]any{"elements": map[string]string{"a": "b"}}}},
					},
				})
				time.Sleep(100 * time.Millisecond)
				h.until("the labels are right", time.Minute, func() bool { return len(difference(h.history.newest(), h.set(want{of: all}))) == 0 })
				if meta := h.object(); meta.Labels["team"] != "ml" || meta.Annotations["note"] != "keep" {
					h.Errorf("what others added to the metadata is gone: %v %v", meta.Labels, meta.Annotations)
				}
			}, want: want{of: all}, through: []want{but(all, "nvidia.com/gpu.product", "theirs", "example.com/theirs", "1", "x/features", "some").called("what they made of them")}}},
		},
		{
			area: others, name: "object without its Node", fault: "somebody removes the label by which NFD finds the Node",
			during: []step{{do: func(h *host) {
				h.edit(map[string]any{"metadata": map[string]any{"labels": map[string]any{"nfd.node.kubernetes.io/node-name": nil}}})
				time.Sleep(100 * time.Millisecond)
			}, want: want{of: all}, through: []want{{of: none}}}},
		},
		{
			area: others, name: "namespace deleted", fault: "its namespace is being deleted, is gone, and is made again",
			during: []step{{do: func(h *host) {
				h.w.cluster.Apply(fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {name: hold, namespace: %q, finalizers: [example.com/hold]}}`, h.namespace))
				h.kubectl("delete", "namespace", h.namespace, "--wait=false")
			}, says: "the namespace is being deleted", want: want{of: none}}, {do: func(h *host) {
				h.kubectl("patch", "--namespace", h.namespace, "configmap", "hold", "--type=merge", "--patch", `{"metadata":{"finalizers":null}}`)
				h.kubectl("wait", "--for=delete", "namespace/"+h.namespace, "--timeout=60s")
			}, want: want{of: none}}},
			after: whole(func(h *host) { h.kubectl("create", "namespace", h.namespace) }),
		},
		{
			area: others, name: "Node deleted and joins again", fault: "the Node is deleted, and joins again",
			during: []step{{do: func(h *host) { h.kubectl("delete", "node", h.name) }, want: want{of: all}}},
			after:  whole(func(h *host) { h.w.createNode(h.T, h.name) }),
		},
		{
			area: others, name: "Node deleted and its object", fault: "the Node is deleted and, as nfd-gc does, the object; the Node joins again",
			during: []step{{do: func(h *host) {
				h.kubectl("delete", "node", h.name)
				h.kubectl("delete", "--namespace", h.namespace, "nodefeature", h.objectName())
				h.w.createNode(h.T, h.name)
			}, want: want{of: all}, through: []want{{of: none}}}},
		},
		{
			area: others, name: "owner replaced", fault: "its DaemonSet is deleted with its pods, and with them the object; another DaemonSet of that name starts its pods",
			setup: func(h *host) { h.daemonSet() },
			during: []step{{do: func(h *host) {
				h.end(syscall.SIGTERM)
				h.kubectl("delete", "--namespace", h.namespace, "daemonset", "agent")
			}, want: want{of: none}, quiet: true}},
			after: whole(func(h *host) {
				h.flags = h.flags[:len(h.flags)-2] // the old pod's name
				uid := h.daemonSet()
				h.start()
				h.until("the object", time.Minute, func() bool { return len(h.history.newest()) > 0 })
				if owners := h.object().OwnerReferences; len(owners) != 2 || owners[0].Kind != "DaemonSet" || owners[0].UID != uid {
					h.Errorf("owners are %v, want the new DaemonSet, %s, and a pod", owners, uid)
				}
			}),
		},
		{
			area: others, name: "owner replaced and the object stays", fault: "its DaemonSet is replaced by another, which keeps the pods' objects (`--cascade=orphan`)",
			setup: func(h *host) { h.daemonSet() },
			during: []step{{do: func(h *host) {
				h.end(syscall.SIGTERM)
				h.kubectl("delete", "--namespace", h.namespace, "daemonset", "agent", "--cascade=orphan")
				h.kubectl("delete", "--namespace", h.namespace, "pods", "--all", "--force", "--grace-period=0")
				h.flags = h.flags[:len(h.flags)-2]
				uid := h.daemonSet()
				h.start()
				h.until("the new owner", time.Minute, func() bool {
					owners := h.object().OwnerReferences
					return len(owners) == 2 && owners[0].UID == uid
				})
			}, want: want{of: all}, through: []want{{of: none}}}},
		},
		{
			area: others, name: "owner unknown at the start", fault: "500 for the agent's pod from the start, which tells the owner; and it works later",
			setup: func(h *host) {
				h.viaProxy()
				h.daemonSet()
				pods := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/pods/") }
				h.proxy.set(only(pods, status(500, "InternalError")))
			},
			during: []step{{do: awaitLog("the owner of the NodeFeature object is not known"), want: want{of: all}}},
			after: []step{{do: func(h *host) {
				h.proxy.set(nil)
				h.until("the owner", time.Minute, func() bool { return len(h.object().OwnerReferences) == 2 })
			}, want: want{of: all}}},
		},
		{
			area: others, name: "SIGTERM and SIGKILL", fault: "the agent is ended (SIGTERM), started again, killed (SIGKILL), and started again",
			during: []step{{do: quietly(func(h *host) {
				h.restart(syscall.SIGTERM)
				h.awaitScans(2)
				h.restart(syscall.SIGKILL)
			}), want: want{of: all}}},
		},
		{
			area: others, name: "killed at any time", fault: "the agent is killed twenty times, at any time, the hardware changing",
			during: []step{{do: killedAtAnyTime(syscall.SIGKILL), want: want{of: all}, through: []want{{of: other}}}},
		},
		{
			area: others, name: "two agents", fault: "a second agent writes the same object, for other hardware: they take turns; it ends, and the first is started again",
			during: []step{{do: func(h *host) {
				second := h.second()
				time.Sleep(15 * time.Second)
				h.stopSecond(second)
				h.restart(syscall.SIGTERM)
			}, want: want{of: all}, through: []want{{of: other}}}},
		},
		{
			area: others, name: "NFD comes later", fault: "NFD's CRDs are not installed, and are later", alone: true,
			setup:  func(h *host) { h.w.removeNFD(h.T) },
			before: want{of: none},
			during: []step{{do: awaitLog("the cluster has no NodeFeature resource"), want: want{of: none}}},
			after:  whole(func(h *host) { h.w.installNFD(h.T) }),
		},
		{
			area: others, name: "NFD removed", fault: "NFD's CRDs are deleted, and installed again", alone: true,
			during: []step{{do: func(h *host) { h.w.removeNFD(h.T) }, says: "the cluster has no NodeFeature resource", want: want{of: none}}},
			after:  whole(func(h *host) { h.w.installNFD(h.T) }),
		},
	}...)
	for i := range rows {
		rows[i].sink, rows[i].name = "node-feature", "NodeFeature: "+rows[i].name
	}
	return append(rows, row{
		area: others, name: "NFD comes later, no sink", fault: "without `--sink`, and NFD's CRDs are not installed, so the Node is labelled; that they are later changes nothing", alone: true, chooses: true,
		setup: func(h *host) { h.w.removeNFD(h.T) },
		after: whole(func(h *host) { h.w.installNFD(h.T) }),
	})
}

// daemonSet makes one with a pod for the Node, which nothing runs, and has the
// agent be that pod. It returns its UID.
func (h *host) daemonSet() string {
	h.Helper()
	h.label("somebody", map[string]any{"kubernetes.io/faults": h.name})
	h.w.cluster.Apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: %[1]q}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      nodeSelector: {kubernetes.io/faults: %[1]q}
      containers: [{name: agent, image: agent}]
`, h.name))
	var pod string
	h.until("the DaemonSet's pod", time.Minute, func() bool {
		out, err := h.w.cluster.TryKubectl("get", "--namespace", h.namespace, "pods", "-l", "app=agent", "-o", "jsonpath={.items[0].metadata.name}")
		pod = out
		return err == nil && pod != ""
	})
	h.flags = append(h.flags, "--pod-name", pod)
	uid, err := h.w.cluster.TryKubectl("get", "--namespace", h.namespace, "daemonset", "agent", "-o", "jsonpath={.metadata.uid}")
	h.must(err)
	return uid
}
