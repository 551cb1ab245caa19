package explain

// The weights of what is in the way, by what it takes to change it. What is
// curable now (uncordon, tolerate) comes before what is to be waited for, and that
// before what asks for another pod or another Node. The steps between them are
// such that few of one kind do not outweigh the next.
const (
	curable      = 1   // a cordon, a taint
	inUse        = 4   // a resource that other pods hold, devices
	otherLabel   = 10  // an entry of the node selector or the affinity
	nodeIsIll    = 20  // a taint that Kubernetes sets of itself
	tooSmall     = 50  // the Node has fewer in all
	otherProfile = 90  // the Node offers other MIG devices
	otherName    = 100 // the Node offers GPUs of the vendor by another name
	notOffered   = 150 // the Node has GPUs of the vendor, and does not offer them
	outOfReach   = 1e6 // the Node has nothing of the kind
)

var weights = map[Check]float64{
	NodeName: otherLabel, Cordon: curable, Taints: curable, Selector: otherLabel, Affinity: otherLabel, Resources: inUse, Claims: inUse,
}

// distance adds up the reasons of one Node.
func distance(reasons []Reason) float64 {
	sum := 0.0
	for _, r := range reasons {
		if r.weight > 0 {
			sum += r.weight
		} else {
			sum += weights[r.Check]
		}
	}
	return sum
}
