package publish

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// owners is who owns which labels of an object, from metadata.managedFields.
type owners struct {
	ours    map[string]bool // keys that we applied
	applied metav1.Time     // when we last did, to the second; zero if never
	others  map[string]string
	// orphans are keys of ours by what they say, and nobody's by managedFields:
	// those were cleared, and with them who applied what.
	orphans map[string]bool
	nfd     map[string]bool // keys that NFD says are its own
}

// beforeFirstApply is who owns, after the first apply to an object without
// managedFields, what was there before (Kubernetes v1.37). It has no opinion.
const beforeFirstApply = "before-first-apply"

// labelOwners reads the owners of the labels of meta; we are manager. An entry
// that does not parse owns nothing: then the API server has the last word.
//
// An entry is a set of paths as nested objects, "f:" before a field's name
// (FieldsV1, Kubernetes v1.37): {"f:metadata":{"f:labels":{".":{},"f:KEY":{}}}}.
func labelOwners(meta *metav1.ObjectMeta, manager string) owners {
	o := owners{ours: map[string]bool{}, others: map[string]string{}, orphans: map[string]bool{}, nfd: nfdKeys(meta.Annotations)}
	before := map[string]bool{}
	for _, entry := range meta.ManagedFields {
		us := entry.Manager == manager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == ""
		if us && entry.Time != nil {
			o.applied = *entry.Time
		}
		for _, key := range labelKeys(entry.FieldsV1) {
			switch {
			case us:
				o.ours[key] = true
			case entry.Manager == beforeFirstApply:
				before[key] = true
			default:
				o.others[key] = entry.Manager
			}
		}
	}
	for key := range meta.Labels {
		if o.others[key] != "" || !before[key] && o.ours[key] {
			continue
		}
		switch {
		case o.nfd[key]:
			o.others[key] = nfdMaster
		case labels.Known(key):
			o.orphans[key] = true
		case before[key]:
			o.others[key] = beforeFirstApply
		}
	}
	return o
}

// nfdMaster is the field manager of NFD.
const nfdMaster = "nfd-master"

// byNFD tells whether NFD sets a label.
func (o owners) byNFD(key string) bool {
	return o.nfd[key] || strings.HasPrefix(o.others[key], "nfd-")
}

// nfdKeys gives the labels that NFD notes to be its own, in an annotation that
// starts with the instance's name if it has one. Keys of its own namespace stand
// there without it (NFD v0.19).
func nfdKeys(annotations map[string]string) map[string]bool {
	keys := map[string]bool{}
	for name, value := range annotations {
		const annotation = "nfd.node.kubernetes.io/feature-labels"
		if name != annotation && !strings.HasSuffix(name, "."+annotation) {
			continue
		}
		for key := range strings.SplitSeq(value, ",") {
			if !strings.Contains(key, "/") {
				key = "feature.node.kubernetes.io/" + key
			}
			keys[key] = true
		}
	}
	return keys
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
