package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// NodeFeature publishes labels in a NodeFeature object of our own, from which NFD
// (v0.17 and newer) labels the Node. It needs the verbs get, create and update on
// nodefeatures.nfd.k8s-sigs.io in Namespace; delete, if granted, is used to
// withdraw. The object is ours as a whole, apart from what others add to its
// metadata.
type NodeFeature struct {
	Client    *Client
	Namespace string // our own; NFD merges objects from all of them
	NodeName  string // at most 63 characters: NFD finds the object by a label

	// ObjectName is the object's name. Default
	// gpu-labeller-features-for-NODENAME.
	ObjectName string

	// Owners are the objects with which the NodeFeature goes, see PodOwners. If
	// empty, those that the object has are left alone.
	Owners []metav1.OwnerReference

	// AskOwners, if not nil, gives Owners. Each Publish asks until it has no error,
	// and again when the object has others: the DaemonSet may have been replaced.
	// The labels do not wait for it longer than ownersTime.
	AskOwners func(context.Context) ([]metav1.OwnerReference, error)

	asked  bool // AskOwners has answered
	repair repair

	// Instead is the end of errors that say that NFD is no way, with another one:
	// "; or write a file". Empty for none.
	Instead string
}

// ownersTime is how long the labels wait for AskOwners. An owner that comes late is
// written with the next Publish.
const ownersTime = 2 * time.Second

// nodeNameLabel is where NFD looks for the Node's name. An object without it is
// ignored, and deleted by NFD's garbage collector (NFD v0.19).
const nodeNameLabel = "nfd.node.kubernetes.io/node-name"

// nodeFeature is the object, in nfd.k8s-sigs.io/v1alpha1. Its schema requires
// spec.
type nodeFeature struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              nodeFeatureSpec `json:"spec"`
}

type nodeFeatureSpec struct {
	Features features          `json:"features"`
	Labels   map[string]string `json:"labels"`
}

// features is empty: we publish labels only. Its maps must not be nil, which
// would be null in JSON.
type features struct {
	Flags      map[string]any `json:"flags"`
	Attributes map[string]any `json:"attributes"`
	Instances  map[string]any `json:"instances"`
}

func (n *NodeFeature) String() string {
	return fmt.Sprintf("NodeFeature %s/%s", n.Namespace, n.objectName())
}

// Publish implements Sink with one read, and one write if there is something to
// change; a write that another one overtook is made again, a few times. Errors to
// test for: *ForbiddenError, *UnansweredError, ErrNoNodeFeatures, and RetryAfter.
func (n *NodeFeature) Publish(ctx context.Context, set labels.Set) error {
	if err := n.publish(ctx, set); err != nil {
		return fmt.Errorf("%v: %w", n, err)
	}
	return nil
}

func (n *NodeFeature) publish(ctx context.Context, set labels.Set) error {
	if len(n.NodeName) > validation.LabelValueMaxLength {
		return fmt.Errorf("the node's name %q has %d characters, and NFD serves no Node with more than %d by this API%s",
			n.NodeName, len(n.NodeName), validation.LabelValueMaxLength, n.Instead)
	}
	asked := n.asked
	if !asked && len(set) > 0 {
		n.askOwners(ctx)
	}
	n.repair.begin()
	for try := 1; ; try++ {
		found, more, err := n.publishOnce(ctx, set, asked)
		overtaken := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
		if err == nil {
			n.repair.finish(found, set, more)
		} else {
			n.repair.fail(err, set)
		}
		if !overtaken || try == 4 {
			return err
		}
	}
}

// publishOnce may find that the owners were asked for too long ago (old). It gives the
// labels that the object had, and whether more in it was changed than those.
func (n *NodeFeature) publishOnce(ctx context.Context, set labels.Set, old bool) (found labels.Set, more bool, err error) {
	live, err := n.read(ctx)
	switch {
	case apierrors.IsNotFound(err):
		if len(set) == 0 {
			return nil, false, nil
		}
		want := n.want(&nodeFeature{}, set)
		return nil, false, n.create(ctx, want)
	case err != nil:
		return nil, false, err
	case len(set) == 0:
		return nil, false, n.withdraw(ctx, live)
	}
	if old && len(n.Owners) > 0 && !sameOwners(live.OwnerReferences, n.Owners) {
		n.askOwners(ctx)
	}
	want := n.want(live, set)
	if !sameNodeFeature(live, want) {
		more = live.Labels[nodeNameLabel] != n.NodeName || !live.Spec.Features.empty() || !within(live.Spec.Labels, n.repair.left)
	}
	return live.Spec.Labels, more, n.update(ctx, live, want)
}

