package nvml

import (
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

	"github.com/gpu-labeller/gpu-labeller/internal/redact"
)

const (
	// childCommand is the first argument of the child process, childVariable a
	// mark in its environment.
	childCommand  = "nvml-probe"
	childVariable = "GPU_LABELLER_NVML_CHILD"
	// maxStderr is how much of the child's standard error is kept.
	maxStderr = 4 << 10
	// reapTime is how long a child that was killed, or that has answered, is
	// waited for. One that takes longer waits inside the kernel.
	reapTime = 2 * time.Second
	// lateTime is for an answer that is there when time is over, and was not read:
	// an agent that was frozen finds both when it goes on.
	lateTime = 100 * time.Millisecond
)

// A program that imports this package is its own child process. That ends here,
// before main and before most other packages initialise: those are sorted by
// path, once what they import is done, and half of the child's time would go to
// client-go and what else it never uses. TestChildInitialisesLittle says what must not.
func init() {
	if len(os.Args) == 3 && os.Args[1] == childCommand && os.Getenv(childVariable) != "" {
		os.Exit(runChild(os.Args[2]))
	}
}

// runChild is the whole of the child process: it finds the library (see
// Prober.DriverRoot), asks it, and writes the answer to standard output as JSON.
func runChild(driverRoot string) int {
	debug.SetGCPercent(-1) // the process is over before a collection would pay
	// Pdeathsig is lost when the program file has capabilities of its own.
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
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
	// Executable is the binary to run, which must import this package; empty means
	// this one.
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

// child is a running child process. NVML may start processes of its own, such as
// nvidia-modprobe, and they may outlive it with its pipes open: nothing here
// waits for the end of a pipe.
type child struct {
	process *os.Process
	out     *os.File      // where its answer comes from
	ended   chan struct{} // closed when it has been reaped
	err     error         // how it ended; read after ended is closed
	said    chan string   // the beginning of its standard error
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

	c, err := p.start()
	if err != nil {
		answer := failed(NotStarted, "the NVML child process could not be started: %v", err)
		answer.Failure.Cure = startCure(err)
		return answer
	}
	type output struct {
		answer Answer
		err    error
	}
	read := make(chan output, 1)
	go func() {
		answer, err := decode(c.out)
		c.out.Close() // a child that writes on gets SIGPIPE
		read <- output{answer, err}
	}()

	var got output
	select {
	case got = <-read:
	case <-ctx.Done():
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.kill(c)
			c.out.Close()
			return failed(Crash, "asking NVML was cancelled")
		}
		select {
		case got = <-read:
		case <-time.After(lateTime):
			p.kill(c)
			c.out.Close()
			return failed(Timeout, "NVML did not answer within %v", timeout)
		}
	}
	itself := p.reap(c, reapTime) // if so, with the better reason
	if got.err != nil {
		return failed(Crash, "%s", c.crashText(got.err, itself))
	}
	return got.answer
}

// startCure says what keeps a process from being started.
func startCure(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise the limit of open files (ulimit -n)"
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return "raise the limit of processes (ulimit -u, the pod's pids limit) or of memory"
	case errors.Is(err, syscall.ENOENT):
		return "is /proc mounted? The program starts itself by /proc/self/exe"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "may this process start its own program? A mount with noexec, seccomp and AppArmor can forbid it"
	}
	return ""
}

func failed(kind FailureKind, format string, args ...any) Answer {
	return Answer{Failure: &Failure{Kind: kind, Text: fmt.Sprintf(format, args...)}}
}

// childEnvironment is all that the child is told: where the loader looks. What the
// environment says of the cluster is none of the library's business.
func childEnvironment() []string {
	env := []string{childVariable + "=1", "GOMAXPROCS=1", "GOTRACEBACK=none"}
	if path, ok := os.LookupEnv("LD_LIBRARY_PATH"); ok {
		env = append(env, "LD_LIBRARY_PATH="+path)
	}
	return env
}

