package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// Unknown says what becomes of a field that nobody knows, unless it holds a YAML
// anchor for the others.
type Unknown bool

const (
	// Refuse has it be an error: it is a spelling mistake.
	Refuse Unknown = false
	// PassOver has it be a warning, as GFD passes it over: it may also be one of a
	// newer device plugin.
	PassOver Unknown = true
)

// Parse reads a configuration file. An error names each field at fault with its
// line. The warnings are sentences about what the file says to no effect.
func Parse(data []byte, unknown Unknown) (*Config, []string, error) {
	documents := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := documents.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	p := &parser{unknown: unknown}
	c := &Config{}
	if doc.Kind == yaml.DocumentNode {
		p.config(doc.Content[0], c)
	}
	if err := p.err(); err != nil {
		return nil, nil, err
	}
	var second yaml.Node
	if documents.Decode(&second) == nil {
		p.warn(&second, "", "another YAML document: only the first is read")
	}
	return c, p.warnings.all(), nil
}

// The case of a field's name matters only where the plugin decodes by hand:
// below the lists of resources, and in timeSlicing and mps.

func (p *parser) config(n *yaml.Node, c *Config) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "kind" && n.Content[i+1].Value == "ConfigMap" {
			p.fail(n.Content[i], "kind", "this is a ConfigMap: want what is below one of the keys of its data")
			return
		}
	}
	p.object(n, "", anyCase, []field{
		{"version", p.version},
		{"flags", func(n *yaml.Node, path string) { p.flags(n, path, &c.Flags) }},
		{"resources", p.resourcePatterns},
		{"sharing", func(n *yaml.Node, path string) { p.sharing(n, path, c) }},
		{"imex", p.imex},
	})
}

func (p *parser) version(n *yaml.Node, path string) {
	if v := scalar(n); v != "v1" && v != "" && !null(n) {
		p.fail(n, path, "%s: want v1", describe(n))
	}
}

func (p *parser) flags(n *yaml.Node, path string, f *Flags) {
	p.object(n, path, anyCase, []field{
		{"migStrategy", p.oneOf(&f.MIGStrategy, string(labels.MIGNone), string(labels.MIGSingle), string(labels.MIGMixed))},
		{"failOnInitError", p.boolean(&f.FailOnInitError)},
		{"mpsRoot", p.text(new(*string))},
		{"nvidiaDriverRoot", p.text(&f.NVIDIADriverRoot)},
		{"nvidiaDevRoot", p.text(new(*string))},
		{"gdrcopyEnabled", p.boolean(new(*bool))},
		{"gdsEnabled", p.boolean(new(*bool))},
		{"mofedEnabled", p.boolean(new(*bool))},
		{"useNodeFeatureAPI", p.boolean(&f.UseNodeFeatureAPI)},
		{"deviceDiscoveryStrategy", p.oneOf(&f.DeviceDiscoveryStrategy, "auto", "nvml", "tegra", "vfio")},
		{"plugin", func(n *yaml.Node, path string) {
			p.object(n, path, anyCase, []field{
				{"passDeviceSpecs", p.boolean(new(*bool))},
				{"deviceListStrategy", p.deviceListStrategy},
				{"deviceIDStrategy", p.text(new(*string))},
				{"cdiAnnotationPrefix", p.text(new(*string))},
				{"nvidiaCTKPath", p.text(new(*string))},
				{"containerDriverRoot", p.text(&f.ContainerDriverRoot)},
				{"sharedDevicesAllocationPolicy", p.text(new(*string))},
			})
		}},
		{"gfd", func(n *yaml.Node, path string) {
			p.object(n, path, anyCase, []field{
				{"oneshot", p.boolean(&f.GFD.Oneshot)},
				{"noTimestamp", p.boolean(&f.GFD.NoTimestamp)},
				{"sleepInterval", func(n *yaml.Node, path string) { p.interval(n, path, &f.GFD.SleepInterval) }},
				{"outputFile", p.text(&f.GFD.OutputFile)},
				{"machineTypeFile", p.text(&f.GFD.MachineTypeFile)},
			})
		}},
	})
}

