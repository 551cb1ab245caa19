package publish

import (
	"errors"
	"net"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// doubtful marks the error of a write, unless it says that nothing was written.
func doubtful(err error) error {
	var status apierrors.APIStatus
	network, ok := errors.AsType[*net.OpError](err)
	switch {
	case err == nil:
		return nil
	case ok && network.Op == "dial": // it was not sent
		return err
	case errors.As(err, &status) && 400 <= status.Status().Code && status.Status().Code < 500:
		return err
	}
	return &UnansweredError{err}
}

const (
	// lostWrites is how many writes without an answer are remembered.
	lostWrites = 16
	// rivalTime is for how long labels that were corrected must stay, or another
	// agent is at work: one that cannot watch looks every ten minutes.
	rivalTime = 15 * time.Minute
	// yieldFirst and yieldLast bound the time for which a Node is left to another
	// agent.
	yieldFirst = 30 * time.Second
	yieldLast  = time.Hour
)

// rivalry tells another agent from writes that are carried out late: our own,
// after we gave up on them, or those of an agent that was killed. Both show as
// labels that we applied and did not write last.
type rivalry struct {
	lost      []labels.Set // applied without an answer, the newest last
	corrected time.Time    // when labels that nobody knew were last written over; zero once they were back
	yields    int
	until     time.Time // until when the Node is left as it is
}

// lose remembers a write that got no answer.
func (r *rivalry) lose(set labels.Set) {
	r.lost = append(r.lost, set)
	r.lost = r.lost[max(0, len(r.lost)-lostWrites):]
}

// found tells whether the labels are those of a write that got no answer, and
// forgets it: it is carried out once. Others may have taken some of them since.
func (r *rivalry) found(live *metav1.PartialObjectMetadata, who owners) bool {
	i := slices.IndexFunc(r.lost, func(set labels.Set) bool {
		for key := range who.ours {
			if value, ok := set[key]; !ok || value != live.Labels[key] {
				return false
			}
		}
		return true
	})
	if i < 0 {
		return false
	}
	r.lost = slices.Delete(r.lost, i, i+1)
	return true
}

// yield tells whether the Node is left to who wrote labels that nobody knows. The
// first time it is not: that may be the last write of an agent that is gone. When
// they are back it is, for longer each time.
func (r *rivalry) yield(now time.Time) bool {
	switch {
	case now.Before(r.until):
		return true
	case r.corrected.IsZero():
	case now.Sub(r.corrected) < rivalTime:
		r.until = now.Add(min(yieldFirst<<r.yields, yieldLast))
		r.yields = min(r.yields+1, 10)
		r.corrected = time.Time{}
		return true
	default:
		r.yields = 0
	}
	r.corrected = now
	return false
}
