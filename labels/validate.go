package labels

import (
	"slices"
	"strings"
)

// Bounds of the API server, in bytes.
const (
	maxValue     = 63
	maxName      = 63 // of a key, after the slash
	maxKeyPrefix = 253
)

// dropIllegal removes what the API server would refuse, for one bad label
// would cost all labels of the request.
func (s Set) dropIllegal() []Rejected {
	var rejected []Rejected
	for key, value := range s {
		reason := checkKey(key)
		if reason == "" {
			reason = checkValue(value)
		}
		if reason != "" {
			rejected = append(rejected, Rejected{Key: key, Value: value, Reason: reason})
		}
	}
	for _, r := range rejected {
		delete(s, r.Key)
	}
	slices.SortFunc(rejected, func(a, b Rejected) int { return strings.Compare(a.Key, b.Key) })
	return rejected
}

// Ours gives those labels of s that Compute may have given: of keys that are Known,
// and legal. What is read back from a file or an object may be anybody's.
func (s Set) Ours() Set {
	ours := Set{}
	for key, value := range s {
		if Known(key) && checkKey(key) == "" && checkValue(value) == "" {
			ours[key] = value
		}
	}
	return ours
}

// checkKey says what is wrong with a label's key, empty when nothing is. The
// rules are apimachinery's IsQualifiedName, which drags in too much.
func checkKey(key string) string {
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		prefix, name = "", key
	}
	switch {
	case prefixed && len(prefix) > maxKeyPrefix:
		return "key: the prefix is longer than 253 characters"
	case prefixed && !isSubdomain(prefix):
		return "key: the prefix is not a lower-case DNS name"
	case len(name) > maxName:
		return "key: the name is longer than 63 characters"
	case name == "" || !isBounded(name):
		return "key: the name must start and end with a letter or digit and hold only letters, digits, '-', '_' and '.'"
	}
	return ""
}

// checkValue says what is wrong with a label's value, empty when nothing is:
// apimachinery's IsValidLabelValue.
func checkValue(value string) string {
	switch {
	case len(value) > maxValue:
		return "value: longer than 63 characters"
	case value != "" && !isBounded(value):
		return "value: must start and end with a letter or digit and hold only letters, digits, '-', '_' and '.'"
	}
	return ""
}

// isBounded reports whether s, not empty, holds only the characters of names
// and values, with a letter or digit at both ends.
func isBounded(s string) bool {
	for i := range len(s) {
		if !isAllowed(s[i]) {
			return false
		}
	}
	return isAlphanumeric(s[0]) && isAlphanumeric(s[len(s)-1])
}

func isSubdomain(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if c := label[i]; c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
				return false
			}
		}
	}
	return true
}

func isAllowed(c byte) bool {
	return isAlphanumeric(c) || c == '-' || c == '_' || c == '.'
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}
