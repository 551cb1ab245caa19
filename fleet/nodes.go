package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-labeller/gpu-labeller/internal/readiness"
)

// GPUs is the GPUs that a Node has of one vendor, as far as its labels, its
// resources and its ResourceSlices tell.
type GPUs struct {
	Node      string   `json:"node"`
	Vendor    Vendor   `json:"vendor"`
	Product   string   `json:"product,omitempty"`
	Count     int64    `json:"count,omitempty"` // 0 if no label tells
	MemoryMiB int64    `json:"memoryMiB,omitempty"`
	Family    string   `json:"family,omitempty"`
	MIG       string   `json:"mig,omitempty"` // a word: mig.state's value
	Driver    string   `json:"driver,omitempty"`
	State     string   `json:"state,omitempty"`
	Sharing   string   `json:"sharing,omitempty"`
	Ready     bool     `json:"ready"`
	Cordoned  bool     `json:"cordoned"`
	Offers    []Offer  `json:"offers"` // what pods can ask for, sorted
	Taints    []string `json:"taints,omitempty"`
	Tainted   bool     `json:"tainted,omitempty"` // a pod needs a toleration
}

// Offer is one resource of GPUs, or the devices of one type that a DRA driver
// offers.
type Offer struct {
	Resource    string   `json:"resource"` // e.g. nvidia.com/gpu, or gpu.nvidia.com/mig with DRA
	DRA         bool     `json:"dra,omitempty"`
	MemoryMiB   int64    `json:"memoryMiB,omitempty"` // of a MIG device, if a label tells
	Allocatable int64    `json:"allocatable"`
	Requested   *int64   `json:"requested,omitempty"` // absent if what requests it could not be read
	Free        *int64   `json:"free,omitempty"`
	Holders     []Holder `json:"holders,omitempty"`
}

// Label prefixes; OwnPrefix is that of gpu-labeller's own keys.
const (
	OwnPrefix    = "gpu.feature.node.kubernetes.io/"
	nvidiaPrefix = "nvidia.com/"
	amdPrefix    = "amd.com/"
	intelPrefix  = "gpu.intel.com/"
)

// GPUs lists the GPUs of all Nodes, sorted by Node and vendor. The error is of a
// ResourceSlice that makes no sense.
func (c *Cluster) GPUs() ([]GPUs, error) {
	usage, allocated := c.Usage(nil), c.Allocated()
	var all []GPUs
	for _, node := range c.Nodes {
		devices, err := c.Devices(node)
		if err != nil {
			return nil, err
		}
		for _, vendor := range []Vendor{NVIDIA, AMD, Intel} {
			offers := c.offers(node, vendor, usage)
			offers = append(offers, c.deviceOffers(devices, vendor, allocated)...)
			g := describe(node, vendor)
			if g.Count == 0 && g.Product == "" && len(offers) == 0 {
				continue
			}
			g.Offers = append([]Offer{}, offers...)
			all = append(all, g)
		}
	}
	slices.SortStableFunc(all, func(a, b GPUs) int { return strings.Compare(a.Node, b.Node) })
	return all, nil
}

// describe reads a Node's labels.
func describe(node *corev1.Node, vendor Vendor) GPUs {
	l := node.Labels
	g := GPUs{Node: node.Name, Vendor: vendor, Ready: ready(node), Cordoned: node.Spec.Unschedulable}
	g.Count = number(l[OwnPrefix+"vendor."+string(vendor)+".count"])
	switch vendor {
	case NVIDIA:
		g.Product, g.Family = l[nvidiaPrefix+"gpu.product"], l[nvidiaPrefix+"gpu.family"]
		g.Count = cmp.Or(g.Count, number(l[nvidiaPrefix+"gpu.count"]))
		g.MemoryMiB = number(l[nvidiaPrefix+"gpu.memory"])
		g.Driver = cmp.Or(l[nvidiaPrefix+"cuda.driver-version.full"], oldDriver(l))
		g.MIG = l[OwnPrefix+"mig.state"]
		if g.MIG == "" && l[nvidiaPrefix+"mig.strategy"] != "" {
			g.MIG = l[nvidiaPrefix+"mig.strategy"]
		}
		if s := l[nvidiaPrefix+"gpu.sharing-strategy"]; s != "none" {
			g.Sharing = s
		}
	case AMD:
		g.Product = cmp.Or(l[amdPrefix+"gpu.product-name"], counted(l, amdPrefix+"gpu.product-name."))
		g.Count = cmp.Or(g.Count, number(l[amdPrefix+"gpu.count"]))
		if gib, ok := strings.CutSuffix(l[amdPrefix+"gpu.vram"], "G"); ok {
			g.MemoryMiB = number(gib) * 1024
		}
		g.Family, g.Driver = l[amdPrefix+"gpu.family"], l[amdPrefix+"gpu.driver-version"]
		if mode := l[amdPrefix+"gpu.compute-memory-partition"]; mode != "spx_nps1" {
			g.MIG = mode
		}
	case Intel:
		g.Product, g.Family = l[intelPrefix+"product"], l[intelPrefix+"family"]
		g.Count = cmp.Or(g.Count, number(l[intelPrefix+"device.count"]))
	}
	if g.Count > 0 || g.Product != "" {
		g.State = l[OwnPrefix+"state"]
		if g.Count > 0 && g.Count == number(l[OwnPrefix+"count"]) {
			g.MemoryMiB = cmp.Or(g.MemoryMiB, number(l[OwnPrefix+"memory.min"]))
		}
	} else if vendor == pciVendor(l) {
		// GPUs that do not answer have no more than this.
		g.State, g.Count = l[OwnPrefix+"state"], number(l[OwnPrefix+"count.pci"])
	}
	for _, t := range node.Spec.Taints {
		g.Taints = append(g.Taints, t.ToString())
		switch t.Key {
		case corev1.TaintNodeUnschedulable, corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable:
			continue // Cordoned and Ready say it
		}
		g.Tainted = g.Tainted || t.Effect != corev1.TaintEffectPreferNoSchedule
	}
	return g
}

