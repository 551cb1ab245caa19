package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/config"
)

// environment looks variables up as os.LookupEnv does.
func environment(pairs ...string) func(string) (string, bool) {
	vars := map[string]string{}
	for _, p := range pairs {
		name, value, _ := strings.Cut(p, "=")
		vars[name] = value
	}
	return func(name string) (string, bool) {
		value, ok := vars[name]
		return value, ok
	}
}

// settingsOf reads a command line, an environment and a configuration file.
func settingsOf(t *testing.T, args []string, file string, vars ...string) (*gfdSettings, error) {
	t.Helper()
	if file != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte("version: v1\nflags: "+file), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config-file", path)
	}
	f, err := parseGFDFlags(args, environment(vars...))
	if err != nil {
		return nil, err
	}
	s, _, err := f.settings()
	return s, err
}

// TestGFDPrecedence gives every flag its default, a value in the file, by each of
// its variables, and on the command line under each of its names.
func TestGFDPrecedence(t *testing.T) {
	tests := []struct {
		flag    string
		aliases []string
		vars    []string
		field   string // of the file's flags, with %s for the value; empty if there is none
		is      func(*gfdSettings) any
		initial any
		values  [4]string // what the file, the second variable, the first and the command line say
		want    [4]any
	}{
		{"mig-strategy", nil, []string{"GFD_MIG_STRATEGY", "MIG_STRATEGY"}, "{migStrategy: %s}",
			func(s *gfdSettings) any { return s.migStrategy }, "none",
			[4]string{"single", "mixed", "single", "none"}, [4]any{"single", "mixed", "single", "none"}},
		{"fail-on-init-error", nil, []string{"GFD_FAIL_ON_INIT_ERROR", "FAIL_ON_INIT_ERROR"}, "{failOnInitError: %s}",
			func(s *gfdSettings) any { return s.failOnInitError }, true,
			[4]string{"false", "true", "0", "T"}, [4]any{false, true, false, true}},
		{"oneshot", nil, []string{"GFD_ONESHOT"}, "{gfd: {oneshot: %s}}",
			func(s *gfdSettings) any { return s.oneshot }, false,
			[4]string{"true", "", "false", "true"}, [4]any{true, nil, false, true}},
		{"no-timestamp", nil, []string{"GFD_NO_TIMESTAMP"}, "{gfd: {noTimestamp: %s}}",
			func(s *gfdSettings) any { return s.noTimestamp }, false,
			[4]string{"true", "", "f", "1"}, [4]any{true, nil, false, true}},
		{"sleep-interval", nil, []string{"GFD_SLEEP_INTERVAL"}, "{gfd: {sleepInterval: %s}}",
			func(s *gfdSettings) any { return s.sleepInterval }, time.Minute,
			[4]string{"5s", "", "infinite", "1h30m"}, [4]any{5 * time.Second, nil, config.Infinite, 90 * time.Minute}},
		{"output-file", []string{"output", "o"}, []string{"GFD_OUTPUT_FILE"}, "{gfd: {outputFile: %s}}",
			func(s *gfdSettings) any { return s.outputFile }, "/etc/kubernetes/node-feature-discovery/features.d/gfd",
			[4]string{"/file", "", "/variable", "/flag"}, [4]any{"/file", nil, "/variable", "/flag"}},
		{"machine-type-file", nil, []string{"GFD_MACHINE_TYPE_FILE"}, "{gfd: {machineTypeFile: %s}}",
			func(s *gfdSettings) any { return s.machineTypeFile }, "/sys/class/dmi/id/product_name",
			[4]string{"/file", "", "/variable", "/flag"}, [4]any{"/file", nil, "/variable", "/flag"}},
		{"use-node-feature-api", nil, []string{"GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"}, "{useNodeFeatureAPI: %s}",
			func(s *gfdSettings) any { return s.useNodeFeatureAPI }, true,
			[4]string{"false", "true", "false", "true"}, [4]any{false, true, false, true}},
		{"device-discovery-strategy", nil, []string{"DEVICE_DISCOVERY_STRATEGY"}, "{deviceDiscoveryStrategy: %s}",
			func(s *gfdSettings) any { return s.strategy }, "auto",
			[4]string{"tegra", "", "vfio", "nvml"}, [4]any{"tegra", nil, "vfio", "nvml"}},
		{"driver-root-ctr-path", []string{"container-driver-root"}, []string{"DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"}, "",
			func(s *gfdSettings) any { return s.driverRoot }, "/driver-root",
			[4]string{"", "/b", "/a", "/flag"}, [4]any{nil, "/b", "/a", "/flag"}},
		{"kubeconfig", nil, []string{"KUBECONFIG"}, "",
			func(s *gfdSettings) any { return s.kubeconfig }, "",
			[4]string{"", "", "/variable", "/flag"}, [4]any{nil, nil, "/variable", "/flag"}},
		{"kube-api-qps", nil, []string{"KUBE_API_QPS"}, "",
			func(s *gfdSettings) any { return s.qps }, 5.0,
			[4]string{"", "", "2.5", "1e1"}, [4]any{nil, nil, 2.5, 10.0}},
		{"kube-api-burst", nil, []string{"KUBE_API_BURST"}, "",
			func(s *gfdSettings) any { return s.burst }, 10,
			[4]string{"", "", "0x10", "7"}, [4]any{nil, nil, 16, 7}},
		{"namespace", nil, []string{"NAMESPACE"}, "",
			func(s *gfdSettings) any { return s.namespace }, "default",
			[4]string{"", "", "variable", "flag"}, [4]any{nil, nil, "variable", "flag"}},
		{"node-name", nil, []string{"NODE_NAME"}, "",
			func(s *gfdSettings) any { return s.nodeName }, "",
			[4]string{"", "", "variable", "flag"}, [4]any{nil, nil, "variable", "flag"}},
		{"pod-name", nil, []string{"POD_NAME"}, "",
			func(s *gfdSettings) any { return s.podName }, "",
			[4]string{"", "", "variable", "flag"}, [4]any{nil, nil, "variable", "flag"}},
		{"root", nil, nil, "",
			func(s *gfdSettings) any { return s.root }, "/",
			[4]string{"", "", "", "/flag"}, [4]any{nil, nil, nil, "/flag"}},
		{"force-node-name", nil, nil, "",
			func(s *gfdSettings) any { return s.forceNodeName }, false,
			[4]string{"", "", "", "true"}, [4]any{nil, nil, nil, true}},
	}
	tested := map[string]bool{"config-file": true, "help": true, "version": true} // below
	for _, test := range tests {
		tested[test.flag] = true
		check := func(what string, want any, args []string, file string, vars ...string) {
			t.Helper()
			s, err := settingsOf(t, args, file, vars...)
			if err != nil {
				t.Errorf("--%s: %s: %v", test.flag, what, err)
			} else if got := test.is(s); got != want {
				t.Errorf("--%s: %s: %v, want %v", test.flag, what, got, want)
			}
		}
		check("default", test.initial, nil, "")
		file := ""
		if test.field != "" {
			file = fmt.Sprintf(test.field, test.values[0])
			check("file", test.want[0], nil, file)
		}
		var vars []string
		for i := len(test.vars) - 1; i >= 0; i-- { // the first goes before the second
			vars = append(vars, test.vars[i]+"="+test.values[2-i])
			check("$"+test.vars[i]+" before the file", test.want[2-i], nil, file, vars...)
		}
		for _, name := range append([]string{test.flag}, test.aliases...) {
			check("--"+name+"=", test.want[3], []string{"--" + name + "=" + test.values[3]}, file, vars...)
			check("-"+name+"=", test.want[3], []string{"-" + name + "=" + test.values[3]}, file, vars...)
		}
	}
	for _, g := range new(gfdFlags).table() {
		if !tested[g.name] {
			t.Errorf("--%s is not tested", g.name)
		}
	}
}

