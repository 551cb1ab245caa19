package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// parser walks a YAML document by what fields there should be, so its depth is
// bounded whatever the file holds. It collects what is wrong.
type parser struct {
	unknown        Unknown
	warnings, errs list
	nodes          int // looked at, those behind aliases each time
	merging        int // how deep in merge keys
}

// maxNodes bounds the work: with aliases and merge keys a small file can stand
// for a document without end, and an anchor can hold itself.
const (
	maxNodes   = 1 << 20
	maxMerging = 50
)

// field is a field of a mapping and what reads its value.
type field struct {
	name string
	read func(n *yaml.Node, path string)
}

// nameCase tells how names of fields compare.
type nameCase func(a, b string) bool

func exactCase(a, b string) bool { return a == b }

var anyCase nameCase = strings.EqualFold

// object reads the fields of a mapping, which may be null where no field is
// required.
func (p *parser) object(n *yaml.Node, path string, same nameCase, fields []field, required ...string) {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	members, ok := p.members(n, path)
	if !ok && !null(n) {
		p.fail(n, path, "%s: want a mapping with %s", describe(n), oneOf(names))
		return
	}
	for _, m := range members {
		i := slices.IndexFunc(fields, func(f field) bool { return same(f.name, m.key.Value) })
		if i < 0 {
			switch here := join(path, clip(m.key.Value)); {
			case m.value.Anchor != "":
			case p.unknown == PassOver:
				p.warn(m.key, here, "unknown field, ignored, as the device plugin does: want %s", oneOf(names))
			default:
				p.fail(m.key, here, "unknown field: want %s", oneOf(names))
			}
			continue
		}
		fields[i].read(m.value, join(path, fields[i].name))
	}
	for _, name := range required {
		if !slices.ContainsFunc(members, func(m member) bool { return m.key.Value == name }) {
			p.fail(n, join(path, name), "missing: add it")
		}
	}
}

type member struct{ key, value *yaml.Node }

// members gives a mapping's members. Of those with the same name the last
// stays, as in the plugin.
func (p *parser) members(n *yaml.Node, path string) (_ []member, ok bool) {
	n = dereference(n)
	if n.Kind != yaml.MappingNode {
		return nil, false
	}
	p.merging++
	defer func() { p.merging-- }()
	if p.merging > maxMerging || !p.afford(n) {
		return nil, p.merging <= maxMerging
	}
	var members []member
	at := map[string]int{}
	add := func(m member) (replaced bool) {
		i, replaced := at[m.key.Value]
		if replaced {
			members[i] = m
		} else {
			at[m.key.Value] = len(members)
			members = append(members, m)
		}
		return replaced
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := dereference(n.Content[i]), n.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!null":
			p.fail(key, path, "%s as the name of a field: want a word", describe(key))
		case key.ShortTag() == "!!merge":
			for _, source := range p.mergeSources(value) {
				merged, ok := p.members(source, path)
				if !ok {
					p.fail(value, join(path, "<<"), "want a mapping or a list of mappings, not one that holds itself")
				}
				for _, m := range merged {
					add(m)
				}
			}
		case add(member{key, value}):
			p.warn(key, join(path, clip(key.Value)), "set more than once: the last counts")
		}
	}
	return members, true
}

// mergeSources gives the mappings of a merge key, those that win last.
func (p *parser) mergeSources(n *yaml.Node) []*yaml.Node {
	sources, ok := p.list(n)
	if !ok {
		return []*yaml.Node{n}
	}
	sources = slices.Clone(sources)
	slices.Reverse(sources)
	return sources
}

func (p *parser) list(n *yaml.Node) (_ []*yaml.Node, ok bool) {
	n = dereference(n)
	if n.Kind != yaml.SequenceNode {
		return nil, false
	}
	if !p.afford(n) {
		return nil, true
	}
	return n.Content, true
}

