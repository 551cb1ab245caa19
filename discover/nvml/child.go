package nvml

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// ChildCommand is the hidden first argument that makes the binary a probe.
const ChildCommand = "nvml-probe"

const (
	// maxAnswer bounds what is read from the child. 16 GPUs of 7 MIG devices
	// each are 60 kB.
	maxAnswer = 4 << 20
	// maxStderr is how much of the child's standard error is kept.
	maxStderr = 4 << 10
	// reapTime is how long a child that was killed, or that has answered, is
	// waited for. One that takes longer waits inside the kernel.
	reapTime = 2 * time.Second
)

// RunChild is the whole of the child process: it finds the library (see
// Prober.DriverRoot), asks it, and writes the answer to standard output as JSON.
// The caller exits with the code returned.
func RunChild(driverRoot string) int {
	debug.SetGCPercent(-1) // the process is over before a collection would pay
	// The library may print; what it prints must not end up in the answer.
	out, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		err = unix.Dup3(2, 1, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "redirecting standard output:", err)
		return 1
	}
	answer, err := json.Marshal(probe(driverRoot))
	if err == nil {
		_, err = os.NewFile(uintptr(out), "answer").Write(answer)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "writing the answer:", err)
		return 1
	}
	return 0
}

// Prober asks NVML in a child process. Its zero value runs this binary and lets
// the loader find the library. Calls of Ask must not overlap.
type Prober struct {
	// Executable is the binary to run with ChildCommand; empty means this one.
	Executable string
	// DriverRoot is the folder below which the library is looked for. Empty
	// means: by the loader, then in the usual folders of this host.
	DriverRoot string
	// Timeout is how long an answer may take; 0 means DefaultTimeout.
	Timeout time.Duration

	mu    sync.Mutex
	stuck *child // killed, but not yet ended
}

// DefaultTimeout is long, since a driver without persistence mode initialises
// every GPU anew.
const DefaultTimeout = 20 * time.Second

// child is a running child process.
type child struct {
	process *os.Process
	ended   chan struct{} // closed when it has been reaped
	err     error         // how it ended; read after ended is closed
}

// Ask starts a child, waits for its answer and sees that the child is gone.
// Whatever happens comes back as an Answer: one with Failure set when there is
// none. A child that does not end after it was killed is left behind, and no
// other is started before it has.
func (p *Prober) Ask(ctx context.Context) Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stuck != nil {
		select {
		case <-p.stuck.ended:
			p.stuck = nil
		default:
			return failed(Stuck, "the NVML child process %d was killed and has still not ended: the driver holds it", p.stuck.process.Pid)
		}
	}
	timeout := p.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	stderr := &head{max: maxStderr}
	c, out, err := p.start(stderr)
	if err != nil {
		return failed(Crash, "the NVML child process could not be started: %v", err)
	}
	type output struct {
		data []byte
		err  error
	}
	read := make(chan output, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(out, maxAnswer+1))
		out.Close() // a child that writes on gets SIGPIPE
		read <- output{data, err}
	}()

	select {
	case got := <-read:
		var answer Answer
		decodeErr := got.err
		if decodeErr == nil {
			answer, decodeErr = decode(got.data)
		}
		if decodeErr != nil {
			// It may be about to end by itself, with the better reason.
			p.reap(c, reapTime)
			return failed(Crash, "%s", crashText(c, decodeErr, stderr))
		}
		p.reap(c, reapTime)
		return answer
	case <-ctx.Done():
		p.kill(c)
		out.Close()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return failed(Timeout, "NVML did not answer within %v", timeout)
		}
		return failed(Crash, "asking NVML was cancelled")
	}
}

func failed(kind FailureKind, format string, args ...any) Answer {
	return Answer{Failure: &Failure{Kind: kind, Text: fmt.Sprintf(format, args...)}}
}

func (p *Prober) start(stderr io.Writer) (*child, *os.File, error) {
	executable := p.Executable
	if executable == "" {
		executable = "/proc/self/exe"
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(executable, ChildCommand, p.DriverRoot)
	cmd.Args[0] = "gpu-labeller-nvml"
	cmd.Stdout, cmd.Stderr = w, stderr
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOTRACEBACK=none")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	c := &child{ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that forked ends, not the
		// process: this thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		w.Close()
		if err != nil {
			started <- err
			return
		}
		c.process = cmd.Process
		started <- nil
		c.err = cmd.Wait()
		close(c.ended)
	}()
	if err := <-started; err != nil {
		r.Close()
		return nil, nil, err
	}
	return c, r, nil
}

// reap waits for the child to end, and kills it when it does not.
func (p *Prober) reap(c *child, wait time.Duration) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-c.ended:
	case <-t.C:
		p.kill(c)
	}
}

func (p *Prober) kill(c *child) {
	_ = c.process.Kill() // an error means that it has ended
	t := time.NewTimer(reapTime)
	defer t.Stop()
	select {
	case <-c.ended:
	case <-t.C:
		p.stuck = c
	}
}

var errTooLong = fmt.Errorf("it wrote more than %d bytes", maxAnswer)

// decode reads an answer: exactly one JSON object, bounded in size.
func decode(data []byte) (Answer, error) {
	if len(data) > maxAnswer {
		return Answer{}, errTooLong
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return Answer{}, errors.New("it wrote nothing")
	}
	var a Answer
	if err := json.Unmarshal(data, &a); err != nil {
		return Answer{}, fmt.Errorf("its answer: %w", err)
	}
	if a.Failure == nil && a.Init == "" {
		return Answer{}, errors.New("its answer says nothing")
	}
	return a, nil
}

// crashText says how a child ended that gave no answer: by a signal, with an
// exit code, or with nonsense.
func crashText(c *child, decodeErr error, stderr *head) string {
	text := "the NVML child process gave no answer: " + decodeErr.Error()
	var exit *exec.ExitError
	select {
	case <-c.ended:
		// One that wrote too much was ended by our closing the pipe.
		if decodeErr != errTooLong && errors.As(c.err, &exit) {
			text = "the NVML child process ended with " + exit.String()
			if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
				text = "the NVML child process was ended by signal " + status.Signal().String()
			}
		}
	default:
	}
	if first := stderr.firstLine(); first != "" {
		text += " (" + first + ")"
	}
	return text
}

// head keeps the beginning of what is written to it.
type head struct {
	max int
	mu  sync.Mutex
	buf []byte
}

func (h *head) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf = append(h.buf, b[:min(len(b), h.max-len(h.buf))]...)
	return len(b), nil
}

// firstLine is the first line that says something, fit for a message.
func (h *head) firstLine() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	line, _, _ := strings.Cut(strings.TrimSpace(string(h.buf)), "\n")
	line = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(line, ""))
	return line[:min(len(line), 200)]
}
