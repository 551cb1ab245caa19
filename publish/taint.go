package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// Taint is a taint of a Node. The API server takes one of a key and effect.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"` // may be empty
	Effect string `json:"effect"`
}

// effects are what a taint may have: NoExecute ends pods that run already.
var effects = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}

// ParseTaint reads KEY[=VALUE]:EFFECT, as kubectl taint does. It refuses the
// keys under which Kubernetes itself taints Nodes.
func ParseTaint(s string) (Taint, error) {
	label, effect, _ := strings.Cut(s, ":")
	key, value, _ := strings.Cut(label, "=")
	t := Taint{key, value, effect}
	var wrong []string
	wrong = append(wrong, validation.IsQualifiedName(key)...)
	wrong = append(wrong, validation.IsValidLabelValue(value)...)
	namespace, _, _ := strings.Cut(key, "/")
	switch {
	case len(wrong) > 0:
		return t, fmt.Errorf("want KEY=VALUE:EFFECT: %s", wrong[0])
	case namespace != key && (namespace == "kubernetes.io" || strings.HasSuffix(namespace, ".kubernetes.io")):
		return t, fmt.Errorf("the taint %s is Kubernetes' own", key)
	}
	for _, e := range effects {
		if effect == e {
			return t, nil
		}
	}
	return t, fmt.Errorf("want KEY=VALUE:EFFECT, with the effect %s", strings.Join(effects, " or "))
}

func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// NodeTaint is the taint that a Node keeps beside its labels.
//
// The taint of that key, value and effect is ours, whoever set it: spec.taints is
// one field to the API server, so managedFields knows only who wrote it last, and
// that is soon the node lifecycle controller. All other taints stay as they are
// and where they are. So does one of the same key, which ConflictError.Taints
// names: with the same effect, it takes the place of ours.
type NodeTaint struct {
	Taint
	// Wanted tells by the labels whether the Node is to have the taint.
	Wanted func(labels.Set) bool
	// Changed is told each time that it was set or taken away; nil for no one.
	Changed func(set bool)
}

// taintTries is how often a taint is written in one Publish: the kubelet, and
// others that write the Node, may come between a read and a write.
const taintTries = 5

// taintedNode is what is read of a Node. A taint is kept as it is, with fields
// that are unknown here.
type taintedNode struct {
	metav1.PartialObjectMetadata
	Spec struct {
		Taints []json.RawMessage `json:"taints"`
	} `json:"spec"`
}

// keepTaint sets the taint or takes it away, with one read, and one write if
// there is something to change. It returns the taints of the same key that it
// left alone. n.mu is held.
func (n *Node) keepTaint(ctx context.Context, want bool) (left []string, err error) {
	for try := 1; ; try++ {
		live, err := n.readTaints(ctx)
		if err != nil {
			return nil, fmt.Errorf("taint %v: %w", n.Taint.Taint, err)
		}
		p, err := n.Taint.plan(live.Spec.Taints, want)
		if err != nil {
			return nil, err
		}
		if !p.write {
			n.tainted = noteTaints(&live.ObjectMeta)
			return p.left, nil
		}
		meta, err := n.writeTaints(ctx, live.ResourceVersion, p.taints)
		switch {
		case apierrors.IsConflict(err) && try < taintTries:
			continue
		case apierrors.IsNotFound(err):
			err = ErrNoNode
			fallthrough
		case err != nil:
			return nil, fmt.Errorf("taint %v: %w", n.Taint.Taint, err)
		}
		n.tainted = noteTaints(&meta.ObjectMeta)
		if n.Taint.Changed != nil {
			n.Taint.Changed(want)
		}
		return p.left, nil
	}
}

// taintPlan is what has to be done to the taints of a Node.
type taintPlan struct {
	taints []json.RawMessage // as they are to be
	left   []string          // of the same key, left alone
	write  bool
}

func (t Taint) plan(all []json.RawMessage, want bool) (taintPlan, error) {
	var p taintPlan
	have, blocked := false, false
	for _, raw := range all {
		var other Taint
		if err := json.Unmarshal(raw, &other); err != nil {
			return p, fmt.Errorf("the API server's answer: taints: %w", err)
		}
		if other == t {
			have = true
			if !want {
				continue
			}
		} else if other.Key == t.Key && want {
			p.left = append(p.left, other.String())
			blocked = blocked || other.Effect == t.Effect
		}
		p.taints = append(p.taints, raw)
	}
	if want && !have && !blocked {
		raw, err := json.Marshal(t)
		if err != nil {
			return p, err
		}
		p.taints = append(p.taints, raw)
		p.write = true
	}
	p.write = p.write || have && !want
	return p, nil
}

// NodeTaints are the taints of a Node, and whether we, or an agent before us, wrote
// them last, see Client.Tainted.
type NodeTaints struct {
	Node   string
	Taints []Taint
	Ours   bool
}

// Has tells whether t is among the taints.
func (n *NodeTaints) Has(t Taint) bool { return slices.Contains(n.Taints, t) }

func (t *taintedNode) taints() (*NodeTaints, error) {
	n := &NodeTaints{Node: t.Name, Ours: wroteTaints(&t.ObjectMeta, FieldManager)}
	for _, raw := range t.Spec.Taints {
		var taint Taint
		if err := json.Unmarshal(raw, &taint); err != nil {
			return nil, fmt.Errorf("the API server's answer: taints: %w", err)
		}
		n.Taints = append(n.Taints, taint)
	}
	return n, nil
}

