//go:build scale

package scale

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/agent"
	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/internal/cluster"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

var (
	nodesFlag = flag.String("nodes", "250,1000", "numbers of Nodes to measure, one after the other")
	steady    = flag.Duration("steady", 90*time.Second, "how long to look on while nothing changes")
	hurry     = flag.Int("hurry", 20, "how much faster than in life a watch ends (after 30 to 60 minutes)")
	rolling   = flag.Duration("rolling", time.Minute, "how long the driver's upgrade takes to reach the last node")
	away      = flag.Duration("away", 5*time.Second, "how long the API server is away when it is restarted")
	priority  = flag.Bool("flowschema", false, "apply manifests/flowschema")
	share     = flag.Int("share", 1, "agents to a connection")
)

func randomSeconds(least time.Duration) int {
	return int((least + rand.N(least)) / time.Second)
}

func TestScale(t *testing.T) {
	for _, text := range strings.Split(*nodesFlag, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(text, func(t *testing.T) { measure(t, n) })
	}
}

// fleet is a control plane and its agents.
type fleet struct {
	t       *testing.T
	cluster *cluster.Cluster
	admin   *http.Client
	host    string
	etcd    int
	traffic *traffic
	seen    *observer

	names    []string
	machines []*machine
	config   []*rest.Config
	stop     context.CancelFunc
	running  sync.WaitGroup
}

func measure(t *testing.T, n int) {
	f := &fleet{t: t, cluster: cluster.Start(t), traffic: &traffic{watchLife: 30 * time.Minute / time.Duration(*hurry)}, seen: &observer{}}
	config := f.cluster.Config()
	config.QPS = -1
	var err error
	if f.admin, err = rest.HTTPClientFor(config); err != nil {
		t.Fatal(err)
	}
	f.host = config.Host
	// The API server names etcd's port.
	f.etcd = find(t, "etcd", "--listen-client-urls="+f.etcdURL())
	f.createNodes(n)
	f.createAgents()
	go f.seen.watch(t.Context(), f.admin, f.host)
	time.Sleep(3 * time.Second)
	defer func() { f.stop(); f.running.Wait() }()

	done := func(version string) map[string]string {
		return map[string]string{"nvidia.com/cuda.driver-version.full": version, "gpu.feature.node.kubernetes.io/state": "ok"}
	}
	f.phase("cold start, all at once", func() latencies {
		f.seen.expect(done(oldDriver))
		start := time.Now()
		f.start()
		f.waitFor("all labelled", func() bool { return f.seen.count() == n })
		f.waitFor("all watching", f.allWatch)
		return f.seen.since(func(string) time.Time { return start })
	})
	f.phase(fmt.Sprintf("driver upgrade within %v", *rolling), func() latencies {
		f.seen.expect(done(newDriver))
		changed := make([]time.Time, n)
		gap, start := *rolling/time.Duration(n), time.Now()
		for i, m := range f.machines {
			time.Sleep(time.Until(start.Add(time.Duration(i) * gap)))
			m.becomes(m.model.gone)
			time.AfterFunc(5*time.Second, func() {
				changed[i] = time.Now()
				m.becomes(m.model.new)
			})
		}
		f.waitFor("all labelled", func() bool { return f.seen.count() == n })
		index := map[string]int{}
		for i, name := range f.names {
			index[name] = i
		}
		return f.seen.since(func(node string) time.Time { return changed[index[node]] })
	})
	f.phase("agents restarted, all at once", func() latencies {
		f.stop()
		f.running.Wait()
		f.traffic.hangUp()
		f.waitFor("no watch", func() bool { return f.traffic.watches.Load() == 0 })
		f.start()
		f.waitFor("all watching", f.allWatch)
		return nil
	})
	if got := f.traffic.of("PATCH"); got != 0 {
		t.Errorf("%d writes for a restart of the agents", got)
	}
	time.Sleep(5 * time.Second)
	f.phase(fmt.Sprintf("steady, %v", *steady), func() latencies {
		time.Sleep(*steady)
		return nil
	})
	if got := f.traffic.of("PATCH"); got != 0 {
		t.Errorf("%d writes while nothing changed", got)
	}
	f.phase(fmt.Sprintf("API server killed, back after %v", *away), func() latencies {
		f.cluster.StopAPIServer()
		time.Sleep(*away)
		f.cluster.StartAPIServer()
		ready := time.Now()
		var all latencies
		f.waitFor("all watching", func() bool {
			open := int(f.traffic.watches.Load())
			for len(all) < open {
				all = append(all, time.Since(ready))
			}
			return open == n
		})
		return all
	})
	if got := f.traffic.of("PATCH"); got != 0 {
		t.Errorf("%d writes for a restart of the API server", got)
	}
	f.stop()
	f.running.Wait()
	f.traffic.hangUp()
	cmd := f.cleanup()
	var peak int64
	f.phase("cleanup of all, after the agents' end", func() latencies {
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- cmd.Wait() }()
		for {
			select {
			case err := <-ended:
				if got := strings.Count(out.String(), " withdrawn\n"); err != nil || got != n {
					t.Errorf("cleanup of %d Nodes: %v\n%.3000s", got, err, out.String())
				}
				return nil
			case <-time.After(20 * time.Millisecond):
				peak = max(peak, usageOf(cmd.Process.Pid).bytes)
			}
		}
	})
	t.Logf("    the command: %.2f s of CPU, %d MiB at its peak", (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), peak>>20)
}

