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
		return nil, cli.Exit(exitUsage, errors.New("there is no cluster to label in: this is not a pod, so give --kubeconfig; or write a feature file with --sink=feature-file; or print the labels with --print"))
	}
	return config, err
}

// podNamespace is the namespace of the pod that this is, or empty.
func podNamespace() string {
	content, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}
