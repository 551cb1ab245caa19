//go:build faults

package faults

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// serverRows have the API server answer what it should not.
func serverRows() []row {
	const area = "The API server, while the hardware changes"
	broken := func(name, fault string, f fault, hits int64) row {
		return row{
			area: area, name: "API: " + name, fault: fault,
			setup: func(h *host) { h.viaProxy() },
			during: []step{{do: func(h *host) {
				h.proxy.set(f)
				newHardware(h)
				h.until("requests", 100*time.Second, func() bool { return h.proxy.hits.Load() >= hits })
			}, want: want{of: all}}},
			after: []step{{do: func(h *host) { h.proxy.set(nil) }, want: want{of: other}}},
		}
	}
	get, patch := method(http.MethodGet), method(http.MethodPatch)
	rows := []row{
		broken("401", "401, token not accepted", status(401, "Unauthorized"), 3),
		broken("403", "403 for each request", status(403, "Forbidden"), 3),
		broken("403 for patch", "403 for patch alone", only(patch, status(403, "Forbidden")), 2),
		broken("404", "404 for each request", status(404, "NotFound"), 3),
		broken("409", "409 for patch", only(patch, status(409, "Conflict")), 2),
		broken("409 without a reason", "409 without a reason for patch", only(patch, status(409, "")), 2),
		broken("410", "410 for each request", status(410, "Gone"), 3),
		broken("422", "422 for patch", only(patch, status(422, "Invalid")), 2),
		patient(broken("429", "429, Retry-After: 3", statusWith(429, "TooManyRequests", 3), 2), 3*time.Second),
		patient(broken("429 of priority and fairness", "429 of priority and fairness, Retry-After: 3", unfair(3), 2), 3*time.Second),
		broken("500", "500", status(500, "InternalError"), 3),
		patient(broken("503", "503, Retry-After: 1", statusWith(503, "ServiceUnavailable", 1), 3), time.Second),
		broken("504", "504", status(504, "Timeout"), 3),
		broken("502 of a load balancer", "502 with a page of HTML", func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "<html><body>Bad Gateway</body></html>", http.StatusBadGateway)
			return true
		}, 3),
		broken("a page for each request", "200 with a page of HTML", raw("text/html", "<html><body>Sign in</body></html>"), 3),
		broken("nothing for each request", "200 with nothing", raw("application/json", ""), 3),
		broken("another object", "200 with an object without UID", raw("application/json", `{"kind":"PartialObjectMetadata","metadata":{"name":"x"}}`), 3),
		broken("no object", "200 with a list where an object belongs", raw("application/json", `[1, 2, 3]`), 3),
		broken("answer cut", "half an answer", cut, 3),
		broken("connection reset", "the connection is reset", reset, 3),
		broken("redirects for ever", "it redirects for ever", func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
			return true
		}, 3),
		broken("silent", "no answer at all, for half a minute", only(get, silent), 1),
		broken("slow", "a byte now and then, for half a minute", only(get, slow), 1),
	}
	rows = append(rows, lateRows(area, "API: ", patch)...)
	rows = append(rows,
		row{
			area: area, name: "API: certificate expired", fault: "its certificate has expired, and is renewed",
			setup: func(h *host) {
				h.viaProxy() // which has its own authority
			},
			during: []step{{do: func(h *host) { h.proxy.certify(h, -time.Minute); h.proxy.set(nil); newHardware(h) }, says: "certificate has expired", want: want{of: all}}},
			after:  []step{{do: func(h *host) { h.proxy.certify(h, time.Hour) }, want: want{of: other}}},
		},
		row{
			area: area, name: "API: token rotated", fault: "the token expires, and its file has a new one later",
			setup: func(h *host) {
				h.viaProxy()
				h.serviceAccount()
				h.useToken(h.w.cluster.ServiceAccountToken("default", h.name, ""))
			},
			during: []step{{do: func(h *host) {
				old := "Bearer " + h.token
				h.proxy.set(only(func(r *http.Request) bool { return r.Header.Get("Authorization") == old }, status(401, "Unauthorized")))
				newHardware(h)
			}, says: "does not accept our token", want: want{of: all}}},
			after: []step{{do: func(h *host) {
				time.Sleep(time.Second) // or the new token is the old one
				h.useToken(h.w.cluster.ServiceAccountToken("default", h.name, ""))
			}, want: want{of: other}}},
		},
		row{
			area: area, name: "API: away at the start", fault: "503 from the start, without `--sink`, so that it must be asked whether there is NFD; and it works later",
			chooses: true, sink: "node-feature",
			setup: func(h *host) {
				h.viaProxy()
				h.proxy.set(status(503, "ServiceUnavailable"))
			},
			before: want{of: none},
			during: []step{{do: awaitLog("not known yet whether the cluster has NodeFeature objects"), want: want{of: none}, quiet: true}},
			after:  whole(func(h *host) { h.proxy.set(nil) }),
		},
		row{
			area: area, name: "API: rights taken away", fault: "the ClusterRoleBinding is deleted, and made again",
			setup: func(h *host) {
				h.viaProxy()
				h.serviceAccount()
				h.useToken(h.w.cluster.ServiceAccountToken("default", h.name, ""))
			},
			during: []step{{do: func(h *host) {
				h.kubectl("delete", "clusterrolebinding", h.name)
				time.Sleep(2 * time.Second)
				newHardware(h)
			}, says: "does the agent's role grant the verb", want: want{of: all}}},
			after: []step{{do: func(h *host) { h.serviceAccount() }, want: want{of: other}}},
		},
		row{
			area: area, name: "API: admission refuses a label", fault: "a ValidatingAdmissionPolicy refuses one of the labels; it is deleted",
			during: []step{{do: func(h *host) {
				h.policy("'nvidia.com/gpu.product' in oldObject.metadata.labels && 'nvidia.com/gpu.product' in object.metadata.labels && object.metadata.labels['nvidia.com/gpu.product'] == oldObject.metadata.labels['nvidia.com/gpu.product']")
				newHardware(h)
			}, says: "admission refuses it, and not the others", want: but(other, "nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB")}},
			after: []step{{do: deletePolicy, want: want{of: other}}},
		},
		row{
			area: area, name: "API: admission refuses the agent", fault: "a ValidatingAdmissionPolicy refuses whatever the agent writes; it is deleted",
			during: []step{{do: func(h *host) {
				h.policy("false")
				newHardware(h)
			}, says: "labels could not be published", want: want{of: all}}},
			after: []step{{do: deletePolicy, want: want{of: other}}},
		},
		row{
			area: "The watch of the Node", name: "API: Node deleted and joins again", fault: "the Node is deleted, and joins again",
			during: []step{{do: func(h *host) { h.kubectl("delete", "node", h.name) }, says: "no such Node", want: want{of: none}}},
			after:  whole(func(h *host) { h.w.createNode(h.T, h.name) }),
		},
		row{
			area: "The watch of the Node", name: "API: Node replaced at once", fault: "the Node is deleted, and joins again at once",
			during: []step{{do: func(h *host) { h.kubectl("delete", "node", h.name); h.w.createNode(h.T, h.name) }, want: want{of: all}, through: []want{{of: none}}}},
		},
	)
	for _, watch := range []struct {
		name, fault string
		f           fault
	}{
		{"410 in a watch", "410 for it, as an event", raw("application/json", `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}`+"\n")},
		{"watch forbidden", "403 for it", status(403, "Forbidden")},
		{"watch ends at once", "it ends at once", raw("application/json", "")},
		{"watch is garbage", "garbage in it", raw("application/json", "<html>")},
		{"watch is silent", "it says nothing", silent},
	} {
		rows = append(rows, row{
			area: "The watch of the Node", name: "API: " + watch.name, fault: watch.fault + "; a label is removed by hand",
			setup: func(h *host) { h.viaProxy() },
			during: []step{{do: func(h *host) {
				h.proxy.set(only(isWatch, watch.f))
				time.Sleep(time.Second)
				h.label("somebody", map[string]any{"nvidia.com/gpu.product": nil})
				time.Sleep(100 * time.Millisecond)
				if watch.name == "watch is silent" { // until it breaks, as the API server's end it
					time.Sleep(3 * time.Second)
					h.proxy.set(only(isWatch, status(500, "InternalError")))
				}
			}, want: want{of: all}, through: []want{but(all, "nvidia.com/gpu.product", "")}}},
			after: whole(func(h *host) { h.proxy.set(nil) }),
		})
	}
	return rows
}

