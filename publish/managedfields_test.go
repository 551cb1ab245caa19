package publish

import (
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLabelManagers(t *testing.T) {
	got := LabelManagers([]metav1.ManagedFieldsEntry{
		{Manager: "a", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:x":{},"f:y":{}}}}`)},
		{Manager: "b", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:z":{}},"f:labels":{"f:y":{}}}}`)},
		{Manager: "c", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":7}`)},
		{Manager: "d"},
	})
	if want := map[string]string{"x": "a", "y": "b"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzLabelManagers(f *testing.F) {
	f.Add(`{"f:metadata":{"f:labels":{".":{},"f:a/b":{}}}}`)
	f.Fuzz(func(t *testing.T, fields string) {
		for key, manager := range LabelManagers([]metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1(fields)}}) {
			if manager != "m" {
				t.Errorf("%q: %q", key, manager)
			}
		}
	})
}