// NodeTaints reads the taints of one Node. It needs the verb get on nodes. The error
// is ErrNoNode when there is no such Node.
func (c *Client) NodeTaints(ctx context.Context, name string) (*NodeTaints, error) {
	live, err := (&Node{Client: c, Name: name}).readTaints(ctx)
	if err != nil {
		return nil, fmt.Errorf("Node %q: %w", name, err)
	}
	return live.taints()
}

// Tainted are the Nodes that have the taint, with labels of ours or without. It needs
// the verb list on nodes.
//
// Ours is no more than a hint: it is false, too, where somebody else wrote any taint
// after us, as the node lifecycle controller does for a node that is not ready.
func (c *Client) Tainted(ctx context.Context, taint Taint) ([]*NodeTaints, error) {
	var all []*NodeTaints
	for more := ""; ; {
		// Whole Nodes, with the images that they have: fewer at a time.
		body, err := c.do(ctx, "list", "nodes", c.core.Get().Resource("nodes").
			Param("limit", "100").Param("continue", more).SetHeader("Accept", "application/json"))
		if err != nil {
			return nil, err
		}
		var page struct {
			metav1.ListMeta `json:"metadata"`
			Items           []taintedNode `json:"items"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, fmt.Errorf("the API server's answer: %w", err)
		}
		for i := range page.Items {
			n, err := page.Items[i].taints()
			if err != nil {
				return nil, err
			}
			if n.Has(taint) {
				all = append(all, n)
			}
		}
		if more = page.Continue; more == "" {
			return all, nil
		}
	}
}

// wroteTaints tells whether manager owns spec.taints: it wrote them last.
func wroteTaints(meta *metav1.ObjectMeta, manager string) bool {
	for _, entry := range meta.ManagedFields {
		if entry.Manager == manager && ownsTaints(entry.FieldsV1) {
			return true
		}
	}
	return false
}

func ownsTaints(fields *metav1.FieldsV1) bool {
	var set struct {
		Spec struct {
			Taints json.RawMessage `json:"f:taints"`
		} `json:"f:spec"`
	}
	return fields != nil && json.Unmarshal(fields.GetRawBytes(), &set) == nil && set.Spec.Taints != nil
}

func (n *Node) readTaints(ctx context.Context) (*taintedNode, error) {
	body, err := n.Client.do(ctx, "get", "nodes",
		n.Client.core.Get().Resource("nodes").Name(n.Name).SetHeader("Accept", "application/json"))
	if apierrors.IsNotFound(err) {
		return nil, ErrNoNode
	}
	if err != nil {
		return nil, err
	}
	var live taintedNode
	if err := json.Unmarshal(body, &live); err != nil {
		return nil, fmt.Errorf("the API server's answer: %w", err)
	}
	if live.ResourceVersion == "" {
		return nil, errors.New("the API server's answer is an object without a resourceVersion")
	}
	return &live, nil
}

// writeTaints replaces the list, for it has no merge key (v1.37). The
// resourceVersion makes the API server refuse it, as a conflict, when anything
// was written since the list was read.
func (n *Node) writeTaints(ctx context.Context, version string, taints []json.RawMessage) (*metav1.PartialObjectMetadata, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": version},
		"spec":     map[string]any{"taints": taints}, // null if there are none
	})
	if err != nil {
		return nil, err
	}
	body, err := n.Client.do(ctx, "patch", "nodes",
		n.Client.core.Patch(types.MergePatchType).Resource("nodes").Name(n.Name).
			Param("fieldManager", n.manager()).SetHeader("Accept", metadataOnly).Body(patch))
	if err != nil {
		return nil, err
	}
	return decodeMetadata(body)
}

// taintNote is what the metadata of a Node tells of its taints, which Watch does
// not see.
type taintNote struct {
	version string // the resourceVersion
	writers string // who wrote the taints last, and when
}

func noteTaints(meta *metav1.ObjectMeta) *taintNote {
	writers, _ := taintWriters(meta)
	return &taintNote{version: meta.ResourceVersion, writers: writers}
}

// moved reports whether the taints may have been written since.
func (t *taintNote) moved(meta *metav1.ObjectMeta) bool {
	if t == nil || meta.ResourceVersion == t.version {
		return false
	}
	// Times are to the second: a second write by the same manager shows only in
	// that nobody has written anything later.
	writers, last := taintWriters(meta)
	return writers != t.writers || last
}

// taintWriters describes the entries in managedFields that own spec.taints, and
// whether one of them is the last write of all.
func taintWriters(meta *metav1.ObjectMeta) (writers string, last bool) {
	var newest, ours metav1.Time
	for _, entry := range meta.ManagedFields {
		if entry.Time == nil {
			continue
		}
		if newest.Before(entry.Time) {
			newest = *entry.Time
		}
		if !ownsTaints(entry.FieldsV1) {
			continue
		}
		writers += fmt.Sprintf("%q %s %v\n", entry.Manager, entry.Operation, entry.Time.Unix())
		if ours.Before(entry.Time) {
			ours = *entry.Time
		}
	}
	return writers, writers != "" && !ours.Before(&newest)
}
