package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"

	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// objects is what a file has: a cluster's objects, and what makes pods.
type objects struct {
	fleet.Cluster
	workloads []*workload

	// strict: what the API server would refuse of a new object is an error.
	strict bool
}

// workload is what makes pods of a template: a Deployment and the like.
type workload struct {
	kind     string // as the API has it, Deployment
	replicas int64  // 0 if it does not say: a DaemonSet
	selector *metav1.LabelSelector
	pod      *corev1.Pod // with the workload's name and namespace
}

func (w *workload) String() string { return w.kind + " " + fleet.PodName(w.pod) }

// open opens a file, or gives standard input for -.
func open(file string, stdin io.Reader) (io.ReadCloser, error) {
	if file == "-" {
		return io.NopCloser(stdin), nil
	}
	return os.Open(file)
}

// readObjects reads the objects of a file.
func readObjects(file string, stdin io.Reader, strict bool) (*objects, error) {
	in, err := open(file, stdin)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return decodeObjects(file, in, strict)
}

// decodeObjects reads YAML or JSON documents, and lists of them. Kinds that say
// nothing about placement are passed over. Errors name the file.
func decodeObjects(file string, in io.Reader, strict bool) (*objects, error) {
	o := &objects{strict: strict}
	d := utilyaml.NewYAMLOrJSONDecoder(bufio.NewReader(in), 4096)
	for n := 1; ; n++ {
		var raw json.RawMessage
		if err := d.Decode(&raw); errors.Is(err, io.EOF) {
			return o, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", file, n, err)
		}
		if err := o.add(raw); err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", file, n, err)
		}
	}
}

// owner is what is common to the kinds that make pods.
type owner struct {
	Kind     string
	Metadata struct{ Namespace, Name string }
	Items    []json.RawMessage
	Spec     struct {
		Replicas    *int64
		Parallelism *int64
		Selector    *metav1.LabelSelector
		Template    *corev1.PodTemplateSpec
		JobTemplate struct {
			Spec struct {
				Parallelism *int64
				Template    *corev1.PodTemplateSpec
			}
		}
	}
}

func (o *objects) add(raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil // a document of comments
	}
	var kind struct {
		APIVersion, Kind string
		Metadata         struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		return err
	}
	// What the API server has taken may be of a later version than ours.
	strict := o.strict && kind.Metadata.ResourceVersion == ""
	if strict {
		if err := knownFields(kind.APIVersion, kind.Kind, raw); err != nil {
			return err
		}
	}
	switch kind.Kind {
	case "Node":
		return appendTo(&o.Nodes, raw)
	case "Pod":
		if err := appendTo(&o.Pods, raw); err != nil {
			return err
		}
		return o.complete(o.Pods[len(o.Pods)-1], strict)
	case "ResourceClaim":
		if err := appendTo(&o.Claims, raw); err != nil {
			return err
		}
		setClaimDefaults(&o.Claims[len(o.Claims)-1].Spec)
		return nil
	case "ResourceClaimTemplate":
		if err := appendTo(&o.Templates, raw); err != nil {
			return err
		}
		setClaimDefaults(&o.Templates[len(o.Templates)-1].Spec.Spec)
		return nil
	case "DeviceClass":
		return appendTo(&o.Classes, raw)
	case "ResourceSlice":
		return appendTo(&o.Slices, raw)
	case "":
		return errors.New("it has no kind: is it a Kubernetes object?")
	}
	var w owner
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil // a spec of another form: none that makes pods
	}
	for _, item := range w.Items {
		if err := o.add(item); err != nil {
			return err
		}
	}
	template, replicas := w.Spec.Template, cmp.Or(w.Spec.Replicas, w.Spec.Parallelism)
	if template == nil {
		template, replicas = w.Spec.JobTemplate.Spec.Template, w.Spec.JobTemplate.Spec.Parallelism
	}
	if template == nil {
		return nil
	}
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace = w.Metadata.Name, w.Metadata.Namespace
	o.workloads = append(o.workloads, &workload{kind: w.Kind, replicas: ptr.Deref(replicas, 0), selector: w.Spec.Selector, pod: pod})
	return o.complete(pod, strict)
}

// complete does with a new pod what the API server does.
func (o *objects) complete(pod *corev1.Pod, strict bool) error {
	if strict {
		if err := admissible(pod); err != nil {
			return err
		}
	}
	setDefaults(pod)
	return nil
}

func appendTo[T any](to *[]*T, raw json.RawMessage) error {
	t := new(T)
	if err := json.Unmarshal(raw, t); err != nil {
		return err
	}
	*to = append(*to, t)
	return nil
}

// setDefaults does what the API server does to a new pod, as far as it matters
// here: what is limited and not requested is requested.
func setDefaults(pod *corev1.Pod) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			r := &containers[i].Resources
			for name, q := range r.Limits {
				if _, ok := r.Requests[name]; ok {
					continue
				}
				if r.Requests == nil {
					r.Requests = make(corev1.ResourceList)
				}
				r.Requests[name] = q
			}
		}
	}
}

// setClaimDefaults likewise: a request is for one device.
func setClaimDefaults(spec *resourcev1.ResourceClaimSpec) {
	set := func(mode *resourcev1.DeviceAllocationMode, count *int64) {
		if *mode == "" {
			*mode = resourcev1.DeviceAllocationModeExactCount
		}
		if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
			*count = 1
		}
	}
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if r.Exactly != nil {
			set(&r.Exactly.AllocationMode, &r.Exactly.Count)
		}
		for j := range r.FirstAvailable {
			set(&r.FirstAvailable[j].AllocationMode, &r.FirstAvailable[j].Count)
		}
	}
}
