package labels

import (
	"strings"
	"unicode/utf8"
)

// sanitise turns any text into a legal label value; empty when no letter or
// digit is left.
func sanitise(text string) string { return bound(clean(text), "") }

// clean drops the characters that a label value cannot hold and turns each run
// of spaces into one dash, as GFD does. The result may still be too long, or
// begin or end with punctuation.
func clean(text string) string {
	b := make([]byte, 0, len(text))
	space := false
	for i := range len(text) {
		c := text[i]
		switch {
		case c == ' ':
			space = true
		case isAllowed(c):
			if space && len(b) > 0 {
				b = append(b, '-')
			}
			space = false
			b = append(b, c)
		}
	}
	return string(b)
}

// bound joins a cleaned name and suffix into a legal value. Where they are too
// long, only the name is cut: the suffix tells kinds of one model apart.
func bound(name, suffix string) string {
	value := trim(name + suffix)
	if len(value) <= maxValue {
		return value
	}
	name = trim(name)
	if room := max(0, maxValue-len(suffix)); len(name) > room {
		name = trim(name[:room])
	}
	value = trim(name + suffix)
	if len(value) > maxValue {
		value = trim(value[:maxValue])
	}
	return value
}

// trim cuts what is neither letter nor digit from both ends.
func trim(s string) string {
	return strings.TrimFunc(s, func(r rune) bool {
		return r >= utf8.RuneSelf || !isAlphanumeric(byte(r))
	})
}

// saysNothing reports whether a product name is a placeholder of a driver that
// does not know the product.
func saysNothing(name string) bool {
	name = strings.TrimSpace(name)
	for _, placeholder := range []string{"Unknown", "N/A", "Graphics Device"} {
		if strings.EqualFold(name, placeholder) {
			return true
		}
	}
	return trim(clean(name)) == ""
}
