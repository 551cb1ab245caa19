package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/gpu-labeller/gpu-labeller/fleet"
)

// requirement is one thing asked of a Node's labels or fields. Without an
// operator it is an entry of the node selector.
type requirement struct {
	key      string
	operator corev1.NodeSelectorOperator
	values   []string
	field    bool // metadata.name, not a label
}

func affinityOnly(pod *corev1.Pod) nodeaffinity.RequiredNodeAffinity {
	return nodeaffinity.NewRequiredNodeAffinity(nil, pod.Spec.Affinity)
}

// matches asks the scheduler's library. What it cannot parse does not match.
func (r requirement) matches(node *corev1.Node) bool {
	if r.operator == "" {
		value, ok := node.Labels[r.key]
		return ok && value == r.values[0]
	}
	selector, err := r.compile()
	return err == nil && selector.Match(node)
}

func (r requirement) compile() (*nodeaffinity.NodeSelector, error) {
	e := []corev1.NodeSelectorRequirement{{Key: r.key, Operator: r.operator, Values: r.values}}
	term := corev1.NodeSelectorTerm{MatchExpressions: e}
	if r.field {
		term = corev1.NodeSelectorTerm{MatchFields: e}
	}
	return nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}})
}

// String is the requirement as its author would say it.
func (r requirement) String() string {
	switch {
	case r.operator == "":
		return r.key + "=" + r.values[0]
	case len(r.values) == 0:
		return r.key + " " + string(r.operator)
	case r.numeric():
		return r.key + " " + string(r.operator) + " " + r.values[0]
	}
	return r.key + " " + string(r.operator) + " [" + strings.Join(r.values, ", ") + "]"
}

func (r requirement) numeric() bool {
	return (r.operator == corev1.NodeSelectorOpGt || r.operator == corev1.NodeSelectorOpLt) && len(r.values) == 1
}

// wants reports whether a Node without the label can never match.
func (r requirement) wants() bool {
	return r.operator != corev1.NodeSelectorOpNotIn && r.operator != corev1.NodeSelectorOpDoesNotExist
}

func (r requirement) value(node *corev1.Node) (string, bool) {
	if r.field {
		return node.Name, r.key == metav1.ObjectNameField
	}
	value, ok := node.Labels[r.key]
	return value, ok
}

// lack says what a Node that does not match has instead.
func (r requirement) lack(node *corev1.Node) string {
	if err := r.invalid(); err != nil {
		return fmt.Sprintf("%s is not valid: %v", r, err)
	}
	value, ok := r.value(node)
	switch {
	case !ok:
		return fmt.Sprintf("needs %s; the node has no such label", r)
	case value == "":
		return fmt.Sprintf("needs %s; the node has it, empty", r)
	}
	return fmt.Sprintf("needs %s; the node has %s", r, value)
}

func (r requirement) invalid() error {
	if r.operator == "" {
		return nil
	}
	_, err := r.compile()
	return err
}

// miss says how close the Nodes come that do not match; nil when all match.
func (r requirement) miss(check Check, nodes []*corev1.Node) *Miss {
	var without []*corev1.Node
	var matching []string
	for _, n := range nodes {
		if r.matches(n) {
			matching = append(matching, n.Name)
		} else {
			without = append(without, n)
		}
	}
	if len(without) == 0 {
		return nil
	}
	m := &Miss{Check: check, Nodes: nodeNames(without)}
	if err := r.invalid(); err != nil {
		m.Text = fmt.Sprintf("%s is not valid, and so matches no node: %v", r, err)
		return m
	}
	m.Text = "needs " + r.String()
	if len(matching) > 0 {
		m.Text += "; " + some(matching) + " " + has(len(matching)) + " it"
	}
	labelled := slices.DeleteFunc(slices.Clone(without), func(n *corev1.Node) bool { _, ok := r.value(n); return !ok })
	switch {
	case len(labelled) > 0:
		m.Text += "; " + r.closest(labelled, len(matching) > 0)
		if text, cure := r.noNumber(labelled); text != "" {
			m.Text += text
			m.Cure = cure
		}
		if value := r.otherCase(labelled); value != "" && len(matching) == 0 {
			m.Cure = "is " + value + " meant?"
		}
	case len(matching) == 0 && r.wants():
		m.Text += "; no node has this label"
		if key := Similar(r.key, labelKeys(nodes)); key != "" {
			m.Cure = "is " + key + " meant?"
		} else {
			m.Cure = "is the key spelt right, and does gpu-labeller run on the nodes?"
		}
	}
	return m
}

