package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-labeller/gpu-labeller/agent"
	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/internal/footprint"
	"github.com/gpu-labeller/gpu-labeller/internal/redact"
	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// gfdName is the name under which the program is GPU Feature Discovery. The GPU
// operator's config-manager sends SIGHUP to the process with exactly this first
// argument, so the NVML child process must have another.
const gfdName = "gpu-feature-discovery"

// isGFD tells by the name under which the program was started.
func isGFD(argv0 string) bool { return filepath.Base(argv0) == gfdName }

func newGFDCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "gfd [flags]",
		Short: "Do as NVIDIA's GPU Feature Discovery does, with its flags and labels",
		Long: `gfd is what the program does when it is installed, or linked, under the name
` + gfdName + `.`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if code := runGFD(args, cmd.OutOrStdout(), cmd.ErrOrStderr()); code != exitOK {
				return cli.Exit(code, nil)
			}
			return nil
		},
	}
}

// runGFD is the whole program under GFD's name. The exit code is 0 when labels
// were published once or a signal ended it, else 1.
func runGFD(args []string, stdout, stderr io.Writer) int {
	f, err := parseGFDFlags(args, os.LookupEnv)
	if err != nil {
		fmt.Fprintf(stderr, "Error: %s; see %s --help\n", cli.Printable(err.Error()), gfdName)
		return exitFailure
	}
	switch {
	case f.help:
		writeGFDUsage(stdout)
		return exitOK
	case f.version:
		fmt.Fprintf(stdout, "GPU Feature Discovery version %s (gpu-labeller)\n", cli.Version(release))
		return exitOK
	}
	g := &gfd{flags: f, stdout: stdout, start: time.Now(), log: slog.New(redact.Handler(slog.NewTextHandler(stderr, nil)))}
	if len(f.stray) > 0 {
		g.log.Warn("passed over, as by GFD: " + strings.Join(f.stray, " ") + "; a flag's value stands after an equals sign, or follows it if it is no boolean")
	}
	if err := redact.Error(g.run()); err != nil {
		fmt.Fprintln(stderr, "Error:", cli.Printable(err.Error()))
		return exitFailure
	}
	return exitOK
}

// gfd labels the node as GFD does, where that is of use to anyone: GFD ends when
// something fails, and this does not; GFD removes its file when it ends, and here
// the labels stay.
type gfd struct {
	flags  *gfdFlags
	stdout io.Writer
	start  time.Time
	log    *slog.Logger

	settings *gfdSettings
	out      *gfdOutput
}

func (g *gfd) run() error {
	footprint.Limit()
	if err := (&source{root: g.flags.root, nvmlTimeout: nvml.DefaultTimeout}).check(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	// Before anything else, since the signal ends a process that is not ready for it.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	outliveReaders()

	settings, err := g.load()
	var fileError *gfdFileError
	switch {
	case errors.As(err, &fileError) && !g.flags.oneshot:
		// There is no last good one. A node without labels is worse than one
		// without those that the file decides.
		if settings, err = g.unread(); err != nil {
			return err
		}
		g.log.Error("the labels that the configuration file decides stay as they are, or are left out, until it can be read: " + fileError.Error())
	case err != nil:
		return err
	}
	if g.out, err = settings.open(g.stdout, g.log); err != nil {
		return err
	}
	if g.out.client != nil && !g.flags.forceNodeName {
		if err := checkHost(ctx, g.out.client, g.flags.root, settings.nodeName, false, g.log); err != nil && ctx.Err() == nil {
			return err
		}
	}
	g.settings = settings
	for ctx.Err() == nil {
		if g.settings.oneshot {
			return g.once(ctx)
		}
		if err := g.label(ctx, hangups); err != nil {
			return err
		}
	}
	return nil
}

// load reads the settings anew.
func (g *gfd) load() (*gfdSettings, error) {
	settings, warnings, err := g.flags.settings()
	for _, w := range warnings {
		g.log.Warn(w)
	}
	if err == nil && settings.strategy != "auto" && settings.strategy != "nvml" {
		g.log.Warn("--device-discovery-strategy=" + settings.strategy + " has no effect: every GPU is taken for what it is")
	}
	return settings, err
}

// unread are the settings without the configuration file.
func (g *gfd) unread() (*gfdSettings, error) {
	without := *g.flags
	without.configFile = ""
	settings, _, err := without.settings()
	if err != nil {
		return nil, err
	}
	settings.configFile, settings.unread = g.flags.configFile, true
	return settings, nil
}

// label runs the agent until ctx is done, or until a new configuration wants
// another one.
func (g *gfd) label(all context.Context, hangups <-chan os.Signal) error {
	ctx, stop := context.WithCancel(all)
	defer stop()
	host, err := g.host()
	if err != nil {
		return err
	}
	settings, out := g.settings, g.out
	config := agent.Config{
		Host:      host,
		Options:   settings.options(g.start),
		Sinks:     []publish.Sink{out.sink},
		Interval:  settings.interval(),
		ScanLimit: nvml.DefaultTimeout + 10*time.Second,
		Reload: func() (labels.Options, error) {
			fresh, err := g.load()
			if err != nil {
				return labels.Options{}, err
			}
			if !fresh.sameRun(settings) {
				another, err := fresh.open(g.stdout, g.log)
				if err != nil {
					return labels.Options{}, err
				}
				g.settings, g.out = fresh, another
				stop()
			}
			return fresh.options(g.start), nil
		},
		ConfigFile: settings.configFile,
		Sentry:     true,
		Idle:       func() { _ = footprint.Trim() },
		Uevents:    settings.root == "/",
		Logger:     g.log,
		Version:    cli.Version(release),
		Scan:       scanNVIDIA,
	}
	if out.client != nil {
		config.ReadBack = func(ctx context.Context, set labels.Set) ([]string, error) {
			return missing(ctx, out.client, settings.nodeName, set)
		}
	}
	a := agent.New(config)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
				a.Reload()
			}
		}
	}()
	debug.FreeOSMemory()
	_ = footprint.Trim()
	a.Run(ctx)
	if g.out != out {
		moved := make(chan struct{})
		go func() {
			move(all, out.sink, g.out.sink, g.log)
			close(moved)
		}()
		select {
		case <-moved:
		case <-time.After(moveLimit + time.Second): // files know no limit
			g.log.Warn("the labels stay at the old place, too: it does not answer")
		}
	}
	return nil
}

