package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// The results of a call of a sink, as in metrics.
const (
	resultOK        = "ok"
	resultConflict  = "conflict"
	resultRefused   = "refused"
	resultForbidden = "forbidden"
	resultToken     = "unauthorized"
	resultNoNode    = "no-node"
	resultTwoAgents = "two-agents"
	resultNoFolder  = "no-folder"
	resultTooLarge  = "too-large"
	resultNoNFD     = "no-nodefeature"
	resultThrottled = "throttled"
	resultTimeout   = "timeout"
	resultHung      = "hung" // counted while a call goes on
	resultError     = "error"
)

func resultOf(err error) string {
	var conflict *publish.ConflictError
	var forbidden *publish.ForbiddenError
	switch {
	case err == nil:
		return resultOK
	case errors.As(err, &conflict) && len(conflict.Refused) > 0:
		return resultRefused
	case errors.As(err, &conflict):
		return resultConflict
	case errors.As(err, &forbidden):
		return resultForbidden
	case apierrors.IsUnauthorized(err):
		return resultToken
	case errors.Is(err, publish.ErrNoNode):
		return resultNoNode
	case errors.Is(err, publish.ErrTwoAgents):
		return resultTwoAgents
	case errors.Is(err, publish.ErrNoFolder):
		return resultNoFolder
	case errors.Is(err, publish.ErrTooLarge):
		return resultTooLarge
	case errors.Is(err, publish.ErrNoNodeFeatures):
		return resultNoNFD
	case publish.RetryAfter(err) > 0:
		return resultThrottled
	case errors.Is(err, context.DeadlineExceeded):
		return resultTimeout
	}
	return resultError
}

// result counts a call, and logs when its kind is another than the last one's.
func (p *publisher) result(result string, err error) {
	p.metrics.publishes.add(1, p.name, result)
	was := p.lastResult
	p.lastResult = result
	bad := func(r string) bool { return r != resultOK && r != resultConflict && r != resultRefused }
	switch {
	case bad(result) && result != was:
		p.log.Warn("labels could not be published; trying again: "+err.Error(), "sink", p.sink.String())
	case !bad(result) && bad(was):
		p.log.Info("labels can be published again", "sink", p.sink.String())
	}
}

// report logs each conflict and refusal when it comes and when it goes, and gives
// the keys of the labels that were left alone.
func (p *publisher) report(err *publish.ConflictError, set labels.Set) (left []string) {
	var conflicts, stale []publish.Conflict
	if err != nil {
		conflicts, stale = err.Conflicts, err.Stale
	}
	now := make(map[publish.Conflict]bool, len(conflicts)+len(stale))
	values := map[string]float64{}
	for _, c := range slices.Concat(conflicts, stale) {
		left = append(left, c.Key)
		untrue := slices.Contains(stale, c)
		theirs := c.Value
		c.Value = "" // another one is no other conflict
		now[c] = true
		values[series(p.name, c.Key, c.Manager)] = 1
		switch {
		case p.conflicts[c]:
		case untrue:
			p.log.Warn("label left alone that does not hold for this node: another field manager set it; remove it there, or use --force-conflicts",
				"sink", p.sink.String(), "label", c.Key, "manager", c.Manager)
			p.event("LabelConflict", fmt.Sprintf("%v: label %s does not hold for this node and is left alone: it was set by %s", p.sink, c.Key, c.Manager))
		default:
			ours := set[c.Key]
			cure := "end who sets it, or give --force-conflicts"
			if n, ok := p.sink.(*publish.Node); ok {
				cure = fmt.Sprintf("to have ours back: kubectl label node %s %s-", n.Name, c.Key)
			}
			p.log.Warn("label left alone: another field manager set it to another value",
				"sink", p.sink.String(), "label", c.Key, "theirs", theirs, "ours", ours, "manager", c.Manager, "cure", cure)
			p.event("LabelConflict", fmt.Sprintf("%v: label %s is left alone: %s set it to %q, and it would be %q; %s", p.sink, c.Key, c.Manager, theirs, ours, cure))
		}
	}
	for c := range p.conflicts {
		if !now[c] {
			p.log.Info("conflict over label is gone", "sink", p.sink.String(), "label", c.Key, "manager", c.Manager)
		}
	}
	p.conflicts = now
	p.reportTaints(err, values)
	p.metrics.conflicts.replaceFor(series(p.name), values)
	return append(left, p.reportRefused(err)...)
}

