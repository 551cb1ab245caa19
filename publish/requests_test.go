package publish

import (
	"maps"
	"testing"

	"k8s.io/client-go/rest"
)

func TestRequestsAreCounted(t *testing.T) {
	_, client := serve(t,
		answer{code: 200, body: "{}"},
		answer{code: 429, body: "{}", header: "Retry-After: 1"},
		answer{code: 200, body: "{}"})
	for range 2 {
		_, _ = client.do(t.Context(), "get", "nodes", client.core.Get().AbsPath("/api/v1/nodes/n"))
	}
	body, err := client.stream(t.Context(), "watch", "nodes", client.core.Get().AbsPath("/api/v1/nodes"))
	check(t, err)
	check(t, body.Close())
	host := client.core.Get().URL().Host
	want := map[Request]uint64{{"GET", "200", host}: 2, {"GET", "429", host}: 1}
	if got := client.Requests(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}

	client, err = NewClient(&rest.Config{Host: "http://127.0.0.1:1"}) // nobody listens
	check(t, err)
	_, _ = client.do(t.Context(), "get", "nodes", client.core.Get().AbsPath("/api/v1/nodes/n"))
	want = map[Request]uint64{{"GET", "<error>", "127.0.0.1:1"}: 1}
	if got := client.Requests(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