// afford tells whether a collection is to be looked into.
func (p *parser) afford(n *yaml.Node) bool {
	p.nodes += 1 + len(n.Content)
	return p.nodes <= maxNodes
}

func null(n *yaml.Node) bool {
	n = dereference(n)
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// scalar gives a value as YAML 1.1 has it: string, bool, int, int64, uint64,
// float64, or nil for null and for what is not a scalar.
func scalar(n *yaml.Node) any {
	n = dereference(n)
	if n.Kind != yaml.ScalarNode {
		return nil
	}
	if n.Style == 0 {
		switch n.Value {
		case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
			return true
		case "n", "N", "no", "No", "NO", "off", "Off", "OFF":
			return false
		}
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return nil // such as !!int with letters
	}
	if _, ok := v.(time.Time); ok {
		return n.Value
	}
	return v
}

func (p *parser) text(s **string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if v, ok := scalar(n).(string); ok {
			*s = &v
		} else if !null(n) {
			p.fail(n, path, "%s: want a string, in quotes if it looks like something else", describe(n))
		}
	}
}

// oneOf reads a word. One that is unknown is for whoever has the command line
// to refuse.
func (p *parser) oneOf(s **string, words ...string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		p.text(s)(n, path)
		if *s != nil && !slices.Contains(words, **s) {
			p.warn(n, path, "%s: want %s: of use only if overridden", describe(n), oneOf(words))
		}
	}
}

func (p *parser) boolean(b **bool) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if v, ok := scalar(n).(bool); ok {
			*b = &v
		} else if !null(n) {
			p.fail(n, path, "%s: want true or false, without quotes", describe(n))
		}
	}
}

// integer gives a whole number, be it written as a float, as in JSON.
func integer(v any) (int, bool) {
	switch v := v.(type) {
	case int:
		return v, true
	case float64:
		i, err := strconv.Atoi(strconv.FormatFloat(v, 'f', -1, 64))
		return i, err == nil
	}
	return 0, false
}

func isUint64(v any) bool {
	switch v := v.(type) {
	case int:
		return v >= 0
	case uint64:
		return true
	case float64:
		_, err := strconv.ParseUint(strconv.FormatFloat(v, 'f', -1, 64), 10, 64)
		return err == nil
	}
	return false
}

func number(v any) float64 {
	switch v := v.(type) {
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case float64:
		return v
	}
	return math.NaN()
}

func dereference(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func (p *parser) fail(n *yaml.Node, path, format string, args ...any) {
	p.errs.add(n, path, format, args...)
}

func (p *parser) warn(n *yaml.Node, path, format string, args ...any) {
	p.warnings.add(n, path, format, args...)
}

// list is sentences about the file, of which a reader wants the first.
type list struct {
	first []string
	more  int
}

func (l *list) add(n *yaml.Node, path, format string, args ...any) {
	const most = 5
	if len(l.first) == most {
		l.more++
		return
	}
	if path != "" {
		path += ": "
	}
	l.first = append(l.first, fmt.Sprintf("line %d: %s", n.Line, path)+fmt.Sprintf(format, args...))
}

func (l *list) all() []string {
	if l.more > 0 {
		return append(l.first, fmt.Sprintf("and %d more", l.more))
	}
	return l.first
}

// err gives what is wrong with the file in one line.
func (p *parser) err() error {
	switch {
	case p.nodes > maxNodes:
		return errors.New("aliases and merge keys make the file too large: write it out")
	case len(p.errs.first) == 0:
		return nil
	}
	return errors.New(strings.Join(p.errs.all(), "; "))
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

func oneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// describe gives a value as the file has it.
func describe(n *yaml.Node) string {
	n = dereference(n)
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		if len(n.Content) == 0 {
			return "an empty list"
		}
		return "a list"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!int", "!!float", "!!bool":
		return clip(n.Value)
	}
	return strconv.Quote(clip(n.Value))
}

// clip keeps a message short when the file holds something else altogether.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
