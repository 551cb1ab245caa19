package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/dra"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// Cluster is the way to the API server.
type Cluster struct {
	client *publish.Client
}

// NewCluster returns a Cluster. It does not connect.
func NewCluster(config *rest.Config) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 20, 40 // the default, 5 a second, holds up the test pod
	client, err := publish.NewClient(config)
	if err != nil {
		return nil, err
	}
	return &Cluster{client: client}, nil
}

// errAbsent means that the API server has no such object, or no such kind.
var errAbsent = errors.New("not there")

// get reads an object, or a list in one piece, into what.
func (c *Cluster) get(ctx context.Context, verb, resource, path string, query url.Values, what any) error {
	body, err := c.client.Get(ctx, verb, resource, path, query)
	if apierrors.IsNotFound(err) {
		return errAbsent
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, what); err != nil {
		return fmt.Errorf("the API server's answer for %s: %w", resource, err)
	}
	return nil
}

// because says why something could not be read. A right that is missing is named.
func because(err error) string {
	var forbidden *publish.ForbiddenError
	if errors.As(err, &forbidden) {
		return fmt.Sprintf("not allowed to %s %s: grant the verb, or name a kubeconfig that has it with --kubeconfig", forbidden.Verb, forbidden.Resource)
	}
	return err.Error()
}

// lacksRight tells a refusal from an API server that does not answer.
func lacksRight(err error) bool {
	var forbidden *publish.ForbiddenError
	return errors.As(err, &forbidden)
}

// state is what was read of the cluster, as far as it concerns one Node. Each
// error belongs to what stands before it; errAbsent means that it is not there.
type state struct {
	failure string // the API server does not answer, so nothing below is set

	node         *node
	nodeErr      error
	pods         []pod // on the Node
	podsErr      error
	daemonSets   []daemonSet
	daemonErr    error
	nodeFeatures bool // the cluster has NFD's NodeFeature objects
	nfdErr       error
	masters      []pod // NFD's, anywhere
	mastersErr   error
	runtimeClass *runtimeClass
	runtimeErr   error
	noClasses    []string // RuntimeClasses that DaemonSets name and that are not there
	policies     []clusterPolicy
	policiesErr  error
	slices       []dra.Slice // of the Node
	slicesErr    error       // dra.ErrAbsent where there are none
}

// nvidiaRuntimeClass is the RuntimeClass that NVIDIA's documentation names.
const nvidiaRuntimeClass = "nvidia"

// read reads all that the steps ask for. It gives up only when the API server
// does not answer at all.
func (c *Cluster) read(ctx context.Context, name string) *state {
	k := &state{}
	var n node
	switch k.nodeErr = c.get(ctx, "get", "nodes", "/api/v1/nodes/"+url.PathEscape(name), nil, &n); {
	case k.nodeErr == nil:
		k.node = &n
	case errors.Is(k.nodeErr, errAbsent), lacksRight(k.nodeErr):
	default:
		k.failure = "the API server does not answer: " + because(k.nodeErr)
		return k
	}
	onNode := url.Values{"fieldSelector": {"spec.nodeName=" + name}}
	var pods list[pod]
	k.podsErr = c.get(ctx, "list", "pods", "/api/v1/pods", onNode, &pods)
	k.pods = pods.Items

	var sets list[daemonSet]
	k.daemonErr = c.get(ctx, "list", "daemonsets.apps", "/apis/apps/v1/daemonsets", nil, &sets)
	k.daemonSets = sets.Items

	k.nodeFeatures, k.nfdErr = c.client.HasNodeFeatures(ctx)
	if k.nodeFeatures {
		var masters list[pod]
		k.mastersErr = c.get(ctx, "list", "pods", "/api/v1/pods", url.Values{"labelSelector": {"app.kubernetes.io/name=node-feature-discovery"}}, &masters)
		k.masters = masters.Items
	}

	var class runtimeClass
	if k.runtimeErr = c.get(ctx, "get", "runtimeclasses.node.k8s.io", "/apis/node.k8s.io/v1/runtimeclasses/"+nvidiaRuntimeClass, nil, &class); k.runtimeErr == nil {
		k.runtimeClass = &class
	}
	k.noClasses = c.noClasses(ctx, k.daemonSets)
	var policies list[clusterPolicy]
	k.policiesErr = c.get(ctx, "list", "clusterpolicies.nvidia.com", "/apis/nvidia.com/v1/clusterpolicies", nil, &policies)
	k.policies = policies.Items

	k.slices, k.slicesErr = dra.List(ctx, c.client, name)
	return k
}

// noClasses gives the RuntimeClasses that DaemonSets of a component in the way of
// GPUs name, and that are not there: without the right to read them, none.
func (c *Cluster) noClasses(ctx context.Context, sets []daemonSet) []string {
	some := []*component{&labellerPods}
	for i := range advertisers {
		some = append(some, advertisers[i].plugin)
	}
	var asked, absent []string
	for i := range sets {
		t := &sets[i].Spec.Template
		name := t.Spec.RuntimeClassName
		if name == "" || slices.Contains(asked, name) || !slices.ContainsFunc(some, func(c *component) bool { return c.is(t.Metadata.Labels, &t.Spec) }) {
			continue
		}
		asked = append(asked, name)
		var class runtimeClass
		if err := c.get(ctx, "get", "runtimeclasses.node.k8s.io", "/apis/node.k8s.io/v1/runtimeclasses/"+url.PathEscape(name), nil, &class); errors.Is(err, errAbsent) {
			absent = append(absent, name)
		}
	}
	return absent
}
