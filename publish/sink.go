// Package publish writes the labels of a node to where a cluster reads them: a
// feature file or a NodeFeature object for Node Feature Discovery (NFD), or
// straight to the Node. It knows no GPU; what it is given is what it writes.
//
// The sinks that talk to the API server use client-go's rest package and JSON
// and nothing above it. That adds 4.5 MB to a program that has net/http already;
// informers, even over the metadata client, link the typed clientset, 16.6 MB
// more (client-go v0.37, linux/amd64).
//
// Nothing here retries or waits: errors say what an agent needs to decide when
// to come back (RetryAfter, ErrNoNode, ForbiddenError and others).
package publish

import (
	"context"
	"fmt"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// Sink is a place where labels are published. A Sink is used by one goroutine at
// a time.
type Sink interface {
	// Publish replaces all labels that we own there with set, and writes nothing
	// if they are there already. An empty set withdraws ours; it is no error if
	// there are none. A *ConflictError means that all labels but the ones it names
	// are published; any other error, that the old labels are still there, or, if
	// an answer was lost, all of the new ones.
	Publish(ctx context.Context, set labels.Set) error

	// String names the sink in messages: Node "a", feature file /path.
	fmt.Stringer
}

// FieldManager is the name under which our fields are known to the API server.
const FieldManager = "gpu-labeller"

var (
	_ Sink = (*FeatureFile)(nil)
	_ Sink = (*NodeFeature)(nil)
	_ Sink = (*Node)(nil)
)
