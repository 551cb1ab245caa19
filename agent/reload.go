package agent

import (
	"crypto/sha256"
	"errors"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
)

// maxConfig bounds what is read of a configuration file.
const maxConfig = 1 << 20

// configFile notices that a configuration file changed: by its content, so that
// it does not matter whether it was written, replaced, or reached by a symbolic
// link that was, as a ConfigMap's is.
type configFile struct {
	path  string
	known bool
	last  content
}

// content stands for what a file holds.
type content struct {
	sum [sha256.Size]byte
	err string
}

// read may be called beside changed.
func (f *configFile) read() content {
	if f.path == "" {
		return content{}
	}
	text, err := hostfs.Root("").ReadFile(f.path, maxConfig)
	if err != nil && !errors.Is(err, hostfs.ErrTooLong) {
		return content{err: err.Error()}
	}
	return content{sum: sha256.Sum256(text)}
}

// changed tells whether the content is another than last time.
func (f *configFile) changed(c content) bool {
	if f.path == "" {
		return false
	}
	changed := f.known && c != f.last
	f.known, f.last = true, c
	return changed
}

// reload takes new options. The old ones stay in force when there are none.
func (l *loop) reload() {
	if l.config.Reload == nil {
		return
	}
	opts, err := l.config.Reload()
	if err != nil {
		l.metrics.reloads.add(1, "error")
		l.metrics.reloaded.set(0)
		text := "the new configuration is not used, and the old one stays in force: " + err.Error()
		l.log.Error(text)
		l.event("ConfigInvalid", text)
		return
	}
	l.metrics.reloads.add(1, "ok")
	l.metrics.reloaded.set(1)
	l.log.Info("configuration reloaded")
	l.opts = opts
	l.retries.reset()
	l.scanSoon("reload")
}
