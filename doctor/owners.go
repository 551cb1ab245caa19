package doctor

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// managedFields says which fields of an object somebody manages: nested objects
// with "f:" before a field's name (FieldsV1).
type managedFields struct {
	Manager   string          `json:"manager"`
	Operation string          `json:"operation"`
	Fields    json.RawMessage `json:"fieldsV1"`
}

// labelManagers gives the manager of each label. Of several who agree on its
// value, which only server-side apply allows, the last is given.
func labelManagers(all []managedFields) map[string]string {
	managers := map[string]string{}
	for _, entry := range all {
		var set struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(entry.Fields, &set) != nil {
			continue // it owns nothing that we can tell
		}
		for field := range set.Metadata.Labels {
			if key, ok := strings.CutPrefix(field, "f:"); ok {
				managers[key] = entry.Manager
			}
		}
	}
	return managers
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
