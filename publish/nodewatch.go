package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Watch follows the Node and calls changed when there is reason to Publish again:
// somebody removed or changed one of our labels, a conflict came or went, the
// Node was deleted or re-created; with a taint, somebody wrote the taints. It is
// silent while all is as the last Publish left it, and before the first. Publish
// may run at the same time; changed may be called once too often, and is called
// from Watch's goroutine.
//
// It returns nil when ctx is done or when the API server ends the watch, as it
// does every 30 to 60 minutes; then, and after errors, with back-off, call it
// again. Nothing is missed in between: a watch begins with what is there. Errors
// to test for: *ForbiddenError (verb watch), and RetryAfter.
//
// It is a plain watch on metadata.name, and holds one object's metadata, and that
// only while looking at it. (An informer would link the typed clientset and keep
// a cache.)
func (n *Node) Watch(ctx context.Context, changed func()) error {
	body, err := n.Client.stream(ctx, "watch", "nodes",
		n.Client.core.Get().Resource("nodes").Param("watch", "true").
			Param("fieldSelector", "metadata.name="+n.Name).
			SetHeader("Accept", metadataOnly))
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("%v: %w", n, err)
	}
	defer body.Close()
	events := json.NewDecoder(body)
	for {
		var event metav1.WatchEvent
		switch err := events.Decode(&event); {
		case ctx.Err() != nil, errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%v: watch: %w", n, err)
		}
		again, err := n.moved(event)
		if err != nil {
			return fmt.Errorf("%v: watch: %w", n, err)
		}
		if again {
			changed()
		}
	}
}

// moved reports whether event shows another Node than the last Publish left.
func (n *Node) moved(event metav1.WatchEvent) (bool, error) {
	if watch.EventType(event.Type) == watch.Error {
		var status metav1.Status
		if err := json.Unmarshal(event.Object.Raw, &status); err != nil {
			return false, err
		}
		return false, apierrors.FromObject(&status)
	}
	live, err := decodeMetadata(event.Object.Raw)
	if err != nil {
		return false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.want == nil, n.last.after(live):
		return false, nil
	case watch.EventType(event.Type) == watch.Deleted:
		return live.UID == n.last.uid, nil
	case n.tainted.moved(&live.ObjectMeta):
		return true, nil
	}
	p := n.plan(live, n.want).without(live, n.manager(), n.refused)
	if live.UID != n.last.uid || !p.equal(n.last.plan) {
		return true, nil
	}
	// There is still something to write after a Publish that left the Node to
	// another agent.
	return p.write && !another(live, labelOwners(&live.ObjectMeta, n.manager()), n.last), nil
}

// lagTime is how far the API server's cache may lag behind a write. A Node that
// is older later on is one from a backup.
const lagTime = time.Minute

// after tells that live is the Node as it was before the outcome: a watch begins
// with what is in the API server's cache, which may lag behind our own write.
// Where resource versions are not numbers, as etcd's are, nothing is older.
func (o outcome) after(live *metav1.PartialObjectMetadata) bool {
	a, errA := strconv.ParseUint(live.ResourceVersion, 10, 64)
	b, errB := strconv.ParseUint(o.version, 10, 64)
	return errA == nil && errB == nil && a < b && time.Since(o.at) < lagTime
}
