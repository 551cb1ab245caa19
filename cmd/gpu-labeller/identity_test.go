package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-labeller/gpu-labeller/publish"
)

func TestHostIs(t *testing.T) {
	type nodeID = publish.NodeIdentity
	id := func(hostname, boot, machine, system string) nodeID {
		return nodeID{Hostname: hostname, BootID: boot, MachineID: machine, SystemUUID: system}
	}
	for _, tt := range []struct {
		name string
		host hostIdentity
		node nodeID // of node-a
		want bool
	}{
		{"the same boot, by another name", hostIdentity{"laptop", "b1", "m1", ""}, id("x", "b1", "m1", "u1"), true},
		{"the same boot, in upper case", hostIdentity{"laptop", "B1", "", ""}, id("x", "b1", "", ""), true},
		{"a laptop", hostIdentity{"laptop", "b2", "m2", ""}, id("node-a", "b1", "m1", "u1"), false},
		{"a laptop that has the Node's name", hostIdentity{"node-a", "b2", "m2", ""}, id("node-a", "b1", "m1", "u1"), false},
		{"started again, the kubelet not yet", hostIdentity{"node-a", "b2", "m1", ""}, id("node-a", "b1", "m1", "u1"), true},
		{"started again, under --hostname-override, as root", hostIdentity{"ip-1", "b2", "m1", "u1"}, id("x", "b1", "m1", "U1"), true},
		{"started again, under --hostname-override", hostIdentity{"ip-1", "b2", "m1", ""}, id("x", "b1", "m1", "u1"), false},
		{"made from the same image", hostIdentity{"node-b", "b2", "m1", ""}, id("node-a", "b1", "m1", "u1"), false},
		{"made from the same image, names too", hostIdentity{"node-a", "b2", "m1", "u2"}, id("node-a", "b1", "m1", "u1"), false},
		{"no machine ID", hostIdentity{"node-a.example.com", "b2", "", ""}, id("node-a", "b1", "m1", "u1"), true},
		{"no kubelet, the Node's name", hostIdentity{"node-a", "b2", "m2", ""}, id("", "", "", ""), true},
		{"no kubelet, the label", hostIdentity{"ip-1", "b2", "m2", ""}, id("ip-1.internal", "", "", ""), true},
		{"no kubelet, another name", hostIdentity{"node-ab", "b2", "m2", ""}, id("node-a", "", "", ""), false},
		{"a recorded host", hostIdentity{}, id("node-a", "b1", "m1", "u1"), false},
	} {
		if same, why := tt.host.is("node-a", tt.node); same != tt.want || same != (why == "") {
			t.Errorf("%s: %v, %q, want %v", tt.name, same, why, tt.want)
		} else if found := anID.FindString(why); found != "" {
			t.Errorf("%s: the ID %s would be in the log: %q", tt.name, found, why)
		}
	}
}

// anID is a boot ID, machine ID or system UUID of TestHostIs.
var anID = regexp.MustCompile(`\b[bmuBMU][12]\b`)

// TestReadHostIdentityBounded has named pipes and a file without end in the place of
// what is read.
func TestReadHostIdentityBounded(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"proc/sys/kernel/random/boot_id", "sys/class/dmi/id/product_uuid"} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), unix.Mkfifo(path, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(root, "etc"), 0o755), os.WriteFile(filepath.Join(root, "etc/machine-id"), make([]byte, 1<<20), 0o644)); err != nil {
		t.Fatal(err)
	}
	read := make(chan hostIdentity)
	go func() { read <- readHostIdentity(root) }()
	select {
	case h := <-read:
		if h != (hostIdentity{}) {
			t.Errorf("read %d bytes", len(h.machineID))
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for a writer")
	}
}

func TestReadHostIdentity(t *testing.T) {
	if h := readHostIdentity(t.TempDir()); h != (hostIdentity{}) {
		t.Errorf("an empty folder is %+v", h)
	}
	if h := readHostIdentity("/"); h.name == "" || len(h.bootID) != 36 {
		t.Errorf("this host is %+v", h)
	}
}
