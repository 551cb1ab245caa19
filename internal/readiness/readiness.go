// Package readiness tells whether a Node is ready, from whatever type its
// conditions were read into.
package readiness

// Of tells whether the conditions are those of a Node that is ready, and gives the
// one that says so or not, which is nil where there is none: the kubelet has never
// reported, and kubectl shows Unknown.
func Of[Condition any](conditions []Condition, of func(Condition) (kind, status string)) (ready bool, why *Condition) {
	for i, c := range conditions {
		if kind, status := of(c); kind == "Ready" {
			return status == "True", &conditions[i]
		}
	}
	return false, nil
}
