// Package manifests tests the manifests: that what is generated from the chart is up
// to date, that the Kustomize overlays and the chart give the same objects, and that a
// real API server takes them and enforces their policies.
package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

var update = flag.Bool("update", false, "write what is generated from the chart")

// overlay is a way to install.
type overlay struct {
	name      string
	namespace string
	cleanup   string // the folder in cleanup; empty if there is nothing to clean up by API
}

var overlays = []overlay{
	{"direct", "gpu-labeller", "direct"},
	{"no-nvidia", "gpu-labeller", "direct"},
	{"nfd", "gpu-labeller", ""},
	{"nodefeature", "gpu-labeller", "nodefeature"},
	{"gpu-operator", "gpu-operator", "gpu-operator"},
}

// TestGenerated compares what is generated from the chart with what it gives now.
func TestGenerated(t *testing.T) {
	base := render(t, overlays[0])
	inBase := map[string]bool{}
	byTemplate := map[string][]document{}
	for _, d := range base.installed {
		inBase[d.id(t)] = true
		byTemplate[d.template] = append(byTemplate[d.template], d)
	}
	large := render(t, overlays[0], "--set", "flowSchema.enabled=true")
	generated(t, "flowschema/flowschema.yaml", flowSchema(t, slices.DeleteFunc(large.installed, func(d document) bool { return inBase[d.id(t)] })))
	for template, documents := range byTemplate {
		generated(t, filepath.Join("base", template), documents)
	}
	for _, o := range overlays {
		r := render(t, o)
		switch o.name {
		case "nodefeature":
			added := slices.DeleteFunc(slices.Clone(r.installed), func(d document) bool { return inBase[d.id(t)] })
			generated(t, filepath.Join("overlays", o.name, "nodefeature.yaml"), added)
		case "gpu-operator":
			generated(t, filepath.Join("overlays", o.name, "gpu-labeller.yaml"), r.installed)
		}
		switch {
		case o.cleanup == o.name && o.namespace == "gpu-labeller":
			// kubectl delete of the overlay deleted it.
			namespace, err := os.ReadFile("base/namespace.yaml")
			if err != nil {
				t.Fatal(err)
			}
			r.cleanup = slices.Insert(r.cleanup, 0, document{text: string(namespace)})
			fallthrough
		case o.cleanup == o.name:
			generated(t, filepath.Join("cleanup", o.name, "cleanup.yaml"), r.cleanup)
		}
	}
}

var (
	subject          = regexp.MustCompile(`(?m)^ +- kind: ServiceAccount\n +serviceAccount:\n +name: .*\n +namespace: .*\n`)
	subjectNamespace = regexp.MustCompile(`(?m)^( +namespace: ).*$`)
)

// flowSchema has the FlowSchema for the ServiceAccounts of all overlays, so that one
// file does for each of them.
func flowSchema(t *testing.T, documents []document) []document {
	t.Helper()
	found := false
	for i := range documents {
		documents[i].text = subject.ReplaceAllStringFunc(documents[i].text, func(one string) string {
			found = true
			var all string
			for _, namespace := range namespaces() {
				all += subjectNamespace.ReplaceAllString(one, "${1}"+namespace)
			}
			return all
		})
	}
	if !found {
		t.Fatal("no ServiceAccount in the FlowSchema")
	}
	return documents
}

// namespaces are those of the overlays, each once.
func namespaces() []string {
	var all []string
	for _, o := range overlays {
		if !slices.Contains(all, o.namespace) {
			all = append(all, o.namespace)
		}
	}
	return all
}

// generated compares a file with documents, or writes it.
func generated(t *testing.T, name string, documents []document) {
	t.Helper()
	want := "# Made from the chart by make generate: change the chart.\n"
	for i, d := range documents {
		if i > 0 {
			want += "---\n"
		}
		want += strings.TrimSpace(d.text) + "\n"
	}
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the chart gives: run make generate", name)
	}
}

