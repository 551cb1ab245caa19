package publish

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DaemonSetOwner returns references to the DaemonSet that the pod belongs to, for
// NodeFeature.Owners: so the object goes when the DaemonSet is deleted, and
// survives restarts and upgrades of it. It is empty for a pod of none. The verb
// get on pods is needed.
//
// The pod is not among the owners, though NFD's own worker names both: an object
// stays while one of its owners does, so the pod adds nothing but a write, and
// work for NFD, each time that it is replaced; and as the only owner it takes the
// labels with it.
func DaemonSetOwner(ctx context.Context, client *Client, namespace, pod string) ([]metav1.OwnerReference, error) {
	body, err := client.do(ctx, "get", "pods",
		client.core.Get().Namespace(namespace).Resource("pods").Name(pod).SetHeader("Accept", metadataOnly))
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, pod, err)
	}
	meta, err := decodeMetadata(body)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, pod, err)
	}
	return daemonSets(meta.OwnerReferences), nil
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
