package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// NodeLabels reads all labels of a Node, whoever set them. It needs the verb get
// on nodes. The error is ErrNoNode when there is no such Node.
func (c *Client) NodeLabels(ctx context.Context, name string) (labels.Set, error) {
	live, err := (&Node{Client: c, Name: name}).read(ctx)
	if err != nil {
		return nil, fmt.Errorf("Node %q: %w", name, err)
	}
	return live.Labels, nil
}

// Owned names the Nodes that carry labels of ours, or that others set under keys
// of ours, in the API server's order. It needs the verb list on nodes. An empty
// manager means FieldManager.
func (c *Client) Owned(ctx context.Context, manager string) ([]string, error) {
	n := Node{FieldManager: manager}
	var names []string
	err := c.list(ctx, "nodes", func() *rest.Request { return c.core.Get().Resource("nodes") }, func(meta *metav1.ObjectMeta) {
		p := n.plan(&metav1.PartialObjectMetadata{ObjectMeta: *meta}, nil)
		if p.write || len(p.stale) > 0 {
			names = append(names, meta.Name)
		}
	})
	return names, err
}

// NodeFeatures are the NodeFeatures of ours, under their default names, in namespace;
// in all of them if it is empty. It needs the verb list on nodefeatures. A cluster
// without that resource has none.
func (c *Client) NodeFeatures(ctx context.Context, namespace string) ([]*NodeFeature, error) {
	var all []*NodeFeature
	err := c.list(ctx, nodeFeatures, func() *rest.Request {
		return c.nfd.Get().Namespace(namespace).Resource("nodefeatures")
	}, func(meta *metav1.ObjectMeta) {
		n := &NodeFeature{Client: c, Namespace: meta.Namespace, NodeName: meta.Labels[nodeNameLabel]}
		if n.NodeName != "" && meta.Name == n.objectName() {
			all = append(all, n)
		}
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return all, err
}

// list calls each with the metadata of every object that get lists, in pages.
func (c *Client) list(ctx context.Context, resource string, get func() *rest.Request, each func(*metav1.ObjectMeta)) error {
	more := ""
	for {
		body, err := c.do(ctx, "list", resource, get().Param("limit", "250").Param("continue", more).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"))
		if err != nil {
			return err
		}
		var page metav1.PartialObjectMetadataList
		if err := json.Unmarshal(body, &page); err != nil {
			return fmt.Errorf("the API server's answer: %w", err)
		}
		for i := range page.Items {
			each(&page.Items[i].ObjectMeta)
		}
		if more = page.Continue; more == "" {
			return nil
		}
	}
}

// HasNodeFeatures tells whether the cluster knows NodeFeature objects, which it
// does where NFD is installed.
func (c *Client) HasNodeFeatures(ctx context.Context) (bool, error) {
	body, err := c.do(ctx, "get", "the API group nfd.k8s-sigs.io", c.nfd.Get())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(body, &list); err != nil {
		return false, fmt.Errorf("the API server's answer: %w", err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "nodefeatures" }), nil
}

// Event tells kubectl describe node what an operator should hear of, in the way
// of the kubelet: in the namespace default, about the Node. It needs the verb
// create on events there. A message is cut at 1,024 bytes, as the API server
// wants it.
func (c *Client) Event(ctx context.Context, node, reason, message string) error {
	now := time.Now()
	event := map[string]any{
		"apiVersion": "v1",
		"kind":       "Event",
		"metadata": map[string]any{
			"name":      fmt.Sprintf("%.200s.%x", node, now.UnixNano()),
			"namespace": metav1.NamespaceDefault,
		},
		// The kubelet puts the Node's name where its UID belongs, and so does
		// kubectl describe look for it.
		"involvedObject": map[string]any{"kind": "Node", "name": node, "uid": node, "apiVersion": "v1"},
		"reason":         reason,
		"message":        strings.ToValidUTF8(message[:min(len(message), 1024)], ""),
		"type":           "Warning",
		"source":         map[string]any{"component": FieldManager, "host": node},
		"firstTimestamp": metav1.NewTime(now),
		"lastTimestamp":  metav1.NewTime(now),
		"count":          1,
	}
	body, err := json.Marshal(event)
	if err != nil {
		return err
	}
	_, err = c.do(ctx, "create", "events", c.core.Post().Namespace(metav1.NamespaceDefault).Resource("events").Body(body))
	if err != nil {
		return fmt.Errorf("event: %w", err)
	}
	return nil
}