// policy has the API server refuse changes of the Node by anybody, unless allowed
// is true of them.
func (h *host) policy(allowed string) {
	h.Helper()
	h.w.cluster.Refuse("nodes", h.name, allowed, "label", "node", h.name, "nvidia.com/gpu.product=x", "--overwrite", "--dry-run=server")
}

func deletePolicy(h *host) { h.w.cluster.StopRefusing(h.name) }

func (h *host) kubectl(args ...string) {
	h.Helper()
	_, err := h.w.cluster.TryKubectl(args...)
	h.must(err)
}

// serviceAccount makes one that may do what the agent does.
func (h *host) serviceAccount() {
	h.w.cluster.Apply(fmt.Sprintf(`
{apiVersion: v1, kind: ServiceAccount, metadata: {name: %[1]q, namespace: default}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: %[1]q}, rules: [{apiGroups: [""], resources: [nodes], verbs: [get, patch, watch]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %[1]q}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]q}, subjects: [{kind: ServiceAccount, name: %[1]q, namespace: default}]}
`, h.name))
}

// useToken puts a token where the agent reads it.
func (h *host) useToken(token string) {
	h.Helper()
	h.token = strings.TrimSpace(token)
	file := filepath.Join(h.root, "token")
	h.must(os.WriteFile(file+".new", []byte(h.token), 0o600))
	h.must(os.Rename(file+".new", file))
	h.useKubeconfig(fmt.Sprintf("tokenFile: %q", file))
}

