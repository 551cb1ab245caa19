package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// process is a started program.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended

	mu     sync.Mutex
	wanted bool // its end
}

// kill ends the program and waits for it.
func (p *process) kill() {
	p.mu.Lock()
	p.wanted = true
	p.mu.Unlock()
	_ = p.cmd.Process.Kill() // an error means that it has ended
	<-p.done
}

// reaper starts programs that do not outlive the test, even when the test is
// killed: the kernel ends them with the thread that started them (Pdeathsig), so
// one locked thread starts them all and lives until stop.
type reaper struct {
	starts chan func()
	died   chan string // names of programs that ended by themselves

	processes []*process
}

func newReaper() *reaper {
	r := &reaper{starts: make(chan func()), died: make(chan string, 16)}
	go func() {
		runtime.LockOSThread()
		for f := range r.starts {
			f()
		}
	}()
	return r
}

// start runs cmd with its output appended to the file log.
func (r *reaper) start(name, log string, cmd *exec.Cmd) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}

	started := make(chan error)
	r.starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	r.processes = append(r.processes, p)
	go func() {
		_ = cmd.Wait() // the log says why
		close(p.done)
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.wanted {
			r.died <- name
		}
	}()
	return p, nil
}

// stop kills the programs, last started first, and lets go of the thread.
func (r *reaper) stop() {
	for i := len(r.processes) - 1; i >= 0; i-- {
		r.processes[i].kill()
	}
	close(r.starts)
}
