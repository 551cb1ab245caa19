package main

import (
	"testing"

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
		}
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
