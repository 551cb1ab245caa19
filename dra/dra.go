// Package dra reads ResourceSlices (resource.k8s.io): what a driver of dynamic
// resource allocation publishes of a node's devices.
package dra

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/yaml"

	"github.com/gpu-labeller/gpu-labeller/publish"
)

// NVIDIA is the name of NVIDIA's driver for GPUs.
const NVIDIA = "gpu.nvidia.com"

// Slice is a ResourceSlice.
type Slice struct {
	Spec struct {
		Driver   string `json:"driver"`
		NodeName string `json:"nodeName"`
		Pool     struct {
			Name       string `json:"name"`
			Generation int64  `json:"generation"`
		} `json:"pool"`
		Devices []Device `json:"devices"`
	} `json:"spec"`
}

// Device is a device as its driver describes it.
type Device struct {
	Name       string               `json:"name"`
	Attributes map[string]Attribute `json:"attributes"`
	Capacity   map[string]Capacity  `json:"capacity"`
	Taints     []Taint              `json:"taints"`
}

// Attribute is a value of one of several kinds. Those that are not here, a number
// and a truth value, are left out.
type Attribute struct {
	String  string `json:"string"`
	Version string `json:"version"` // semantic: 580.95.5 for NVIDIA's 580.95.05
}

// Capacity is how much of something a device has.
type Capacity struct {
	Value string `json:"value"` // a quantity: 15Gi
}

// Taint keeps claims that do not tolerate it away from a device.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

// UnmarshalJSON reads a device of v1 and v1beta2, or of v1beta1, where all but the
// name stands one level deeper.
func (d *Device) UnmarshalJSON(content []byte) error {
	type device Device // without this method
	var both struct {
		device
		Basic *device `json:"basic"`
	}
	if err := json.Unmarshal(content, &both); err != nil {
		return err
	}
	*d = Device(both.device)
	if both.Basic != nil {
		*d = Device(*both.Basic)
		d.Name = both.Name
	}
	return nil
}

// Parse reads a ResourceSlice or a list of them, as kubectl get prints it with -o
// json or -o yaml, and as the API server answers.
func Parse(content []byte) ([]Slice, error) {
	var object struct {
		Kind string `json:"kind"`
		Slice
		Items []Slice `json:"items"`
	}
	if err := unmarshal(content, &object); err == nil {
		switch {
		case object.Kind == "ResourceSlice":
			return []Slice{object.Slice}, nil
		case strings.HasSuffix(object.Kind, "List"):
			return object.Items, nil
		}
	}
	return nil, errors.New("no ResourceSlices as kubectl get resourceslices -o yaml or -o json prints them")
}

// unmarshal reads JSON or YAML. As YAML, JSON would take longer, and not all of it
// is.
func unmarshal(content []byte, into any) error {
	if json.Valid(content) {
		return json.Unmarshal(content, into)
	}
	return yaml.Unmarshal(content, into)
}

// ErrAbsent is List's error where the API server has no ResourceSlices.
var ErrAbsent = errors.New("the cluster has no ResourceSlices: dynamic resource allocation (DRA) needs Kubernetes 1.34, or an older one with its feature gate")

// List asks the API server for the slices of a Node. The error is ErrAbsent, or a
// *publish.ForbiddenError where the right is missing.
func List(ctx context.Context, client *publish.Client, node string) ([]Slice, error) {
	const resource = "resourceslices.resource.k8s.io"
	ofNode := url.Values{"fieldSelector": {"spec.nodeName=" + node}}
	// v1 came with Kubernetes 1.34.
	for _, version := range []string{"v1", "v1beta2", "v1beta1"} {
		content, err := client.Get(ctx, "list", resource, "/apis/resource.k8s.io/"+version+"/resourceslices", ofNode)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all, err := Parse(content)
		if err != nil {
			return nil, fmt.Errorf("the API server's answer for %s: %w", resource, err)
		}
		return all, nil
	}
	return nil, ErrAbsent
}

// Devices gives the devices that a driver publishes, of the newest generation of
// each pool.
func Devices(all []Slice, driver string) []Device {
	newest := map[string]int64{}
	for _, s := range all {
		if s.Spec.Driver == driver {
			newest[s.Spec.Pool.Name] = max(newest[s.Spec.Pool.Name], s.Spec.Pool.Generation)
		}
	}
	var devices []Device
	for _, s := range all {
		if s.Spec.Driver == driver && s.Spec.Pool.Generation == newest[s.Spec.Pool.Name] {
			devices = append(devices, s.Spec.Devices...)
		}
	}
	return devices
}

// SameVersion compares versions as numbers, part by part: in semantic versions,
// as attributes want them, 535.54.03 is 535.54.3, and 13.0 is 13.0.0.
func SameVersion(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	part := func(parts []string, i int) string {
		if i >= len(parts) {
			return "0"
		}
		return cmp.Or(strings.TrimLeft(parts[i], "0"), "0")
	}
	for i := range max(len(x), len(y)) {
		if part(x, i) != part(y, i) {
			return false
		}
	}
	return true
}
