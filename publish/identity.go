package publish

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// NodeIdentity is what a Node says of the machine behind it. Fields are empty
// where its kubelet has not said them yet.
type NodeIdentity struct {
	Hostname   string // the label kubernetes.io/hostname
	BootID     string // /proc/sys/kernel/random/boot_id; as old as the kubelet's last start
	MachineID  string // /etc/machine-id
	SystemUUID string // /sys/class/dmi/id/product_uuid
}

// NodeIdentity reads a Node. It needs the verb get on nodes. The error is
// ErrNoNode when there is no such Node.
func (c *Client) NodeIdentity(ctx context.Context, name string) (NodeIdentity, error) {
	body, err := c.do(ctx, "get", "nodes",
		c.core.Get().Resource("nodes").Name(name).SetHeader("Accept", "application/json"))
	if apierrors.IsNotFound(err) {
		err = ErrNoNode
	}
	if err != nil {
		return NodeIdentity{}, fmt.Errorf("Node %q: %w", name, err)
	}
	var live struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Status struct {
			NodeInfo struct {
				BootID     string `json:"bootID"`
				MachineID  string `json:"machineID"`
				SystemUUID string `json:"systemUUID"`
			} `json:"nodeInfo"`
		} `json:"status"`
	}
	if err := json.Unmarshal(body, &live); err != nil {
		return NodeIdentity{}, fmt.Errorf("Node %q: the API server's answer: %w", name, err)
	}
	info := live.Status.NodeInfo
	return NodeIdentity{live.Metadata.Labels["kubernetes.io/hostname"], info.BootID, info.MachineID, info.SystemUUID}, nil
}
