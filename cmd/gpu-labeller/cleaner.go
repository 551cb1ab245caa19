package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
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
	// cleanupTries is how often a Node, or a list of them, is tried while the API server
	// does not serve.
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

// withdraw cleans up many nodes at a time, and the places of one in turn. It goes on
// after an error, for what is left on one Node is no reason to leave it on the next.
// Those for which the API server did not serve come again when all others have had
// their turn.
func (c *cleaner) withdraw(ctx context.Context, nodes [][]withdrawable) {
	left := nodes
	pause := cleanupPause
	for try := 1; len(left) > 0; try++ {
		var asked time.Duration
		left, asked = c.round(ctx, left, try == cleanupTries)
		if len(left) == 0 || try == cleanupTries || !waited(ctx, max(pause, asked)) {
			break
		}
		pause *= 2
	}
	if len(left) > 0 {
		c.ended = true
		c.failed(fmt.Errorf("ended after %d of %d; run it again for the rest", len(nodes)-len(left), len(nodes)))
	}
}

// turn is what became of a node.
type turn struct {
	done []withdrawn
	left []withdrawable // for which the API server did not serve, and those after it
}

// round has each node take a turn, and speaks of them in their order. It gives those
// that are to come again, and after how long at least: where the API server gave no
// answer many times in a row, or ctx is over, all that had no turn, and then, unless it
// is the last round, the ones for which it did not serve.
func (c *cleaner) round(ctx context.Context, nodes [][]withdrawable, last bool) (left [][]withdrawable, after time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	turns := make(chan chan turn, cleanupWorkers-1)
	next := 0
	go func() {
		defer close(turns)
		for ; next < len(nodes) && ctx.Err() == nil; next++ {
			places := nodes[next]
			nodes[next] = nil // it remembers all that the Node had
			t := make(chan turn, 1)
			turns <- t
			go func() { t <- c.turn(ctx, places) }()
		}
	}()
	inRow := 0 // without an answer
	for t := range turns {
		t := <-t
		var unmet error
		for _, w := range t.done {
			switch {
			case errors.Is(w.err, context.Canceled):
			case unserved(w.err):
				unmet = w.err
			case w.err != nil:
				c.nodeErrs = append(c.nodeErrs, w.err)
			}
			if w.text != "" {
				c.found++
				fmt.Fprint(c.out, w.text)
			}
			if w.node != "" {
				c.had = append(c.had, w.node)
			}
		}
		if inRow++; unmet == nil || busy(unmet) {
			inRow = 0
		}
		switch {
		case unmet != nil && last:
			c.nodeErrs = append(c.nodeErrs, unmet)
		case t.left != nil:
			left, after = append(left, t.left), max(after, publish.RetryAfter(unmet))
		}
		if inRow == cleanupWorkers {
			cancel()
		}
	}
	return append(nodes[next:len(nodes):len(nodes)], left...), after
}

func (c *cleaner) turn(ctx context.Context, places []withdrawable) (t turn) {
	for i, p := range places {
		w := c.one(ctx, p)
		t.done = append(t.done, w)
		if unserved(w.err) || errors.Is(w.err, context.Canceled) {
			t.left = places[i:]
			break
		}
	}
	return t
}

// waited waits for so long, half a minute at most, and up to as long again. It is false
// if ctx is over before.
func waited(ctx context.Context, d time.Duration) bool {
	d = min(d, 30*time.Second)
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d + rand.N(d/2)):
		return true
	}
}

// whileBusy does it again while the API server answers that it cannot now. One that
// cannot be reached at all is an error at once.
func whileBusy(ctx context.Context, do func() error) error {
	pause := cleanupPause
	for try := 1; ; try++ {
		err := do()
		if !busy(err) || try == cleanupTries || !waited(ctx, max(pause, publish.RetryAfter(err))) {
			return err
		}
		pause *= 2
	}
}

func busy(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && (status.Status().Code == 429 || status.Status().Code >= 500)
}

// unserved tells of an error that may be over soon, and then is over for all Nodes:
// the API server is busy, restarts or cannot be reached.
func unserved(err error) bool {
	// Not any net.Error, which the errors of a file are, too.
	_, network := errors.AsType[*net.OpError](err)
	_, request := errors.AsType[*url.Error](err)
	_, unanswered := errors.AsType[*publish.UnansweredError](err)
	return busy(err) || network || request || unanswered ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
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
