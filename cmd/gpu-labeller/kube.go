package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

func init() {
	// client-go logs, in a form of its own and each time, what it returns as well.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
}

// errNoCluster means that nothing names a cluster.
var errNoCluster = errors.New("there is no cluster: this is not a pod, so give --kubeconfig")

// restConfig is the way to the API server: by a kubeconfig file where one is
// named, else as a pod.
func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, cli.Exit(exitUsage, errNoCluster)
	}
	return config, err
}

// kubectlConfig is the way to the API server for what is asked of the cluster as a
// whole: as kubectl goes, by $KUBECONFIG or ~/.kube/config, but in a pod by its
// service account.
func kubectlConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" && os.Getenv("KUBECONFIG") == "" {
		if config, err := rest.InClusterConfig(); !errors.Is(err, rest.ErrNotInCluster) {
			return config, err
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, cli.Exit(exitUsage, errors.New("there is no cluster: this is not a pod, and neither --kubeconfig nor $KUBECONFIG nor ~/.kube/config names one"))
	case err != nil:
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return config, nil
}

// podNamespace is the namespace of the pod that this is, or empty.
func podNamespace() string {
	content, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}
