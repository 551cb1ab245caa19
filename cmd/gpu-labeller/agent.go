package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpu-labeller/gpu-labeller/agent"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/internal/footprint"
	"github.com/gpu-labeller/gpu-labeller/internal/redact"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// The sinks, as --sink names them.
const (
	sinkNode        = "node"
	sinkFeatureFile = "feature-file"
	sinkNodeFeature = "node-feature"
)

// sinkFlags say where labels are published.
type sinkFlags struct {
	sinks          []string
	nodeName       string
	kubeconfig     string
	namespace      string
	podName        string
	featureFile    string
	featureExpiry  time.Duration
	nodeFeature    string
	forceConflicts bool
	taint          string // as given; empty for none
}

func (f *sinkFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringSliceVar(&f.sinks, "sink", nil, "where labels are published: node, feature-file, node-feature; several are allowed (default node-feature where the cluster has NFD's NodeFeature objects and the Node has no labels of ours, else node)")
	fs.StringVar(&f.nodeName, "node-name", os.Getenv("NODE_NAME"), "the Node that is labelled (default $NODE_NAME)")
	fs.StringVar(&f.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig file (default $KUBECONFIG, which may list several; in a pod, its service account)")
	fs.StringVar(&f.namespace, "namespace", os.Getenv("NAMESPACE"), "namespace of NodeFeature objects (default $NAMESPACE, or the pod's own)")
	fs.StringVar(&f.podName, "pod-name", os.Getenv("POD_NAME"), "the agent's pod, whose DaemonSet becomes the owner of the NodeFeature object (default $POD_NAME)")
	fs.StringVar(&f.featureFile, "feature-file", publish.DefaultFeatureFile, "the feature file of sink feature-file")
	fs.DurationVar(&f.featureExpiry, "feature-file-expiry", 0, "NFD drops the file's labels when they have not been renewed for so long; 0 for never")
	fs.StringVar(&f.nodeFeature, "node-feature-name", "", "name of the NodeFeature object (default gpu-labeller-features-for-NODE)")
	fs.BoolVar(&f.forceConflicts, "force-conflicts", false, "take labels away from other field managers (sink node)")
	fs.StringVar(&f.taint, "taint", "", "keep this taint on the Node while it has usable GPUs (under nvidia.com, amd.com or intel.com: of that vendor), and no longer; `KEY=VALUE:EFFECT`, "+defaultTaint+" without a value (sink node)")
	fs.Lookup("taint").NoOptDefVal = defaultTaint
	// What the environment says is not what --help should show.
	for _, name := range []string{"node-name", "kubeconfig", "namespace", "pod-name"} {
		fs.Lookup(name).DefValue = ""
	}
	_ = cmd.RegisterFlagCompletionFunc("taint", cobra.FixedCompletions([]string{defaultTaint}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("sink", cobra.FixedCompletions([]string{sinkNode, sinkFeatureFile, sinkNodeFeature}, cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"node-name", "namespace", "pod-name", "node-feature-name"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

// sinks are the places to publish to, and the way to the API server.
type sinks struct {
	client *publish.Client // nil when only files are written, outside a cluster
	all    []publish.Sink
	names  []string
}

// nfd tells whether Node Feature Discovery, not we, labels the Node.
func (s *sinks) nfd() bool { return !slices.Contains(s.names, sinkNode) }

// writesCluster tells whether labels of a Node are written by way of the API server.
func (s *sinks) writesCluster() bool {
	return slices.Contains(s.names, sinkNode) || slices.Contains(s.names, sinkNodeFeature)
}

// open makes the sinks. It asks the API server only where the flags leave open
// which sinks there are.
func (f *sinkFlags) open(ctx context.Context, log *slog.Logger) (*sinks, error) {
	if err := f.checkNames(); err != nil {
		return nil, err
	}
	s := &sinks{}
	for _, name := range f.sinks {
		if !slices.Contains(s.names, name) {
			s.names = append(s.names, name)
		}
	}
	if len(s.names) == 0 || slices.Contains(s.names, sinkNode) || slices.Contains(s.names, sinkNodeFeature) {
		config, err := restConfig(f.kubeconfig)
		if errors.Is(err, errNoCluster) {
			err = cli.Exit(exitUsage, fmt.Errorf("%w; or write a feature file with --sink=feature-file; or print the labels with --print", errNoCluster))
		}
		if err != nil {
			return nil, err
		}
		if s.client, err = publish.NewClient(config); err != nil {
			return nil, err
		}
	}
	if s.client == nil && f.nodeName != "" {
		// To see whether what NFD makes of the file is on the Node.
		if config, err := restConfig(f.kubeconfig); err == nil {
			s.client, _ = publish.NewClient(config)
		}
	}
	if len(s.names) == 0 {
		name, err := f.choose(ctx, s.client, log)
		if err != nil {
			return nil, err
		}
		s.names = []string{name}
	}
	for _, name := range s.names {
		switch name {
		case sinkFeatureFile:
			s.all = append(s.all, &publish.FeatureFile{Path: f.featureFile, Expiry: f.featureExpiry})
			continue
		case sinkNode, sinkNodeFeature:
			if f.nodeName == "" {
				return nil, cli.Exit(exitUsage, fmt.Errorf("--sink=%s needs the Node's name: give --node-name, or set NODE_NAME from the pod's spec.nodeName", name))
			}
		}
		if name == sinkNode {
			taint, err := f.nodeTaint(log)
			if err != nil {
				return nil, err
			}
			s.all = append(s.all, &publish.Node{Client: s.client, Name: f.nodeName, Force: f.forceConflicts, Taint: taint, Stray: f.strayTaint(log)})
			continue
		}
		object := &publish.NodeFeature{
			Client: s.client, NodeName: f.nodeName, ObjectName: f.nodeFeature,
			Namespace: cmp.Or(f.namespace, podNamespace()),
			Instead:   "; or publish to the Node directly, with --sink=node",
		}
		if object.Namespace == "" {
			return nil, cli.Exit(exitUsage, errors.New("labels go to a NodeFeature object, for --sink=node-feature or since the cluster has them, and that needs a namespace: give --namespace, or set NAMESPACE from the pod's metadata.namespace; or label the Node itself (--sink=node)"))
		}
		if f.podName != "" {
			object.AskOwners = askOwners(s.client, object.Namespace, f.podName, log)
		}
		s.all = append(s.all, object)
	}
	return s, nil
}

// checkNames refuses names that no object has. In the path of a request they could
// stand for another object.
func (f *sinkFlags) checkNames() error {
	for _, name := range []struct {
		flag, value string
		check       func(string) []string
	}{
		{"node-name", f.nodeName, validation.IsDNS1123Subdomain},
		{"namespace", f.namespace, validation.IsDNS1123Label},
		{"pod-name", f.podName, validation.IsDNS1123Subdomain},
		{"node-feature-name", f.nodeFeature, validation.IsDNS1123Subdomain},
	} {
		if err := checkName(name.flag, name.value, name.check); err != nil {
			return cli.Exit(exitUsage, err)
		}
	}
	if slices.Contains(f.sinks, sinkNodeFeature) {
		if err := checkForNFD(f.nodeName); err != nil {
			return cli.Exit(exitUsage, fmt.Errorf("%w: give --sink=node", err))
		}
	}
	return nil
}

func checkName(flag, value string, check func(string) []string) error {
	if value == "" {
		return nil
	}
	if wrong := check(value); len(wrong) > 0 {
		return fmt.Errorf("--%s %q: %s", flag, value[:min(len(value), 80)], wrong[0])
	}
	return nil
}

// checkForNFD refuses names of Nodes that NFD cannot serve by NodeFeature objects:
// it finds them by a label.
func checkForNFD(node string) error {
	if len(node) > validation.LabelValueMaxLength {
		return fmt.Errorf("--node-name has %d characters, and NFD serves no Node of more than %d by NodeFeature objects", len(node), validation.LabelValueMaxLength)
	}
	return nil
}

// choose takes NFD's way where there is one, unless labels of ours are on the
// Node already: NFD may have been installed since. It waits for the API server to say
// so: an agent that went the other way, for an API server that was away for a
// moment, would leave labels in two places.
func (f *sinkFlags) choose(ctx context.Context, client *publish.Client, log *slog.Logger) (string, error) {
	if checkForNFD(f.nodeName) != nil {
		return sinkNode, nil
	}
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		has, err := client.HasNodeFeatures(ctx)
		var forbidden *publish.ForbiddenError
		switch {
		case err == nil && has:
			if f.labelled(ctx, client) {
				log.Warn("the cluster has NodeFeature objects, but labels of ours are on the Node from before, so they go there as ever; "+
					"to change that, give --sink=node-feature, and then withdraw the old ones: gpu-labeller cleanup --sink=node --node-name "+f.nodeName, "sink", sinkNode)
				return sinkNode, nil
			}
			return sinkNodeFeature, nil
		case err == nil:
			return sinkNode, nil
		case errors.As(err, &forbidden):
			log.Warn("not allowed to ask whether the cluster has NodeFeature objects, so labels go to the Node; --sink settles it: " + err.Error())
			return sinkNode, nil
		}
		if wait == time.Second {
			log.Warn(err.Error() + "; so it is not known yet whether the cluster has NodeFeature objects; trying again, --sink settles it")
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(wait - rand.N(wait/2)): // agents that fail together come back apart
		}
	}
}

// labelled tells whether the Node has labels that the sink node applied. One that
// may not be read has none.
func (f *sinkFlags) labelled(ctx context.Context, client *publish.Client) bool {
	if client == nil || f.nodeName == "" {
		return false
	}
	owned, err := (&publish.Node{Client: client, Name: f.nodeName}).Owned(ctx)
	return err == nil && owned
}

// leftovers says which sinks that are not in use hold labels of ours, which stay
// as they are whatever becomes of the GPUs. What may not be read holds none.
func (f *sinkFlags) leftovers(ctx context.Context, s *sinks) (sentences []string) {
	say := func(where fmt.Stringer, sink, more string) {
		sentences = append(sentences, fmt.Sprintf("%v has labels of ours from before, which nobody keeps true: gpu-labeller cleanup --sink=%s%s", where, sink, more))
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if !slices.Contains(s.names, sinkNode) && f.labelled(ctx, s.client) {
		say(&publish.Node{Name: f.nodeName}, sinkNode, " --node-name "+f.nodeName)
	}
	namespace := cmp.Or(f.namespace, podNamespace())
	if !slices.Contains(s.names, sinkNodeFeature) && s.client != nil && f.nodeName != "" && namespace != "" {
		object := &publish.NodeFeature{Client: s.client, NodeName: f.nodeName, ObjectName: f.nodeFeature, Namespace: namespace}
		if set, err := object.Published(ctx); err == nil && len(set) > 0 {
			say(object, sinkNodeFeature, " --node-name "+f.nodeName+" --namespace "+namespace)
		}
	}
	if !slices.Contains(s.names, sinkFeatureFile) {
		file := &publish.FeatureFile{Path: f.featureFile}
		if set, err := file.Published(ctx); err == nil && len(set) > 0 {
			say(file, sinkFeatureFile, " --feature-file "+f.featureFile)
		}
	}
	return sentences
}

// leftoverTime is when leftovers are looked for, and up to as much later, so that
// the agents of a cluster do not ask all at once.
var leftoverTime = 10 * time.Second

// agentFlags are those of the agent alone.
type agentFlags struct {
	sinkFlags
	forceNodeName bool
	interval      time.Duration
	poll          time.Duration
	listen        string
	pciLabels     string
	logFormat     cli.Choice
	logLevel      cli.Choice
}

func (f *agentFlags) register(cmd *cobra.Command) {
	f.logFormat = cli.Choice{Value: "text", Of: []string{"text", "json"}}
	f.logLevel = cli.Choice{Value: "info", Of: []string{"debug", "info", "warn", "error"}}
	listen := "off"
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		listen = ":8080"
	}
	fs := cmd.Flags()
	f.sinkFlags.register(cmd)
	fs.BoolVar(&f.forceNodeName, "force-node-name", false, "label --node-name although this host does not look like that Node; outside a pod, that is refused")
	fs.DurationVar(&f.interval, "interval", agent.DefaultInterval, "time between two scans of a host that does not change, at most a minute for ten minutes after a change, and between two looks at the feature file or NodeFeature object, at most ten minutes")
	fs.DurationVar(&f.poll, "poll", agent.DefaultPoll, "time between two looks at whether it changed; NVML is not asked for that")
	fs.StringVar(&f.listen, "listen", listen, "address of /healthz, /readyz and /metrics, or off")
	fs.Lookup("listen").DefValue = ":8080 in a pod, else off"
	fs.StringVar(&f.pciLabels, "pci-labels", "", "publish the feature.node.kubernetes.io/pci- labels, true or false (default true, but false where NFD labels the Node)")
	registerChoice(cmd, &f.logFormat, "log-format", "", "form of the log on standard error")
	registerChoice(cmd, &f.logLevel, "log-level", "", "least level that is logged")
}

// leastExpiry leaves time for what NFD does between the agent's renewals.
const leastExpiry = 10 * time.Second

func (f *agentFlags) check() error {
	for _, d := range []struct {
		flag  string
		value time.Duration
		least time.Duration
	}{{"interval", f.interval, time.Second}, {"poll", f.poll, 100 * time.Millisecond}} {
		if d.value < d.least {
			return cli.Exit(exitUsage, fmt.Errorf("--%s %v: want %v or more", d.flag, d.value, d.least))
		}
	}
	if f.featureExpiry != 0 && f.featureExpiry < leastExpiry {
		return cli.Exit(exitUsage, fmt.Errorf("--feature-file-expiry %v: want %v or more, or the labels come and go; 0 for never", f.featureExpiry, leastExpiry))
	}
	for _, name := range f.sinks {
		if !slices.Contains([]string{sinkNode, sinkFeatureFile, sinkNodeFeature}, name) {
			return cli.Exit(exitUsage, fmt.Errorf("--sink %q: want one of %s, %s, %s", name, sinkNode, sinkFeatureFile, sinkNodeFeature))
		}
	}
	if name := filepath.Base(f.featureFile); strings.HasPrefix(name, ".") {
		return cli.Exit(exitUsage, fmt.Errorf("--feature-file %q: want a file whose name begins with no dot, since NFD passes over hidden ones", f.featureFile))
	}
	if f.listen != "off" && f.listen != "" {
		if _, _, err := net.SplitHostPort(f.listen); err != nil {
			return cli.Exit(exitUsage, fmt.Errorf("--listen %q: want an address with a port, for instance :8080, or off", f.listen))
		}
	}
	switch f.pciLabels {
	case "", "true", "false":
	default:
		return cli.Exit(exitUsage, fmt.Errorf("--pci-labels %q: want true or false", f.pciLabels))
	}
	return f.checkTaint(f.sinks)
}

// omitPCI tells whether the pci- labels are left out: NFD, where it labels the Node,
// has them already.
func (f *agentFlags) omitPCI(sinks []string) bool {
	if f.pciLabels == "" {
		return len(sinks) > 0 && !slices.Contains(sinks, sinkNode)
	}
	return f.pciLabels == "false"
}

func (f *agentFlags) logger() *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.logLevel.Value)) // one of its words
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String()) // in JSON too, not nanoseconds
		}
		return a
	}}
	if f.logFormat.Value == "json" {
		return slog.New(redact.Handler(slog.NewJSONHandler(os.Stderr, options)))
	}
	return slog.New(redact.Handler(slog.NewTextHandler(os.Stderr, options)))
}

