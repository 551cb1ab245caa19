package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// place holds one label until it is withdrawn, and every call takes 50 ms.
type place struct {
	name     string
	atATime  *atomic.Int32
	fails    func(try int) error
	tries    int
	withdraw bool
}

func (p *place) String() string { return p.name }

func (p *place) Published(context.Context) (labels.Set, error) {
	if n := p.atATime.Add(1); n > cleanupWorkers {
		panic(fmt.Sprint(n, " at a time"))
	}
	defer p.atATime.Add(-1)
	time.Sleep(50 * time.Millisecond)
	return labels.Set{"nvidia.com/gpu.count": "1"}, nil
}

func (p *place) Publish(ctx context.Context, _ labels.Set) error {
	time.Sleep(50 * time.Millisecond)
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.tries++; p.fails != nil {
		if err := p.fails(p.tries); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	p.withdraw = true
	return nil
}

// The error of a file is none of the API server's, though syscall.Errno is a net.Error.
func TestUnserved(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{&fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, false},
		{errors.New("admission says no"), false},
		{apierrors.NewForbidden(schema.GroupResource{}, "x", nil), false},
		{apierrors.NewTooManyRequests("try later", 2), true},
		{apierrors.NewInternalError(errors.New("no")), true},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		{&url.Error{Op: "Get", Err: context.DeadlineExceeded}, true},
		{fmt.Errorf("no answer in 30s: %w", context.DeadlineExceeded), true},
		{fmt.Errorf("get: %w", io.EOF), true},
		{&publish.UnansweredError{Err: errors.New("gone")}, true},
	} {
		if got := unserved(tt.err); got != tt.want {
			t.Errorf("%v: %t, want %t", tt.err, got, tt.want)
		}
	}
}

func TestCleanupOfManyNodes(t *testing.T) {
	busy := apierrors.NewTooManyRequests("try later", 2)
	failing := func(int) error { return apierrors.NewInternalError(errors.New("no")) }
	refused := func(int) error { return &net.OpError{Op: "dial", Err: errors.New("connection refused")} }
	for _, tt := range []struct {
		name   string
		fails  func(node int) func(try int) error
		cancel time.Duration // when the user ends it

		withdrawn int
		takes     time.Duration // at most
		rounds    int
		err       []string // parts of it
	}{
		{name: "well", withdrawn: 1000, takes: 10 * time.Second, rounds: 1},
		{name: "busy at first", fails: func(node int) func(int) error {
			return func(try int) error {
				if node%2 == 0 && try < 3 {
					return busy
				}
				return nil
			}
		}, withdrawn: 1000, takes: 30 * time.Second, rounds: 3},
		{name: "one Node fails", fails: func(node int) func(int) error {
			if node == 500 {
				return failing
			}
			return nil
		}, withdrawn: 999, takes: time.Minute, rounds: 1, err: []string{"node-0500: Internal error"}},
		{name: "each tenth Node fails", fails: func(node int) func(int) error {
			if node%10 == 0 {
				return failing
			}
			return nil
		}, withdrawn: 900, takes: 2 * time.Minute, rounds: 1, err: []string{"node-0000: Internal error", "and 80 errors more"}},
		{name: "many Nodes are refused", fails: func(node int) func(int) error {
			if node >= 500 {
				return func(int) error { return errors.New("admission says no") }
			}
			return nil
		}, withdrawn: 500, takes: 10 * time.Second, rounds: 1, err: []string{"node-0500: admission says no", "node-0519: ", "and 480 errors more"}},
		{name: "the API server goes", fails: func(node int) func(int) error {
			if node >= 100 {
				return refused
			}
			return nil
		}, withdrawn: 100, takes: 2 * time.Minute, rounds: 1, err: []string{"connection refused", "ended after 116 of 1000; run it again for the rest"}},
		{name: "ended by the user", cancel: 2 * time.Second, withdrawn: 300, takes: 3 * time.Second, rounds: 1, err: []string{"run it again for the rest"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				var out strings.Builder
				var atATime atomic.Int32
				var places []*place
				var nodes [][]withdrawable
				for i := range 1000 {
					p := &place{name: fmt.Sprintf("node-%04d", i), atATime: &atATime}
					if tt.fails != nil {
						p.fails = tt.fails(i)
					}
					places = append(places, p)
					nodes = append(nodes, []withdrawable{p})
				}
				c := cleaner{out: &out}
				begin := time.Now()
				c.withdraw(ctx, nodes)
				err := c.end()
				if took := time.Since(begin); took > tt.takes {
					t.Errorf("it took %v, want %v at most", took, tt.takes)
				}
				withdrawn := 0
				for _, p := range places {
					if p.withdraw {
						withdrawn++
					}
				}
				if withdrawn < tt.withdrawn || withdrawn > tt.withdrawn+2*cleanupWorkers {
					t.Errorf("%d were withdrawn, want %d", withdrawn, tt.withdrawn)
				}
				lines := strings.Split(strings.TrimSpace(out.String()), "\n")
				if c.found < tt.withdrawn || len(lines) != c.found {
					t.Errorf("%d lines of %d that were found, want %d", len(lines), c.found, tt.withdrawn)
				}
				rounds := 1
				for i, line := range lines {
					if i > 0 && line < lines[i-1] {
						rounds++
					}
				}
				if rounds > tt.rounds {
					t.Errorf("%d times a Node comes after one that is behind it, want %d at most", rounds-1, tt.rounds-1)
				}
				if want := strings.Contains(strings.Join(tt.err, ""), "run it again"); c.ended != want {
					t.Errorf("it ended before all was done: %t, want %t", c.ended, want)
				}
				if (err != nil) != (tt.err != nil) {
					t.Fatalf("it ends with %v", err)
				}
				for _, part := range tt.err {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("it ends with %q, want %q", err, part)
					}
				}
				if err != nil && strings.Count(err.Error(), "\n") > cleanupErrors+2 {
					t.Errorf("%d lines of errors", strings.Count(err.Error(), "\n"))
				}
			})
		})
	}
}