// cleanup is the command that the Job of an uninstall runs, with its rights.
func (f *fleet) cleanup() *exec.Cmd {
	token := f.cluster.ServiceAccount("gpu-labeller", "cleanup", `{apiGroups: [""], resources: [nodes], verbs: [get, list, patch]}`, "")
	kubeconfig := filepath.Join(f.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, f.cluster.KubeconfigWithToken(token), 0o600); err != nil {
		f.t.Fatal(err)
	}
	binary := filepath.Join(f.t.TempDir(), "gpu-labeller")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "github.com/gpu-labeller/gpu-labeller/cmd/gpu-labeller").CombinedOutput(); err != nil {
		f.t.Fatalf("go build: %v\n%s", err, out)
	}
	return exec.Command(binary, "cleanup", "--all-nodes", "--sink=node", "--kubeconfig", kubeconfig)
}

func (f *fleet) allWatch() bool { return int(f.traffic.watches.Load()) == len(f.names) }

// apiserver is the process of the API server at present.
func (f *fleet) apiserver() int {
	_, port, _ := strings.Cut(strings.TrimPrefix(f.host, "https://"), ":")
	return find(f.t, "kube-apiserver", "--secure-port="+port+"\x00")
}

func (f *fleet) etcdURL() string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", f.apiserver()))
	if err != nil {
		f.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(line), "--etcd-servers=")
	url, _, _ := strings.Cut(rest, "\x00")
	return url
}

// createNodes makes Nodes as kubelets do, with 50 images each.
func (f *fleet) createNodes(n int) {
	begin := time.Now()
	var images []map[string]any
	for i := range 50 {
		name := fmt.Sprintf("registry.example.com/team-%d/component-with-a-long-name-%d", i%7, i)
		images = append(images, map[string]any{"names": []string{fmt.Sprintf("%s@sha256:%064x", name, i), name + ":v1.2.3"}, "sizeBytes": 100 << 20})
	}
	now := time.Now().UTC().Format(time.RFC3339)
	var conditions []map[string]string
	for _, kind := range []string{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"} {
		status := "False"
		if kind == "Ready" {
			status = "True"
		}
		conditions = append(conditions, map[string]string{
			"type": kind, "status": status, "reason": "NoKubelet", "message": "a Node without a kubelet",
			"lastHeartbeatTime": now, "lastTransitionTime": now,
		})
	}
	capacity := map[string]string{"cpu": "64", "memory": "256Gi", "pods": "110"}
	numbers := make(chan int)
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for i := range numbers {
				name := f.names[i]
				err := post(f.t.Context(), f.admin, f.host+"/api/v1/nodes", map[string]any{
					"apiVersion": "v1", "kind": "Node",
					"metadata": map[string]any{"name": name, "labels": map[string]string{
						"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
						"node.kubernetes.io/instance-type": "gpu.8xlarge", "topology.kubernetes.io/zone": "zone-" + strconv.Itoa(i%3),
					}},
					"status": map[string]any{"capacity": capacity, "allocatable": capacity, "conditions": conditions, "images": images},
				})
				if err != nil {
					f.t.Error(err)
				}
			}
		})
	}
	for i := range n {
		f.names = append(f.names, fmt.Sprintf("gpu-node-%05d", i))
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	workers.Wait()
	f.t.Logf("%d Nodes created in %.1f s", n, time.Since(begin).Seconds())
	time.Sleep(time.Duration(n)*5*time.Millisecond + 5*time.Second) // the controllers take the taints off
}