// TestGFDSyntax is what GFD v0.20 was seen to make of odd command lines and
// environments.
func TestGFDSyntax(t *testing.T) {
	tests := []struct {
		name  string
		args  string
		vars  []string
		file  string
		is    func(*gfdSettings) any
		want  any
		wrong string // part of the error
	}{
		{name: "repeated, the last counts", args: "--node-name=a --node-name b", is: func(s *gfdSettings) any { return s.nodeName }, want: "b"},
		{name: "a boolean takes no next argument", args: "--oneshot false --node-name=a", is: func(s *gfdSettings) any { return fmt.Sprint(s.oneshot, s.nodeName) }, want: "true"},
		{name: "nothing counts after an argument", args: "stray --oneshot", is: func(s *gfdSettings) any { return s.oneshot }, want: false},
		{name: "nothing counts after --", args: "-- --oneshot", is: func(s *gfdSettings) any { return s.oneshot }, want: false},
		{name: "an empty value", args: "--output-file=", is: func(s *gfdSettings) any { return s.outputFile }, want: ""},
		{name: "an empty variable is a value", vars: []string{"GFD_OUTPUT_FILE="}, file: "{gfd: {outputFile: /x}}", is: func(s *gfdSettings) any { return s.outputFile }, want: ""},
		{name: "an empty first variable hides the second", vars: []string{"GFD_CONFIG_FILE=", "CONFIG_FILE=/nowhere"}, is: func(s *gfdSettings) any { return s.configFile }, want: ""},
		{name: "an empty boolean is false", vars: []string{"GFD_FAIL_ON_INIT_ERROR="}, is: func(s *gfdSettings) any { return s.failOnInitError }, want: false},
		{name: "an empty boolean goes before the file", vars: []string{"GFD_NO_TIMESTAMP="}, file: "{gfd: {noTimestamp: true}}", is: func(s *gfdSettings) any { return s.noTimestamp }, want: false},
		{name: "an empty duration is not set", vars: []string{"GFD_SLEEP_INTERVAL="}, file: "{gfd: {sleepInterval: 5s}}", is: func(s *gfdSettings) any { return s.sleepInterval }, want: 5 * time.Second},
		{name: "an empty number is not set", vars: []string{"KUBE_API_QPS=", "KUBE_API_BURST="}, is: func(s *gfdSettings) any { return fmt.Sprint(s.qps, s.burst) }, want: "5 10"},
		{name: "a strategy that is overridden may be wrong", args: "--mig-strategy=mixed", file: "{migStrategy: both}", is: func(s *gfdSettings) any { return s.migStrategy }, want: "mixed"},
		{name: "negative interval", args: "--sleep-interval=-5s", is: func(s *gfdSettings) any { return s.interval() }, want: time.Second},
		{name: "help", args: "--oneshot help", is: func(s *gfdSettings) any { return s.help }, want: true},
		{name: "-h", args: "-h", is: func(s *gfdSettings) any { return s.help }, want: true},
		{name: "-v", args: "-v", is: func(s *gfdSettings) any { return s.version }, want: true},

		{name: "two names of a flag", args: "--output=x -o y", wrong: "--output and --o are one flag"},
		{name: "unknown flag", args: "--nope", wrong: "-nope"},
		{name: "no value", args: "--node-name", wrong: "needs an argument"},
		{name: "bad boolean", args: "--oneshot=yes", wrong: "want true or false"},
		{name: "bad variable, though overridden", args: "--oneshot", vars: []string{"GFD_ONESHOT=yes"}, wrong: `$GFD_ONESHOT: "yes": want true or false`},
		{name: "no unit", vars: []string{"GFD_SLEEP_INTERVAL=60"}, wrong: "want a duration"},
		{name: "empty duration", args: "--sleep-interval=", wrong: "want a duration"},
		{name: "infinite is written small", args: "--sleep-interval=Infinite", wrong: "want a duration"},
		{name: "not an integer", args: "--kube-api-burst=1.5", wrong: "want an integer"},
		{name: "a burst that lets nothing through", vars: []string{"KUBE_API_BURST=-1"}, wrong: "want an integer from 1"},
		{name: "a request in 100 seconds", vars: []string{"KUBE_API_QPS=0.01"}, wrong: "want a number from 0.1"},
		{name: "no number of requests", args: "--kube-api-qps=NaN", wrong: "want a number from 0.1"},
		{name: "client-go's defaults", vars: []string{"KUBE_API_QPS=0", "KUBE_API_BURST=0"}, is: func(s *gfdSettings) any { return fmt.Sprint(s.qps, s.burst) }, want: "0 0"},
		{name: "no limit", vars: []string{"KUBE_API_QPS=-1"}, is: func(s *gfdSettings) any { return fmt.Sprint(s.qps) }, want: "-1"},
		{name: "unknown strategy", args: "--mig-strategy=both", wrong: `--mig-strategy "both": want one of none, single, mixed`},
		{name: "empty strategy", vars: []string{"MIG_STRATEGY="}, file: "{migStrategy: mixed}", wrong: `--mig-strategy "": want one of`},
		{name: "unknown strategy in the file", file: "{migStrategy: both}", wrong: `flags.migStrategy: "both": want one of`},
		{name: "unknown discovery", args: "--device-discovery-strategy=magic", wrong: "want one of auto, nvml, tegra, vfio"},
		{name: "no file", args: "--config-file=/nowhere", wrong: "--config-file: /nowhere: no such file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, err := settingsOf(t, strings.Fields(test.args), test.file, test.vars...)
			switch {
			case test.wrong != "":
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("error %v, want %q", err, test.wrong)
				}
			case err != nil:
				t.Error(err)
			case test.is(s) != test.want:
				t.Errorf("%v, want %v", test.is(s), test.want)
			}
		})
	}
}