// moveLimit is how long new labels wait for the old ones to be moved.
const moveLimit = 10 * time.Second

// move brings the labels to another place, if it is another: what stayed behind
// would label the node for ever. No agent runs meanwhile, for both would write.
func move(ctx context.Context, from, to publish.Sink, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, moveLimit)
	defer cancel()
	old, ok := from.(agent.Publisher)
	if !ok || from.String() == to.String() {
		return
	}
	set, err := old.Published(ctx)
	if err == nil {
		err = ctx.Err() // files do not look, and another agent may write meanwhile
	}
	if err == nil && len(set) > 0 {
		err = to.Publish(ctx, set)
	}
	if err == nil {
		err = from.Publish(ctx, nil)
	}
	if err != nil {
		log.Warn("the labels stay at the old place, too: " + err.Error())
	}
}

// once labels the node once. A GPU that fails costs itself, as ever; but where
// NVML could not be asked at all there is nothing to publish, and it depends on
// --fail-on-init-error whether that is an error.
func (g *gfd) once(ctx context.Context) error {
	host, err := g.host()
	if err != nil {
		return err
	}
	var answer nvml.Answer
	ask := host.NVML
	host.NVML = func(ctx context.Context) nvml.Answer {
		answer = ask(ctx)
		return answer
	}
	inv, err := scanNVIDIA(ctx, host)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	for _, p := range inv.Problems {
		g.log.Warn(p.String())
	}
	if why := silence(answer); why != "" {
		if g.settings.failOnInitError {
			return fmt.Errorf("NVML could not be asked, so nothing is published: %s; with --fail-on-init-error=false that is no error", why)
		}
		g.log.Warn("NVML could not be asked, so nothing is published, and labels that are there stay: " + why)
		return nil
	}
	if err != nil {
		return err
	}
	set, rejected := labels.Compute(inv, g.settings.options(g.start))
	for _, r := range rejected {
		g.log.Warn(r.String())
	}
	if len(set) == 0 {
		g.log.Warn("no NVIDIA GPU found, so there are no labels")
	}
	return g.out.sink.Publish(ctx, set)
}

// silence says why NVML could not be asked, empty when it could.
func silence(answer nvml.Answer) string {
	switch {
	case answer.Failure != nil:
		return answer.Failure.Text
	case answer.Init == nvml.Success:
		return ""
	case answer.Detail != "":
		return fmt.Sprintf("%v: %s", answer.Init, answer.Detail)
	}
	return fmt.Sprint(answer.Init)
}

func (g *gfd) host() (discover.Host, error) {
	s := source{root: g.settings.root, machineFile: g.settings.machineTypeFile}
	return s.host()
}

// scanNVIDIA is discover.Scan without other vendors' GPUs, for which GFD has no
// labels.
func scanNVIDIA(ctx context.Context, host discover.Host) (*discover.Inventory, error) {
	inv, err := discover.Scan(ctx, host)
	if inv != nil {
		inv.GPUs = slices.DeleteFunc(inv.GPUs, func(g discover.GPU) bool { return g.Vendor != discover.NVIDIA })
		inv.Problems = slices.DeleteFunc(inv.Problems, func(p discover.Problem) bool {
			return p.Source == discover.SourceAMD || p.Source == discover.SourceIntel
		})
	}
	return inv, err
}
