//go:build scale

package scale

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpu-labeller/gpu-labeller/agent"
	"github.com/gpu-labeller/gpu-labeller/discover"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfile"
	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// hostFiles are the recorded hosts that the nodes take in turn.
var hostFiles = []string{"h200x1", "gfd-a100x8", "gfd-t4x4", "gfd-mig-mixed-h200"}

// The driver's versions before and after the upgrade.
const (
	oldDriver = "570.86.15"
	newDriver = "580.95.05"
)

// askTime is how long NVML takes.
const askTime = 50 * time.Millisecond

// model is a recorded host, scanned in each of its states.
type model struct{ quick, old, gone, new *scanned }

type scanned struct {
	answer nvml.Answer
	inv    *discover.Inventory
}

func readModels(t *testing.T) []*model {
	var models []*model
	for _, name := range hostFiles {
		file, err := hostfile.Read(t.Context(), filepath.Join("..", "..", "testdata", "hosts", name+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := file.Extract(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		scan := func(answer *nvml.Answer) *scanned {
			host := discover.Host{Root: hostfs.Root(dir)}
			var s scanned
			if answer != nil {
				s.answer = *answer
				host.NVML = func(context.Context) nvml.Answer { return s.answer }
			}
			if s.inv, err = discover.Scan(t.Context(), host); err != nil {
				t.Fatal(err)
			}
			return &s
		}
		with := func(version string) *scanned {
			answer := *file.NVML
			answer.DriverVersion = version
			return scan(&answer)
		}
		models = append(models, &model{
			quick: scan(nil), old: with(oldDriver), new: with(newDriver),
			gone: scan(&nvml.Answer{Init: nvml.LibraryNotFound}),
		})
	}
	return models
}

// machine is the host below one agent.
type machine struct {
	model *model

	mu    sync.Mutex
	now   *scanned
	print uint64
}

func newMachine(m *model) *machine { return &machine{model: m, now: m.old, print: 1} }

// becomes changes what a scan finds, and the fingerprint.
func (m *machine) becomes(s *scanned) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = s
	m.print++
}

func (m *machine) state() (*scanned, uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now, m.print
}

func (m *machine) fingerprint() (agent.Fingerprint, error) {
	_, print := m.state()
	return agent.Fingerprint{Driver: print}, nil
}

func (m *machine) ask(ctx context.Context) nvml.Answer {
	select {
	case <-ctx.Done():
	case <-time.After(askTime):
	}
	now, _ := m.state()
	return now.answer
}

func (m *machine) scan(ctx context.Context, host discover.Host) (*discover.Inventory, error) {
	now := m.model.quick
	if host.NVML != nil {
		host.NVML(ctx)
		now, _ = m.state()
	}
	inv := *now.inv // the agent edits its lists
	inv.Functions, inv.GPUs, inv.Problems = slices.Clone(inv.Functions), slices.Clone(inv.GPUs), slices.Clone(inv.Problems)
	return &inv, nil
}

// latencies are the times of many nodes.
type latencies []time.Duration

func (l latencies) at(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	slices.Sort(l)
	return l[min(len(l)-1, int(q*float64(len(l))))]
}

// sorted lists a map as the table does.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