// FuzzGFDFlags checks that the command line goes before the environment, which
// goes before the default, whatever they hold.
func FuzzGFDFlags(f *testing.F) {
	f.Add("--oneshot\x00-o=x", "GFD_SLEEP_INTERVAL=infinite\x00MIG_STRATEGY=mixed")
	f.Add("--node-name\x00a\x00--\x00-v", "NODE_NAME=b\x00KUBE_API_BURST=0x10")
	f.Add("help", "GFD_ONESHOT=")
	f.Fuzz(func(t *testing.T, line, environ string) {
		args := strings.Split(line, "\x00")
		vars := environment(strings.Split(environ, "\x00")...)
		parsed, err := parseGFDFlags(args, vars)
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" {
				t.Error("an error that says nothing")
			}
			return
		}
		name, fromEnvironment := vars("NODE_NAME")
		switch {
		case !parsed.given["node-name"] && (parsed.nodeName != "" || fromEnvironment):
			t.Errorf("node name %q, and not given", parsed.nodeName)
		case !strings.Contains(line, "node-name") && parsed.nodeName != name:
			t.Errorf("node name %q, want the environment's %q", parsed.nodeName, name)
		}
		last, err := parseGFDFlags(append([]string{"--node-name=last"}, args...), vars)
		if err != nil || !strings.Contains(line, "node-name") && last.nodeName != "last" {
			t.Errorf("with --node-name in front: %v", err)
		}
	})
}
