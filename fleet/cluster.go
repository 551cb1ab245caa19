// Package fleet counts the GPUs of a cluster: which Nodes have which, how many
// are requested and by whom, and how a pod asks for them. It works on objects
// that were read before; it asks no API server.
package fleet

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// Cluster is the objects that scheduling goes by, as the API server gave them.
type Cluster struct {
	Nodes     []*corev1.Node
	Pods      []*corev1.Pod // of all namespaces
	Claims    []*resourcev1.ResourceClaim
	Templates []*resourcev1.ResourceClaimTemplate
	Classes   []*resourcev1.DeviceClass
	Slices    []*resourcev1.ResourceSlice

	Unread []Unread
}

// Unread is a kind of object that could not be read.
type Unread struct {
	Kind Kind   `json:"kind"`
	Why  string `json:"why"` // a sentence with the right that is lacking
}

// Kind is a kind of object, in the plural, as rights name it.
type Kind string

// The kinds that can be unread.
const (
	Pods      Kind = "pods"
	Claims    Kind = "resourceclaims"
	Templates Kind = "resourceclaimtemplates"
	Classes   Kind = "deviceclasses"
	Slices    Kind = "resourceslices"
)

// Knows reports whether all of these kinds were read.
func (c *Cluster) Knows(kinds ...Kind) bool {
	return !slices.ContainsFunc(c.Unread, func(u Unread) bool { return slices.Contains(kinds, u.Kind) })
}

// Name is how people write an object's name.
func Name(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// PodName is namespace/name of a pod.
func PodName(pod *corev1.Pod) string { return Name(pod.Namespace, pod.Name) }