// TestOverlays compares the objects of each overlay with those of the chart.
func TestOverlays(t *testing.T) {
	for _, o := range overlays {
		t.Run(o.name, func(t *testing.T) {
			chart := map[string]any{}
			for _, d := range render(t, o).installed {
				chart[d.id(t)] = d.object(t)
			}
			kustomize := map[string]any{}
			for _, d := range documents(tool(t, "kustomize", "build", filepath.Join("overlays", o.name))) {
				kustomize[d.id(t)] = d.object(t)
			}
			delete(kustomize, "Namespace//gpu-labeller") // helm's own affair
			for _, id := range slices.Sorted(maps.Keys(chart)) {
				if _, ok := kustomize[id]; !ok {
					t.Errorf("%s is in the chart, not in the overlay", id)
				} else if !reflect.DeepEqual(chart[id], kustomize[id]) {
					t.Errorf("%s differs:\nchart:\n%s\noverlay:\n%s", id, asYAML(t, chart[id]), asYAML(t, kustomize[id]))
				}
				delete(kustomize, id)
			}
			for id := range kustomize {
				t.Errorf("%s is in the overlay, not in the chart", id)
			}
		})
	}
}

// TestSchema gives the chart values that its schema refuses.
func TestSchema(t *testing.T) {
	for _, set := range []string{
		"sinks={file}", "sink=node", "nvml.access=cdi", "nvml.driverRoot.path=run",
		"image.digest=latest", "migStrategy=all", "policy.enabled=false", "host.sys=sys",
		"taint.effect=Evict", "taint.value=a b", "taint.on=true",
		"networkPolicy.ingress=true", "networkPolicy.from[0].namespace=monitoring",
	} {
		out, err := tryTool("helm", "template", "x", "chart/gpu-labeller", "--set", set)
		if err == nil || !strings.Contains(err.Error(), "values don't meet the specifications of the schema") {
			t.Errorf("--set %s: want a refusal by the schema, got %v\n%s", set, err, out)
		}
	}
}

// TestRefusals gives the chart values that do not go together.
func TestRefusals(t *testing.T) {
	for set, want := range map[string]string{
		// NFD sets taints by rules of its own.
		"taint.enabled=true,sinks={node-feature}":       "taint.enabled needs sink node",
		"featureFile.expiry=24h":                        "featureFile.expiry is about sink feature-file",
		"networkPolicy.from[0].ipBlock.cidr=10.0.0.0/8": "networkPolicy.from is of the NetworkPolicy that networkPolicy.enabled makes",
		"config.key=x.yaml":                             "name it with config.configMap",
		"config.intelNamesKey=x.yaml":                   "name it with config.configMap",
		"config.configMap=c,config.key=":                "mounted for nothing",
		"extraArgs={--listen=off}":                      "the probes and the PodMonitor ask port 8080",
		"extraArgs={--poll=1s,--listen,:9090}":          "the probes and the PodMonitor ask port 8080",
		"extraArgs={--sink=node-feature}":               "--sink is the value sinks",
		"extraArgs={--taint}":                           "--taint is the value taint.enabled",
		"taint.key=node.kubernetes.io/not-ready":        "taint.key node.kubernetes.io/not-ready is Kubernetes' own",
		"taint.key=kubernetes.io/gpu":                   "taint.key kubernetes.io/gpu is Kubernetes' own",
		"cleanup.timeoutSeconds=300":                    "cleanup.timeoutSeconds is 300: the clean-up must end before",
	} {
		_, err := tryTool("helm", "template", "x", "chart/gpu-labeller", "--set", set)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: want a refusal, %s; got %v", set, want, err)
		}
	}
	if _, err := tryTool("helm", "template", "x", "chart/gpu-labeller", "--set-json", "sinks=[]"); err == nil || !strings.Contains(err.Error(), "sinks is empty: name where labels are published") {
		t.Errorf("no sinks: want a refusal, got %v", err)
	}
	// --set gives a list of an empty text.
	if _, err := tryTool("helm", "template", "x", "chart/gpu-labeller", "--set", "sinks={}"); err == nil || !strings.Contains(err.Error(), "value must be one of 'node', 'node-feature', 'feature-file'") {
		t.Errorf("sinks={}: want a refusal, got %v", err)
	}
}

