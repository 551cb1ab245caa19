package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// Refusal is a label that stayed as it was, since an admission webhook or policy
// refuses the change.
type Refusal struct {
	Key    string
	Reason string // the API server's words
}

func (r Refusal) String() string { return fmt.Sprintf("%s (%s)", r.Key, r.Reason) }

// siftLimit bounds the dry runs by which one Publish finds out which labels are
// refused. One of 64 takes 12.
const siftLimit = 32

// reasonLimit bounds the bytes of a Reason, which a webhook may make as long as it
// likes.
const reasonLimit = 500

// admissionText is how the API server begins to say that a webhook or a
// ValidatingAdmissionPolicy refused a request; the status code is theirs to choose
// (v1.37).
var admissionText = regexp.MustCompile(`(admission webhook|ValidatingAdmissionPolicy) .*denied (the )?request`)

// reasonOf returns what the API server says of a request that admission refused.
func reasonOf(err error) (reason string, refused bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !admissionText.MatchString(status.Status().Message) {
		return "", false
	}
	message := strings.ToValidUTF8(status.Status().Message, "")
	return strings.ToValidUTF8(message[:min(len(message), reasonLimit)], ""), true
}

// sift is told that admission refuses p. It returns p without the labels that are
// the reason, or the refusal if all of them are, or the agent itself.
//
// Those that were refused last time are the first guess. Then half of the changes
// is tried, a quarter, and so on, as dry runs: what is refused is told from what is
// not in few requests, and labels go out once. What is left when there were
// siftLimit counts as refused.
func (n *Node) sift(ctx context.Context, live *metav1.PartialObjectMetadata, p plan, refusal error) (plan, error) {
	if q := p.without(live, n.manager(), n.refused); len(q.refused) > 0 {
		if !q.write {
			return q, nil
		}
		_, err := n.apply(ctx, live.UID, q.apply, true)
		if err == nil {
			return q, nil
		}
		if _, refused := reasonOf(err); !refused {
			return plan{}, err
		}
	}

	good := unchanged(live, n.manager())
	changes := changed(good, p.apply)
	whole, _ := reasonOf(refusal)
	refused := map[string]string{}
	groups := [][]string{nil} // first none at all
	for tries := 0; len(groups) > 0; tries++ {
		group := groups[0]
		groups = groups[1:]
		if tries == siftLimit {
			for _, key := range slices.Concat(append(groups, group)...) {
				refused[key] = whole
			}
			break
		}
		trial := maps.Clone(good)
		for _, key := range group {
			if value, ok := p.apply[key]; ok {
				trial[key] = value
			} else {
				delete(trial, key)
			}
		}
		_, err := n.apply(ctx, live.UID, trial, true)
		reason, denied := reasonOf(err)
		switch {
		case err == nil && group == nil:
			groups = halves(changes)
		case err == nil:
			good = trial
		case !denied:
			return plan{}, fmt.Errorf("%w; trying without some of the labels: %w", refusal, err)
		case group == nil:
			return plan{}, refusal
		case len(group) == 1:
			refused[group[0]] = reason
		default:
			groups = append(groups, halves(group)...)
		}
	}
	if len(refused) == len(changes) {
		return plan{}, refusal
	}
	n.refused = refused
	return p.without(live, n.manager(), refused), nil
}

func halves(keys []string) [][]string {
	if len(keys) < 2 {
		return [][]string{keys}
	}
	return [][]string{keys[:len(keys)/2], keys[len(keys)/2:]}
}

// unchanged is what is to be applied for all to stay as it is.
func unchanged(live *metav1.PartialObjectMetadata, manager string) labels.Set {
	set := labels.Set{}
	for key := range labelOwners(&live.ObjectMeta, manager).ours {
		if value, ok := live.Labels[key]; ok {
			set[key] = value
		}
	}
	return set
}

// changed lists the keys by which b is not a.
func changed(a, b labels.Set) []string {
	var keys []string
	for key, value := range b {
		if was, ok := a[key]; !ok || was != value {
			keys = append(keys, key)
		}
	}
	for key := range a {
		if _, ok := b[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// without is p, but the labels named stay as they are.
func (p plan) without(live *metav1.PartialObjectMetadata, manager string, refused map[string]string) plan {
	if len(refused) == 0 {
		return p
	}
	as := unchanged(live, manager)
	p.apply = maps.Clone(p.apply)
	p.refused = nil
	for _, key := range changed(as, p.apply) {
		reason, ok := refused[key]
		if !ok {
			continue
		}
		p.refused = append(p.refused, Refusal{key, reason})
		if value, ok := as[key]; ok {
			p.apply[key] = value
		} else {
			delete(p.apply, key)
		}
	}
	p.write = len(changed(as, p.apply)) > 0
	return p
}

func refusals(all []Refusal) string {
	texts := make([]string, len(all))
	for i, r := range all {
		texts[i] = r.String()
	}
	return strings.Join(texts, ", ")
}
