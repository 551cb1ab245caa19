package dra

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/gpu-labeller/gpu-labeller/publish"
)

// gpu is the first device of each file in testdata, as far as all of them tell.
var gpu = Device{
	Name: "gpu-0",
	Attributes: map[string]Attribute{
		"type": {String: "gpu"}, "uuid": {String: "GPU-1"}, "driverVersion": {Version: "580.95.5"},
	},
	Capacity: map[string]Capacity{"memory": {"143771Mi"}},
	Taints:   []Taint{{"gpu.nvidia.com/xid", "79", "NoSchedule"}},
}

func read(t testing.TB, file string) []byte {
	content, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestDevices(t *testing.T) {
	hopper := gpu
	hopper.Attributes = map[string]Attribute{
		"type": {String: "gpu"}, "uuid": {String: "GPU-1"}, "driverVersion": {Version: "580.95.5"},
		"architecture": {String: "Hopper"}, "cudaComputeCapability": {Version: "9.0.0"}, "index": {},
	}
	mig := Device{
		Name:       "gpu-1-mig-0",
		Attributes: map[string]Attribute{"type": {String: "mig"}, "uuid": {String: "MIG-1"}, "profile": {String: "1g.18gb"}},
		Capacity:   map[string]Capacity{"memory": {"16Gi"}},
	}
	for file, want := range map[string][]Device{
		"v1.yaml":      {hopper, mig}, // of generation 2
		"v1beta1.json": {gpu},
		"slice.yaml":   {gpu},
	} {
		all, err := Parse(read(t, file))
		if got := Devices(all, NVIDIA); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v\nwant %+v", file, got, err, want)
		}
		if got := Devices(all, "gpu.amd.com"); got != nil {
			t.Errorf("%s: %+v of another driver", file, got)
		}
	}
}

func TestParseOther(t *testing.T) {
	for _, content := range []string{"", "a=b", "kind: Node", `{"kind": "Node"}`, "kind: [", `{"kind": "List", "items": 1}`} {
		if all, err := Parse([]byte(content)); err == nil {
			t.Errorf("%q: %+v", content, all)
		}
	}
	if all, err := Parse([]byte(`{"kind": "ResourceSliceList", "items": []}`)); err != nil || len(all) != 0 {
		t.Errorf("an empty list: %+v, %v", all, err)
	}
}

// TestList: an API server from before 1.34 has an older version only.
func TestList(t *testing.T) {
	answers := map[string][]byte{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("fieldSelector") != "spec.nodeName=node-a" {
			t.Errorf("asked for %s", r.URL)
		}
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	}))
	defer server.Close()
	client, err := publish.NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := List(t.Context(), client, "node-a"); err != ErrAbsent {
		t.Errorf("without DRA: %v", err)
	}
	answers["/apis/resource.k8s.io/v1beta1/resourceslices"] = read(t, "v1beta1.json")
	if all, err := List(t.Context(), client, "node-a"); err != nil || len(all) != 1 {
		t.Errorf("%d slices, %v", len(all), err)
	}
	answers["/apis/resource.k8s.io/v1/resourceslices"] = []byte("{}")
	if all, err := List(t.Context(), client, "node-a"); err == nil {
		t.Errorf("not a list: %+v", all)
	}
}

func TestSameVersion(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{"535.54.03", "535.54.3", true},
		{"13.0", "13.0.0", true},
		{"580.95.05", "580.95.5", true},
		{"580.95.05", "580.95.50", false},
		{"580.95", "580.95.0", true},
		{"580", "580.1", false},
		{"570", "580", false},
		{"100.00.00", "100.0.0", true},
		{"535.129.03", "535.129", false},
	} {
		if SameVersion(tc.a, tc.b) != tc.same || SameVersion(tc.b, tc.a) != tc.same {
			t.Errorf("%s, %s: want %v", tc.a, tc.b, tc.same)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, file := range []string{"v1.yaml", "v1beta1.json", "slice.yaml"} {
		f.Add(read(f, file))
	}
	f.Add([]byte("kind: List\nitems: [{kind: Node}, {kind: ResourceSlice, spec: {driver: gpu.nvidia.com}}]"))
	f.Add([]byte(`{"kind": "ResourceSlice", "spec": {"driver": "gpu.nvidia.com", "devices": [{"basic": null}, {"basic": {}}, null]}}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		all, err := Parse(content)
		if err != nil {
			if all != nil {
				t.Errorf("slices, and %v", err)
			}
			return
		}
		devices := 0
		for _, s := range all {
			devices += len(s.Spec.Devices)
		}
		if n := len(Devices(all, NVIDIA)); n > devices {
			t.Errorf("%d devices of %d", n, devices)
		}
		// What was read reads the same again.
		again, err := json.Marshal(map[string]any{"kind": "List", "items": all})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Parse(again); err != nil || len(all) > 0 && !reflect.DeepEqual(got, all) {
			t.Errorf("%+v, then %+v, %v", all, got, err)
		}
	})
}