// TestOlderClusters: without policies, only where nobody has rights, or the user
// says so; and no FlowSchema where there is none in v1.
func TestOlderClusters(t *testing.T) {
	old := func(set string) (string, error) {
		return tryTool("helm", "template", "x", "chart/gpu-labeller", "--kube-version=1.29.3-gke.100", "--set", set)
	}
	for _, set := range []string{"sinks={node}", "sinks={node-feature}"} {
		if _, err := old(set); err == nil || !strings.Contains(err.Error(), "set policy.create=false, with which every agent's token can change every Node") {
			t.Errorf("%s: want a refusal, got %v", set, err)
		}
	}
	for _, set := range []string{"sinks={feature-file}", "policy.create=false"} {
		if out, err := old(set); err != nil || strings.Contains(out, "kind: ValidatingAdmissionPolicy") {
			t.Errorf("%s: %v\n%s", set, err, out)
		}
	}
	flowSchema := func(version string) (string, error) {
		return tryTool("helm", "template", "x", "chart/gpu-labeller", "--kube-version="+version, "--set", "policy.create=false,flowSchema.enabled=true")
	}
	if _, err := flowSchema("1.28.15-gke.100"); err == nil || !strings.Contains(err.Error(), "flowSchema.enabled needs Kubernetes 1.29 (flowcontrol.apiserver.k8s.io/v1), and this is v1.28.15-gke.100: set flowSchema.enabled=false") {
		t.Errorf("1.28: want a refusal, got %v", err)
	}
	if out, err := flowSchema("1.29.0-eks-1"); err != nil || !strings.Contains(out, "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema") {
		t.Errorf("1.29: %v\n%s", err, out)
	}
	if out, err := tryTool("helm", "template", "x", "chart/gpu-labeller", "--kube-version=1.30.0-eks-1"); err != nil || !strings.Contains(out, "kind: ValidatingAdmissionPolicy") {
		t.Errorf("1.30: %v\n%s", err, out)
	}
}

// TestNetworkPolicy: it is about the agents' pods alone, lets everybody or those that
// are named reach the agent's port, and does not limit what the agents reach.
func TestNetworkPolicy(t *testing.T) {
	find := func(set, kind string) map[string]any {
		t.Helper()
		for _, d := range documents(tool(t, "helm", "template", "x", "chart/gpu-labeller", "--set", set)) {
			if strings.HasPrefix(d.id(t), kind+"/") {
				return d.object(t)
			}
		}
		return nil
	}
	const monitoring = "networkPolicy.from[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=monitoring"
	if p := find("podLabels.x=y", "NetworkPolicy"); p != nil {
		t.Errorf("without being asked for: %v", p)
	}
	at := func(v any, path ...any) any {
		t.Helper()
		for _, step := range path {
			switch s := step.(type) {
			case string:
				m, _ := v.(map[string]any)
				v = m[s]
			case int:
				l, _ := v.([]any)
				if s >= len(l) {
					return nil
				}
				v = l[s]
			}
		}
		return v
	}
	agents := find("podLabels.x=y", "DaemonSet")
	port := at(agents, "spec", "template", "spec", "containers", 0, "ports", 0, "containerPort")
	for set, from := range map[string]any{
		"networkPolicy.enabled=true": nil,
		"networkPolicy.enabled=true," + monitoring: []any{map[string]any{"namespaceSelector": map[string]any{
			"matchLabels": map[string]any{"kubernetes.io/metadata.name": "monitoring"}}}},
	} {
		p := find(set, "NetworkPolicy")
		want := map[string]any{
			"podSelector": at(agents, "spec", "selector"),
			"policyTypes": []any{"Ingress"},
			"ingress":     []any{map[string]any{"ports": []any{map[string]any{"port": port, "protocol": "TCP"}}}},
		}
		if from != nil {
			want["ingress"].([]any)[0].(map[string]any)["from"] = from
		}
		if got := at(p, "spec"); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n%s\nwant\n%s", set, asYAML(t, got), asYAML(t, want))
		}
	}
}