// createAgents makes what the agents need, with the rights that they have in
// life: a ServiceAccount, so that priority and fairness sees them as one user.
func (f *fleet) createAgents() {
	token := f.cluster.ServiceAccount("gpu-labeller", "gpu-labeller", `{apiGroups: [""], resources: [nodes], verbs: [get, patch, watch]}, {apiGroups: [""], resources: [events], verbs: [create]}`, "")
	if *priority {
		manifest, err := os.ReadFile("../../manifests/flowschema/flowschema.yaml")
		if err != nil {
			f.t.Fatal(err)
		}
		f.cluster.Apply(string(manifest))
		time.Sleep(3 * time.Second)
	}
	base := f.cluster.ConfigWithToken(token)
	models := readModels(f.t)
	for i := range f.names {
		f.machines = append(f.machines, newMachine(models[i%len(models)]))
		if i%*share == 0 {
			f.config = append(f.config, f.traffic.client(base, false))
		}
	}
}

// start starts all agents.
func (f *fleet) start() {
	ctx, stop := context.WithCancel(f.t.Context())
	f.stop = stop
	var clients []*publish.Client
	for _, config := range f.config {
		client, err := publish.NewClient(config)
		if err != nil {
			f.t.Fatal(err)
		}
		clients = append(clients, client)
	}
	for i, m := range f.machines {
		a := agent.New(agent.Config{
			Host:        discover.Host{NVML: m.ask},
			Sinks:       []publish.Sink{&publish.Node{Client: clients[i / *share], Name: f.names[i]}},
			Scan:        m.scan,
			Fingerprint: m.fingerprint,
			Logger:      slog.New(slog.DiscardHandler),
			Resync:      10 * time.Minute / time.Duration(*hurry),
			Event: func(reason, message string) {
				_ = clients[i / *share].Event(ctx, f.names[i], reason, message) // the traffic shows it
			},
			Version: "scale",
		})
		f.running.Go(func() { a.Run(ctx) })
	}
}

func (f *fleet) waitFor(what string, done func() bool) {
	f.t.Helper()
	begin := time.Now()
	for !done() {
		if time.Since(begin) > 3*time.Minute {
			f.t.Fatalf("%s: not after 3 minutes; %d labelled, %d watches", what, f.seen.count(), f.traffic.watches.Load())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// phase runs something and prints what it cost.
func (f *fleet) phase(name string, run func() latencies) {
	server := f.apiserver()
	before, etcdBefore, selfBefore := usageOf(server), usageOf(f.etcd), usageOf(os.Getpid())
	counted := metrics(f.t.Context(), f.t, f.admin, f.host)
	f.traffic.reset()
	begin := time.Now()
	all := run()
	took := time.Since(begin)
	if now := f.apiserver(); now != server {
		server, before, counted = now, usage{}, nil
	}
	after, etcdAfter, selfAfter := usageOf(server), usageOf(f.etcd), usageOf(os.Getpid())
	f.traffic.mu.Lock()
	defer f.traffic.mu.Unlock()
	f.t.Logf("%d nodes: %s: took %.1f s", len(f.names), name, took.Seconds())
	for _, verb := range []string{"GET", "PATCH", "POST", "WATCH"} {
		if f.traffic.count[verb] > 0 {
			f.t.Logf("    agents: %-6s %6d, %.2f a node, most in a second %d", verb, f.traffic.count[verb],
				float64(f.traffic.count[verb])/float64(len(f.names)), f.traffic.busiest(verb))
		}
	}
	for _, what := range sorted(f.traffic.fails) {
		f.t.Logf("    agents: %d × %s", f.traffic.fails[what], what)
	}
	if len(all) > 0 {
		f.t.Logf("    p50 %.2f s, p99 %.2f s, max %.2f s", all.at(0.5).Seconds(), all.at(0.99).Seconds(), all.at(1).Seconds())
	}
	f.t.Logf("    API server: %.2f s of CPU, %d MiB; etcd: %.2f s, %d MiB; %d agents: %.2f s, %d MiB",
		(after.cpu - before.cpu).Seconds(), after.bytes>>20,
		(etcdAfter.cpu - etcdBefore.cpu).Seconds(), etcdAfter.bytes>>20,
		len(f.names), (selfAfter.cpu - selfBefore.cpu).Seconds(), selfAfter.bytes>>20)
	now := metrics(f.t.Context(), f.t, f.admin, f.host)
	var line []string
	for _, what := range sorted(now) {
		if d := now[what] - counted[what]; d > 0 {
			line = append(line, fmt.Sprintf("%s: %.0f", what, d))
		}
	}
	f.t.Logf("    its metrics: %s", strings.Join(line, ", "))
}
