package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

type object = map[string]any

// fake is a cluster with one Node, served as JSON by its paths.
type fake struct {
	t          *testing.T
	labels     map[string]string
	manager    map[string]string // of labels; else ours
	node       object
	pods       []object
	daemonSets []object
	slices     []object // nil: the cluster has no DRA
	policies   []object // nil: no GPU operator
	nfd        bool
	class      string // handler of the RuntimeClass nvidia, empty for none
	events     []object
	log        string
	forbidden  []string // paths' ends
	broken     bool     // answers 500 to everything

	mu      sync.Mutex
	made    object // the test pod
	deleted bool
	phases  []string // of the test pod, as it is read
}

// newFake is a cluster in which the host's GPUs are labelled and advertised as
// they should be: with the device plugin, the toolkit's RuntimeClass, NFD, and
// our agent.
func newFake(t *testing.T, c *Config) *fake {
	h := readHost(t.Context(), c)
	opts := c.Labels
	if opts.MIGStrategy == "" {
		opts.MIGStrategy = labels.MIGNone
	}
	set, _ := labels.Compute(h.inv, opts)
	f := &fake{t: t, labels: map[string]string{"kubernetes.io/hostname": "node-a"}, manager: map[string]string{}, class: "nvidia", nfd: true}
	maps.Copy(f.labels, set)
	resources := object{"cpu": "8"}
	k := &state{node: &node{}}
	for _, v := range advertisers {
		for _, e := range v.expected(h, k, opts) {
			resources[e.resource] = strconv.Itoa(e.count)
		}
	}
	f.node = object{
		"spec": object{},
		"status": object{
			"capacity": resources, "allocatable": maps.Clone(resources),
			"conditions": []object{{"type": "Ready", "status": "True"}},
		},
	}
	f.pods = []object{
		runningPod("gpu-labeller", "gpu-labeller-x", "app.kubernetes.io/name=gpu-labeller"),
		runningPod("nfd", "nfd-worker-x", "app=nfd-worker"),
		runningPod("nfd", "nfd-master-x", "app=nfd-master", "app.kubernetes.io/name=node-feature-discovery", "role=master"),
	}
	if len(h.usable(discover.NVIDIA)) > 0 {
		f.pods = append(f.pods, runningPod("kube-system", "nvidia-plugin-x", "name=nvidia-device-plugin-ds"))
	}
	if len(h.usable(discover.AMD)) > 0 {
		f.pods = append(f.pods, runningPod("kube-system", "amd-plugin-x", "name=amdgpu-dp-ds"))
	}
	if len(h.usable(discover.Intel)) > 0 {
		f.pods = append(f.pods, runningPod("kube-system", "intel-plugin-x", "app=intel-gpu-plugin"))
	}
	return f
}

func runningPod(namespace, name string, pairs ...string) object {
	set := object{}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		set[key] = value
	}
	return object{
		"metadata": object{"namespace": namespace, "name": name, "labels": set},
		"spec":     object{"nodeName": "node-a", "containers": []object{{"name": "main", "image": "registry/" + name}}},
		"status": object{"phase": "Running", "containerStatuses": []object{
			{"name": "main", "ready": true, "state": object{"running": object{}}},
		}},
	}
}

