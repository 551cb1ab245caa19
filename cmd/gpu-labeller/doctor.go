package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/doctor"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

// exitBroken plus the number of a step is the exit code of doctor when that step
// is the first with a fault: 11 to 16.
const exitBroken = 10

// doctorFlags are those of doctor: where the host is, as with --print, and where
// the cluster.
type doctorFlags struct {
	flags
	output      cli.Choice
	pod         string
	gpuPod      bool
	gpuPodImage string
	gpuPodLimit time.Duration
	namespace   string
}

// The flags that doctor shares with the root command.
var doctorShares = []string{
	"host", "root", "driver-root", "nvml-timeout", "machine-type-file", "node-name", "kubeconfig",
	"mig-strategy", "mixed-gpus", "unified-memory", "extra-labels", "amd-beta-labels", "pci-classes", "pci-label-fields", "config-file",
}

func newDoctorCommand() *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out why pods get no GPU on this node",
		Long: `doctor walks the way of a GPU to a pod, and stops blaming at the first link that
is broken, where what is wrong after that may follow from it. Each finding has
what was seen, and its cure.

  1 host           PCI, kernel driver, versions, device nodes, NVML, GPUs, MIG
  2 components     container toolkit, runtime, CDI, device plugin, operator, NFD
  3 discovery      the Node's labels against those that it should have
  4 advertisement  what the kubelet and DRA advertise against the GPUs there are
  5 scheduling     what keeps a pod from this Node (--pod)
  6 runtime        nvidia-smi in a pod on this Node (--gpu-pod)

Without a cluster it looks at the host. It changes nothing, but for the test pod
of --gpu-pod, which it deletes again. A right that it lacks is named, and what
takes it is skipped: the agent's own are enough for steps 1 and 3.

Exit codes:
  0         no fault, maybe warnings
  1         the command itself went wrong, or the API server does not answer
  2         wrong usage
  11 to 16  fault in step 1 to 6, the first one that is broken
A pod that --pod names and that there is not is an error, code 1.`,
		Example: `  # On a node, or in the agent's pod
  gpu-labeller doctor

  # With the Node's side of it; and from a pod that has the host's files at /host
  gpu-labeller doctor --node-name node-a --kubeconfig ~/.kube/config
  gpu-labeller doctor --node-name "$NODE_NAME" --root /host --driver-root /host

  # Why does this pod wait? Does a container here get a GPU?
  gpu-labeller doctor --node-name node-a --pod ml/train-0
  gpu-labeller doctor --node-name node-a --gpu-pod

  # A host that was recorded elsewhere
  gpu-labeller doctor --host node-a.txtar`,
		Args:              cli.UsageArgs(cobra.NoArgs),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	f.output = cli.Choice{Value: "table", Of: []string{"table", "json", "yaml"}}
	registerChoice(cmd, &f.output, "output", "o", "form of the report")
	fs.StringVar(&f.pod, "pod", "", "a pod that waits for a GPU, NAMESPACE/NAME (step 5)")
	fs.BoolVar(&f.gpuPod, "gpu-pod", false, "run nvidia-smi in a pod on this Node and delete it again (step 6); needs the verbs create, get and delete on pods, and get on pods/log")
	fs.StringVar(&f.gpuPodImage, "gpu-pod-image", doctor.DefaultTestImage, "image of that pod: any with a C library")
	fs.DurationVar(&f.gpuPodLimit, "gpu-pod-timeout", 2*time.Minute, "how long that pod may take")
	fs.StringVar(&f.namespace, "gpu-pod-namespace", "default", "namespace of that pod")
	f.share(cmd, doctorShares)
	for _, name := range []string{"pod", "gpu-pod-image", "gpu-pod-namespace", "node-name"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

func (f *doctorFlags) run(cmd *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	done, err := f.replay(ctx, cmd)
	if err != nil {
		return err
	}
	defer done()
	config, err := f.config(ctx, cmd, cmd.Flags().Changed("host"))
	if err != nil {
		return err
	}
	if f.pod != "" && config.Cluster != nil {
		if err := config.Cluster.HasPod(ctx, f.pod); err != nil {
			return err
		}
	}
	report := doctor.Run(ctx, config)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if err := writeDoctor(cmd.OutOrStdout(), f.output.Value, report); err != nil {
		return err
	}
	switch {
	case report.Broken > 0:
		return cli.Exit(exitBroken+report.Broken, nil)
	case report.Failure != "":
		return cli.Exit(exitFailure, nil)
	}
	return nil
}

func (f *doctorFlags) check() error {
	namespace, name, ok := strings.Cut(f.pod, "/")
	if err := f.agent.checkNames(); err != nil {
		return err
	}
	switch {
	case f.pod != "" && (!ok || namespace == "" || name == "" || strings.Contains(name, "/")):
		return cli.Exit(exitUsage, fmt.Errorf("--pod %q: want NAMESPACE/NAME", f.pod))
	case f.gpuPodLimit <= 0:
		return cli.Exit(exitUsage, fmt.Errorf("--gpu-pod-timeout %v: want more than 0, for instance 2m", f.gpuPodLimit))
	case (f.pod != "" || f.gpuPod) && f.agent.nodeName == "":
		return cli.Exit(exitUsage, errors.New("--pod and --gpu-pod are about a Node: give --node-name, or set NODE_NAME"))
	}
	return nil
}

// config is what doctor is to look at.
func (f *doctorFlags) config(ctx context.Context, cmd *cobra.Command, recorded bool) (c doctor.Config, err error) {
	opts, warnings, err := f.labelOptions(cmd.Flags().Changed, time.Now())
	for _, w := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
	}
	if err != nil {
		return c, err
	}
	if !cmd.Flags().Changed("mig-strategy") && f.configFile == "" {
		opts.MIGStrategy = "" // the Node's labels tell
	}
	if err := f.source.check(); err != nil {
		return c, err
	}
	host, err := f.source.host()
	if err != nil {
		return c, err
	}
	if _, err := os.Stat(filepath.Join(f.source.root, "nvml.yaml")); err == nil {
		recorded = true // unpacked
	}
	c = doctor.Config{
		Host: host, DriverRoot: f.source.driverRoot, Recorded: recorded,
		InPod:  f.source.root == "/" && os.Getenv("KUBERNETES_SERVICE_HOST") != "",
		Labels: opts, Node: f.agent.nodeName, Pod: f.pod,
	}
	if f.gpuPod {
		c.TestPod = &doctor.TestPod{Namespace: f.namespace, Image: f.gpuPodImage, Timeout: f.gpuPodLimit}
	}
	if f.agent.nodeName == "" {
		c.NoCluster = "no Node was named: give --node-name, or set NODE_NAME"
		return c, nil
	}
	api, err := restConfig(f.agent.kubeconfig)
	if err != nil {
		if _, inPodErr := rest.InClusterConfig(); f.agent.kubeconfig == "" && errors.Is(inPodErr, rest.ErrNotInCluster) {
			c.NoCluster = "there is no cluster: this is not a pod, so give --kubeconfig"
			return c, nil
		}
		return c, err
	}
	c.Cluster, err = doctor.NewCluster(api)
	return c, err
}
