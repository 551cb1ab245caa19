package main

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// alive fails the test if the process has ended, or ends within a moment.
func alive(t *testing.T, p *process, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		t.Fatalf("it ended: %v\n%s", err, p)
	case <-time.After(300 * time.Millisecond):
	}
}

func begin(t *testing.T, p *process) (ended chan error) {
	t.Helper()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return ended
}

// TestHangupAtTheStart has the signal come while the agent waits for the API
// server to say which sink there is.
func TestHangupAtTheStart(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(kubeconfigFor("http://"+listener.Addr().String())), 0o600); err != nil {
		t.Fatal(err)
	}
	p := command(t, "--node-name=a", "--kubeconfig", kubeconfig, "--root", t.TempDir())
	ended := begin(t, p)
	conn, err := listener.Accept() // it asks
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 3 {
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	alive(t, p, ended)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %v\n%s", err, p)
		}
	case <-time.After(10 * time.Second):
		t.Error("it does not end")
	}
}

func kubeconfigFor(server string) string {
	return `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], ` +
		`users: [{name: a, user: {}}], clusters: [{name: a, cluster: {server: "` + server + `"}}]}`
}

// TestLogReaderEnds takes the reader of its log away from a program that runs
// for long: it goes on, and publishes what changes.
func TestLogReaderEnds(t *testing.T) {
	for name, args := range map[string][]string{
		"agent": {"gpu-labeller", "--sink=feature-file", "--poll=100ms", "--interval=1s"},
		"gfd":   {"gpu-feature-discovery", "--use-node-feature-api=false", "--sleep-interval=1s"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, h200, "0000:10:00.0")
			config := filepath.Join(t.TempDir(), "config.yaml")
			say := func(text string) {
				if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			say("version: v1\n")
			file := filepath.Join(t.TempDir(), "gpu-labeller")
			p := command(t)
			if name == "gfd" {
				args = append(args, "--output-file="+file, "--root="+m.root)
			} else {
				args = append(args, "--feature-file="+file, "--root="+m.root, "--driver-root="+m.driver)
			}
			p.cmd.Args = append(args, "--config-file="+config)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			p.cmd.Stdout, p.cmd.Stderr = w, w
			ended := begin(t, p)
			w.Close()
			if _, err := bufio.NewReader(r).ReadString('\n'); err != nil && err != io.EOF {
				t.Fatal(err)
			}
			alive(t, p, ended)
			r.Close()
			// Each is a reason for a line in the log.
			for _, text := range []string{"version: v7\n", "version: v1\n", "version: v8\n"} {
				say(text)
				_ = p.cmd.Process.Signal(syscall.SIGHUP)
				alive(t, p, ended)
			}
			if name == "gfd" {
				return
			}
			m.says(strings.Replace(h200, "NVIDIA~H200", "NVIDIA~H200~NVL", 1))
			m.write("proc/driver/nvidia/version", "another\n")
			for range 100 {
				if content, _ := os.ReadFile(file); strings.Contains(string(content), "NVIDIA-H200-NVL") {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
			t.Error("the labels did not follow the host")
		})
	}
}

func TestSinksOnce(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	f := &sinkFlags{sinks: []string{sinkFeatureFile, sinkFeatureFile}, featureFile: filepath.Join(t.TempDir(), "file")}
	s, err := f.open(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil || len(s.all) != 1 || len(s.names) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}
