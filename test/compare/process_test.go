//go:build compare

package compare

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-labeller/gpu-labeller/internal/logbuf"
)

// process is a daemon that is measured from outside.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	log logbuf.Buffer
}

func start(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...)}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", program, &p.log)
		}
	})
	return p
}

func (p *process) signal(s os.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// cpu is what it has used itself, in seconds, threads that ended included.
func (p *process) cpu() float64 {
	const schedClock = 2
	var now unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|schedClock), &now); err != nil {
		p.t.Fatal(err)
	}
	return float64(now.Nano()) / 1e9
}

// children is what processes that it waited for have used, in hundredths of a
// second.
func (p *process) children() float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.ParseFloat(fields[13], 64)
	system, _ := strconv.ParseFloat(fields[14], 64)
	return (user + system) / 100
}

// memory is a line of its status, in MiB.
func (p *process) memory(line string) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return kilobytes(text, line) / 1024
}

func kilobytes(text []byte, name string) float64 {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			n, _ := strconv.ParseFloat(string(bytes.Fields(rest)[0]), 64)
			return n
		}
	}
	return 0
}

// watchPeak follows what it and its children hold together, each page shared
// among them counted once, and gives the most, in MiB, when it is called.
func (p *process) watchPeak() (peak func() float64) {
	stop, done := make(chan struct{}), make(chan float64)
	go func() {
		var most float64
		for {
			select {
			case <-stop:
				done <- most / 1024
				return
			default:
			}
			sum := proportional(p.cmd.Process.Pid)
			for _, child := range p.pids() {
				sum += proportional(child)
			}
			most = max(most, sum)
			time.Sleep(500 * time.Microsecond)
		}
	}()
	return func() float64 { close(stop); return <-done }
}

func (p *process) pids() (pids []int) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", p.cmd.Process.Pid, task.Name()))
		for _, field := range strings.Fields(string(text)) {
			pid, _ := strconv.Atoi(field)
			pids = append(pids, pid)
		}
	}
	return pids
}

func proportional(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0 // it has ended
	}
	return kilobytes(text, "Pss")
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}
