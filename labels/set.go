// Package labels computes the labels of a node from an Inventory. It is a pure
// function: no file, no device, no network, no clock.
package labels

import (
	"bufio"
	"io"
	"maps"
	"slices"
)

// Set is the labels of a node, key to value.
type Set map[string]string

// WriteTo writes the set as key=value lines, sorted by key.
func (s Set) WriteTo(w io.Writer) (int64, error) {
	b := bufio.NewWriter(w)
	var n int64
	for _, k := range slices.Sorted(maps.Keys(s)) {
		m, err := b.WriteString(k + "=" + s[k] + "\n")
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
	return n, b.Flush()
}

// Rejected is a label that was not published, or with another value, and why.
type Rejected struct {
	Key, Value string
	Reason     string
	Instead    string // the value that is published; empty for none
}

// String is a sentence.
func (r Rejected) String() string {
	if r.Instead != "" {
		return "label " + r.Key + " is " + r.Instead + ", not " + r.Value + ": " + r.Reason
	}
	return "label " + r.Key + " is left out: " + r.Reason
}
