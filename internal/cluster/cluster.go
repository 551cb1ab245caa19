// Package cluster runs a real Kubernetes control plane for tests: etcd,
// kube-apiserver, kube-scheduler and kube-controller-manager on loopback, built
// from testdata/cluster. There is no kubelet: CreateNode makes Node objects that
// look ready, so the scheduler binds pods to them, but nothing runs in them.
//
// The first use on a machine builds the programs, which takes minutes (6 on 2
// cores, more than half of go test's default timeout): run
// testdata/cluster/build.sh once beforehand. After that a control plane starts
// in 8 s (2 cores) and holds 0.5 GiB.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// Cluster is a running control plane. Its methods fail the test that started
// it; they may be called from that test and its subtests.
type Cluster struct {
	tb     testing.TB
	dir    string // certificates, kubeconfigs, etcd's data, logs
	bin    string
	ports  ports
	pki    *pki
	reaper *reaper

	apiserver *process
}

// ports are what the programs listen on, on 127.0.0.1.
type ports struct{ api, etcd, etcdPeer int }

// The tokens of the token auth file.
const (
	adminToken     = "admin-token"
	schedulerToken = "scheduler-token"
	managerToken   = "controller-manager-token"
)

// Start builds what is missing, starts a control plane in tb.TempDir, and waits
// until it answers and has made the default ServiceAccount. It is stopped when
// tb ends; the ends of the logs are printed if tb failed. With -short it skips.
func Start(tb testing.TB) *Cluster {
	tb.Helper()
	if testing.Short() {
		tb.Skip("a control plane takes seconds to start, and minutes to build the first time: not with -short")
	}
	bin, err := build()
	if err != nil {
		tb.Fatalf("cluster: building the control plane: %v", err)
	}
	c := &Cluster{tb: tb, dir: tb.TempDir(), bin: bin}
	if err := c.prepare(); err != nil {
		tb.Fatalf("cluster: %v", err)
	}
	c.reaper = newReaper()
	tb.Cleanup(func() {
		c.reaper.stop()
		if tb.Failed() {
			c.printLogs()
		}
	})

	begin := time.Now()
	c.run("etcd",
		"--name=test", "--data-dir="+c.path("etcd"), "--log-level=warn", "--unsafe-no-fsync",
		"--listen-client-urls="+c.url("http", c.ports.etcd), "--advertise-client-urls="+c.url("http", c.ports.etcd),
		"--listen-peer-urls="+c.url("http", c.ports.etcdPeer), "--initial-advertise-peer-urls="+c.url("http", c.ports.etcdPeer),
		"--initial-cluster=test="+c.url("http", c.ports.etcdPeer))
	c.StartAPIServer()
	c.run("kube-scheduler",
		"--kubeconfig="+c.path("scheduler.kubeconfig"), "--leader-elect=false",
		"--bind-address=127.0.0.1", "--secure-port=0")
	// It makes the default ServiceAccounts, lifts the not-ready taint of new
	// Nodes and collects garbage. No kubelet sends heartbeats: an hour of grace.
	c.run("kube-controller-manager",
		"--kubeconfig="+c.path("controller-manager.kubeconfig"), "--leader-elect=false",
		"--bind-address=127.0.0.1", "--secure-port=0",
		"--service-account-private-key-file="+c.path("sa.key"), "--root-ca-file="+c.path("ca.crt"),
		"--use-service-account-credentials=true", "--node-monitor-grace-period=1h")
	c.wait("the default ServiceAccount", time.Minute, func(ctx context.Context) error {
		return c.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
	})
	tb.Logf("cluster: control plane up in %.1f s, logs in %s", time.Since(begin).Seconds(), c.dir)
	return c
}

