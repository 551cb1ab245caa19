package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
)

// deviceNode is what can be said of a device node without opening it. Whether a
// device cgroup lets us open it cannot.
type deviceNode struct {
	path   string // without the root
	mode   fs.FileMode
	denied bool // neither readable nor writable for us
	err    error
}

func (n *deviceNode) String() string {
	switch {
	case n.err != nil:
		return fmt.Sprintf("%s: %v", n.path, n.err)
	case n.mode&fs.ModeCharDevice == 0:
		return n.path + ": not a device node"
	case n.denied:
		return fmt.Sprintf("%s: no permission to read and write it (mode %04o)", n.path, n.mode.Perm())
	}
	return n.path
}

func (n *deviceNode) usable() bool {
	return n.err == nil && n.mode&fs.ModeCharDevice != 0 && !n.denied
}

// readDeviceNodes looks at the device nodes of GPUs below the root's dev.
// nvidiactl is always among them, missing or not.
func readDeviceNodes(root hostfs.Root) []deviceNode {
	nodes := []deviceNode{readDeviceNode(root, "/dev/nvidiactl")}
	names, _ := root.ReadDir("dev")
	for _, name := range names {
		if name == "kfd" || name == "nvidia-uvm" || numbered(name, "nvidia") {
			nodes = append(nodes, readDeviceNode(root, "/dev/"+name))
		}
	}
	names, _ = root.ReadDir("dev/nvidia-caps")
	for _, name := range names {
		nodes = append(nodes, readDeviceNode(root, "/dev/nvidia-caps/"+name))
	}
	names, _ = root.ReadDir("dev/dri")
	for _, name := range names {
		if numbered(name, "renderD") {
			nodes = append(nodes, readDeviceNode(root, "/dev/dri/"+name))
		}
	}
	return nodes
}

func readDeviceNode(root hostfs.Root, name string) deviceNode {
	n := deviceNode{path: name}
	st, err := os.Stat(root.Path(name))
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		n.err = err
		return n
	}
	n.mode = st.Mode()
	n.denied = unix.Faccessat(unix.AT_FDCWD, root.Path(name), unix.R_OK|unix.W_OK, unix.AT_EACCESS) != nil
	return n
}

// numbered tells names such as nvidia10: the prefix and a number of any length.
func numbered(name, prefix string) bool {
	digits, ok := strings.CutPrefix(name, prefix)
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// numberedNodes gives those of the nodes that are prefix and a number.
func numberedNodes(nodes []deviceNode, prefix string) []deviceNode {
	var some []deviceNode
	for _, n := range nodes {
		if numbered(n.path, prefix) {
			some = append(some, n)
		}
	}
	return some
}

func findNode(nodes []deviceNode, path string) *deviceNode {
	for i := range nodes {
		if nodes[i].path == path {
			return &nodes[i]
		}
	}
	return nil
}
