package publish

import (
	"errors"
	"maps"
	"slices"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// repair is what a Publish put right, since others had removed or changed what the
// one before had left.
type repair struct {
	left labels.Set // by the last Publish, as far as that is known; else nil
	// A write without an answer may have left other keys than those of left.
	unsure bool

	done bool
	keys []string // of the labels that are as they were, sorted
}

func (r *repair) begin() { r.done, r.keys = false, nil }

// fail forgets what was left, where there is no Node that could have it, or where the
// write of set that was not answered would have changed it.
func (r *repair) fail(err error, set labels.Set) {
	if errors.Is(err, ErrNoNode) {
		r.left = nil
	}
	if _, lost := errors.AsType[*UnansweredError](err); !lost || maps.Equal(r.left, set) {
		return
	}
	r.unsure = true
	maps.DeleteFunc(r.left, func(key, value string) bool { wanted, ok := set[key]; return !ok || wanted != value })
}

// finish notes which labels a Publish found and left; more, that others had changed
// something else.
func (r *repair) finish(found, left labels.Set, more bool) {
	for key, was := range r.left {
		now, there := found[key]
		if value, wanted := left[key]; wanted && value == was && !(there && now == was) {
			r.keys = append(r.keys, key)
		}
	}
	slices.Sort(r.keys)
	r.done = r.left != nil && (more && !r.unsure || len(r.keys) > 0)
	r.unsure = false
	if r.left == nil || !maps.Equal(r.left, left) {
		r.left = labels.Set{}
		maps.Copy(r.left, left)
	}
}

// Repaired tells whether others had changed what Publish left before, so that the last
// one put it right; and the keys of the labels that were gone or had other values.
func (f *FeatureFile) Repaired() (keys []string, done bool) { return f.repair.keys, f.repair.done }

// Repaired is as that of a FeatureFile.
func (n *NodeFeature) Repaired() (keys []string, done bool) { return n.repair.keys, n.repair.done }

// Repaired is as that of a FeatureFile. Labels that were left to others are none of
// them.
func (n *Node) Repaired() (keys []string, done bool) { return n.repair.keys, n.repair.done }
