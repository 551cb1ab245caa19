package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

func sharing(strategy labels.SharingStrategy, renamed bool, resources ...labels.SharedResource) *labels.Sharing {
	for i := range resources {
		resources[i].Renamed = renamed
	}
	return &labels.Sharing{Strategy: strategy, Resources: resources}
}

func gpus(replicas int) labels.SharedResource {
	return labels.SharedResource{Name: "nvidia.com/gpu", Replicas: replicas}
}

func TestParse(t *testing.T) {
	const (
		slicing = "version: v1\nsharing:\n  timeSlicing:\n"
		mps     = "version: v1\nsharing:\n  mps:\n"
		uuid    = "b1028956-cfa2-0990-bf4a-5da9abb51763"
	)
	tenfold := sharing(labels.TimeSlicing, false, gpus(10))
	for _, tt := range []struct {
		name, file string
		sharing    *labels.Sharing
		warnings   []string
	}{
		{name: "an empty file", file: ""},
		{name: "only comments", file: "# nothing\n"},
		{name: "no version", file: "flags: {}"},
		{name: "an empty version", file: "version: ''"},
		{name: "null", file: "version:\nflags:\nresources:\nsharing:\nimex:\n"},
		{name: "null further down", file: "flags:\n  migStrategy:\n  plugin:\n  gfd:\nresources:\n  gpus:\nsharing:\n  mps:\nimex:\n  channelIDs:\n"},
		{name: "JSON with tabs", file: "{\n\t\"version\": \"v1\",\n\t\"sharing\": {\"timeSlicing\": {\"resources\": [\n\t\t{\"name\": \"gpu\", \"replicas\": 10}]}}\n}\n", sharing: tenfold},
		{name: "time-slicing", file: slicing + "    resources: [{name: nvidia.com/gpu, replicas: 10}]", sharing: tenfold},
		{name: "a name without its prefix", file: slicing + "    resources: [{name: gpu, replicas: 10}]", sharing: tenfold},
		{name: "devices all", file: slicing + "    resources: [{name: gpu, devices: all, replicas: 10}]", sharing: tenfold},
		{name: "replicas as YAML 1.1 and JSON write them", file: slicing + "    resources: [{name: gpu, replicas: 1e1}, {name: mig-1g.5gb, replicas: 0x10}, {name: mig-2g.10gb, replicas: 2.0}, {name: mig-3g.20gb, replicas: 010}]",
			sharing: sharing(labels.TimeSlicing, false, gpus(10),
				labels.SharedResource{Name: "nvidia.com/mig-1g.5gb", Replicas: 16}, labels.SharedResource{Name: "nvidia.com/mig-2g.10gb", Replicas: 2}, labels.SharedResource{Name: "nvidia.com/mig-3g.20gb", Replicas: 8})},
		{name: "renamed by default", file: slicing + "    resources: [{name: gpu, replicas: 10}]\n    renameByDefault: yes", sharing: sharing(labels.TimeSlicing, true, gpus(10))},
		{name: "renamed by default and by hand to the same", file: slicing + "    renameByDefault: true\n    resources: [{name: gpu, rename: gpu.shared, replicas: 10}]", sharing: sharing(labels.TimeSlicing, true, gpus(10))},
		{name: "renamed by default and by hand to another", file: slicing + "    renameByDefault: true\n    resources: [{name: gpu, rename: slice, replicas: 10}]", sharing: sharing(labels.TimeSlicing, true, gpus(10)),
			warnings: []string{"line 5: sharing.timeSlicing.resources[0].rename: ignored, as the device plugin does: set renameByDefault, and the resource is called nvidia.com/gpu.shared"}},
		{name: "renamed by hand, one device", file: slicing + "    resources:\n    - name: nvidia.com/gpu\n      rename: nvidia.com/gpu-0\n      devices:\n      - \"0\"\n      replicas: 10\n", sharing: tenfold,
			warnings: []string{
				"line 8: sharing.timeSlicing.resources[0].devices: ignored, as the device plugin does: all devices are shared",
				"line 6: sharing.timeSlicing.resources[0].rename: ignored, as the device plugin does: set renameByDefault, and the resource is called nvidia.com/gpu.shared"}},
		{name: "a number of devices", file: slicing + "    resources: [{name: gpu, devices: 2, replicas: 10}]", sharing: tenfold,
			warnings: []string{"line 4: sharing.timeSlicing.resources[0].devices: ignored, as the device plugin does: all devices are shared"}},
		{name: "devices of every form", file: slicing + "    resources: [{name: gpu, devices: [0, '1', 0:1, GPU-" + uuid + ", MIG-" + uuid + ", MIG-GPU-" + uuid + "/3/0, GPU-" + strings.ReplaceAll(uuid, "-", "") + "], replicas: 10}]", sharing: tenfold,
			warnings: []string{"line 4: sharing.timeSlicing.resources[0].devices: ignored, as the device plugin does: all devices are shared"}},
		{name: "a resource twice", file: slicing + "    resources: [{name: gpu, replicas: 10}, {name: nvidia.com/gpu, replicas: 3}]", sharing: sharing(labels.TimeSlicing, false, gpus(10), gpus(3)),
			warnings: []string{"line 4: sharing.timeSlicing.resources[1].name: nvidia.com/gpu is listed more than once: the first entry counts"}},
		{name: "MPS", file: mps + "    resources: [{name: gpu, replicas: 10}]", sharing: sharing(labels.MPS, false, gpus(10))},
		{name: "MPS, renamed", file: mps + "    renameByDefault: true\n    failRequestsGreaterThanOne: false\n    resources: [{name: gpu, replicas: 10}]", sharing: sharing(labels.MPS, true, gpus(10))},
		{name: "MPS and time-slicing", file: mps + "    resources: [{name: gpu, replicas: 10}]\n  timeSlicing:\n    resources: [{name: gpu, replicas: 4}]", sharing: sharing(labels.MPS, false, gpus(10)),
			warnings: []string{"line 6: sharing.timeSlicing: ignored, because sharing.mps is set: leave one of them out"}},
		{name: "resources by product", file: "resources:\n  gpus: [{pattern: 'A100*', name: a100}]\n  mig:\n  - {pattern: '*', name: mig}",
			warnings: []string{
				"line 2: resources.gpus: ignored, as the device plugin does: it names resources nvidia.com/gpu and nvidia.com/mig-{profile}",
				"line 4: resources.mig: ignored, as the device plugin does: it names resources nvidia.com/gpu and nvidia.com/mig-{profile}"}},
		{name: "an anchor and a merge key", file: slicing + "    resources: &r [{name: gpu, replicas: 10}]\n  mps:\n    <<: [{renameByDefault: true}, {renameByDefault: false}]\n    resources: *r", sharing: sharing(labels.MPS, true, gpus(10)),
			warnings: []string{"line 4: sharing.timeSlicing: ignored, because sharing.mps is set: leave one of them out"}},
		{name: "a strategy that nobody knows may yet be overridden", file: "flags: {migStrategy: both, deviceDiscoveryStrategy: pci}",
			warnings: []string{
				`line 1: flags.migStrategy: "both": want none, single or mixed: of use only if overridden`,
				`line 1: flags.deviceDiscoveryStrategy: "pci": want auto, nvml, tegra or vfio: of use only if overridden`}},
		{name: "seconds without a unit", file: "flags: {gfd: {sleepInterval: 60}}",
			warnings: []string{"line 1: flags.gfd.sleepInterval: 60: taken for nanoseconds: write a unit, such as 60s"}},
		{name: "a number of nanoseconds", file: "flags: {gfd: {sleepInterval: 1.5e9}}",
			warnings: []string{"line 1: flags.gfd.sleepInterval: 1.5e9: taken for nanoseconds: write a unit, such as 60s"}},
		{name: "a path that looks like a date", file: "flags: {gfd: {outputFile: 2026-01-02}}"},
		{name: "devices as JSON may write them", file: slicing + "    resources: [{name: gpu, devices: [1.0, 18446744073709551615, ~], replicas: 10}]", sharing: tenfold,
			warnings: []string{"line 4: sharing.timeSlicing.resources[0].devices: ignored, as the device plugin does: all devices are shared"}},
		{name: "set twice", file: "flags: {migStrategy: none}\nflags: {migStrategy: mixed}",
			warnings: []string{"line 2: flags: set more than once: the last counts"}},
		{name: "an unknown field", file: slicing + "    resources: [{name: gpu, replicas: 10}]\nmigStrategy: none", sharing: tenfold,
			warnings: []string{"line 5: migStrategy: unknown field, ignored, as the device plugin does: want version, flags, resources, sharing or imex"}},
		{name: "an unknown field of gfd", file: "flags:\n  gfd:\n    sleep: 60s",
			warnings: []string{"line 3: flags.gfd.sleep: unknown field, ignored, as the device plugin does: want oneshot, noTimestamp, sleepInterval, outputFile or machineTypeFile"}},
		{name: "time-slicing that is not below sharing", file: "sharing:\ntimeSlicing:\n  resources: []",
			warnings: []string{"line 2: timeSlicing: unknown field, ignored, as the device plugin does: want version, flags, resources, sharing or imex"}},
		{name: "unknown fields of a newer plugin", file: slicing + "    novel: 1\n    resources: [{name: gpu, replicas: 10, Replicas: 2, novel: {a: [1]}}]", sharing: tenfold,
			warnings: []string{
				"line 4: sharing.timeSlicing.novel: unknown field, ignored, as the device plugin does: want renameByDefault, failRequestsGreaterThanOne or resources",
				"line 5: sharing.timeSlicing.resources[0].Replicas: unknown field, ignored, as the device plugin does: want name, rename, devices or replicas",
				"line 5: sharing.timeSlicing.resources[0].novel: unknown field, ignored, as the device plugin does: want name, rename, devices or replicas"}},
		{name: "a field that holds an anchor", file: "x: &x {name: gpu, replicas: 10}\n" + slicing + "    resources: [*x]", sharing: tenfold},
		{name: "a long name of a field", file: strings.Repeat("a", 100) + ": 1",
			warnings: []string{"line 1: " + strings.Repeat("a", 80) + "…: unknown field, ignored, as the device plugin does: want version, flags, resources, sharing or imex"}},
		{name: "two documents", file: "version: v1\n---\nversion: v2\n",
			warnings: []string{"line 2: another YAML document: only the first is read"}},
		{name: "many warnings", file: "resources:\n  gpus: [{pattern: a, name: a}]" + strings.Repeat("\nversion: v1", 7),
			warnings: []string{
				"line 4: version: set more than once: the last counts", "line 5: version: set more than once: the last counts", "line 6: version: set more than once: the last counts",
				"line 7: version: set more than once: the last counts", "line 8: version: set more than once: the last counts", "and 2 more"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, warnings, err := Parse([]byte(tt.file), PassOver)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Sharing(); !reflect.DeepEqual(got, tt.sharing) {
				t.Errorf("Sharing is %+v, want %+v", got, tt.sharing)
			}
			if got, want := strings.Join(warnings, "\n"), strings.Join(tt.warnings, "\n"); got != want {
				t.Errorf("warnings are\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	const slicing = "version: v1\nsharing:\n  timeSlicing:\n"
	one := func(resource string) string { return slicing + "    resources: [" + resource + "]" }
	const resource0 = "line 4: sharing.timeSlicing.resources[0]"
	const nameRule = ": want nvidia.com/ and then lower-case letters, digits, - and ., with a letter or digit at both ends of each part"
	for _, tt := range []struct{ name, file, err string }{
		{"not YAML", "a: [", "not YAML: line 1: did not find expected node content"},
		{"text", "none", `line 1: "none": want a mapping with version, flags, resources, sharing or imex`},
		{"a list", "[]", "line 1: an empty list: want a mapping with version, flags, resources, sharing or imex"},
		{"another version", "version: v2", `line 1: version: "v2": want v1`},
		{"a number as version", "version: 1", "line 1: version: 1: want v1"},
		{"a ConfigMap", "apiVersion: v1\nkind: ConfigMap\ndata: {}", "line 2: kind: this is a ConfigMap: want what is below one of the keys of its data"},

		{"an unknown field", "version: v1\nmigStrategy: none", "line 2: migStrategy: unknown field: want version, flags, resources, sharing or imex"},
		{"an unknown field of gfd", "flags:\n  gfd:\n    sleep: 60s", "line 3: flags.gfd.sleep: unknown field: want oneshot, noTimestamp, sleepInterval, outputFile or machineTypeFile"},
		{"case matters below resources", one("{name: gpu, Replicas: 2, replicas: 2}"), resource0 + ".Replicas: unknown field: want name, rename, devices or replicas"},
		{"an unknown field in the singular", slicing + "    failRequestGreaterThanOne: true\n    resources: [{name: gpu, replicas: 2}]", "line 4: sharing.timeSlicing.failRequestGreaterThanOne: unknown field: want renameByDefault, failRequestsGreaterThanOne or resources"},
		{"a null key", "~: 1", "line 1: nothing as the name of a field: want a word"},
		{"a list as key", "[a]: 1", "line 1: a list as the name of a field: want a word"},

		{"one replica", one("{name: gpu, replicas: 1}"), resource0 + ".replicas: 1: want 2 or more"},
		{"negative replicas", one("{name: gpu, replicas: -3}"), resource0 + ".replicas: -3: want 2 or more"},
		{"half a replica", one("{name: gpu, replicas: 2.5}"), resource0 + ".replicas: 2.5: want 2 or more"},
		{"replicas in quotes", one(`{name: gpu, replicas: "2"}`), resource0 + `.replicas: "2": want 2 or more`},
		{"endless replicas", one("{name: gpu, replicas: .inf}"), resource0 + ".replicas: .inf: want 2 or more"},
		{"too many replicas", one("{name: gpu, replicas: 1e30}"), resource0 + ".replicas: 1e30: want 2 or more"},
		{"null replicas", one("{name: gpu, replicas: }"), resource0 + ".replicas: nothing: want 2 or more"},
		{"no replicas", one("{name: gpu}"), resource0 + ".replicas: missing: add it"},
		{"no name", one("{replicas: 2}"), resource0 + ".name: missing: add it"},
		{"a resource that is null", one("~"), resource0 + ".name: missing: add it; " + resource0 + ".replicas: missing: add it"},
		{"a resource that is text", one("gpu"), resource0 + `: "gpu": want a mapping with name, rename, devices or replicas`},
		{"no resources", slicing + "    resources: []", "line 4: sharing.timeSlicing.resources: an empty list: want a list of one resource or more"},
		{"null resources", slicing + "    resources:", "line 4: sharing.timeSlicing.resources: nothing: want a list of one resource or more"},
		{"missing resources", "sharing:\n  mps: {}", "line 2: sharing.mps.resources: missing: add it"},
		{"null time-slicing", "sharing:\n  timeSlicing:", "line 2: sharing.timeSlicing.resources: missing: add it"},

		{"a name with another domain", one("{name: example.com/gpu, replicas: 2}"), resource0 + `.name: "example.com/gpu"` + nameRule},
		{"a name with capitals", one("{name: GPU, replicas: 2}"), resource0 + `.name: "GPU"` + nameRule},
		{"a profile as NVML writes it", one("{name: mig-1g.5gb+me, replicas: 2}"), resource0 + `.name: "mig-1g.5gb+me"` + nameRule},
		{"an empty name", one("{name: '', replicas: 2}"), resource0 + `.name: ""` + nameRule},
		{"a name that is null", one("{name: , replicas: 2}"), resource0 + ".name: nothing: want the name of a resource, such as nvidia.com/gpu"},
		{"a name that is a number", one("{name: 5, replicas: 2}"), resource0 + ".name: 5: want the name of a resource, such as nvidia.com/gpu"},
		{"a long name", one("{name: " + strings.Repeat("a", 53) + ", replicas: 2}"), resource0 + `.name: "` + strings.Repeat("a", 53) + `": want at most 63 characters, nvidia.com/ included`},
		{"an empty rename", one("{name: gpu, rename: '', replicas: 2}"), resource0 + `.rename: ""` + nameRule},

		{"no device", one("{name: gpu, devices: 0, replicas: 2}"), resource0 + ".devices: 0: want all, a number of devices, or a list of indices and UUIDs"},
		{"some devices", one("{name: gpu, devices: some, replicas: 2}"), resource0 + `.devices: "some": want all, a number of devices, or a list of indices and UUIDs`},
		{"null devices", one("{name: gpu, devices: , replicas: 2}"), resource0 + ".devices: nothing: want all, a number of devices, or a list of indices and UUIDs"},
		{"a negative index", one("{name: gpu, devices: [0, -1], replicas: 2}"), resource0 + ".devices[1]: -1: want an index (0, or 0:1 for a MIG device) or a UUID (GPU-…, MIG-…)"},
		{"half a UUID", one("{name: gpu, devices: [GPU-b1028956], replicas: 2}"), resource0 + `.devices[0]: "GPU-b1028956": want an index (0, or 0:1 for a MIG device) or a UUID (GPU-…, MIG-…)`},
		{"half an index", one("{name: gpu, devices: [0.5], replicas: 2}"), resource0 + ".devices[0]: 0.5: want an index (0, or 0:1 for a MIG device) or a UUID (GPU-…, MIG-…)"},
		{"a word that is tagged as a number", one("{name: gpu, replicas: !!int two}"), resource0 + ".replicas: two: want 2 or more"},
		{"an index past any number", one("{name: gpu, devices: ['0:99999999999999999999'], replicas: 2}"), resource0 + `.devices[0]: "0:99999999999999999999": want an index (0, or 0:1 for a MIG device) or a UUID (GPU-…, MIG-…)`},

		{"true in quotes", "flags: {failOnInitError: \"true\"}", `line 1: flags.failOnInitError: "true": want true or false, without quotes`},
		{"off is a boolean", "flags: {migStrategy: off}", `line 1: flags.migStrategy: "off": want a string, in quotes if it looks like something else`},
		{"a strategy in a list", "flags: {plugin: {deviceListStrategy: [envvar, 1]}}", "line 1: flags.plugin.deviceListStrategy[1]: 1: want a string, in quotes if it looks like something else"},
		{"an interval without unit, in quotes", "flags: {gfd: {sleepInterval: '60'}}", "line 1: flags.gfd.sleepInterval: 60: want a duration such as 60s, or infinite"},
		{"an interval past any number", "flags: {gfd: {sleepInterval: 9223372036854775807}}", "line 1: flags.gfd.sleepInterval: 9223372036854775807: want a duration such as 60s, or infinite"},
		{"an interval that is a list", "flags: {gfd: {sleepInterval: [1]}}", "line 1: flags.gfd.sleepInterval: a list: want a duration such as 60s, or infinite"},
		{"a channel by name", "imex: {channelIDs: [zero]}", `line 1: imex.channelIDs[0]: "zero": want an integer`},
		{"channels that are no list", "imex: {channelIDs: 0}", "line 1: imex.channelIDs: 0: want a list of channel IDs"},
		{"patterns that are no list", "resources: {gpus: all}", `line 1: resources.gpus: "all": want a list of patterns and names`},
		{"a pattern without a name", "resources: {mig: [{pattern: '*'}]}", "line 1: resources.mig[0].name: missing: add it"},

		{"a mapping that merges itself", "flags: &f\n  <<: *f", "line 2: flags.<<: want a mapping or a list of mappings, not one that holds itself"},
		{"a merge key of text", "<<: x", "line 1: <<: want a mapping or a list of mappings, not one that holds itself"},
		{"merge keys that grow", bomb(), "aliases and merge keys make the file too large: write it out"},
		{"several mistakes", "version: v2\nflags: {migStrategy: 1}\nimex: {required: 1}\nresources: {gpus: 1}\nsharing: {timeSlicing: 1, mps: 1}",
			"line 1: version: \"v2\": want v1; line 2: flags.migStrategy: 1: want a string, in quotes if it looks like something else; line 3: imex.required: 1: want true or false, without quotes; " +
				"line 4: resources.gpus: 1: want a list of patterns and names; line 5: sharing.timeSlicing: 1: want a mapping with renameByDefault, failRequestsGreaterThanOne or resources; and 1 more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, _, err := Parse([]byte(tt.file), Refuse); err == nil || err.Error() != tt.err {
				t.Errorf("got\n%v\nwant\n%s", err, tt.err)
			}
		})
	}
}

// bomb is a file of a few hundred bytes that merges 2^30 mappings.
func bomb() string {
	var b strings.Builder
	b.WriteString("imex: [&a0 {version: v1}")
	for i := range 30 {
		fmt.Fprintf(&b, ", &a%d {<<: [*a%d, *a%d]}", i+1, i, i)
	}
	b.WriteString("]\n<<: *a30")
	return b.String()
}

func TestParseFlags(t *testing.T) {
	c, warnings, err := Parse([]byte(`
flags:
  MIGSTRATEGY: single
  failOnInitError: no
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /
  gdrcopyEnabled: false
  gdsEnabled: false
  mofedEnabled: true
  useNodeFeatureApi: false
  deviceDiscoveryStrategy: nvml
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: uuid
    cdiAnnotationPrefix: cdi.k8s.io/
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    containerDriverRoot: /driver-root
    sharedDevicesAllocationPolicy: distributed
  gfd:
    oneshot: true
    noTimestamp: true
    sleepInterval: infinite
    outputFile: ""
    machineTypeFile: /etc/machine
imex: {channelIDs: [0], required: false}
`), Refuse)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	want := Flags{
		MIGStrategy: new("single"), FailOnInitError: new(false), UseNodeFeatureAPI: new(false),
		DeviceDiscoveryStrategy: new("nvml"), NVIDIADriverRoot: new("/run/nvidia/driver"), ContainerDriverRoot: new("/driver-root"),
		GFD: GFD{Oneshot: new(true), NoTimestamp: new(true), SleepInterval: new(Infinite), OutputFile: new(""), MachineTypeFile: new("/etc/machine")},
	}
	if !reflect.DeepEqual(c.Flags, want) {
		t.Errorf("flags differ from %+v: %+v", want, c.Flags)
	}

	c, _, err = Parse([]byte("version: v1"), Refuse)
	if err != nil || !reflect.DeepEqual(c.Flags, Flags{}) {
		t.Errorf("an empty file sets %+v, %v", c.Flags, err)
	}
}

func TestParseSleepInterval(t *testing.T) {
	for in, want := range map[string]time.Duration{"60s": time.Minute, "infinite": Infinite, "1h30m": 90 * time.Minute, "0": 0} {
		if got, err := ParseSleepInterval(in); got != want || err != nil {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	if _, err := ParseSleepInterval("60"); err == nil || err.Error() != "60: want a duration such as 60s, or infinite" {
		t.Error(err)
	}
}

func TestExamples(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/examples.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range archive.Files {
		for name, data := range configs(t, f) {
			t.Run(name, func(t *testing.T) {
				c, warnings, err := Parse([]byte(data), Refuse)
				if err != nil || len(warnings) > 0 {
					t.Fatal(warnings, err)
				}
				if shared := strings.Contains(data, "sharing:"); shared != (c.Sharing() != nil) {
					t.Errorf("Sharing is %+v", c.Sharing())
				}
			})
		}
	}
}

// configs gives the configurations of an example by name.
func configs(t testing.TB, f txtar.File) map[string]string {
	if !strings.HasPrefix(f.Name, "configmap-") {
		return map[string]string{f.Name: string(f.Data)}
	}
	var configMap struct{ Data map[string]string }
	if err := yaml.Unmarshal(f.Data, &configMap); err != nil || len(configMap.Data) == 0 {
		t.Fatal(f.Name, configMap, err)
	}
	m := map[string]string{}
	for key, data := range configMap.Data {
		m[f.Name+"/"+key] = data
	}
	return m
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, data string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}

	// A mounted ConfigMap: the file is a link into a folder that is a link.
	write("..2026/config.yaml", "version: v1\nflags: {migStrategy: mixed}")
	link := filepath.Join(dir, "config.yaml")
	for to, from := range map[string]string{filepath.Join(dir, "..data"): "..2026", link: "..data/config.yaml"} {
		if err := os.Symlink(from, to); err != nil {
			t.Fatal(err)
		}
	}
	c, warnings, err := Load(link, Refuse)
	if err != nil || len(warnings) > 0 || *c.Flags.MIGStrategy != "mixed" {
		t.Fatal(c, warnings, err)
	}
	if _, _, err := Load(write("full", "#"+strings.Repeat(" ", maxSize-1)), Refuse); err != nil {
		t.Error(err)
	}

	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file or directory",
		dir:                        "not a regular file: want the path of a configuration file",
		pipe:                       "not a regular file: want the path of a configuration file",
		write("large", "#"+strings.Repeat(" ", maxSize)): "more than 1 MiB: want the device plugin's configuration file",
		write("bad", "version: v2"):                      `line 1: version: "v2": want v1`,
	} {
		if _, _, err := Load(path, Refuse); err == nil || !strings.HasSuffix(err.Error(), path+": "+want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	archive, err := txtar.ParseFile("testdata/examples.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range archive.Files {
		f.Add(file.Data)
		for _, data := range configs(f, file) {
			f.Add([]byte(data))
		}
	}
	f.Add([]byte("sharing: {mps: {renameByDefault: y, resources: [{name: gpu, rename: x, devices: [0, '0:1', GPU-b1028956-cfa2-0990-bf4a-5da9abb51763, ~], replicas: 0x2}]}}"))
	f.Add([]byte("resources: {gpus: [{pattern: '*', name: a}]}\nflags: {gfd: {sleepInterval: 1e9}}\nimex: {channelIDs: [0.0]}"))
	f.Add([]byte("a: &a {<<: [*a, {b: !!binary aGk=}]}\nversion: !!str v1\n--- \n2001-01-01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, warnings, err := Parse(data, PassOver)
		if err != nil {
			if c != nil || strings.TrimSpace(err.Error()) == "" {
				t.Errorf("%v with %+v", err, c)
			}
			return
		}
		again, warningsAgain, err := Parse(data, PassOver)
		if err != nil || !reflect.DeepEqual(c, again) || !reflect.DeepEqual(warnings, warningsAgain) {
			t.Error("not the same the second time")
		}
		s := c.Sharing()
		if s == nil {
			return
		}
		if len(s.Resources) == 0 || s.Strategy != labels.MPS && s.Strategy != labels.TimeSlicing {
			t.Errorf("%+v", s)
		}
		for _, r := range s.Resources {
			if r.Replicas < 2 || !strings.HasPrefix(r.Name, "nvidia.com/") || len(r.Name) > 63 {
				t.Errorf("%+v", r)
			}
		}
	})
}
