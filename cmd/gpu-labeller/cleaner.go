package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/internal/redact"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

const (
	// cleanupQPS bounds the requests in a second: 10,000 Nodes, of two requests each,
	// are to be done in the four minutes that an uninstall gives.
	cleanupQPS = 200
	// cleanupWorkers is how many Nodes are cleaned up at a time.
	cleanupWorkers = 16
	// cleanupTries is how often a Node, or a list of them, is tried while the API server does not serve.
	cleanupTries = 6
	// cleanupPause is the first pause between two of these; they grow to half a minute.
	cleanupPause = time.Second
	// cleanupErrors is how many errors of single Nodes are told.
	cleanupErrors = 20
	// agentTime is how soon an agent puts back what is taken from it.
	agentTime = 2 * time.Second
)

// withdrawable is a place that holds labels of ours.
type withdrawable interface {
	publish.Sink
	Published(context.Context) (labels.Set, error)
}

// cleaner withdraws what places hold, and says what that was.
type cleaner struct {
	dryRun bool
	list   bool // with dryRun, each label
	out    io.Writer

	found    int      // places that held something
	had      []string // Nodes from which labels were withdrawn
	ended    bool     // before all was done
	nodeErrs []error  // of single Nodes and objects
	errs     []error  // all others
}

func (c *cleaner) failed(errs ...error) {
	for _, err := range errs {
		if err != nil {
			c.errs = append(c.errs, err)
		}
	}
}

// end says so where there was nothing, and returns what failed.
func (c *cleaner) end() error {
	some, more := c.nodeErrs, len(c.nodeErrs)-cleanupErrors
	if more > 0 {
		some = append(some[:cleanupErrors:cleanupErrors], fmt.Errorf("and %d errors more", more))
	}
	err := errors.Join(errors.Join(some...), errors.Join(c.errs...))
	if err == nil && c.found == 0 {
		fmt.Fprintln(c.out, "nothing of ours was there")
	}
	return err
}

// withdrawn is what became of a place.
type withdrawn struct {
	text string // what to say of it; empty if it held nothing
	node string // from which labels were withdrawn
	err  error
}

// withdraw cleans up many nodes at a time, and the places of one in turn. It speaks
// of them in their order. It goes on after an error, for what is left on one Node is
// no reason to leave it on the next, unless the API server does not serve for many in
// a row.
func (c *cleaner) withdraw(ctx context.Context, nodes [][]withdrawable) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan chan withdrawn, cleanupWorkers)
	go func() {
		defer close(results)
		for i, places := range nodes {
			if ctx.Err() != nil {
				return
			}
			nodes[i] = nil // it remembers all that the Node had
			result := make(chan withdrawn, len(places))
			results <- result
			go func() {
				defer close(result)
				for _, p := range places {
					result <- c.patiently(ctx, p)
				}
			}()
		}
	}()
	done, inRow := 0, 0 // nodes; those that met an API server that does not serve
	for result := range results {
		served := true
		for w := range result {
			if errors.Is(w.err, context.Canceled) {
				continue // that is told below
			}
			if w.err != nil {
				c.nodeErrs = append(c.nodeErrs, w.err)
				served = served && !unserved(w.err)
			}
			if w.text != "" {
				c.found++
				fmt.Fprint(c.out, w.text)
			}
			if w.node != "" {
				c.had = append(c.had, w.node)
			}
		}
		if ctx.Err() != nil {
			continue
		}
		done++
		if inRow++; served {
			inRow = 0
		}
		if inRow == cleanupWorkers {
			cancel()
		}
	}
	if done < len(nodes) {
		c.ended = true
		c.failed(fmt.Errorf("ended after %d of %d; run it again for the rest", done, len(nodes)))
	}
}

// patiently is one, again while the API server does not serve.
func (c *cleaner) patiently(ctx context.Context, p withdrawable) (w withdrawn) {
	_ = whileUnserved(ctx, func() error {
		w = c.one(ctx, p)
		return w.err
	})
	return w
}

// whileUnserved does it again while the API server does not serve.
func whileUnserved(ctx context.Context, do func() error) error {
	pause := cleanupPause
	for try := 1; ; try++ {
		err := do()
		if !unserved(err) || try == cleanupTries {
			return err
		}
		wait := min(max(pause, publish.RetryAfter(err)), 30*time.Second)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait + rand.N(wait/2)):
		}
		pause *= 2
	}
}

// unserved tells of an error that may be over soon, and then is over for all Nodes:
// the API server is busy, restarts or cannot be reached.
func unserved(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		return code == 429 || code >= 500
	}
	_, network := errors.AsType[net.Error](err)
	_, unanswered := errors.AsType[*publish.UnansweredError](err)
	return network || unanswered || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func (c *cleaner) one(ctx context.Context, p withdrawable) (w withdrawn) {
	if file, ok := p.(*publish.FeatureFile); ok {
		if foreign, err := file.Foreign(); err != nil {
			return withdrawn{err: err}
		} else if foreign {
			return withdrawn{text: fmt.Sprintf("%v: left alone, since gpu-labeller did not write it\n", file)}
		}
	}
	set, err := p.Published(ctx)
	if errors.Is(err, publish.ErrNoNodeFeatures) {
		return w
	}
	if err != nil {
		return withdrawn{err: err}
	}
	var what []string
	switch len(set) {
	case 0:
	case 1:
		what = append(what, "1 label")
	default:
		what = append(what, fmt.Sprintf("%d labels", len(set)))
	}
	node, _ := p.(*publish.Node)
	if node != nil && node.Taint != nil {
		what = append(what, "the taint "+node.Taint.String())
	}
	if !c.dryRun {
		// Also where there are no labels: an empty object may be there.
		if err := p.Publish(ctx, nil); err != nil {
			return withdrawn{err: err}
		}
	}
	if len(what) == 0 {
		return w
	}
	done := "withdrawn"
	if c.dryRun {
		done = "would be withdrawn"
	} else if node != nil && len(set) > 0 {
		w.node = node.Name
	}
	w.text = fmt.Sprintf("%v: %s %s\n", p, strings.Join(what, " and "), done)
	if c.dryRun && c.list {
		for _, key := range slices.Sorted(maps.Keys(set)) {
			w.text += fmt.Sprintf("  %s\n", cli.Printable(redact.UUIDs(key+"="+set[key])))
		}
	}
	return w
}

// stillGone looks at the Nodes again, when an agent has had the time to label them.
func (c *cleaner) stillGone(ctx context.Context, client *publish.Client) error {
	if len(c.had) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(agentTime):
	}
	had := map[string]bool{}
	for _, name := range c.had {
		had[name] = true
	}
	var owned []string
	if len(had) > 1 {
		owned, _ = client.Owned(ctx, "")
	} else if again, _ := (&publish.Node{Client: client, Name: c.had[0]}).Owned(ctx); again { // who may not list can clean up one
		owned = c.had
	}
	again := slices.DeleteFunc(owned, func(name string) bool { return !had[name] })
	if len(again) == 0 {
		return nil
	}
	return fmt.Errorf("an agent is running there and has labelled its Node again; end the agents first: %s", cli.Few(again, 5))
}