func (p *parser) deviceListStrategy(n *yaml.Node, path string) {
	if list, ok := p.list(n); ok {
		for i, item := range list {
			p.text(new(*string))(item, index(path, i))
		}
		return
	}
	p.text(new(*string))(n, path)
}

func (p *parser) interval(n *yaml.Node, path string, d **time.Duration) {
	switch v := scalar(n).(type) {
	case nil:
		if null(n) {
			return
		}
	case string:
		parsed, err := ParseSleepInterval(v)
		if err != nil {
			p.fail(n, path, "%v", err)
			return
		}
		*d = &parsed
		return
	case int, int64, uint64, float64:
		// The plugin goes through a float64, and past an int64 the result is
		// the processor's choice.
		const limit = float64(1 << 63)
		if ns := number(v); ns > -limit && ns < limit {
			parsed := time.Duration(ns)
			*d = &parsed
			p.warn(n, path, "%s: taken for nanoseconds: write a unit, such as 60s", describe(n))
			return
		}
	}
	p.fail(n, path, "%s: want a duration such as 60s, or infinite", describe(n))
}

func (p *parser) imex(n *yaml.Node, path string) {
	p.object(n, path, anyCase, []field{
		{"channelIDs", func(n *yaml.Node, path string) {
			list, ok := p.list(n)
			if !ok && !null(n) {
				p.fail(n, path, "%s: want a list of channel IDs", describe(n))
			}
			for i, item := range list {
				if _, ok := integer(scalar(item)); !ok && !null(item) {
					p.fail(item, index(path, i), "%s: want an integer", describe(item))
				}
			}
		}},
		{"required", p.boolean(new(*bool))},
	})
}

// resourcePatterns checks names for resources by product, which the plugin
// ignores until further notice.
func (p *parser) resourcePatterns(n *yaml.Node, path string) {
	patterns := func(n *yaml.Node, path string) {
		list, ok := p.list(n)
		if !ok && !null(n) {
			p.fail(n, path, "%s: want a list of patterns and names", describe(n))
		}
		for i, item := range list {
			p.object(item, index(path, i), exactCase, []field{
				{"pattern", p.text(new(*string))},
				{"name", func(n *yaml.Node, path string) { p.resourceName(n, path) }},
			}, "pattern", "name")
		}
		if len(list) > 0 {
			p.warn(n, path, "ignored, as the device plugin does: it names resources nvidia.com/gpu and nvidia.com/mig-{profile}")
		}
	}
	p.object(n, path, anyCase, []field{{"gpus", patterns}, {"mig", patterns}})
}

func (p *parser) sharing(n *yaml.Node, path string, c *Config) {
	var timeSlicing *yaml.Node
	p.object(n, path, anyCase, []field{
		{"timeSlicing", func(n *yaml.Node, path string) {
			timeSlicing = n
			c.TimeSlicing = p.replicated(n, path)
		}},
		{"mps", func(n *yaml.Node, path string) {
			if c.MPS = nil; !null(n) {
				c.MPS = p.replicated(n, path)
			}
		}},
	})
	if c.TimeSlicing != nil && c.MPS != nil {
		p.warn(timeSlicing, path+".timeSlicing", "ignored, because sharing.mps is set: leave one of them out")
	}
}

func (p *parser) replicated(n *yaml.Node, path string) *Replicated {
	renameByDefault := new(bool)
	var resources *yaml.Node
	p.object(n, path, exactCase, []field{
		{"renameByDefault", p.boolean(&renameByDefault)},
		{"failRequestsGreaterThanOne", p.boolean(new(*bool))},
		{"resources", func(n *yaml.Node, path string) { resources = n }},
	}, "resources")
	r := &Replicated{RenameByDefault: *renameByDefault}
	if resources == nil {
		return r
	}
	path += ".resources"
	list, ok := p.list(resources)
	if !ok || len(list) == 0 {
		p.fail(resources, path, "%s: want a list of one resource or more", describe(resources))
	}
	seen := map[string]bool{}
	for i, item := range list {
		resource := p.replicatedResource(item, index(path, i), r.RenameByDefault)
		if seen[resource.Name] {
			p.warn(item, index(path, i)+".name", "%s is listed more than once: the first entry counts", resource.Name)
		}
		seen[resource.Name] = true
		r.Resources = append(r.Resources, resource)
	}
	return r
}

