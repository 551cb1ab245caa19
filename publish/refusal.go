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

	"github.com/gpu-labeller/gpu-labeller/internal/redact"
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
	message := redact.UUIDs(strings.ToValidUTF8(status.Status().Message, "")) // before a part of one is left
	return strings.ToValidUTF8(message[:min(len(message), reasonLimit)], ""), true
}

// sift is told that admission refuses some changes at once. It returns the keys of
// those that are the reason, or the refusal if it is the agent itself.
//
// Those that were refused last time are the first guess. Then half of the changes
// is tried, a quarter, and so on, as dry runs: what is refused is told from what is
// not in few requests, and labels go out once. What is left when there were as many
// as limit says counts as refused.
func (n *Node) sift(refusal error, changes []string, limit int, try func(keys []string) error) (map[string]string, error) {
	last := n.dryRuns + limit
	dryRun := func(keys []string) error {
		n.dryRuns++
		err := try(keys)
		if len(conflictsIn(err)) > 0 { // not with what was read
			err = fmt.Errorf("%w (%w)", errOvertaken, err)
		}
		return err
	}
	trying := func(err error) error { return fmt.Errorf("%w; trying without some of the labels: %w", refusal, err) }

	guess := map[string]string{}
	var rest []string
	for _, key := range changes {
		if reason, ok := n.refused[key]; ok {
			guess[key] = reason
		} else {
			rest = append(rest, key)
		}
	}
	if len(rest) == 0 {
		return guess, nil
	}
	if len(guess) > 0 && n.dryRuns < last {
		err := dryRun(rest)
		if err == nil {
			return guess, nil
		}
		if _, denied := reasonOf(err); !denied {
			return nil, trying(err)
		}
	}

	var good []string
	whole, _ := reasonOf(refusal)
	refused := map[string]string{}
	groups := [][]string{nil} // first none at all
	for len(groups) > 0 {
		group := groups[0]
		groups = groups[1:]
		if n.dryRuns >= last {
			if group == nil {
				return nil, refusal
			}
			for _, key := range slices.Concat(append(groups, group)...) {
				refused[key] = whole
			}
			break
		}
		trial := slices.Concat(good, group)
		err := dryRun(trial)
		reason, denied := reasonOf(err)
		switch {
		case err == nil && group == nil:
			groups = halves(changes)
		case err == nil:
			good = trial
		case !denied:
			return nil, trying(err)
		case group == nil:
			return nil, refusal
		case len(group) == 1:
			refused[group[0]] = reason
		default:
			groups = append(groups, halves(group)...)
		}
	}
	return refused, nil
}

// siftApply is told that admission refuses to have p applied. It returns p without
// the labels that are the reason, or the refusal if nothing is left to do.
func (n *Node) siftApply(ctx context.Context, live *metav1.PartialObjectMetadata, p plan, refusal error) (plan, error) {
	as := unchanged(live, n.manager())
	refused, err := n.sift(refusal, changed(as, p.apply), siftLimit-n.dryRuns, func(keys []string) error {
		trial := maps.Clone(as)
		for _, key := range keys {
			if value, ok := p.apply[key]; ok {
				trial[key] = value
			} else {
				delete(trial, key)
			}
		}
		_, err := n.applyPlan(ctx, live, p, trial, true)
		return err
	})
	if err != nil {
		return plan{}, err
	}
	q := p.without(live, n.manager(), refused)
	if !q.write && !p.begun && !n.known(refused) {
		return plan{}, refusal
	}
	return q, nil
}

// known tells whether labels were refused already when others were not.
func (n *Node) known(refused map[string]string) bool {
	for key := range refused {
		if _, ok := n.refused[key]; !ok {
			return false
		}
	}
	return true
}

// remember notes what is refused, for the next time.
func (n *Node) remember(all []Refusal) {
	n.refused = nil
	for _, r := range all {
		if n.refused == nil {
			n.refused = map[string]string{}
		}
		n.refused[r.Key] = r.Reason
	}
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
	who := labelOwners(&live.ObjectMeta, manager)
	as := unchanged(live, manager)
	keys := slices.Concat(changed(as, p.apply), p.remove)
	slices.Sort(keys)
	p.apply, p.remove, p.refused = maps.Clone(p.apply), slices.Clone(p.remove), slices.Clone(p.refused)
	for _, key := range slices.Compact(keys) {
		reason, ok := refused[key]
		if !ok {
			continue
		}
		p.refused = append(p.refused, Refusal{key, reason})
		p.remove = slices.DeleteFunc(p.remove, func(k string) bool { return k == key })
		if value, ok := as[key]; ok {
			p.apply[key] = value
		} else {
			delete(p.apply, key)
		}
	}
	slices.SortFunc(p.refused, func(a, b Refusal) int { return strings.Compare(a.Key, b.Key) })
	p.claim = p.claim && claims(live, who, p.apply)
	p.write = len(p.remove) > 0 || len(changed(as, p.apply)) > 0
	return p
}

func refusals(all []Refusal) string {
	texts := make([]string, len(all))
	for i, r := range all {
		texts[i] = r.String()
	}
	return strings.Join(texts, ", ")
}
