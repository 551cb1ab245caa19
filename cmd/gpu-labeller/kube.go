package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

func init() {
	// client-go logs, in a form of its own and each time, what it returns as well.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
}

// errNoCluster means that nothing names a cluster.
var errNoCluster = errors.New("there is no cluster: this is not a pod, so give --kubeconfig")

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
		return nil, cli.Exit(exitUsage, errNoCluster)
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

// askOwners asks for the owners of a NodeFeature object by the agent's pod. The log is
// told when that begins to fail, and when it ends.
func askOwners(client *publish.Client, namespace, pod string, log *slog.Logger) func(context.Context) ([]metav1.OwnerReference, error) {
	failed := false
	return func(ctx context.Context) ([]metav1.OwnerReference, error) {
		owners, err := publish.PodOwners(ctx, client, namespace, pod)
		switch {
		case err != nil && !failed:
			log.Warn("the owner of the NodeFeature object is not known, and without it the object outlives the DaemonSet; asking again each time that it is looked at: " + err.Error())
		case err == nil && failed:
			log.Info("the owner of the NodeFeature object is known")
		}
		failed = err != nil
		return owners, err
	}
}

// podNamespace is the namespace of the pod that this is, or empty.
func podNamespace() string {
	content, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}