func (p *parser) replicatedResource(n *yaml.Node, path string, renamed bool) Resource {
	var r Resource
	var rename string
	var renameAt *yaml.Node
	p.object(n, path, exactCase, []field{
		{"name", func(n *yaml.Node, path string) { r.Name = p.resourceName(n, path) }},
		{"rename", func(n *yaml.Node, path string) { rename, renameAt = p.resourceName(n, path), n }},
		{"devices", p.devices},
		{"replicas", func(n *yaml.Node, path string) {
			replicas, ok := integer(scalar(n))
			if !ok || replicas < 2 {
				p.fail(n, path, "%s: want 2 or more", describe(n))
			}
			r.Replicas = replicas
		}},
	}, "name", "replicas")
	if renameAt != nil && !(renamed && rename == r.Name+".shared") {
		p.warn(renameAt, path+".rename", "ignored, as the device plugin does: set renameByDefault, and the resource is called %s.shared", r.Name)
	}
	return r
}

// resourceName gives the full name of a resource.
func (p *parser) resourceName(n *yaml.Node, path string) string {
	const prefix, maxLength = "nvidia.com/", 63
	name, ok := scalar(n).(string)
	if !ok {
		p.fail(n, path, "%s: want the name of a resource, such as nvidia.com/gpu", describe(n))
		return ""
	}
	if !strings.HasPrefix(name, prefix) {
		name = prefix + name
	}
	if len(name) > maxLength {
		p.fail(n, path, "%s: want at most %d characters, %s included", describe(n), maxLength, prefix)
		return ""
	}
	if len(validation.IsDNS1123Subdomain(strings.TrimPrefix(name, prefix))) > 0 {
		p.fail(n, path, "%s: want %s and then lower-case letters, digits, - and ., with a letter or digit at both ends of each part", describe(n), prefix)
		return ""
	}
	return name
}

// devices checks which devices are replicated. The plugin replicates them all,
// whatever is said.
func (p *parser) devices(n *yaml.Node, path string) {
	const want = "want all, a number of devices, or a list of indices and UUIDs"
	list, isList := p.list(n)
	switch v := scalar(n); {
	case isList:
		for i, item := range list {
			if !device(item) {
				p.fail(item, index(path, i), "%s: want an index (0, or 0:1 for a MIG device) or a UUID (GPU-…, MIG-…)", describe(item))
			}
		}
	case v == "all":
		return
	default:
		if count, ok := integer(v); !ok || count < 1 {
			p.fail(n, path, "%s: %s", describe(n), want)
		}
	}
	p.warn(n, path, "ignored, as the device plugin does: all devices are shared")
}

// deviceName takes an index, that of a MIG device, or a UUID of either; a UUID
// in each form that the plugin takes, so between any two characters, too.
var deviceName = func() *regexp.Regexp {
	const (
		hex  = `[0-9a-fA-F]`
		bare = hex + `{8}-` + hex + `{4}-` + hex + `{4}-` + hex + `{4}-` + hex + `{12}`
		uuid = `(?:(?i:urn:uuid:)?` + bare + `|[[:ascii:]]` + bare + `[[:ascii:]]|` + hex + `{32})`
	)
	return regexp.MustCompile(`^(?:GPU-` + uuid + `|MIG-` + uuid + `|MIG-GPU-` + uuid + `/([0-9]+)/([0-9]+)|([0-9]+)(?::([0-9]+))?)$`)
}()

func device(n *yaml.Node) bool {
	v := scalar(n)
	s, ok := v.(string)
	if !ok {
		return null(n) || isUint64(v)
	}
	m := deviceName.FindStringSubmatch(s)
	for _, number := range m[min(1, len(m)):] {
		if _, err := strconv.ParseUint(number, 10, 0); number != "" && err != nil {
			return false
		}
	}
	return m != nil
}
