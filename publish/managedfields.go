package publish

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// owners is who owns which labels of an object, from metadata.managedFields.
type owners struct {
	ours    map[string]bool // keys that we applied
	applied metav1.Time     // when we last did, to the second; zero if never
	others  map[string]string
}

// labelOwners reads the owners of the labels of meta; we are manager. An entry
// that does not parse owns nothing: then the API server has the last word.
//
// An entry is a set of paths as nested objects, "f:" before a field's name
// (FieldsV1, Kubernetes v1.37): {"f:metadata":{"f:labels":{".":{},"f:KEY":{}}}}.
func labelOwners(meta *metav1.ObjectMeta, manager string) owners {
	o := owners{ours: map[string]bool{}, others: map[string]string{}}
	for _, entry := range meta.ManagedFields {
		us := entry.Manager == manager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == ""
		if us && entry.Time != nil {
			o.applied = *entry.Time
		}
		for _, key := range labelKeys(entry.FieldsV1) {
			if us {
				o.ours[key] = true
			} else {
				o.others[key] = entry.Manager
			}
		}
	}
	return o
}

// LabelManagers gives the manager of each label, by the metadata.managedFields of
// an object. Of several who agree on a value, which only server-side apply allows,
// the last is given.
func LabelManagers(entries []metav1.ManagedFieldsEntry) map[string]string {
	managers := map[string]string{}
	for _, entry := range entries {
		for _, key := range labelKeys(entry.FieldsV1) {
			managers[key] = entry.Manager
		}
	}
	return managers
}

func labelKeys(fields *metav1.FieldsV1) []string {
	if fields == nil {
		return nil
	}
	var set struct {
		Metadata struct {
			Labels map[string]json.RawMessage `json:"f:labels"`
		} `json:"f:metadata"`
	}
	if err := json.Unmarshal(fields.GetRawBytes(), &set); err != nil {
		return nil
	}
	var keys []string
	for field := range set.Metadata.Labels {
		if key, ok := strings.CutPrefix(field, "f:"); ok {
			keys = append(keys, key)
		}
	}
	return keys
}
