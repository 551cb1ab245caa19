package publish

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Errors for which there is a decision to make. They are wrapped: test with
// errors.Is.
var (
	// ErrNoNode means that our Node does not exist, or was re-created while we
	// wrote. It may (again) exist soon; nothing of ours is left in the cluster.
	ErrNoNode = errors.New("no such Node: it is not registered yet, or was deleted")

	// ErrTwoAgents means that another process publishes other labels on our Node
	// under our name, and did so again after they were corrected. We leave them to
	// it for a while.
	ErrTwoAgents = errors.New("another agent publishes other labels under the same field manager; " +
		"is a second DaemonSet of it installed? Remove one")

	// ErrNoFolder means that the folder for feature files does not exist.
	ErrNoFolder = errors.New("no folder for feature files")

	// ErrTooLarge means that NFD would ignore the feature file for its size.
	ErrTooLarge = errors.New("larger than the 65536 bytes that NFD reads")

	// ErrNoNodeFeatures means that the API server does not know NodeFeature.
	ErrNoNodeFeatures = errors.New("the cluster has no NodeFeature resource (nfd.k8s-sigs.io/v1alpha1): " +
		"install Node Feature Discovery v0.17 or newer with its CRDs")
)

// ForbiddenError means that we lack a right. It wraps the API server's answer.
type ForbiddenError struct {
	Verb     string // as in a Role: get, patch, ...
	Resource string // as in a Role: nodes, nodefeatures.nfd.k8s-sigs.io, ...
	Err      error
}

func (e *ForbiddenError) Error() string {
	return fmt.Sprintf("not allowed to %s %s; does the agent's role grant the verb %s, and no admission policy refuse it? %v",
		e.Verb, e.Resource, e.Verb, e.Err)
}

func (e *ForbiddenError) Unwrap() error { return e.Err }

// UnansweredError is that of a write which the API server may have carried out, or
// may yet: it did not say, or said that it ran out of time. What is written after
// it may be undone.
type UnansweredError struct{ Err error }

func (e *UnansweredError) Error() string { return e.Err.Error() }

func (e *UnansweredError) Unwrap() error { return e.Err }

// Conflict is a label that was left alone, since another field manager set it to
// another value.
type Conflict struct {
	Key     string
	Manager string // as in metadata.managedFields
	Value   string // theirs; empty, too, if it is not known
}

func (c Conflict) String() string {
	if c.Value == "" {
		return fmt.Sprintf("%s (set by %s)", c.Key, c.Manager)
	}
	return fmt.Sprintf("%s=%s (set by %s)", c.Key, c.Value, c.Manager)
}

// ConflictError lists, sorted by key, the labels that were left alone, those that
// should not be there and that others set, those that admission refuses, and the
// taints of the same key as ours. All other labels are published.
type ConflictError struct {
	Conflicts []Conflict
	Stale     []Conflict
	Refused   []Refusal
	Taints    []string // KEY=VALUE:EFFECT
}

func (e *ConflictError) Error() string {
	var parts []string
	if len(e.Refused) > 0 {
		parts = append(parts, "admission refuses labels; change the webhook or policy: "+refusals(e.Refused))
	}
	list := func(what string, taints []string, conflicts []Conflict) {
		all := slices.Clone(taints)
		for _, c := range conflicts {
			all = append(all, c.String())
		}
		if len(all) > 0 {
			parts = append(parts, what+": "+strings.Join(all, ", "))
		}
	}
	if len(e.Conflicts) == 0 {
		list("left alone what others set under the key of our taint", e.Taints, nil)
	} else {
		list("left alone what others set to other values; remove those labels, or publish with force", e.Taints, e.Conflicts)
	}
	list("still there under keys of ours, since others set them; remove those labels, or use --force-conflicts", nil, e.Stale)
	return strings.Join(parts, "; ")
}

// RetryAfter returns how long the API server asks to be left alone, in an error
// from Publish or Watch; 0 if it says nothing.
func RetryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second
}