// writerRows have others write the same labels.
func writerRows() []row {
	const area = "Others who label the Node"
	const key = "nvidia.com/gpu.product"
	theirs := but(all, key, "theirs")
	bounded := func(most int, do func(*host)) func(*host) {
		return func(h *host) {
			before := h.history.ours()
			do(h)
			ours := h.history.ours() - before
			h.Logf("the agent wrote %d times", ours)
			if ours > most {
				h.Errorf("the agent wrote %d times, want %d at most", ours, most)
			}
		}
	}
	fight := func(h *host) {
		for range 60 {
			h.label("rival", map[string]any{key: "theirs"})
			time.Sleep(100 * time.Millisecond)
		}
	}
	rows := []row{
		{
			name: "label removed", fault: "somebody removes a label",
			during: []step{{do: func(h *host) { h.label("somebody", map[string]any{key: nil}) }, want: want{of: all}, through: []want{but(all, key, "")}}},
		},
		{
			name: "all labels removed", fault: "somebody removes all labels",
			during: []step{{do: func(h *host) {
				gone := map[string]any{}
				for k := range h.set(h.last) {
					gone[k] = nil
				}
				h.label("somebody", gone)
			}, want: want{of: all}, through: []want{{of: none}}}},
		},
		{
			name: "label taken", fault: "another field manager sets a label to another value, and removes it",
			during: []step{{do: func(h *host) { h.label("rival", map[string]any{key: "theirs"}) }, says: "label left alone", want: theirs}},
			after: []step{{do: func(h *host) { h.label("rival", map[string]any{key: nil}) }, want: want{of: all},
				through: []want{but(all, key, "")}}},
		},
		{
			name: "label taken before the start", fault: "another field manager had a label first, and removes it",
			setup:  func(h *host) { h.label("rival", map[string]any{key: "theirs"}) },
			before: theirs, through: []want{but(none, key, "theirs").called("theirs alone"), but(provisional, key, "theirs").called("theirs and what the bus tells")},
			after: []step{{do: func(h *host) { h.label("rival", map[string]any{key: nil}) }, want: want{of: all},
				through: []want{but(all, key, "")}}},
		},
		{
			name: "fight over a label", fault: "another field manager sets a label ten times a second, for six seconds; the agent writes twice at most",
			during: []step{{do: bounded(2, fight), want: theirs}},
			after: []step{{do: func(h *host) { h.label("rival", map[string]any{key: nil}) }, want: want{of: all},
				through: []want{but(all, key, "")}}},
		},
		{
			name: "fight over a label with force", fault: "the same with `--force-conflicts`; the agent writes six times at most", flags: []string{"--force-conflicts"},
			during: []step{{do: bounded(6, fight), want: want{of: all}, through: []want{theirs}}},
		},
		{
			name: "two agents on a Node", fault: "a second agent labels the Node, for other hardware; it ends, and the first is started again",
			during: []step{{do: func(h *host) { h.other = h.second() }, says: "another agent publishes other labels", want: want{of: other}, through: []want{{of: all}}}},
			after: whole(func(h *host) {
				before := h.history.ours()
				time.Sleep(3 * time.Second)
				if n := h.history.ours() - before; n > 0 {
					h.Errorf("the two take turns: %d writes", n)
				}
				h.stopSecond(h.other)
				h.restart(syscall.SIGTERM)
			}),
		},
		{
			name: "labels of others under the prefix", fault: "somebody sets labels of other names under our prefixes",
			during: []step{{do: func(h *host) {
				h.label("admin", map[string]any{"nvidia.com/gpu.deploy.client": "true", "gpu.feature.node.kubernetes.io/mine": "1"})
			}, want: but(all, "nvidia.com/gpu.deploy.client", "true", "mine", "1")}},
			after: []step{{do: func(h *host) { newHardware(h) }, want: but(other, "nvidia.com/gpu.deploy.client", "true", "mine", "1")}},
		},
	}
	for i := range rows {
		rows[i].area = area
	}
	return rows
}
