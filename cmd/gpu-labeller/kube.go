package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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
// named, else as a pod. $KUBECONFIG may be a list of files, as with kubectl: what
// an earlier one says counts, and those that are missing are passed over.
func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
		if files := kubeconfigList(kubeconfig); len(files) > 1 {
			if !slices.ContainsFunc(files, func(file string) bool { _, err := os.Stat(file); return err == nil }) {
				return nil, fmt.Errorf("$KUBECONFIG: none of these files can be read: %s", strings.Join(files, ", "))
			}
			rules = &clientcmd.ClientConfigLoadingRules{Precedence: files}
		}
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
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

// kubeconfigList is the files of $KUBECONFIG, if that is what kubeconfig is: a
// flag names one file, whatever is in its name.
func kubeconfigList(kubeconfig string) []string {
	if kubeconfig != os.Getenv("KUBECONFIG") {
		return nil
	}
	return slices.DeleteFunc(filepath.SplitList(kubeconfig), func(file string) bool { return file == "" })
}

// podNamespace is the namespace of the pod that this is, or empty.
func podNamespace() string {
	content, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}
