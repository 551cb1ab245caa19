package publish

import (
	"context"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodOwners returns references to the DaemonSet that the pod belongs to and to
// the pod, for NodeFeature: so the object goes when the DaemonSet is
// deleted, and survives restarts and upgrades of it. It is empty for a pod of no
// DaemonSet, with which the object would go at every restart. The verb get on
// pods is needed.
func PodOwners(ctx context.Context, client *Client, namespace, pod string) ([]metav1.OwnerReference, error) {
	body, err := client.do(ctx, "get", "pods",
		client.core.Get().Namespace(namespace).Resource("pods").Name(pod).SetHeader("Accept", metadataOnly))
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, pod, err)
	}
	meta, err := decodeMetadata(body)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, pod, err)
	}
	owners := daemonSets(meta.OwnerReferences)
	if len(owners) == 0 {
		return nil, nil
	}
	return append(owners, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod, UID: meta.UID}), nil
}

func daemonSets(all []metav1.OwnerReference) []metav1.OwnerReference {
	var owners []metav1.OwnerReference
	for _, o := range all {
		if o.Kind == "DaemonSet" && o.APIVersion == "apps/v1" {
			// Neither controller nor blocking: that would need the verb update on
			// its finalizers.
			owners = append(owners, metav1.OwnerReference{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: o.UID})
		}
	}
	return owners
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return reflect.DeepEqual(lasting(a), lasting(b))
}

// lasting are the owners by which an object is kept or goes. A pod beside its
// DaemonSet is neither: that it was replaced is no reason to write, which would
// make NFD look at the node again.
func lasting(owners []metav1.OwnerReference) []metav1.OwnerReference {
	var kept []metav1.OwnerReference
	for _, o := range owners {
		if o.Kind != "Pod" {
			kept = append(kept, o)
		}
	}
	return kept
}
