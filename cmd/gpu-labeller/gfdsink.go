package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpu-labeller/gpu-labeller/agent"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// gfdOutput is where the labels go, and the client of a NodeFeature object.
type gfdOutput struct {
	sink   publish.Sink
	client *publish.Client // nil for a file
}

// open makes the sink, and asks nobody.
func (s *gfdSettings) open(stdout io.Writer, log *slog.Logger) (*gfdOutput, error) {
	out := &gfdOutput{}
	switch {
	case s.useNodeFeatureAPI:
		object, err := s.nodeFeature(log)
		if err != nil {
			return nil, err
		}
		out.sink, out.client = object, object.Client
	case s.outputFile == "":
		out.sink = &gfdStdout{w: stdout}
	default:
		out.sink = gfdFile{&publish.FeatureFile{Path: s.outputFile}}
	}
	if s.unread {
		out.sink = &gfdHeld{Sink: out.sink, decides: s.decides}
	}
	return out, nil
}

func (s *gfdSettings) nodeFeature(log *slog.Logger) (*publish.NodeFeature, error) {
	const instead = "; or write a file with --use-node-feature-api=false"
	switch {
	case s.nodeName == "":
		return nil, errors.New("the Node's name is not known: give --node-name, or set NODE_NAME from the pod's spec.nodeName" + instead)
	case s.namespace == "":
		return nil, errors.New("the namespace is empty: give --namespace, or set NAMESPACE from the pod's metadata.namespace" + instead)
	case s.kubeconfig == "" && os.Getenv("KUBERNETES_SERVICE_HOST") == "":
		return nil, errors.New("there is no cluster: this is not a pod, so give --kubeconfig" + instead)
	}
	for _, err := range []error{
		checkName("node-name", s.nodeName, validation.IsDNS1123Subdomain),
		checkName("namespace", s.namespace, validation.IsDNS1123Label),
		checkName("pod-name", s.podName, validation.IsDNS1123Subdomain),
		checkForNFD(s.nodeName),
	} {
		if err != nil {
			return nil, fmt.Errorf("%w%s", err, instead)
		}
	}
	config, err := restConfig(s.kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = float32(s.qps), s.burst
	object := &publish.NodeFeature{
		Namespace:  s.namespace,
		NodeName:   s.nodeName,
		ObjectName: "nvidia-features-for-" + s.nodeName,
		Instead:    instead,
	}
	if object.Client, err = publish.NewClient(config); err != nil {
		return nil, err
	}
	if s.podName != "" {
		object.AskOwners = askOwners(object.Client, s.namespace, s.podName, log)
	}
	return object, nil
}

// gfdFile is a feature file that GFD may have left.
type gfdFile struct{ *publish.FeatureFile }

// Published returns the labels of the file. GFD's has no first line to tell it
// by, so that any file of that name counts as its own.
func (f gfdFile) Published(ctx context.Context) (labels.Set, error) {
	set, err := f.FeatureFile.Published(ctx)
	if err != nil || len(set) > 0 {
		return set, err
	}
	dir, err := hostfs.Root("").OpenDir(filepath.Dir(f.Path))
	if err != nil {
		return set, nil
	}
	defer dir.Close()
	content, err := dir.ReadFile(filepath.Base(f.Path), 1<<16)
	if err != nil {
		return set, nil
	}
	for key, value := range keyValueLines(string(content)) {
		if strings.HasPrefix(key, "nvidia.com/") {
			set[key] = value
		}
	}
	return set, nil
}

// gfdStdout prints the labels each time that they change.
type gfdStdout struct {
	w    io.Writer
	last labels.Set
}

func (s *gfdStdout) String() string { return "standard output" }

// Publish implements publish.Sink.
func (s *gfdStdout) Publish(_ context.Context, set labels.Set) error {
	if maps.Equal(s.last, set) {
		return nil
	}
	if _, err := set.WriteTo(s.w); err != nil {
		return err
	}
	s.last = maps.Clone(set)
	return nil
}

// gfdHeld publishes what is known while the configuration file cannot be read.
// The labels that the file decides stay as they were, or are left out: to
// publish them as if nothing were shared would be a guess, and would send pods
// that ask for a GPU of their own to a shared one.
type gfdHeld struct {
	publish.Sink
	decides func(key string, set labels.Set) bool

	asked bool
	was   labels.Set
}

// Publish implements publish.Sink. It withdraws nothing that the file decides.
func (s *gfdHeld) Publish(ctx context.Context, set labels.Set) error {
	if !s.asked {
		if _, err := s.Published(ctx); err != nil {
			return err
		}
	}
	known := labels.Set{}
	for key, value := range set {
		if !s.decides(key, set) {
			known[key] = value
		}
	}
	if len(set) > 0 { // else the GPUs are gone
		for key, value := range s.was {
			if s.decides(key, set) {
				known[key] = value
			}
		}
	}
	return s.Sink.Publish(ctx, known)
}

// Published implements agent.Publisher.
func (s *gfdHeld) Published(ctx context.Context) (labels.Set, error) {
	sink, ok := s.Sink.(agent.Publisher)
	if !ok {
		s.asked = true
		return nil, nil
	}
	set, err := sink.Published(ctx)
	if err == nil && !s.asked {
		s.asked, s.was = true, set.Ours()
	}
	return set, err
}

// Touch implements agent.Toucher.
func (s *gfdHeld) Touch() error {
	if sink, ok := s.Sink.(agent.Toucher); ok {
		return sink.Touch()
	}
	return nil
}
