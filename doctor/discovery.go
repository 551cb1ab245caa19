package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-labeller/gpu-labeller/labels"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// discoveryStep compares the Node's labels with those that it should have, and
// looks for who should have written them.
func discoveryStep(h *host, k *state, opts labels.Options, no string) Step {
	if why := incomparable(h, k, no); why != "" {
		return skippedStep(why)
	}
	d := compare(h, k, opts)
	agent := checkAgent(k, d)
	checks := []Check{agent, d.check(agent.Result == Fault)}
	return Step{Checks: checks}
}

// difference is how the Node's labels differ from those that were computed.
type difference struct {
	expected int      // labels that should be there
	present  int      // those of them that are, whatever their value
	missing  []string // keys
	changed  []string // sentences
	stale    []string // sentences: keys of ours that should not be there
	foreign  []string // sentences: such keys of others
	notes    []string
	notOurs  int  // of what is changed, what others hold: no agent would change that
	byNFD    bool // NFD holds some of it
}

// optional are families of labels that the agent may be told to leave out.
var optional = []string{"feature.node.kubernetes.io/pci-", labels.ExtraPrefix, "beta.amd.com/"}

// privileged begin the keys of labels that take rights to compute, which the
// agent and this process may not share.
var privileged = []string{"nvidia.com/vgpu.", "amd.com/gpu.simd-count", "amd.com/gpu.cu-count", "amd.com/gpu.vram"}

func family(prefixes []string, key string) string {
	for _, p := range prefixes {
		if strings.HasPrefix(key, p) {
			return p
		}
	}
	return ""
}

func compare(h *host, k *state, opts labels.Options) *difference {
	live := k.node.Metadata.Labels
	opts, notes := likeTheNode(opts, live)
	want, rejected := labels.Compute(h.inv, opts)
	d := &difference{notes: notes}
	for _, r := range rejected {
		d.notes = append(d.notes, r.String())
	}
	managers := publish.LabelManagers(k.node.Metadata.ManagedFields)
	any := false
	seen := map[string]bool{}
	for key := range want {
		if _, ok := live[key]; ok {
			seen[family(optional, key)] = true
			any = true
		}
	}
	for _, key := range sortedKeys(want) {
		if f := family(optional, key); f != "" && any && !seen[f] {
			continue // left out on purpose, it seems
		}
		d.expected++
		got, ok := live[key]
		if ok {
			d.present++
		}
		switch {
		case !ok && family(privileged, key) != "", key == "nvidia.com/gfd.timestamp":
		case !ok:
			d.missing = append(d.missing, key)
		case got != want[key]:
			who := managers[key]
			d.changed = append(d.changed, fmt.Sprintf("label %s=%s, expected %s%s", key, got, quote(want[key]), setBy(who)))
			if who != "" && who != publish.FieldManager {
				d.notOurs++
			}
			d.byNFD = d.byNFD || strings.HasPrefix(who, "nfd-master")
		}
	}
	for _, key := range sortedKeys(live) {
		if _, ok := want[key]; ok || !known(key) || family(privileged, key) != "" || key == "nvidia.com/gfd.timestamp" {
			continue
		}
		if strings.HasPrefix(key, optional[0]) {
			continue // NFD's, of whatever class
		}
		who := managers[key]
		text := fmt.Sprintf("label %s=%s, expected not to be there%s", key, live[key], setBy(who))
		if who == publish.FieldManager {
			d.stale = append(d.stale, text)
		} else {
			d.foreign = append(d.foreign, text)
		}
	}
	return d
}

func known(key string) bool {
	return slices.ContainsFunc(labels.Keys, func(k labels.Key) bool { return k.Matches(key) })
}

func quote(value string) string { return cmp.Or(value, `""`) }

func setBy(manager string) string {
	if manager == "" {
		return ""
	}
	return ", set by " + manager
}

// likeTheNode takes from the Node's labels what doctor was not told: the MIG
// strategy, and how GPUs are shared.
func likeTheNode(opts labels.Options, live map[string]string) (labels.Options, []string) {
	var notes []string
	if opts.MIGStrategy == "" {
		opts.MIGStrategy = labels.MIGNone
		if s := labels.MIGStrategy(live["nvidia.com/mig.strategy"]); s == labels.MIGSingle || s == labels.MIGMixed {
			opts.MIGStrategy = s
			notes = append(notes, "taken from the Node's labels: MIG strategy "+string(s))
		}
	}
	if opts.Sharing != nil {
		return opts, notes
	}
	for _, key := range sortedKeys(live) {
		name, ok := strings.CutSuffix(key, ".replicas")
		replicas, err := strconv.Atoi(live[key])
		if !ok || err != nil || replicas < 2 || name != "nvidia.com/gpu" && !strings.HasPrefix(name, "nvidia.com/mig-") {
			continue
		}
		strategy := labels.SharingStrategy(live[name+".sharing-strategy"])
		if strategy != labels.TimeSlicing && strategy != labels.MPS {
			continue
		}
		if opts.Sharing == nil {
			opts.Sharing = &labels.Sharing{Strategy: strategy}
		}
		opts.Sharing.Resources = append(opts.Sharing.Resources, labels.SharedResource{
			Name: name, Replicas: replicas, Renamed: !strings.HasSuffix(live[name+".product"], "-SHARED"),
		})
		notes = append(notes, fmt.Sprintf("taken from the Node's labels: %s is shared by %d, %s", name, replicas, strategy))
	}
	return opts, notes
}