func (p *Prober) start() (*child, error) {
	executable := p.Executable
	if executable == "" {
		executable = "/proc/self/exe"
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	stderr, stderrEnd, err := os.Pipe()
	if err != nil {
		r.Close()
		w.Close()
		return nil, err
	}
	cmd := exec.Command(executable, childCommand, p.DriverRoot)
	cmd.Args[0] = "gpu-labeller-nvml"
	cmd.Stdout, cmd.Stderr = w, stderrEnd
	cmd.Env = childEnvironment()
	// A group of its own, so that what NVML started can be ended with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}

	c := &child{out: r, ended: make(chan struct{}), said: make(chan string, 1)}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that forked ends, not the
		// process: this thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		w.Close()
		stderrEnd.Close()
		if err != nil {
			started <- err
			return
		}
		c.process = cmd.Process
		started <- nil
		c.err = cmd.Wait()
		close(c.ended)
		go reapGroup(cmd.Process.Pid)
	}()
	if err := <-started; err != nil {
		r.Close()
		stderr.Close()
		return nil, err
	}
	go c.listen(stderr)
	return c, nil
}

// reapGroup waits for what a child that has ended left in its process group. In a
// container the agent is the init process, which inherits that, and would keep
// each as a zombie; elsewhere none of it is ours, and this returns at once. It looks
// now and then, since a call that waits has a thread for as long as the longest lives.
func reapGroup(pid int) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Minute) {
		for {
			reaped, err := syscall.Wait4(-pid, nil, syscall.WNOHANG, nil)
			if err != nil && !errors.Is(err, syscall.EINTR) {
				return
			}
			if err == nil && reaped == 0 {
				break
			}
		}
		time.Sleep(pause)
	}
}

// listen keeps the beginning of what the child says on standard error, and reads
// on so that it is not held up. Without the child it ends at the end of the pipe
// or a little later.
func (c *child) listen(stderr *os.File) {
	defer stderr.Close()
	go func() {
		<-c.ended
		_ = stderr.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	}()
	beginning, _ := io.ReadAll(io.LimitReader(stderr, maxStderr))
	c.said <- firstLine(beginning)
	_, _ = io.Copy(io.Discard, stderr)
}

// reap waits for the child to end by itself, and kills it when it does not.
func (p *Prober) reap(c *child, wait time.Duration) (itself bool) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-c.ended:
		return true
	case <-t.C:
		p.kill(c)
		return false
	}
}

func (p *Prober) kill(c *child) {
	select {
	case <-c.ended:
	default:
		_ = syscall.Kill(-c.process.Pid, syscall.SIGKILL) // not reaped, so the group is its own
	}
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

// decode reads an answer: one JSON object, bounded in size and in what it takes
// decoded. What follows it is of no interest, and the end of the pipe is not waited
// for.
func decode(r io.Reader) (Answer, error) {
	limited := &io.LimitedReader{R: r, N: maxAnswer}
	var text json.RawMessage
	err := json.NewDecoder(limited).Decode(&text)
	switch {
	case err != nil && limited.N == 0:
		return Answer{}, errTooLong
	case err == io.EOF:
		return Answer{}, errors.New("it wrote nothing")
	case err != nil:
		return Answer{}, fmt.Errorf("its answer: %w", err)
	}
	if err := checkCounts(text); err != nil {
		return Answer{}, err
	}
	var a Answer
	if err := json.Unmarshal(text, &a); err != nil {
		return Answer{}, fmt.Errorf("its answer: %w", err)
	}
	if a.Failure == nil && a.Init == "" {
		return Answer{}, errors.New("its answer says nothing")
	}
	return a, nil
}

// crashText says how a child ended that gave no answer: by a signal, with an exit
// code, or, also where it did not end by itself, with nonsense.
func (c *child) crashText(decodeErr error, itself bool) string {
	text := "the NVML child process gave no answer: " + decodeErr.Error()
	var exit *exec.ExitError
	select {
	case <-c.ended:
		if !itself || !errors.As(c.err, &exit) {
			break
		}
		switch status, ok := exit.Sys().(syscall.WaitStatus); {
		case !ok || !status.Signaled():
			text = "the NVML child process ended with " + exit.String()
		case status.Signal() == syscall.SIGPIPE: // by our closing the pipe
		default:
			text = "the NVML child process was ended by signal " + status.Signal().String()
		}
	default:
	}
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case said := <-c.said:
		if said != "" {
			text += " (" + said + ")"
		}
	case <-t.C:
	}
	return text
}

// firstLine is the first line that says something, fit for a message. The library
// wrote it, and may name GPUs by UUID and serial number.
func firstLine(text []byte) string {
	line, _, whole := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if !whole && len(text) == maxStderr {
		line = line[:strings.LastIndexByte(line, ' ')+1] // half a UUID cannot be told
	}
	line = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(line, ""))
	line = redact.Foreign(line) // before a part of a UUID is left
	return line[:min(len(line), 200)]
}