// reportRefused does the same for labels that admission refuses, and says when they
// are tried again.
func (p *publisher) reportRefused(err *publish.ConflictError) (keys []string) {
	now := map[string]bool{}
	values := map[string]float64{}
	if err != nil {
		for _, r := range err.Refused {
			keys = append(keys, r.Key)
			now[r.Key] = true
			values[series(p.name, r.Key)] = 1
			if !p.refused[r.Key] {
				p.log.Warn("label left as it is: admission refuses it, and not the others; change the webhook or policy. Trying again: "+r.Reason, "sink", p.sink.String(), "label", r.Key)
				p.event("LabelRefused", fmt.Sprintf("%v: label %s is left as it is, since admission refuses it: %s", p.sink, r.Key, r.Reason))
			}
		}
	}
	for key := range p.refused {
		if !now[key] {
			p.log.Info("label is not refused any more", "sink", p.sink.String(), "label", key)
		}
	}
	p.refused = now
	p.metrics.refused.replaceFor(series(p.name), values)
	if len(now) == 0 {
		p.refusals.reset()
		p.refusedAt = time.Time{}
	} else {
		p.refusedAt = time.Now().Add(p.refusals.next(refusedFirst, refusedLast))
	}
	return keys
}

// reportTaints does the same for taints, and adds them to values.
func (p *publisher) reportTaints(err *publish.ConflictError, values map[string]float64) {
	now := map[string]bool{}
	if err != nil {
		for _, taint := range err.Taints {
			now[taint] = true
			values[series(p.name, "taint "+taint, "")] = 1
			if !p.taints[taint] {
				p.log.Warn("taint left alone: it has the key of ours, and another value or effect; remove it, or give --taint the same", "sink", p.sink.String(), "taint", taint)
				p.event("TaintConflict", fmt.Sprintf("%v: taint %s is left alone: it has the key of the one that --taint keeps, and another value or effect", p.sink, taint))
			}
		}
	}
	for taint := range p.taints {
		if !now[taint] {
			p.log.Info("conflict over taint is gone", "sink", p.sink.String(), "taint", taint)
		}
	}
	p.taints = now
}

// repairNews is what the log does not tell yet of what others had changed.
type repairNews struct {
	at    time.Time // when it may tell again
	times int
	keys  map[string]bool
}

// lookForRepairs asks the sink what its last call, for that reason, put right. The log
// tells at once of the first time, and of a fight now and then.
func (p *publisher) lookForRepairs(why reason) {
	sink, ok := p.sink.(Repairer)
	if !ok {
		return
	}
	keys, done := sink.Repaired()
	if !done {
		return
	}
	if why != repair && !p.watching.Load() { // else it was counted when it was noticed
		p.metrics.moved.add(1, p.name)
	}
	p.news.times++
	if p.news.keys == nil {
		p.news.keys = map[string]bool{}
	}
	for _, key := range keys {
		p.news.keys[key] = true
	}
	if !time.Now().Before(p.news.at) {
		p.tellRepairs()
	}
}

func (p *publisher) tellRepairs() {
	if p.news.times == 0 {
		return
	}
	attributes := []any{"sink", p.sink.String(), "times", p.news.times, "labels", len(p.news.keys)}
	if keys := sorted(p.news.keys); len(keys) > 0 {
		const most = 10
		if more := len(keys) - most; more > 0 {
			keys = append(keys[:most], fmt.Sprintf("%d more", more))
		}
		attributes = append(attributes, "keys", keys)
	}
	p.log.Info("labels were removed or changed, and are put right", attributes...)
	p.news = repairNews{at: time.Now().Add(repairNewsTime)}
}

// few is how many labels are told by name in the log of every day.
const few = 4

// brief is how many labels there are of each kind, and their names if they are few.
func brief(attributes []any) []any {
	var short []any
	for i := 0; i < len(attributes); i += 2 {
		name, all := attributes[i].(string), attributes[i+1].([]string)
		short = append(short, name, len(all))
		if len(all) <= few {
			short = append(short, name+"Labels", all)
		}
	}
	return short
}

// diff gives the attributes added, removed and changed, those that are not empty.
func diff(was, now labels.Set) []any {
	var added, removed, changed []string
	for _, key := range slices.Sorted(maps.Keys(now)) {
		old, ok := was[key]
		switch value := now[key]; {
		case !ok:
			added = append(added, key+"="+value)
		case old != value:
			changed = append(changed, key+"="+value+" (was "+old+")")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(was)) {
		if _, ok := now[key]; !ok {
			removed = append(removed, key+"="+was[key])
		}
	}
	var attributes []any
	if added != nil {
		attributes = append(attributes, "added", added)
	}
	if removed != nil {
		attributes = append(attributes, "removed", removed)
	}
	if changed != nil {
		attributes = append(attributes, "changed", changed)
	}
	return attributes
}
