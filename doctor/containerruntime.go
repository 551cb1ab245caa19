package doctor

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// containerRuntimes is what the configuration of the container runtime says of
// the low-level runtimes that it has.
type containerRuntimes struct {
	files    []string // those that were read
	unread   []string // those that are there and could not be, with the reason
	names    []string // of the runtimes, sorted: runc, nvidia
	standard string   // the one that pods get which name none, empty when not said
}

// The places of containerd's configuration and CRI-O's: the runtimes' own, and
// those of distributions of Kubernetes.
var (
	runtimeFiles = []string{
		"etc/containerd/config.toml", "etc/crio/crio.conf",
		"var/lib/rancher/k3s/agent/etc/containerd/config.toml", "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
		"var/snap/microk8s/current/args/containerd.toml", "etc/k0s/containerd.toml",
	}
	runtimeFolders = []string{"etc/containerd/conf.d", "etc/crio/crio.conf.d", "etc/k0s/containerd.d"}
)

const maxRuntimeFile = 1 << 20

func (h *host) readRuntimes() containerRuntimes {
	var r containerRuntimes
	files := slices.Clone(runtimeFiles)
	add := func(dir string) {
		names, _ := h.readDir(dir)
		for _, name := range names {
			if file := path.Join(dir, name); !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	}
	for _, dir := range runtimeFolders {
		add(dir)
	}
	for i := 0; i < len(files) && i < 100; i++ { // imports add to the list
		text, err := h.readFile(files[i], maxRuntimeFile)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				r.unread = append(r.unread, "/"+files[i]+": "+err.Error())
			}
			continue
		}
		r.files = append(r.files, "/"+files[i])
		c := parseRuntimes(text)
		for _, pattern := range c.imports {
			file := strings.TrimPrefix(pattern, "/")
			if strings.HasPrefix(path.Base(file), "*") {
				add(path.Dir(file))
			} else if !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
		r.names = append(r.names, c.names...)
		if c.standard != "" {
			r.standard = c.standard
		}
	}
	slices.Sort(r.names)
	r.names = slices.Compact(r.names)
	return r
}

func (r *containerRuntimes) has(name string) bool { return slices.Contains(r.names, name) }

type runtimeConfig struct {
	names    []string
	standard string
	imports  []string
}

// parseRuntimes finds the runtimes in a configuration of containerd (versions 2
// and 3) or CRI-O, which is TOML: the names of the tables
//
//	[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
//	[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
//	[crio.runtime.runtimes.nvidia]
//
// and the settings default_runtime_name, default_runtime and imports. It reads
// line by line, so that what it does not know does not matter.
func parseRuntimes(text []byte) runtimeConfig {
	var c runtimeConfig
	inImports := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		if inImports {
			c.imports = append(c.imports, quoted(line)...)
			inImports = !strings.Contains(line, "]")
			continue
		}
		if strings.HasPrefix(line, "[") {
			keys := tableKeys(line)
			if at := slices.Index(keys, "runtimes"); at >= 0 && at+1 < len(keys) && (keys[0] == "plugins" || keys[0] == "crio") && !slices.Contains(c.names, keys[at+1]) {
				c.names = append(c.names, keys[at+1])
			}
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		switch strings.TrimSpace(key) {
		case "default_runtime_name", "default_runtime":
			if q := quoted(value); len(q) > 0 {
				c.standard = q[0]
			}
		case "imports":
			c.imports = append(c.imports, quoted(value)...)
			inImports = strings.Contains(value, "[") && !strings.Contains(value, "]")
		}
	}
	return c
}

// tableKeys splits the header of a TOML table at its dots, but for those between
// quotes.
func tableKeys(header string) []string {
	var keys []string
	var key strings.Builder
	var quote rune
	for _, r := range strings.TrimLeft(header, "[") {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				key.WriteRune(r)
			}
		case r == '"' || r == '\'':
			quote = r
		case r == '.' || r == ']':
			keys = append(keys, strings.TrimSpace(key.String()))
			key.Reset()
			if r == ']' {
				return keys
			}
		default:
			key.WriteRune(r)
		}
	}
	return keys
}

// quoted gives the strings between quotes.
func quoted(s string) []string {
	var all []string
	for {
		start := strings.IndexAny(s, `"'`)
		if start < 0 {
			return all
		}
		if hash := strings.IndexByte(s, '#'); hash >= 0 && hash < start {
			return all
		}
		end := strings.IndexByte(s[start+1:], s[start])
		if end < 0 {
			return all
		}
		all = append(all, s[start+1:start+1+end])
		s = s[start+end+2:]
	}
}
