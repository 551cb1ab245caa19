// Package doctor finds out why a pod gets no GPU on a node. It walks the way that
// a GPU takes to a pod, link by link: the host, the cluster's components, the
// labels, what the Node advertises, the scheduler, the container. It blames what
// is wrong in the first link that is broken; what is wrong after that and may
// follow from it is shown without blame.
//
// It reads, with one exception: the test pod, which is made only when asked for.
package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// Result is what came of a check or a step.
type Result string

// The results.
const (
	OK      Result = "ok"
	Warning Result = "warning" // worth knowing; a pod can have a GPU all the same
	Fault   Result = "fault"
	Follows Result = "follows" // wrong, too, but after a fault that may be why
	Skipped Result = "skipped" // not looked at; the text says why
)

// worse orders results: a step is as bad as its worst check.
func worse(r Result) int {
	return slices.Index([]Result{Skipped, OK, Warning, Follows, Fault}, r)
}

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name" yaml:"name"` // stable, for scripts: kernel-driver
	Result Result `json:"result" yaml:"result"`
	// Text is what was found, as a sentence.
	Text string `json:"text" yaml:"text"`
	// Evidence is what was seen and where: a path, an object of the API server.
	Evidence []string `json:"evidence,omitempty" yaml:"evidence,omitempty"`
	// Cure is what to do, empty where there is nothing to do or nothing known.
	Cure string `json:"cure,omitempty" yaml:"cure,omitempty"`

	// after are the steps whose faults may be why this one is wrong. Nil stands
	// for those of its step, empty for none.
	after []int
}

// after are the steps that a step may follow from. Labels have no part in what is
// advertised, nor in whether a container gets a GPU.
var after = map[string][]int{
	"components": {1}, "discovery": {1, 2}, "advertisement": {1, 2}, "scheduling": {1, 2, 3, 4}, "runtime": {1, 2, 4},
}

// Step is a link of the chain.
type Step struct {
	Number int    `json:"number" yaml:"number"`
	Name   string `json:"name" yaml:"name"`
	Result Result `json:"result" yaml:"result"`
	// Note says why the step was not looked at, or why it is not blamed.
	Note   string  `json:"note,omitempty" yaml:"note,omitempty"`
	Checks []Check `json:"checks" yaml:"checks"`
}

// The steps, as they are numbered from 1.
var stepNames = []string{"host", "components", "discovery", "advertisement", "scheduling", "runtime"}

// Report is all that was found.
type Report struct {
	Node   string `json:"node,omitempty" yaml:"node,omitempty"`
	Pod    string `json:"pod,omitempty" yaml:"pod,omitempty"`
	Result Result `json:"result" yaml:"result"`
	// Broken is the number of the first step with a fault, 0 without one.
	Broken int `json:"broken" yaml:"broken"`
	// Failure says that the cluster was to be looked at and could not: the API
	// server does not answer. A right that is missing is no failure.
	Failure string `json:"failure,omitempty" yaml:"failure,omitempty"`
	Steps   []Step `json:"steps" yaml:"steps"`
}

// Faults gives the checks of the step that are blamed.
func (s *Step) Faults() []Check {
	return slices.DeleteFunc(slices.Clone(s.Checks), func(c Check) bool { return c.Result != Fault })
}

// broken is the first of the steps that has a fault, 0 if none has.
func (r *Report) broken(steps []int) int {
	for _, n := range steps {
		if n <= len(r.Steps) && r.Steps[n-1].Result == Fault {
			return n
		}
	}
	return 0
}

// Config says what to look at.
type Config struct {
	Host discover.Host
	// DriverRoot is where NVML is looked for, for messages.
	DriverRoot string
	// Recorded: Host is a recorded one, which has neither device nodes nor /etc.
	Recorded bool
	// InPod: this process is in a pod and Host.Root is "/", so that /dev and
	// /etc are the container's.
	InPod bool

	// Labels are the options of the labels that the node should have. Without a
	// MIG strategy, and without sharing, the Node's own labels tell.
	Labels labels.Options

	// Cluster is nil where there is none to look at; NoCluster says why.
	Cluster   *Cluster
	NoCluster string
	Node      string // the Node's name, with Cluster
	Pod       string // NAMESPACE/NAME of a pod that waits for a GPU, or empty
	TestPod   *TestPod
}

// Run looks at everything and gives the report. It does not fail: what cannot be
// looked at is a check that is skipped.
func Run(ctx context.Context, c Config) *Report {
	r := &Report{Node: c.Node, Pod: c.Pod}
	h := readHost(ctx, &c)
	r.add(Step{Checks: h.checks()})

	k := &state{}
	if c.Cluster != nil {
		k = c.Cluster.read(ctx, c.Node)
		r.Failure = k.failure
	}
	no := c.noCluster(k)
	r.add(componentsStep(h, k, no))
	r.add(discoveryStep(h, k, c.Labels, no))
	r.add(advertisementStep(h, k, c.Labels, no))
	r.add(schedulingStep(ctx, &c, k, no))
	r.add(runtimeStep(ctx, &c, k, no, r.broken(after["runtime"])))
	return r
}

// noCluster says why the cluster is not looked at, empty if it is.
func (c *Config) noCluster(k *state) string {
	switch {
	case c.Cluster == nil && c.NoCluster != "":
		return c.NoCluster
	case c.Cluster == nil:
		return "there is no cluster to look at"
	case k.failure != "":
		return k.failure
	}
	return ""
}

// incomparable says why the host and its Node cannot be compared, empty if they
// can.
func incomparable(h *host, k *state, no string) string {
	switch {
	case no != "":
		return no
	case k.node == nil:
		return "the Node cannot be read"
	case h.scanErr != nil:
		return "the host's GPUs cannot be told"
	}
	return ""
}

// add takes the next step in, and takes the blame off what may follow from one
// before that is broken.
func (r *Report) add(s Step) {
	s.Number = len(r.Steps) + 1
	s.Name = stepNames[len(r.Steps)]
	if s.Checks == nil {
		s.Checks = []Check{}
	}
	s.Result = Skipped
	for i := range s.Checks {
		c := &s.Checks[i]
		why := c.after
		if why == nil {
			why = after[s.Name]
		}
		if broken := r.broken(why); c.Result == Fault && broken > 0 {
			c.Result = Follows
			s.Note = fmt.Sprintf("what follows from step %d (%s) is not blamed: cure that first, and look again", broken, stepNames[broken-1])
		}
		if worse(c.Result) > worse(s.Result) {
			s.Result = c.Result
		}
	}
	if s.Result == Fault && r.Broken == 0 {
		r.Broken = s.Number
	}
	r.Steps = append(r.Steps, s)
	if r.Result == "" || worse(s.Result) > worse(r.Result) {
		r.Result = s.Result
	}
}

// skip is a check that was not made.
func skip(name, why string) Check { return Check{Name: name, Result: Skipped, Text: why} }

// skippedStep is a step that was not looked at.
func skippedStep(why string) Step { return Step{Note: why} }

// plural counts things: 1 GPU, 2 GPUs.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// are agrees with a number.
func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// listed joins at most max of the words, and counts the rest.
func listed(words []string, max int) string {
	if len(words) <= max {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:max], ", "), len(words)-max)
}
