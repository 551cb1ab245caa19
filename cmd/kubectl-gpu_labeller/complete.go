package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A shell that completes a word does not wait longer for the cluster.
const completionTimeout = 3 * time.Second

const noFiles = cobra.ShellCompDirectiveNoFileComp

// completeFlags completes the values of flags that kubectl completes, too.
func (f *flags) completeFlags(cmd *cobra.Command) {
	// The errors are of flags that do not exist: these do.
	_ = cmd.RegisterFlagCompletionFunc("output", func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		words, directive := f.output.Complete(cmd, args, prefix)
		if cmd.Name() == "nodes" {
			words = append(slices.Clone(words), wide)
		}
		return words, directive
	})
	_ = cmd.RegisterFlagCompletionFunc("namespace", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return f.names(cmd, prefix, func(ctx context.Context, r *reader) (names []string) {
			if l, err := r.core.Namespaces().List(ctx, metav1.ListOptions{}); err == nil {
				for _, n := range l.Items {
					names = append(names, n.Name)
				}
			}
			return names
		})
	})
	for flag, of := range map[string]func(*flags) []string{"context": contexts, "cluster": clusters, "user": users} {
		_ = cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return having(prefix, of(f)), noFiles
		})
	}
}

func contexts(f *flags) (names []string) {
	if raw, err := f.config.ToRawKubeConfigLoader().RawConfig(); err == nil {
		for name := range raw.Contexts {
			names = append(names, name)
		}
	}
	return names
}

func clusters(f *flags) (names []string) {
	if raw, err := f.config.ToRawKubeConfigLoader().RawConfig(); err == nil {
		for name := range raw.Clusters {
			names = append(names, name)
		}
	}
	return names
}

func users(f *flags) (names []string) {
	if raw, err := f.config.ToRawKubeConfigLoader().RawConfig(); err == nil {
		for name := range raw.AuthInfos {
			names = append(names, name)
		}
	}
	return names
}

// completePods offers the pods of the namespace.
func (f *flags) completePods(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return f.names(cmd, prefix, func(ctx context.Context, r *reader) (names []string) {
		if l, err := r.core.Pods(f.namespace()).List(ctx, metav1.ListOptions{}); err == nil {
			for _, p := range l.Items {
				names = append(names, p.Name)
			}
		}
		return names
	})
}

// completeNodes offers the Nodes, and not those that stand there already.
func (f *flags) completeNodes(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return f.names(cmd, prefix, func(ctx context.Context, r *reader) (names []string) {
		if l, err := r.core.Nodes().List(ctx, metav1.ListOptions{}); err == nil {
			for _, n := range l.Items {
				if !slices.Contains(args, n.Name) {
					names = append(names, n.Name)
				}
			}
		}
		return names
	})
}

// names asks the cluster, if there is one. A completion has nobody to tell an
// error to.
func (f *flags) names(cmd *cobra.Command, prefix string, ask func(context.Context, *reader) []string) ([]string, cobra.ShellCompDirective) {
	r, err := f.reader()
	if err != nil {
		return nil, noFiles
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	return having(prefix, ask(ctx, r)), noFiles
}

func having(prefix string, names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) })
	slices.Sort(names)
	return names
}