// pciVendor is the vendor of the GPUs on the bus, if they are all of one.
func pciVendor(l map[string]string) Vendor {
	var found []Vendor
	for vendor, id := range map[Vendor]string{NVIDIA: "10de", AMD: "1002", Intel: "8086"} {
		for _, class := range []string{"", "0300_", "0302_", "0380_", "1200_"} {
			if l["feature.node.kubernetes.io/pci-"+class+id+".present"] == "true" {
				found = append(found, vendor)
				break
			}
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

func oldDriver(l map[string]string) string {
	major, minor, revision := l[nvidiaPrefix+"cuda.driver.major"], l[nvidiaPrefix+"cuda.driver.minor"], l[nvidiaPrefix+"cuda.driver.rev"]
	if major == "" || minor == "" {
		return ""
	}
	return strings.TrimSuffix(major+"."+minor+"."+revision, ".")
}

// counted joins what a family of labels counts.
func counted(l map[string]string, prefix string) string {
	var names []string
	for key := range l {
		if name, ok := strings.CutPrefix(key, prefix); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func ready(node *corev1.Node) bool {
	is, _ := readiness.Of(node.Status.Conditions, func(c corev1.NodeCondition) (string, string) { return string(c.Type), string(c.Status) })
	return is
}

// offers is what device plugins offer.
func (c *Cluster) offers(node *corev1.Node, vendor Vendor, usage Usage) []Offer {
	var offers []Offer
	for _, name := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		if ResourceVendor(name) != vendor {
			continue
		}
		capacity, allocatable := node.Status.Capacity[name], node.Status.Allocatable[name]
		if capacity.IsZero() && allocatable.IsZero() {
			continue
		}
		o := Offer{Resource: string(name), Allocatable: allocatable.Value(), MemoryMiB: number(node.Labels[string(name)+".memory"])}
		if c.Knows(Pods) {
			held := usage.Of(node.Name, name)
			free := max(0, o.Allocatable-held.Amount)
			o.Requested, o.Free, o.Holders = &held.Amount, &free, held.Holders
		}
		offers = append(offers, o)
	}
	return offers
}

// deviceOffers is what DRA drivers of GPUs offer, by driver and type of device.
func (c *Cluster) deviceOffers(devices []Device, vendor Vendor, allocated Allocated) []Offer {
	byName := make(map[string]*Offer)
	for _, d := range devices {
		if driverVendor(d.Driver) != vendor {
			continue
		}
		name := d.Driver
		if a, ok := d.Attributes["type"]; ok && a.StringValue != nil {
			name += "/" + *a.StringValue
		}
		o := byName[name]
		if o == nil {
			o = &Offer{Resource: name, DRA: true}
			if c.Knows(Claims) {
				o.Requested, o.Free = new(int64), new(int64)
			}
			byName[name] = o
		}
		o.Allocatable++
		if o.Requested == nil {
			continue
		}
		if holders := allocated.Holders[d.ID()]; len(holders) > 0 {
			*o.Requested++
			for _, h := range holders {
				o.Holders = append(o.Holders, Holder{Pod: h, Amount: 1})
			}
		} else {
			*o.Free++
		}
	}
	var offers []Offer
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		offers = append(offers, *byName[name])
	}
	return offers
}

// driverVendor tells whose GPUs a DRA driver offers; it is empty for one that
// offers other things, such as compute-domain.nvidia.com.
func driverVendor(driver string) Vendor {
	switch driver {
	case "gpu.nvidia.com":
		return NVIDIA
	case "gpu.amd.com":
		return AMD
	case "gpu.intel.com":
		return Intel
	}
	return ""
}

// Sum is all GPUs of a product that one resource gives.
type Sum struct {
	Product     string `json:"product"`
	Resource    string `json:"resource"`
	DRA         bool   `json:"dra,omitempty"`
	Nodes       int    `json:"nodes"`
	Count       int64  `json:"count"`
	Allocatable int64  `json:"allocatable"`
	Requested   *int64 `json:"requested,omitempty"`
	Free        *int64 `json:"free,omitempty"`
	// Withheld is what is free on Nodes that take no pod, cordoned or not ready;
	// Free leaves it out.
	Withheld int64 `json:"withheld,omitempty"`
}

// Sums adds up by product and resource, sorted.
func Sums(all []GPUs) []Sum {
	type key struct{ product, resource string }
	sums := make(map[key]*Sum)
	for _, g := range all {
		offers := g.Offers
		if len(offers) == 0 {
			offers = []Offer{{}}
		}
		for _, o := range offers {
			k := key{cmp.Or(g.Product, string(g.Vendor)), o.Resource}
			s := sums[k]
			if s == nil {
				s = &Sum{Product: k.product, Resource: k.resource, DRA: o.DRA}
				if o.Requested != nil {
					s.Requested, s.Free = new(int64), new(int64)
				}
				sums[k] = s
			}
			s.Nodes++
			s.Count += g.Count
			s.Allocatable += o.Allocatable
			if o.Requested != nil && s.Requested != nil {
				*s.Requested += *o.Requested
				if g.Ready && !g.Cordoned {
					*s.Free += *o.Free
				} else {
					s.Withheld += *o.Free
				}
			}
		}
	}
	list := []Sum{}
	for _, s := range sums {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b Sum) int {
		return cmp.Or(strings.Compare(a.Product, b.Product), strings.Compare(a.Resource, b.Resource))
	})
	return list
}
