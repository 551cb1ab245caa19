package publish

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

// TestPlan checks, for any state of a Node and any set, that a plan accounts for
// every label, touches only what is ours, and that once carried out, as the API
// server does, there is nothing left to do.
func TestPlan(t *testing.T) {
	key := rapid.SampledFrom([]string{"n/a", "n/b", "n/c", "n/d"})
	set := rapid.MapOf(key, rapid.SampledFrom([]string{"", "1", "2"}))
	rapid.Check(t, func(r *rapid.T) {
		ours, others := labels.Set(set.Draw(r, "ours")), labels.Set(set.Draw(r, "others"))
		want := labels.Set(set.Draw(r, "want"))
		force := rapid.Bool().Draw(r, "force")
		for k, v := range ours { // who co-own a label agree on it
			if _, ok := others[k]; ok {
				others[k] = v
			}
		}
		live := nodeMeta("1", ours, others)
		live.Labels["n/nobody"] = "1"
		p := makePlan(live, want, labelOwners(&live.ObjectMeta, FieldManager), force)

		for k, v := range want {
			conflict := slices.IndexFunc(p.conflicts, func(c Conflict) bool { return c.Key == k }) >= 0
			owned, taken := others[k]
			if conflict != (taken && owned != v && !force) {
				r.Errorf("%s: conflict %v", k, conflict)
			}
			if got, ok := p.apply[k]; ok == conflict || ok && got != v {
				r.Errorf("%s: applied %v as %q", k, ok, got)
			}
		}
		if len(p.apply)+len(p.conflicts) != len(want) {
			r.Errorf("plan %v for %v", p, want)
		}

		after := maps.Clone(others)
		for k, v := range p.apply {
			if after[k] != v {
				delete(after, k) // taken by force
			}
		}
		done := nodeMeta("1", p.apply, after)
		if q := makePlan(done, want, labelOwners(&done.ObjectMeta, FieldManager), force); q.write || !slices.Equal(q.conflicts, p.conflicts) {
			r.Errorf("plan %v; once carried out: %v", p, q)
		}
		if !p.write && (!maps.Equal(p.apply, ours) || !maps.Equal(done.Labels, without(live.Labels, "n/nobody"))) {
			r.Errorf("nothing to write, but %v is not %v", live.Labels, done.Labels)
		}
	})
}

func without(set map[string]string, key string) map[string]string {
	set = maps.Clone(set)
	delete(set, key)
	return set
}

func FuzzLabelKeys(f *testing.F) {
	f.Add([]byte(`{"f:metadata":{"f:labels":{".":{},"f:nvidia.com/gpu.count":{}}}}`))
	f.Add([]byte(`{"f:metadata":{"f:labels":[]}}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"f:metadata":{"f:labels":{"k:{}":{},"f:":{},"f:f:a":{},"f:a":1,"F:a":{}}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		keys := labelKeys(metav1.NewFieldsV1(string(raw)))
		slices.Sort(keys)
		if len(slices.Compact(slices.Clone(keys))) != len(keys) || len(keys) > 0 && !json.Valid(raw) {
			t.Fatalf("keys %q", keys)
		}
		// They are what a set of fields with them has.
		fields := map[string]any{".": map[string]any{}}
		for _, key := range keys {
			fields["f:"+key] = map[string]any{}
		}
		again, err := json.Marshal(map[string]any{"f:metadata": map[string]any{"f:labels": fields}})
		check(t, err)
		got := labelKeys(metav1.NewFieldsV1(string(again)))
		slices.Sort(got)
		if !slices.Equal(got, keys) {
			t.Errorf("keys %q, and of a set with them %q", keys, got)
		}
	})
}

func TestManagerIn(t *testing.T) {
	for message, want := range map[string]string{
		`conflict with "nfd-master" using v1`:                                                     "nfd-master",
		`conflict with "kubectl-edit" with subresource "status" using v1 at 2026-01-01T00:00:00Z`: "kubectl-edit",
		`conflict with "a \"b\"" using v1`:                                                        `a "b"`,
		`something else`:                                                                          `something else`,
		`conflict with "cut`:                                                                      `conflict with "cut`,
	} {
		if got := managerIn(message); got != want {
			t.Errorf("%s: %q, want %q", message, got, want)
		}
	}
}
