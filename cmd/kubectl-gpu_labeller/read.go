package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"

	"github.com/gpu-labeller/gpu-labeller/fleet"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

// reader reads from the API server. The typed clients of all API groups would
// make the program half as large again.
type reader struct {
	core     *corev1client.CoreV1Client
	resource *resourcev1client.ResourceV1Client
}

func newReader(config *rest.Config) (*reader, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 50, 100 // the default, 5 a second, is slow for pages
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	resource, err := resourcev1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &reader{core, resource}, nil
}

// reader connects as kubectl does.
func (f *flags) reader() (*reader, error) {
	config, err := f.config.ToRESTConfig()
	raw, rawErr := f.config.ToRawKubeConfigLoader().RawConfig()
	nowhere := rawErr == nil && len(raw.Clusters) == 0 && *f.config.APIServer == ""
	// Without a kubeconfig, and not in a pod, kubectl asks localhost.
	if clientcmd.IsEmptyConfig(err) || err == nil && nowhere && strings.HasSuffix(config.Host, "localhost:8080") {
		return nil, errors.New("there is no cluster to ask: give --kubeconfig or set KUBECONFIG, or read objects from a file with --objects")
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return newReader(config)
}

// namespace is that of the context, or of --namespace.
func (f *flags) namespace() string {
	if namespace, _, err := f.config.ToRawKubeConfigLoader().Namespace(); err == nil && namespace != "" {
		return namespace
	}
	return metav1.NamespaceDefault
}

// cluster reads all that is needed to place pods.
func (f *flags) cluster(ctx context.Context, stdin io.Reader) (*fleet.Cluster, error) {
	o, err := f.read(ctx, stdin)
	if err != nil {
		return nil, err
	}
	return &o.Cluster, nil
}

// read reads the cluster from the API server, or from --objects, which may hold
// workloads, too.
func (f *flags) read(ctx context.Context, stdin io.Reader) (*objects, error) {
	if f.objects != "" {
		o, err := readObjects(f.objects, stdin, false)
		if err != nil {
			return nil, fmt.Errorf("--objects: %w", err)
		}
		return o, nil
	}
	r, err := f.reader()
	if err != nil {
		return nil, err
	}
	c, err := r.cluster(ctx)
	if err != nil {
		return nil, err
	}
	return &objects{Cluster: *c}, nil
}

// cluster reads Nodes, without which there is nothing to say, and of the rest
// what it may.
func (r *reader) cluster(ctx context.Context) (*fleet.Cluster, error) {
	c := new(fleet.Cluster)
	if err := list(ctx, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.core.Nodes().List(ctx, o)
	}, &c.Nodes); err != nil {
		return nil, fmt.Errorf("nodes: %w", plain(err, "list nodes"))
	}
	read := func(kind fleet.Kind, err error) error {
		switch {
		case err == nil:
			return nil
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			c.Unread = append(c.Unread, fleet.Unread{Kind: kind, Why: plain(err, "list "+string(kind)+" in all namespaces").Error()})
			return nil
		case apierrors.IsNotFound(err):
			c.Unread = append(c.Unread, fleet.Unread{Kind: kind, Why: "the API server has no resource.k8s.io/v1: it came with Kubernetes 1.34"})
			return nil
		}
		return fmt.Errorf("%s: %w", kind, err)
	}
	running := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.FieldSelector = "status.phase!=Succeeded,status.phase!=Failed"
		return r.core.Pods("").List(ctx, o)
	}
	slices := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.resource.ResourceSlices().List(ctx, o)
	}
	claims := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.resource.ResourceClaims("").List(ctx, o)
	}
	templates := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.resource.ResourceClaimTemplates("").List(ctx, o)
	}
	classes := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.resource.DeviceClasses().List(ctx, o)
	}
	return c, errors.Join(
		read(fleet.Pods, list(ctx, running, &c.Pods)),
		read(fleet.Slices, list(ctx, slices, &c.Slices)),
		read(fleet.Claims, list(ctx, claims, &c.Claims)),
		read(fleet.Templates, list(ctx, templates, &c.Templates)),
		read(fleet.Classes, list(ctx, classes, &c.Classes)),
	)
}

// list appends all objects of a kind, read in pages.
func list[T any](ctx context.Context, page pager.ListPageFunc, into *[]*T) error {
	return pager.New(page).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		t, ok := any(o).(*T)
		if !ok {
			return fmt.Errorf("the API server answered with %T", o)
		}
		*into = append(*into, t)
		return nil
	})
}

// pod reads one pod.
func (r *reader) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, err := r.core.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no pod %s in namespace %s: name another with --namespace, or a file with -f", name, namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", fleet.Name(namespace, name), plain(err, "get pods in namespace "+namespace))
	}
	return pod, nil
}

// workload reads a Deployment or the like, whose typed clients would be one more
// for each API group.
func (r *reader) workload(ctx context.Context, kind workloadKind, namespace, name string) (*workload, error) {
	path := "/apis/" + kind.group + "/namespaces/" + url.PathEscape(namespace) + "/" + kind.plural + "/" + url.PathEscape(name)
	raw, err := r.core.RESTClient().Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no %s %s in namespace %s: name another with --namespace", kind.kind, name, namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", kind.kind, fleet.Name(namespace, name), plain(err, "get "+kind.plural+" in namespace "+namespace))
	}
	var o objects
	if err := o.add(raw); err != nil {
		return nil, fmt.Errorf("%s %s: %w", kind.kind, fleet.Name(namespace, name), err)
	}
	if len(o.workloads) != 1 {
		return nil, fmt.Errorf("%s %s has no template", kind.kind, fleet.Name(namespace, name))
	}
	return o.workloads[0], nil
}

// plain says which right is lacking, which has an exit code of its own.
func plain(err error, what string) error {
	if apierrors.IsForbidden(err) {
		return cli.Exit(exitUnknown, fmt.Errorf("this user may not %s; a role with that right has to be bound to it", what))
	}
	if apierrors.IsUnauthorized(err) {
		return errors.New("the API server does not know this user: is the kubeconfig still valid?")
	}
	return err
}