// checkAgent looks for the agent's pod. Without one, labels that are right are
// proof of another kind.
func checkAgent(k *state, d *difference) Check {
	c := labellerPods.check(k.pods)
	if c.Name == "" {
		if gfd := gfdPods.check(k.pods); gfd.Name != "" {
			c = gfd
		}
	}
	if c.Name != "" {
		if c.Result == Fault && d.right() {
			c.Result = Warning
			c.Text += "; the Node's labels are right, but nobody keeps them so"
		}
		return c
	}
	c = Check{Name: "agent", Result: OK}
	switch {
	case k.podsErr != nil:
		return skip(c.Name, because(k.podsErr))
	case d.expected == 0:
		c.Text = "no agent runs on this Node, and there is nothing to label"
	case d.right():
		c.Result = Warning
		c.Text = "no agent's pod was found on this Node; its labels are there and right, but nobody keeps them so"
		c.Evidence, c.Cure = labellerPods.absentBecause(k)
		c.Cure = cmp.Or(c.Cure, "install gpu-labeller's DaemonSet") + ", unless the agent runs here outside of Kubernetes"
	default:
		c.Result = Fault
		c.Text = "gpu-labeller's agent does not run on this Node"
		c.Evidence, c.Cure = labellerPods.absentBecause(k)
		c.Cure = cmp.Or(c.Cure, "install gpu-labeller's DaemonSet")
	}
	return c
}

// right tells of labels that are there and as an agent would leave them: it does
// not change what others hold.
func (d *difference) right() bool {
	return d.present > 0 && len(d.missing) == 0 && len(d.changed) == d.notOurs && len(d.stale) == 0
}

// check turns the difference into a result. Without an agent, it follows.
func (d *difference) check(noAgent bool) Check {
	c := Check{Name: "labels", Result: OK}
	wrong := len(d.missing) + len(d.changed) + len(d.stale)
	if len(d.missing) > 0 {
		c.Evidence = append(c.Evidence, "missing: "+listed(d.missing, 6))
	}
	c.Evidence = append(c.Evidence, first(d.changed, 10)...)
	c.Evidence = append(c.Evidence, first(d.stale, 10)...)
	c.Evidence = append(c.Evidence, first(d.foreign, 10)...)
	c.Evidence = append(c.Evidence, d.notes...)
	switch {
	case d.expected == 0 && wrong+len(d.foreign) == 0:
		c.Text = "no labels are expected, and there are none"
	case wrong == 0 && len(d.foreign) == 0:
		c.Text = fmt.Sprintf("all %d labels are as expected", d.expected)
	case wrong == 0:
		c.Result = Warning
		c.Text = fmt.Sprintf("%s of others should not be there", plural(len(d.foreign), "label"))
		c.Cure = "remove them, if nobody needs them: kubectl label node NODE KEY-"
	default:
		c.Result = Fault
		if noAgent {
			c.Result = Follows
		}
		c.Text = d.String()
		c.Cure = d.cure()
	}
	return c
}

// String counts what is wrong, and leaves out what is not.
func (d *difference) String() string {
	var parts []string
	count := func(n int, one, several string) {
		switch {
		case n == 1:
			parts = append(parts, "1 "+one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, several))
		}
	}
	if n := len(d.missing); n > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s %s missing", n, plural(d.expected, "label"), are(n)))
	}
	count(len(d.changed), "label has another value", "labels have another value")
	count(len(d.stale), "label is stale", "labels are stale")
	return strings.Join(parts, ", ")
}

func (d *difference) cure() string {
	switch {
	case d.byNFD:
		return "NFD holds them: is there another NodeFeature object or feature file for this Node (GPU Feature Discovery's), or has NFD not taken over ours yet? look at nfd-master's log"
	case d.notOurs > 0:
		return "remove the labels that others set (kubectl label node NODE KEY-), or run the agent with --force-conflicts"
	case d.present == 0:
		return "look at the agent's log and /readyz: does it label this Node, may it patch nodes, and with sink node-feature, does NFD run and allow the prefixes?"
	}
	return "look at the agent's log: it says which labels it left alone; does doctor have the agent's flags (--mig-strategy, --config-file)?"
}

func first(all []string, n int) []string {
	if len(all) <= n {
		return all
	}
	return append(slices.Clone(all[:n]), fmt.Sprintf("and %d more", len(all)-n))
}
