package labels

import (
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

func compareValidation(t interface {
	Helper()
	Errorf(string, ...any)
}, text string) {
	t.Helper()
	if errs, reason := validation.IsQualifiedName(text), checkKey(text); (len(errs) == 0) != (reason == "") {
		t.Errorf("checkKey(%q) = %q, IsQualifiedName says %v", text, reason, errs)
	}
	if errs, reason := validation.IsValidLabelValue(text), checkValue(text); (len(errs) == 0) != (reason == "") {
		t.Errorf("checkValue(%q) = %q, IsValidLabelValue says %v", text, reason, errs)
	}
}

func TestValidationIsAPIMachinerys(t *testing.T) {
	for _, text := range []string{
		"", "a", "/a", "a/", "a/b/c", "Vendor.io/a", "vendor_x.io/a", "vendor.io/-a", "vendor.io/a-", "echo k",
		"vendor.io/A_b.c-d", "a..b/c", "-a.b/c", "a-.b/c", "a.b-/c", ".a/b", "a./b", "é", "a/é", "b=c", "x.", "-x",
		strings.Repeat("a", 63), strings.Repeat("a", 64),
		"a/" + strings.Repeat("a", 63), "a/" + strings.Repeat("a", 64),
		strings.Repeat("a", 253) + "/b", strings.Repeat("a", 254) + "/b",
	} {
		compareValidation(t, text)
	}
	piece := rapid.SampledFrom([]string{"a", "Z", "9", "-", "_", ".", "/", " ", "é", "\x80", "nvidia.com", strings.Repeat("x", 60), strings.Repeat("y.", 100)})
	rapid.Check(t, func(t *rapid.T) {
		compareValidation(t, strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(t, "pieces"), ""))
	})
	rapid.Check(t, func(t *rapid.T) {
		compareValidation(t, rapid.String().Draw(t, "text"))
	})
}

func TestOurs(t *testing.T) {
	set := Set{
		"nvidia.com/gpu.count": "8", "nvidia.com/mig-1g.5gb.count": "7", "nvidia.com/cuda.driver-version.revision": "",
		"nvidia.com/gpu.product": "NVIDIA-H200 ", "nvidia.com/gpu.machine": strings.Repeat("x", 64), "nvidia.com/mig-1g 5gb.count": "7",
		"nvidia.com/gpu.deploy.client": "true", "example.com/rack": "7",
	}
	want := Set{"nvidia.com/gpu.count": "8", "nvidia.com/mig-1g.5gb.count": "7", "nvidia.com/cuda.driver-version.revision": ""}
	if got := set.Ours(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
