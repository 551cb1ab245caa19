package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// Published returns the labels of the file, as an earlier process left them. It
// is empty when there is no file, or none that we wrote.
func (f *FeatureFile) Published(context.Context) (labels.Set, error) {
	dir, err := f.openFolder()
	if errors.Is(err, ErrNoFolder) {
		return labels.Set{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", f, err)
	}
	defer dir.Close()
	content, err := f.read(dir, 0o644)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotOurs) {
		return labels.Set{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", f, err)
	}
	return parse(content), nil
}

// Foreign tells whether there is something in the file's place that we did not
// write, by its first line.
func (f *FeatureFile) Foreign() (bool, error) {
	dir, err := f.openFolder()
	if errors.Is(err, ErrNoFolder) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%v: %w", f, err)
	}
	defer dir.Close()
	fi, err := dir.Lstat(f.name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%v: %w", f, err)
	}
	content, err := f.read(dir, fi.Mode().Perm()) // ours, whoever may read it
	if err != nil && !errors.Is(err, errNotOurs) {
		return false, fmt.Errorf("%v: %w", f, err)
	}
	return !bytes.HasPrefix(content, []byte(firstLine)), nil
}

// parse reads back what render wrote.
func parse(content []byte) labels.Set {
	set := labels.Set{}
	if !bytes.HasPrefix(content, []byte(firstLine)) {
		return set
	}
	for line := range strings.Lines(string(content)) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if ok && !strings.HasPrefix(key, "#") {
			set[key] = value
		}
	}
	return set
}

// Published returns the labels that the API server knows to be ours, and those
// that are ours by what they say and nobody else's. It is empty when there is no
// Node.
//
// A Publish right after it does without a read of its own: when all agents of a
// cluster start at once, that is half of what they read.
func (n *Node) Published(ctx context.Context) (labels.Set, error) {
	live, err := n.read(ctx)
	if errors.Is(err, ErrNoNode) {
		return labels.Set{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", n, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen = reading{live, time.Now()}
	if n.Stray != nil && n.Taint == nil && wroteTaints(&live.ObjectMeta, n.manager()) {
		if stray, err := n.Client.NodeTaints(ctx, n.Name); err == nil && len(stray.Taints) > 0 {
			n.Stray(stray)
		}
	}
	who := labelOwners(&live.ObjectMeta, n.manager())
	set := labels.Set{}
	for key, value := range live.Labels {
		if who.ours[key] || who.orphans[key] || n.Force && n.stale(who, key) {
			set[key] = value
		}
	}
	return set, nil
}

// Owned tells whether the API server knows labels of the Node that we applied.
func (n *Node) Owned(ctx context.Context) (bool, error) {
	live, err := n.read(ctx)
	if errors.Is(err, ErrNoNode) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%v: %w", n, err)
	}
	return len(labelOwners(&live.ObjectMeta, n.manager()).ours) > 0, nil
}

// Published returns the labels of the object. It is empty when there is none.
func (n *NodeFeature) Published(ctx context.Context) (labels.Set, error) {
	live, err := n.read(ctx)
	if apierrors.IsNotFound(err) {
		return labels.Set{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", n, err)
	}
	set := labels.Set{}
	for key, value := range live.Spec.Labels {
		set[key] = value
	}
	return set, nil
}
