package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// Features are those of dynamic resource allocation that a scheduler of
// Kubernetes 1.37 has by default.
var Features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true,
	DeviceTaints: true, DeviceBindingAndStatus: true, ConsumableCapacity: true,
}

// selectors compiles and remembers the expressions that select devices.
var selectors = cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})

// Selectors is the compiled expressions, for the allocator.
func Selectors() *cel.Cache { return selectors }

// Device is a device that a DRA driver offers in a ResourceSlice.
type Device struct {
	Driver, Pool string
	*resourcev1.Device
}

// ID names a device in the whole cluster.
func (d Device) ID() structured.DeviceID { return structured.MakeDeviceID(d.Driver, d.Pool, d.Name) }

// Devices returns the devices that a Node can use, sorted by driver and name. Of
// each pool only the newest generation counts.
func (c *Cluster) Devices(node *corev1.Node) ([]Device, error) {
	type pool struct{ driver, name string }
	newest := make(map[pool]int64)
	for _, s := range c.Slices {
		p := pool{s.Spec.Driver, s.Spec.Pool.Name}
		newest[p] = max(newest[p], s.Spec.Pool.Generation)
	}
	var devices []Device
	for _, s := range c.Slices {
		if s.Spec.Pool.Generation < newest[pool{s.Spec.Driver, s.Spec.Pool.Name}] {
			continue
		}
		perDevice := ptr.Deref(s.Spec.PerDeviceNodeSelection, false)
		if !perDevice {
			ok, err := structured.NodeMatches(Features, node, ptr.Deref(s.Spec.NodeName, ""), ptr.Deref(s.Spec.AllNodes, false), s.Spec.NodeSelector)
			if err != nil {
				return nil, fmt.Errorf("ResourceSlice %s: %w", s.Name, err)
			}
			if !ok {
				continue
			}
		}
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			if perDevice {
				ok, err := structured.NodeMatches(Features, node, ptr.Deref(d.NodeName, ""), ptr.Deref(d.AllNodes, false), d.NodeSelector)
				if err != nil {
					return nil, fmt.Errorf("ResourceSlice %s: device %s: %w", s.Name, d.Name, err)
				}
				if !ok {
					continue
				}
			}
			devices = append(devices, Device{s.Spec.Driver, s.Spec.Pool.Name, d})
		}
	}
	slices.SortFunc(devices, func(a, b Device) int {
		return cmp.Or(strings.Compare(a.Driver, b.Driver), strings.Compare(a.Pool, b.Pool), strings.Compare(a.Name, b.Name))
	})
	return devices, nil
}

// Matches evaluates a CEL expression on a device, as the scheduler does. The error
// says what is wrong with the expression, or that it reads an attribute that the
// device lacks.
func (d Device) Matches(ctx context.Context, expression string) (bool, error) {
	compiled := selectors.GetOrCompile(expression)
	if compiled.Error != nil {
		return false, compiled.Error
	}
	ok, _, err := compiled.DeviceMatches(ctx, cel.Device{
		Driver: d.Driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	return ok, err
}

// matchesAll reports whether a device matches all selectors. One that cannot be
// evaluated does not match.
func (d Device) matchesAll(ctx context.Context, selectors []resourcev1.DeviceSelector) bool {
	for _, s := range selectors {
		if s.CEL == nil {
			return false
		}
		if ok, err := d.Matches(ctx, s.CEL.Expression); err != nil || !ok {
			return false
		}
	}
	return true
}

// Class returns the DeviceClass of a name, or nil.
func (c *Cluster) Class(name string) *resourcev1.DeviceClass {
	i := slices.IndexFunc(c.Classes, func(class *resourcev1.DeviceClass) bool { return class.Name == name })
	if i < 0 {
		return nil
	}
	return c.Classes[i]
}

// Allocated is the devices that claims hold.
type Allocated struct {
	State   structured.AllocatedState
	Holders map[structured.DeviceID][]string // claims, or the pods they are reserved for
}

// Allocated gathers the devices that are allocated, other than for administration.
func (c *Cluster) Allocated() Allocated {
	a := Allocated{
		State: structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		},
		Holders: make(map[structured.DeviceID][]string),
	}
	for _, claim := range c.Claims {
		if claim.Status.Allocation == nil {
			continue
		}
		holder := claimHolder(claim)
		for _, r := range claim.Status.Allocation.Devices.Results {
			if ptr.Deref(r.AdminAccess, false) {
				continue
			}
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			if !slices.Contains(a.Holders[id], holder) {
				a.Holders[id] = append(a.Holders[id], holder)
			}
			if r.ShareID == nil {
				a.State.AllocatedDevices.Insert(id)
				continue
			}
			a.State.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			if r.ConsumedCapacity != nil {
				a.State.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
			}
		}
	}
	for _, holders := range a.Holders {
		slices.Sort(holders)
	}
	return a
}

// claimHolder is the pods that a claim is reserved for, or the claim itself.
func claimHolder(claim *resourcev1.ResourceClaim) string {
	var pods []string
	for _, r := range claim.Status.ReservedFor {
		if r.Resource == "pods" {
			pods = append(pods, Name(claim.Namespace, r.Name))
		}
	}
	if len(pods) == 0 {
		return "claim " + Name(claim.Namespace, claim.Name)
	}
	return strings.Join(pods, " and ")
}

// Value writes an attribute's value as people read it.
func Value(a resourcev1.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.IntValue != nil:
		return strconv.FormatInt(*a.IntValue, 10)
	case a.BoolValue != nil:
		return strconv.FormatBool(*a.BoolValue)
	}
	return "a list"
}