// TestCleanupJob: it looks everywhere, whatever the values are now, and its rights
// go no earlier than the Job.
func TestCleanupJob(t *testing.T) {
	for set, want := range map[string]string{
		"sinks={feature-file}": "--own-taint=nvidia.com/gpu=present:NoSchedule\n",
		"sinks={node-feature},taint.key=example.com/gpu,taint.value=": "--own-taint=example.com/gpu:NoSchedule\n",
		"taint.enabled=true": "--taint=nvidia.com/gpu=present:NoSchedule\n            - --own-taint=\n",
	} {
		out := tool(t, "helm", "template", "x", "chart/gpu-labeller", "--set", set, "--show-only", "templates/cleanup.yaml")
		if !strings.Contains(out, want) || !strings.Contains(out, "--sink=node,node-feature\n") {
			t.Errorf("%s: want %s in\n%s", set, want, out)
		}
		if !strings.Contains(out, "activeDeadlineSeconds: 240\n") {
			t.Errorf("%s: Helm waits 5 minutes, and the Job should take less", set)
		}
		for _, d := range documents(out) {
			job := strings.Contains(d.text, "\nkind: Job\n")
			if failed := strings.Contains(d.text, "hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed\n"); failed != job {
				t.Errorf("%s: when the Job fails, it goes: %v, %s", set, failed, d.id(t))
			}
		}
	}
}

// TestNotes: what is said of an uninstall agrees with itself, whatever the sinks are.
func TestNotes(t *testing.T) {
	for sinks, want := range map[string]string{
		"{node}":              "helm uninstall withdraws the labels of all Nodes.\nLet it run: that may take 200 seconds.",
		"{node,feature-file}": "helm uninstall withdraws all other labels of all Nodes.\n",
		"{feature-file}":      "helm uninstall also withdraws what agents published to node or node-feature before.\n",
	} {
		out := tool(t, "helm", "install", "x", "chart/gpu-labeller", "--dry-run=client", "--set", "cleanup.timeoutSeconds=200,sinks="+sinks)
		_, notes, _ := strings.Cut(out, "\nNOTES:\n")
		stay := strings.Contains(notes, "Feature files are on the nodes and stay there")
		if !strings.Contains(notes, want) || stay != strings.Contains(sinks, "file") || strings.Contains(notes, "minutes") {
			t.Errorf("sinks=%s: want %q in\n%s", sinks, want, notes)
		}
	}
}

// TestOwnLabels compares the policies' idea of what is ours with the key table.
func TestOwnLabels(t *testing.T) {
	helpers, err := os.ReadFile("chart/gpu-labeller/templates/_helpers.tpl")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`define "gpu-labeller.ownLabels" -}}\n(.*)\n`).FindSubmatch(helpers)
	if match == nil {
		t.Fatal("no gpu-labeller.ownLabels in the chart")
	}
	ours := regexp.MustCompile(string(match[1]))
	for _, k := range labels.Keys {
		key := k.Pattern
		if strings.Contains(key, "{") {
			key, _, _ = strings.Cut(k.Example, "=")
		}
		if !ours.MatchString(key) {
			t.Errorf("the policies do not allow %s", key)
		}
	}
	for _, key := range []string{
		"kubernetes.io/hostname", "node-role.kubernetes.io/control-plane", "nvidia.com/gpu.deploy.driver",
		"nvidia.com/gpu.deploy.client", "nvidia.com/gpu.present", "nvidia.com/gpu.workload.config",
		"nvidia.com/mig.config", "nvidia.com/mig.config.state", "nvidia.com/device-plugin.config", "nvidia.com/cc.capable",
		"nvidia.com/gpu-driver-upgrade-state", "feature.node.kubernetes.io/cpu-model.vendor_id",
		"feature.node.kubernetes.io/system-os_release.ID", "x.gpu.feature.node.kubernetes.io/count",
		"intel.feature.node.kubernetes.io/gpu.x", "amd.com/other", "xamd.com/gpu.count",
	} {
		if ours.MatchString(key) {
			t.Errorf("the policies allow %s, which is not ours", key)
		}
	}
}