// prepare makes everything that the programs read: ports, certificates, tokens
// and kubeconfigs.
func (c *Cluster) prepare() error {
	free, err := freePorts(3)
	if err != nil {
		return err
	}
	c.ports = ports{api: free[0], etcd: free[1], etcdPeer: free[2]}
	if c.pki, err = newPKI(); err != nil {
		return err
	}
	server, serverKey, err := c.pki.issue("kube-apiserver", nil)
	if err != nil {
		return err
	}
	key, public, err := serviceAccountKey()
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"ca.crt":        c.pki.certPEM,
		"apiserver.crt": server,
		"apiserver.key": serverKey,
		"sa.key":        key,
		"sa.pub":        public,
		"tokens.csv": []byte(adminToken + `,admin,admin,"system:masters"` + "\n" +
			schedulerToken + ",system:kube-scheduler,scheduler\n" +
			managerToken + ",system:kube-controller-manager,controller-manager\n"),
		"admin.kubeconfig":              c.KubeconfigWithToken(adminToken),
		"scheduler.kubeconfig":          c.KubeconfigWithToken(schedulerToken),
		"controller-manager.kubeconfig": c.KubeconfigWithToken(managerToken),
	} {
		if err := os.WriteFile(c.path(name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// StartAPIServer starts the API server on the data and the port it had before,
// and waits until it is ready. Start has called it already.
func (c *Cluster) StartAPIServer() {
	c.tb.Helper()
	c.apiserver = c.run("kube-apiserver",
		"--etcd-servers="+c.url("http", c.ports.etcd),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.api),
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--tls-cert-file="+c.path("apiserver.crt"), "--tls-private-key-file="+c.path("apiserver.key"),
		"--client-ca-file="+c.path("ca.crt"), "--token-auth-file="+c.path("tokens.csv"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.path("sa.pub"), "--service-account-signing-key-file="+c.path("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/24", "--profiling=false")
	c.wait("the API server", time.Minute, func(ctx context.Context) error {
		return c.get(ctx, "/readyz", nil)
	})
}

// StopAPIServer kills the API server, as a crash would. What is stored stays.
func (c *Cluster) StopAPIServer() {
	c.apiserver.kill()
}

// Config returns a client configuration with all rights (group system:masters).
func (c *Cluster) Config() *rest.Config {
	return c.config(adminToken)
}

// ConfigWithToken returns a client configuration that authenticates with token,
// such as one from ServiceAccountToken.
func (c *Cluster) ConfigWithToken(token string) *rest.Config {
	return c.config(token)
}

// ConfigFor returns a client configuration for a user and groups, with a client
// certificate; system:node:NAME in group system:nodes is NAME's kubelet.
func (c *Cluster) ConfigFor(user string, groups ...string) *rest.Config {
	c.tb.Helper()
	cert, key, err := c.pki.issue(user, groups)
	if err != nil {
		c.tb.Fatalf("cluster: %v", err)
	}
	config := c.config("")
	config.CertData, config.KeyData = cert, key
	return config
}

func (c *Cluster) config(token string) *rest.Config {
	return &rest.Config{
		Host:            c.url("https", c.ports.api),
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.pki.certPEM},
	}
}

// Kubeconfig returns the path of a kubeconfig with all rights.
func (c *Cluster) Kubeconfig() string {
	return c.path("admin.kubeconfig")
}

// KubeconfigWithToken returns a kubeconfig that authenticates with token.
func (c *Cluster) KubeconfigWithToken(token string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {server: %q, certificate-authority: %q}
users:
- name: test
  user: {token: %q}
contexts:
- name: test
  context: {cluster: test, user: test}
current-context: test
`, c.url("https", c.ports.api), c.path("ca.crt"), token)
}

// wait calls f until it succeeds, or fails the test with f's last error.
func (c *Cluster) wait(what string, limit time.Duration, f func(context.Context) error) {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(c.tb.Context(), limit)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			c.tb.Fatalf("cluster: %s: not there after %v: %v", what, limit, err)
		case name := <-c.reaper.died:
			c.tb.Fatalf("cluster: %s: %s ended by itself", what, name)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *Cluster) run(name string, args ...string) *process {
	c.tb.Helper()
	p, err := c.reaper.start(name, c.logfile(name), exec.Command(filepath.Join(c.bin, name), args...))
	if err != nil {
		c.tb.Fatalf("cluster: %v", err)
	}
	return p
}

// printLogs prints the end of every log.
func (c *Cluster) printLogs() {
	const end = 4096 // bytes
	logs, _ := filepath.Glob(c.path("*.log"))
	for _, log := range logs {
		data, err := os.ReadFile(log)
		if err != nil {
			continue
		}
		c.tb.Logf("cluster: %s ends:\n%s", filepath.Base(log), data[max(0, len(data)-end):])
	}
}

func (c *Cluster) path(name string) string    { return filepath.Join(c.dir, name) }
func (c *Cluster) logfile(name string) string { return c.path(name + ".log") }

func (c *Cluster) url(scheme string, port int) string {
	return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port)
}

// build runs testdata/cluster/build.sh and returns the folder with the programs.
func build() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(filepath.Join(root, "testdata", "cluster", "build.sh"))
	cmd.Stderr = os.Stderr // progress: the first build takes minutes
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// moduleRoot returns the nearest parent of the working directory, which is that
// of the package under test, with a testdata/cluster.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "testdata", "cluster", "build.sh")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no testdata/cluster/build.sh above the working directory")
		}
		dir = parent
	}
}

// freePorts returns n ports that were free a moment ago.
func freePorts(n int) ([]int, error) {
	var free []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		free = append(free, l.Addr().(*net.TCPAddr).Port)
	}
	return free, nil
}