// runAgent labels the node until the process is told to end.
func runAgent(cmd *cobra.Command, f *flags) error {
	if err := errors.Join(f.agent.check(), f.source.check()); err != nil {
		return err
	}
	if cmd.Flags().Changed("output") {
		return cli.Exit(exitUsage, errors.New("-o is the form of what --print writes: give --print, too; without it, this is the agent, which labels a Node"))
	}
	if f.agent.taint != "" && !f.extraLabels {
		return cli.Exit(exitUsage, errors.New("--taint goes by the label "+countLabel+": not with --extra-labels=false"))
	}
	if f.hostFile != "" {
		return cli.Exit(exitUsage, errors.New("--host replays a host with --print; for the agent, unpack it (gpu-labeller snapshot --unpack FILE DIR) and give --root DIR"))
	}
	footprint.Limit()
	log := f.agent.logger()
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// Before anything else, since the signal ends a process that is not ready for it.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	outliveReaders()

	start := time.Now()
	s, err := f.agent.open(ctx, log)
	if ctx.Err() != nil {
		return nil // told to end before it began
	}
	if err != nil {
		return err
	}
	if err := f.agent.checkTaint(s.names); err != nil {
		return err
	}
	if s.writesCluster() && !f.agent.forceNodeName {
		err := checkHost(ctx, s.client, f.source.root, f.agent.nodeName, cmd.Flags().Changed("node-name"), log)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
	options := func() (labels.Options, error) {
		opts, warnings, err := f.labelOptions(cmd.Flags().Changed, start)
		for _, w := range warnings {
			log.Warn(w)
		}
		opts.OmitPCI = f.agent.omitPCI(s.names)
		return opts, err
	}
	opts, err := options()
	if err != nil {
		return err
	}
	host, err := f.source.host()
	if err != nil {
		return err
	}
	config := agent.Config{
		Host:       host,
		Options:    opts,
		Sinks:      s.all,
		Interval:   f.agent.interval,
		Poll:       f.agent.poll,
		ScanLimit:  f.source.nvmlTimeout + 10*time.Second,
		Reload:     options,
		ConfigFile: f.configFile,
		Sentry:     true,
		Idle:       func() { _ = footprint.Trim() },
		Uevents:    f.source.root == "/",
		Logger:     log,
		Version:    cli.Version(release),
	}
	if f.agent.featureExpiry > 0 {
		// The file is renewed when half of it is over.
		config.Resync = min(f.agent.featureExpiry/4, f.agent.interval, agent.LongestResync)
	}
	if s.client != nil {
		config.Requests = s.client.Requests
	}
	if s.client != nil && f.agent.nodeName != "" {
		if s.nfd() {
			config.ReadBack = func(ctx context.Context, set labels.Set) ([]string, error) {
				return missing(ctx, s.client, f.agent.nodeName, set)
			}
		}
		config.Event = func(reason, message string) {
			if err := s.client.Event(ctx, f.agent.nodeName, reason, message); err != nil {
				log.Debug(err.Error())
			}
		}
	}
	a := agent.New(config)

	var server *http.Server
	if f.agent.listen != "off" && f.agent.listen != "" {
		listener, err := net.Listen("tcp", f.agent.listen)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		server = &http.Server{
			Handler: a.Handler(), MaxHeaderBytes: 16 << 10,
			ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		}
		go func() { _ = server.Serve(listener) }()
		defer server.Close()
		log.Debug("serving /healthz, /readyz and /metrics", "address", listener.Addr().String())
	}
	go func() {
		for range hangups {
			a.Reload()
		}
	}()

	// What start-up needed is not needed again.
	debug.FreeOSMemory()
	_ = footprint.Trim()
	go func() {
		select {
		case <-ctx.Done():
		case <-time.After(leftoverTime + rand.N(leftoverTime)):
			for _, sentence := range f.agent.leftovers(ctx, s) {
				log.Warn(sentence)
			}
		}
	}()
	where := []any{"sinks", strings.Join(s.names, ",")}
	if f.agent.nodeName != "" {
		where = append(where, "node", f.agent.nodeName)
	}
	log.Info("labelling", append(where, "version", config.Version)...)
	a.Run(ctx)
	return nil
}

// outliveReaders keeps the end of whoever reads the log from ending the process:
// what is written then is lost. (A signal that is ignored, rather than caught,
// would be ignored by the NVML process, too.)
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// missing lists the labels of set that the Node does not have.
func missing(ctx context.Context, client *publish.Client, node string, set labels.Set) ([]string, error) {
	live, err := client.NodeLabels(ctx, node)
	if err != nil {
		return nil, err
	}
	var keys []string
	for key, value := range set {
		if got, ok := live[key]; !ok || got != value {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys, nil
}
