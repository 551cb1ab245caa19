package labels

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestSanitise(t *testing.T) {
	tests := []struct{ text, want string }{
		{"NVIDIA H200", "NVIDIA-H200"},
		{"NVIDIA TITAN X (Pascal)", "NVIDIA-TITAN-X-Pascal"},
		{"X9SRA/X9SRA-3", "X9SRAX9SRA-3"},
		{"VMware7,1", "VMware71"},
		{"  two   spaces  ", "two-spaces"},
		{"A / B", "A-B"},
		{"tab\there", "tabhere"},
		{"A100 - ", "A100"},
		{"_-.A.-_", "A"},
		{"Größe", "Gre"},
		{"\xff\x00", ""},
		{"...", ""},
		{"", ""},
		{strings.Repeat("x", 63), strings.Repeat("x", 63)},
		{strings.Repeat("x", 62) + ".y", strings.Repeat("x", 62)},
		{"-" + strings.Repeat("x", 63), strings.Repeat("x", 63)},
	}
	for _, test := range tests {
		if got := sanitise(test.text); got != test.want {
			t.Errorf("sanitise(%q) = %q, want %q", test.text, got, test.want)
		}
	}
}

func TestBound(t *testing.T) {
	x := strings.Repeat("x", 63)
	tests := []struct{ name, suffix, want string }{
		{"A", "-SHARED", "A-SHARED"},
		{"A--", "-SHARED", "A---SHARED"}, // legal, and what GFD gives
		{x, "-SHARED", x[:56] + "-SHARED"},
		{x[:55] + "." + x, "-SHARED", x[:55] + "-SHARED"},
		{"-" + x, "-MIG-1g.5gb", x[:52] + "-MIG-1g.5gb"},
		{"A", "-" + x, x},
		{"A", "-MIG-" + x, ("MIG-" + x)[:63]},
	}
	for _, test := range tests {
		if got := bound(test.name, test.suffix); got != test.want {
			t.Errorf("bound(%q, %q) = %q, want %q", test.name, test.suffix, got, test.want)
		}
	}
}

func FuzzSanitise(f *testing.F) {
	f.Add("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "1g.24gb")
	f.Add(" (._-) é", "")
	f.Fuzz(func(t *testing.T, name, profile string) {
		got := sanitise(name)
		if errs := validation.IsValidLabelValue(got); len(errs) > 0 {
			t.Errorf("sanitise(%q) = %q: %v", name, got, errs)
		}
		if again := sanitise(got); again != got {
			t.Errorf("sanitise(%q) = %q, and again %q", name, got, again)
		}
		product := bound(clean(name), "-MIG-"+clean(profile)+"-SHARED")
		if errs := validation.IsValidLabelValue(product); len(errs) > 0 || product == "" {
			t.Errorf("the product of %q, %q is %q: %v", name, profile, product, errs)
		}
	})
}