// within tells that all keys of set are ones of other.
func within(set, other map[string]string) bool {
	for key := range set {
		if _, ok := other[key]; !ok {
			return false
		}
	}
	return true
}

// askOwners takes what AskOwners answers, if it does.
func (n *NodeFeature) askOwners(ctx context.Context) {
	if n.AskOwners == nil {
		return
	}
	limited, cancel := context.WithTimeout(ctx, ownersTime)
	defer cancel()
	if owners, err := n.AskOwners(limited); err == nil {
		n.Owners, n.asked = owners, true
	}
}

// want returns live as it should be.
func (n *NodeFeature) want(live *nodeFeature, set labels.Set) *nodeFeature {
	want := *live
	want.TypeMeta = metav1.TypeMeta{APIVersion: "nfd.k8s-sigs.io/v1alpha1", Kind: "NodeFeature"}
	want.Name, want.Namespace = n.objectName(), n.Namespace
	want.Labels = map[string]string{}
	maps.Copy(want.Labels, live.Labels)
	want.Labels[nodeNameLabel] = n.NodeName
	if len(n.Owners) > 0 {
		want.OwnerReferences = n.Owners
	}
	want.Spec = nodeFeatureSpec{
		Features: features{Flags: map[string]any{}, Attributes: map[string]any{}, Instances: map[string]any{}},
		Labels:   map[string]string{},
	}
	maps.Copy(want.Spec.Labels, set)
	return &want
}

// withdraw deletes the object, or empties it if we may not delete: the GPU
// operator's role, for one, lacks that verb.
func (n *NodeFeature) withdraw(ctx context.Context, live *nodeFeature) error {
	options, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: metav1.NewUIDPreconditions(string(live.UID)),
	})
	if err != nil {
		return err
	}
	_, err = n.Client.do(ctx, "delete", nodeFeatures,
		n.Client.nfd.Delete().Namespace(n.Namespace).Resource("nodefeatures").Name(n.objectName()).Body(options))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err):
		return n.update(ctx, live, n.want(live, nil))
	}
	return err
}

// update writes want, if it says something else than live.
func (n *NodeFeature) update(ctx context.Context, live, want *nodeFeature) error {
	if sameNodeFeature(live, want) {
		return nil
	}
	body, err := json.Marshal(want)
	if err != nil {
		return err
	}
	// It carries live's resourceVersion.
	_, err = n.Client.do(ctx, "update", nodeFeatures,
		n.Client.nfd.Put().Namespace(n.Namespace).Resource("nodefeatures").Name(n.objectName()).
			Param("fieldManager", FieldManager).Body(body))
	return err
}

func sameNodeFeature(a, b *nodeFeature) bool {
	return maps.Equal(a.Labels, b.Labels) &&
		sameOwners(a.OwnerReferences, b.OwnerReferences) &&
		maps.Equal(a.Spec.Labels, b.Spec.Labels) &&
		a.Spec.Features.empty() == b.Spec.Features.empty()
}

func (f features) empty() bool {
	return len(f.Flags) == 0 && len(f.Attributes) == 0 && len(f.Instances) == 0
}

// nodeFeatures is the resource as a Role names it.
const nodeFeatures = "nodefeatures.nfd.k8s-sigs.io"

func (n *NodeFeature) create(ctx context.Context, want *nodeFeature) error {
	body, err := json.Marshal(want)
	if err != nil {
		return err
	}
	_, err = n.Client.do(ctx, "create", nodeFeatures,
		n.Client.nfd.Post().Namespace(n.Namespace).Resource("nodefeatures").
			Param("fieldManager", FieldManager).Body(body))
	return err
}

// read returns the object; the error says IsNotFound if there is none, and is
// ErrNoNodeFeatures if there cannot be one.
func (n *NodeFeature) read(ctx context.Context) (*nodeFeature, error) {
	body, err := n.Client.do(ctx, "get", nodeFeatures,
		n.Client.nfd.Get().Namespace(n.Namespace).Resource("nodefeatures").Name(n.objectName()))
	if apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		// 404 page not found, in plain text: the path itself is unknown.
		return nil, fmt.Errorf("%w%s", ErrNoNodeFeatures, n.Instead)
	}
	if err != nil {
		return nil, err
	}
	var live nodeFeature
	if err := json.Unmarshal(body, &live); err != nil {
		return nil, fmt.Errorf("the API server's answer: %w", err)
	}
	return &live, nil
}

func (n *NodeFeature) objectName() string {
	if n.ObjectName == "" {
		return FieldManager + "-features-for-" + n.NodeName
	}
	return n.ObjectName
}
