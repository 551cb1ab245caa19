package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// objects is what a file has: a cluster's objects, and the pods of templates
// (Deployments and the like).
type objects struct {
	fleet.Cluster
	templates []*corev1.Pod
}

// open opens a file, or gives standard input for -.
func open(file string, stdin io.Reader) (io.ReadCloser, error) {
	if file == "-" {
		return io.NopCloser(stdin), nil
	}
	return os.Open(file)
}

// readObjects reads the objects of a file.
func readObjects(file string, stdin io.Reader) (*objects, error) {
	in, err := open(file, stdin)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return decodeObjects(file, in)
}

// decodeObjects reads YAML or JSON documents, and lists of them. Kinds that say
// nothing about placement are passed over. Errors name the file.
func decodeObjects(file string, in io.Reader) (*objects, error) {
	o := new(objects)
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
		Template    *corev1.PodTemplateSpec
		JobTemplate struct {
			Spec struct{ Template *corev1.PodTemplateSpec }
		}
	}
}

func (o *objects) add(raw json.RawMessage) error {
	var kind struct{ Kind string }
	if err := json.Unmarshal(raw, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "Node":
		return appendTo(&o.Nodes, raw)
	case "Pod":
		if err := appendTo(&o.Pods, raw); err != nil {
			return err
		}
		setDefaults(o.Pods[len(o.Pods)-1])
		return nil
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
		if len(raw) == 0 || string(raw) == "null" {
			return nil
		}
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
	template := w.Spec.Template
	if template == nil {
		template = w.Spec.JobTemplate.Spec.Template
	}
	if template != nil {
		pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		pod.Name, pod.Namespace = w.Metadata.Name, w.Metadata.Namespace
		setDefaults(pod)
		o.templates = append(o.templates, pod)
	}
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
