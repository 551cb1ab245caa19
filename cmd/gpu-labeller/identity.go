package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
	"github.com/gpu-labeller/gpu-labeller/publish"
)

// hostIdentity is what tells a host from others. Fields are empty where that
// cannot be read: the system UUID is root's, and a recorded host has none of them.
type hostIdentity struct {
	name       string
	bootID     string // a new one with each start of the kernel
	machineID  string // may be equal on machines made from one image
	systemUUID string
}

// readHostIdentity reads them below the root that is scanned, so that a folder
// that stands for another host does not pass for this one.
func readHostIdentity(root string) hostIdentity {
	first := func(names ...string) string {
		for _, name := range names {
			if value, err := hostfs.Root(root).Attribute(name); err == nil {
				return value
			}
		}
		return ""
	}
	return hostIdentity{
		name:       first("proc/sys/kernel/hostname"),
		bootID:     first("proc/sys/kernel/random/boot_id"),
		machineID:  first("etc/machine-id", "var/lib/dbus/machine-id"), // as cAdvisor does
		systemUUID: first("sys/class/dmi/id/product_uuid"),
	}
}

// is tells whether the host is the Node, and why not: in words without the IDs, for
// the log.
//
// An equal boot ID proves it: one kernel has one, in every container and under
// every name. Another one does not prove the contrary, since a Node shows the last
// boot's until its kubelet is up. Then the machine ID decides, if somebody vouches
// for it: a machine made from the same image has the same. Where neither is known,
// names do.
func (h hostIdentity) is(name string, node publish.NodeIdentity) (same bool, why string) {
	named := sameName(h.name, name) || sameName(h.name, node.Hostname)
	switch {
	case differ(h.bootID, node.BootID) == equal:
		return true, ""
	case differ(h.machineID, node.MachineID) == equal:
		if named && differ(h.systemUUID, node.SystemUUID) != different || differ(h.systemUUID, node.SystemUUID) == equal {
			return true, ""
		}
		return false, "the boot ID is not the Node's"
	case differ(h.machineID, node.MachineID) == different:
		return false, "the machine ID is not the Node's"
	case named:
		return true, ""
	case h.name == "":
		return false, "below --root there is neither a boot ID nor a host name"
	}
	return false, fmt.Sprintf("the host's name is %s", h.name)
}

type difference int

const (
	unknown difference = iota
	equal
	different
)

func differ(a, b string) difference {
	switch {
	case a == "" || b == "":
		return unknown
	case strings.EqualFold(a, b):
		return equal
	}
	return different
}

// sameName compares host names, one of which may lack the domain.
func sameName(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	return a != "" && b != "" && (a == b || strings.HasPrefix(a, b+".") || strings.HasPrefix(b, a+"."))
}

func inPod() bool { return os.Getenv("KUBERNETES_SERVICE_HOST") != "" }

// checkHost refuses to put this host's labels in the place of another one's. In a
// pod, spec.nodeName is right by nature; a name that was given by hand is looked
// at, and no more than warned of: a sandboxed pod has another kernel. It waits for
// the Node, and for the API server to say so.
func checkHost(ctx context.Context, client *publish.Client, root, nodeName string, given bool, log *slog.Logger) error {
	if inPod() && !given {
		return nil
	}
	host := readHostIdentity(root)
	if inPod() {
		go func() {
			node, err := client.NodeIdentity(ctx, nodeName)
			if err != nil {
				return // publishing will say so
			}
			if same, why := host.is(nodeName, node); !same {
				log.Warn(fmt.Sprintf("this does not look like Node %q: %s; is --node-name right? In a pod, $NODE_NAME from spec.nodeName is", nodeName, why))
			}
		}()
		return nil
	}
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		node, err := client.NodeIdentity(ctx, nodeName)
		var forbidden *publish.ForbiddenError
		switch {
		case err == nil, errors.As(err, &forbidden), errors.Is(err, publish.ErrNoNode) && sameName(host.name, nodeName):
			same, why := host.is(nodeName, node)
			if same {
				return nil
			}
			if err != nil {
				why += "; " + err.Error()
			}
			return cli.Exit(exitUsage, fmt.Errorf("this host is not Node %q: %s. Its labels would take the place of that Node's. Run this on that node, "+
				"or see what this host would get with --print; if this host is that Node all the same, add --force-node-name", nodeName, why))
		}
		if wait == time.Second {
			log.Warn(err.Error() + "; so it is not known yet whether this host is the Node; trying again")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait - rand.N(wait/2)): // agents that fail together come back apart
		}
	}
}
