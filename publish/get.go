package publish

import (
	"context"
	"net/url"

	"k8s.io/client-go/rest"
)

// Core is the way to the API group v1, for requests that this package does not
// make. Retries are the caller's to forbid.
func (c *Client) Core() rest.Interface { return c.core }

// Get reads a path of the API server, such as
// /apis/resource.k8s.io/v1/resourceslices, once and whole, and returns the JSON.
// The resource is as a Role names it, for the error: a *ForbiddenError where the
// verb is missing, else one that wraps the API server's.
func (c *Client) Get(ctx context.Context, verb, resource, path string, query url.Values) ([]byte, error) {
	req := c.core.Get().AbsPath(path)
	for name, values := range query {
		for _, v := range values {
			req = req.Param(name, v)
		}
	}
	return c.do(ctx, verb, resource, req)
}