// TestMetricNames looks for names in the rules and the dashboard that the agent does
// not have.
func TestMetricNames(t *testing.T) {
	source, err := os.ReadFile("../agent/metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`add\("(\w+)", "(\w+)"`).FindAllSubmatch(source, -1) {
		if string(m[1]) == "summary" {
			known[string(m[2])+"_sum"], known[string(m[2])+"_count"] = true, true
			continue
		}
		known[string(m[2])] = true
	}
	if len(known) < 15 {
		t.Fatalf("agent/metrics.go has only the metrics %v", known)
	}
	for _, name := range []string{"rules.yaml", "dashboard.json"} {
		content, err := os.ReadFile(filepath.Join("chart/gpu-labeller/files", name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "dashboard.json" && !json.Valid(content) {
			t.Errorf("%s is not JSON", name)
		}
		for _, metric := range regexp.MustCompile(`\b(gpu_labeller|process)_[a-z_]+`).FindAllString(string(content), -1) {
			if !known[metric] {
				t.Errorf("%s: the agent has no metric %s", name, metric)
			}
		}
	}
}

// TestAlerts: each alert says which agent it is about, on which node, and is in
// docs/operate.md. With promtool in the PATH, their expressions are tried, too.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile("chart/gpu-labeller/files/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	var alerts []string
	for _, r := range rules.Groups[0].Rules {
		alerts = append(alerts, r.Alert)
		if d := r.Annotations["description"]; !strings.Contains(d, "Agent {{ $labels.pod }}{{ with $labels.node }} on node {{ . }}{{ end }} ") {
			t.Errorf("%s does not name the agent and its node: %s", r.Alert, d)
		}
	}
	operate, err := os.ReadFile("../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^\| (GPULabeller\w+) \|`).FindAllSubmatch(operate, -1) {
		documented = append(documented, string(m[1]))
	}
	slices.Sort(alerts)
	slices.Sort(documented)
	if !slices.Equal(alerts, documented) {
		t.Errorf("docs/operate.md has the alerts %v, and the rules %v", documented, alerts)
	}

	t.Run("promtool", func(t *testing.T) {
		promtool, err := exec.LookPath("promtool")
		if err != nil {
			t.Skip("no promtool in the PATH: the expressions are not tried")
		}
		if out, err := exec.Command(promtool, "test", "rules", "testdata/rules.yaml").CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// rendered is what the chart gives for an overlay, without Helm's own labels.
type rendered struct {
	installed, cleanup []document
}

// document is one object, as text.
type document struct {
	template string // the chart's file
	text     string
}

var (
	helmLabels = regexp.MustCompile(`(?m)^ *(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n`)
	helmHook   = regexp.MustCompile(`(?m)^  annotations:\n(    helm\.sh/hook.*\n)+`)
	helmSource = regexp.MustCompile(`(?m)^# Source: gpu-labeller/templates/(.*)\n`)
)

func render(t *testing.T, o overlay, more ...string) rendered {
	t.Helper()
	values := filepath.Join("overlays", o.name, "values.yaml")
	out := tool(t, "helm", append([]string{"template", "gpu-labeller", "chart/gpu-labeller", "--namespace", o.namespace, "--values", values}, more...)...)
	var r rendered
	for _, d := range documents(out) {
		d.text = helmLabels.ReplaceAllString(d.text, "")
		if text := helmHook.ReplaceAllString(d.text, ""); text != d.text {
			d.text = text
			r.cleanup = append(r.cleanup, d)
		} else {
			r.installed = append(r.installed, d)
		}
	}
	return r
}

// documents parts a stream of YAML documents.
func documents(stream string) []document {
	var all []document
	for text := range strings.SplitSeq(strings.TrimPrefix(stream, "---\n"), "\n---\n") {
		d := document{text: text + "\n"}
		if m := helmSource.FindStringSubmatch(d.text); m != nil {
			d.template, d.text = m[1], helmSource.ReplaceAllString(d.text, "")
		}
		all = append(all, d)
	}
	return all
}

func (d document) object(t *testing.T) map[string]any {
	t.Helper()
	var object map[string]any
	decoder := yaml.NewDecoder(strings.NewReader(d.text))
	if err := decoder.Decode(&object); err != nil {
		t.Fatalf("%v in\n%s", err, d.text)
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Fatalf("more than one object, or %v, in\n%s", err, d.text)
	}
	return object
}

// id is KIND/NAMESPACE/NAME.
func (d document) id(t *testing.T) string {
	t.Helper()
	var o struct {
		Kind     string
		Metadata struct{ Namespace, Name string }
	}
	if err := yaml.Unmarshal([]byte(d.text), &o); err != nil {
		t.Fatalf("%v in\n%s", err, d.text)
	}
	return o.Kind + "/" + o.Metadata.Namespace + "/" + o.Metadata.Name
}

func asYAML(t *testing.T, v any) string {
	t.Helper()
	out, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// tool runs a tool of tools/go.mod and returns its output.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := tryTool(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryTool(name string, args ...string) (string, error) {
	cmd := exec.Command("go", append([]string{"tool", "-modfile=tools/go.mod", name}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out), err
}
