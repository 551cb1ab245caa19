package publish

import (
	"maps"
	"net/http"
	"strconv"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Request is what requests to the API server are counted by.
type Request struct {
	Method string // of HTTP: a watch is a GET
	Code   string // of the answer, as "200"; "<error>" without one
	Host   string // and port
}

// requests counts requests, those of all goroutines.
type requests struct {
	mu     sync.Mutex
	counts map[Request]uint64
}

// Requests counts what was sent since the start, by what became of it.
func (c *Client) Requests() map[Request]uint64 {
	c.requests.mu.Lock()
	defer c.requests.mu.Unlock()
	return maps.Clone(c.requests.counts)
}

// wrap makes a transport that counts.
func (r *requests) wrap(next http.RoundTripper) http.RoundTripper { return &counting{next, r} }

type counting struct {
	http.RoundTripper
	requests *requests
}

var _ utilnet.RoundTripperWrapper = (*counting)(nil)

// WrappedRoundTripper lets client-go find what is below.
func (t *counting) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

func (t *counting) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	code := "<error>" // as client-go has it
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	t.requests.mu.Lock()
	defer t.requests.mu.Unlock()
	t.requests.counts[Request{req.Method, code, req.URL.Host}]++
	return resp, err
}