// crash makes a pod crash and restart for ever.
func crash(p object) {
	p["status"] = object{"phase": "Running", "containerStatuses": []object{{
		"name": "main", "ready": false, "restartCount": 7,
		"state":     object{"waiting": object{"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
		"lastState": object{"terminated": object{"exitCode": 1, "reason": "Error"}},
	}}}
}

func (f *fake) pod(name string) object {
	for _, p := range f.pods {
		if p["metadata"].(object)["name"] == name {
			return p
		}
	}
	f.t.Fatalf("no pod %s", name)
	return nil
}

func (f *fake) remove(name string) {
	for i, p := range f.pods {
		if p["metadata"].(object)["name"] == name {
			f.pods = append(f.pods[:i:i], f.pods[i+1:]...)
			return
		}
	}
	f.t.Fatalf("no pod %s", name)
}

// advertise sets capacity and allocatable of a resource.
func (f *fake) advertise(name string, capacity, allocatable int) {
	status := f.node["status"].(object)
	status["capacity"].(object)[name] = strconv.Itoa(capacity)
	status["allocatable"].(object)[name] = strconv.Itoa(allocatable)
}

func (f *fake) unadvertise(name string) {
	status := f.node["status"].(object)
	delete(status["capacity"].(object), name)
	delete(status["allocatable"].(object), name)
}

// cluster serves the fake.
func (f *fake) cluster() *Cluster {
	server := httptest.NewServer(f)
	f.t.Cleanup(server.Close)
	c, err := NewCluster(&rest.Config{Host: server.URL})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fail := func(code int, reason string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason + " " + r.URL.Path})
	}
	if f.broken {
		fail(http.StatusInternalServerError, "InternalError")
		return
	}
	for _, end := range f.forbidden {
		if strings.HasSuffix(r.Method+" "+r.URL.Path, end) {
			fail(http.StatusForbidden, "Forbidden")
			return
		}
	}
	send := func(o any) { _ = json.NewEncoder(w).Encode(o) }
	items := func(all []object, there bool) {
		if !there {
			fail(http.StatusNotFound, "NotFound")
			return
		}
		send(object{"kind": "List", "items": all})
	}
	switch path := r.URL.Path; {
	case r.Method == http.MethodPost && path == "/api/v1/namespaces/default/pods":
		body, _ := io.ReadAll(r.Body)
		f.made = object{}
		_ = json.Unmarshal(body, &f.made)
		f.made["metadata"].(object)["name"] = "gpu-labeller-doctor-abcde"
		f.made["metadata"].(object)["namespace"] = "default"
		send(f.made)
	case r.Method == http.MethodDelete:
		f.deleted = true
		send(object{})
	case path == "/api/v1/nodes/node-a":
		send(f.nodeObject())
	case path == "/api/v1/pods":
		items(f.pods, true)
	case path == "/apis/apps/v1/daemonsets":
		items(f.daemonSets, true)
	case path == "/apis/nfd.k8s-sigs.io/v1alpha1" && f.nfd:
		send(object{"resources": []object{{"name": "nodefeatures"}}})
	case path == "/apis/node.k8s.io/v1/runtimeclasses/nvidia" && f.class != "":
		send(object{"handler": f.class})
	case path == "/apis/nvidia.com/v1/clusterpolicies":
		items(f.policies, f.policies != nil)
	case path == "/apis/resource.k8s.io/v1/resourceslices":
		items(f.slices, f.slices != nil)
	case strings.HasSuffix(path, "/events"):
		items(f.events, true)
	case strings.HasSuffix(path, "/pods/gpu-labeller-doctor-abcde"):
		f.made["status"] = object{"phase": f.phases[0]}
		f.made["spec"].(object)["nodeName"] = "node-a"
		if f.phases[0] == "Unscheduled" {
			f.made["status"] = object{"phase": "Pending", "conditions": []object{{"type": "PodScheduled", "status": "False", "message": "Insufficient nvidia.com/gpu"}}}
			delete(f.made["spec"].(object), "nodeName")
		}
		if len(f.phases) > 1 {
			f.phases = f.phases[1:]
		}
		send(f.made)
	case strings.HasSuffix(path, "/pods/gpu-labeller-doctor-abcde/log"):
		fmt.Fprint(w, f.log)
	case strings.HasPrefix(path, "/api/v1/namespaces/"):
		name := path[strings.LastIndex(path, "/")+1:]
		for _, p := range f.pods {
			if p["metadata"].(object)["name"] == name {
				send(p)
				return
			}
		}
		fail(http.StatusNotFound, "NotFound")
	default:
		fail(http.StatusNotFound, "NotFound")
	}
}

// nodeObject is the Node with its labels and their managers.
func (f *fake) nodeObject() object {
	fields := map[string]object{}
	for key := range f.labels {
		manager := f.manager[key]
		if manager == "" {
			manager = "gpu-labeller"
		}
		if fields[manager] == nil {
			fields[manager] = object{}
		}
		fields[manager]["f:"+key] = object{}
	}
	var managed []object
	for _, manager := range sortedKeys(fields) {
		managed = append(managed, object{"manager": manager, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": object{"f:metadata": object{"f:labels": fields[manager]}}})
	}
	n := maps.Clone(f.node)
	n["metadata"] = object{"name": "node-a", "labels": f.labels, "managedFields": managed}
	return n
}