// otherCase is a value of the Nodes that is a wanted one but for its case.
func (r requirement) otherCase(nodes []*corev1.Node) string {
	if r.operator != "" && r.operator != corev1.NodeSelectorOpIn {
		return ""
	}
	for _, n := range nodes {
		value, _ := r.value(n)
		if slices.ContainsFunc(r.values, func(want string) bool { return strings.EqualFold(want, value) }) {
			return value
		}
	}
	return ""
}

// noNumber says why Gt and Lt never hold where the values are no whole numbers, as
// AMD's 192G.
func (r requirement) noNumber(nodes []*corev1.Node) (text, cure string) {
	if !r.numeric() {
		return "", ""
	}
	for _, n := range nodes {
		value, _ := r.value(n)
		if _, err := strconv.ParseInt(value, 10, 64); err == nil {
			return "", ""
		}
	}
	text = fmt.Sprintf(", which is no whole number, so %s never holds", r.operator)
	if !strings.HasSuffix(r.key, "gpu.vram") {
		return text, ""
	}
	const mib = fleet.OwnPrefix + "memory.min"
	cure = "ask for " + mib + ", which is a whole number of MiB"
	for _, n := range nodes {
		if value := n.Labels[mib]; value != "" {
			return text, cure + ": " + n.Name + " has " + value
		}
	}
	return text, cure
}

// closest says what the Node has that comes closest to matching.
func (r requirement) closest(nodes []*corev1.Node, others bool) string {
	word := "closest "
	switch {
	case len(nodes) == 1:
		word = ""
	case others:
		word = "of the others, closest "
	}
	if !r.wants() {
		value, _ := r.value(nodes[0])
		return fmt.Sprintf("%s %s %s", some(nodeNames(nodes)), has(len(nodes)), cmp.Or(value, "it, empty"))
	}
	distance := func(n *corev1.Node) int {
		value, _ := r.value(n)
		if r.numeric() {
			return numberDistance(value, r.values[0])
		}
		least := editDistance(value, "")
		for _, want := range r.values {
			least = min(least, editDistance(value, want))
		}
		return least
	}
	best := slices.MinFunc(nodes, func(a, b *corev1.Node) int { return cmp.Compare(distance(a), distance(b)) })
	value, _ := r.value(best)
	return fmt.Sprintf("%s%s has %s", word, best.Name, cmp.Or(value, "it, empty"))
}

func has(n int) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

func nodeNames(nodes []*corev1.Node) []string {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	return names
}

// numberDistance is how far a value is from a bound; what is no number is
// farthest.
func numberDistance(value, bound string) int {
	const farthest = int(^uint(0) >> 1)
	v, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return farthest
	}
	b, err := strconv.ParseInt(bound, 10, 64)
	if err != nil {
		return farthest
	}
	if v > b {
		return int(v - b)
	}
	return int(b - v)
}

func labelKeys(nodes []*corev1.Node) []string {
	seen := make(map[string]bool)
	for _, n := range nodes {
		for key := range n.Labels {
			seen[key] = true
		}
	}
	keys := make([]string, 0, len(seen))
	for key := range seen {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// Similar returns the name that is like the given one but for a typing error, if
// there is one.
func Similar(name string, names []string) string {
	best, least := "", min(4, max(2, len(name)/6))
	for _, other := range names {
		if d := editDistance(name, other); d > 0 && d < least {
			best, least = other, d
		}
	}
	return best
}

// editDistance is Levenshtein's, of bytes, whatever the case; two that changed
// places are one error.
func editDistance(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			change := last[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
