package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// DefaultTimeout bounds one request to the API server, except a watch.
const DefaultTimeout = 30 * time.Second

// Client is a connection to the API server, for the few requests of this
// package.
type Client struct {
	// Timeout bounds one request, except a watch. Default DefaultTimeout.
	Timeout time.Duration

	requests *requests

	core rest.Interface // v1
	nfd  rest.Interface // nfd.k8s-sigs.io/v1alpha1
}

// NewClient returns a client. It does not connect.
func NewClient(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	// Only metav1.Status is ever decoded, of errors.
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeJSON
	config.WarningHandler = rest.NoWarnings{} // it would log
	if config.UserAgent == "" {
		config.UserAgent = FieldManager
	}
	c := &Client{requests: &requests{counts: map[Request]uint64{}}}
	config.Wrap(c.requests.wrap)
	http, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	config.APIPath, config.GroupVersion = "/api", &schema.GroupVersion{Version: "v1"}
	if c.core, err = rest.RESTClientForConfigAndClient(config, http); err != nil {
		return nil, err
	}
	config.APIPath, config.GroupVersion = "/apis", &schema.GroupVersion{Group: "nfd.k8s-sigs.io", Version: "v1alpha1"}
	if c.nfd, err = rest.RESTClientForConfigAndClient(config, http); err != nil {
		return nil, err
	}
	return c, nil
}

// metadataOnly asks for an object, or the events of a watch, without spec and
// status, where a Node lists its images.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// do sends a request once and returns the answer's body. The error names the
// verb and is a *ForbiddenError if that is missing; otherwise it wraps the API
// server's.
func (c *Client) do(ctx context.Context, verb, resource string, req *rest.Request) ([]byte, error) {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Without this it would wait for as long as the API server asks for, ten times.
	result := req.MaxRetries(0).Do(limited)
	err := result.Error() // Raw's error lacks what the body says
	if limited.Err() != nil && ctx.Err() == nil && err != nil {
		err = fmt.Errorf("no answer from the API server in %v: %w", timeout, err)
	}
	body, _ := result.Raw()
	err = refused(err, verb, resource)
	if verb != "get" && verb != "list" {
		err = doubtful(err)
	}
	return body, err
}

// stream is do for a watch. The caller closes the body.
func (c *Client) stream(ctx context.Context, verb, resource string, req *rest.Request) (io.ReadCloser, error) {
	body, err := req.MaxRetries(0).Stream(ctx)
	return body, refused(err, verb, resource)
}

// namespaceTerminating is the cause of a 403 that no role can lift (k8s.io/api,
// NamespaceTerminatingCause).
const namespaceTerminating metav1.CauseType = "NamespaceTerminating"

func refused(err error, verb, resource string) error {
	switch {
	case err == nil:
		return nil
	case apierrors.HasStatusCause(err, namespaceTerminating):
		return fmt.Errorf("%s: the namespace is being deleted: %w", verb, err)
	case apierrors.IsForbidden(err):
		return &ForbiddenError{Verb: verb, Resource: resource, Err: err}
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: the API server does not accept our token: %w", verb, err)
	}
	var network *url.Error
	if errors.As(err, &network) && !network.Timeout() && !errors.Is(err, context.Canceled) {
		// The cause first, and neither method nor path, which is long.
		if u, parseErr := url.Parse(network.URL); parseErr == nil {
			return fmt.Errorf("the API server %s cannot be reached: %w", u.Host, network.Err)
		}
	}
	return fmt.Errorf("%s: %w", verb, err)
}
