//go:build faults

package faults

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
)

// proxy stands between an agent and the API server, and answers in its place
// where a fault says so.
type proxy struct {
	server   *httptest.Server
	upstream http.Handler
	mu       sync.Mutex
	fault    fault
	hits     atomic.Int64 // requests that met the fault, and were over

	// Of requests that met the fault after it began: when those of a kind were answered
	// last, how often one of that kind came again, and after how long at least.
	began    time.Time
	answered map[string]time.Time
	returns  int
	soonest  time.Duration

	authority *authority
	cert      atomic.Pointer[tls.Certificate]
}

// accepted is the key, in a request's context, of when its connection was.
type accepted struct{}

// fault answers a request, or returns false to have it passed on.
type fault func(w http.ResponseWriter, r *http.Request) bool

// viaProxy puts a proxy before the API server. It speaks TLS, or client-go would
// send no token.
func (h *host) viaProxy() {
	h.Helper()
	config := h.w.cluster.Config()
	token := config.BearerToken
	config.BearerToken = "" // what the agent sends goes through
	transport, err := rest.TransportFor(config)
	h.must(err)
	target, err := url.Parse(config.Host)
	h.must(err)
	upstream := httputil.NewSingleHostReverseProxy(target)
	upstream.Transport, upstream.FlushInterval = transport, -1
	quiet := log.New(discard{}, "", 0)
	upstream.ErrorLog = quiet
	p := &proxy{authority: newAuthority(h), upstream: upstream, answered: map[string]time.Time{}}
	p.certify(h, 24*time.Hour)
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		fault := p.fault
		p.mu.Unlock()
		came := time.Now()
		if fault != nil && fault(w, r) {
			p.hits.Add(1)
			p.met(r, came)
			return
		}
		upstream.ServeHTTP(w, r)
	}))
	p.server.Config.ErrorLog = quiet
	p.server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, accepted{}, time.Now())
	}
	p.server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*p.cert.Load()}}, nil
	}}
	p.server.StartTLS()
	h.proxy = p
	h.Cleanup(func() {
		p.set(nil)
		p.server.CloseClientConnections()
		p.server.Close()
	})
	h.useKubeconfig("token: " + token)
}

// met notes that a request met the fault, and is being answered. One that came on a
// connection that is being cut, so that its answer is lost, is sent again at once.
func (p *proxy) met(r *http.Request, came time.Time) {
	kind := fmt.Sprint(r.Method, r.URL.Path, isWatch(r))
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Context().Value(accepted{}).(time.Time).Before(p.began) {
		return
	}
	if last, ok := p.answered[kind]; ok {
		after := came.Sub(last)
		if p.returns == 0 || after < p.soonest {
			p.soonest = after
		}
		p.returns++
	}
	p.answered[kind] = time.Now()
}

// again tells how often a request came that had met the fault before, and after how
// long at least.
func (p *proxy) again() (times int, soonest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.returns, p.soonest
}

// patient is a row in which the API server asks to be left alone for a time. What
// the agent sends of one kind must not come again before.
func patient(r row, asked time.Duration) row {
	do := r.during[0].do
	r.during[0].do = func(h *host) {
		do(h)
		h.until("it asks again twice", 100*time.Second, func() bool { times, _ := h.proxy.again(); return times >= 2 })
		if _, soonest := h.proxy.again(); soonest < asked {
			h.Errorf("it came again after %v, and was asked to wait for %v", soonest, asked)
		}
	}
	return r
}

// certify gives the proxy a certificate that is good for so long.
func (p *proxy) certify(h *host, left time.Duration) {
	p.cert.Store(p.authority.issue(h, time.Now().Add(left)))
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// useKubeconfig has the agent go through the proxy, as the user given in YAML.
func (h *host) useKubeconfig(user string) {
	h.Helper()
	authority := base64.StdEncoding.EncodeToString(h.proxy.authority.pem)
	h.kubeconfig = filepath.Join(h.root, "kubeconfig")
	h.must(os.WriteFile(h.kubeconfig, []byte(fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %q}}], users: [{name: c, user: {%s}}], contexts: [{name: c, context: {cluster: c, user: c}}]}
`, h.proxy.server.URL, authority, user)), 0o600))
}

// set makes a fault and cuts the connections, so that a watch meets it, too.
func (p *proxy) set(f fault) {
	p.mu.Lock()
	clear(p.answered)
	p.fault, p.began, p.returns = f, time.Now(), 0
	p.mu.Unlock()
	p.hits.Store(0)
	p.server.CloseClientConnections()
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

// status answers as the API server does, which names objects by UID in some of its
// messages.
func status(code int, reason string) fault { return statusWith(code, reason, 0) }

// statusWith asks to be left alone for some seconds, as the API server does it: in
// the header and in the body.
func statusWith(code int, reason string, retryAfter int) fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		details := ""
		if retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
			details = fmt.Sprintf(`"details":{"retryAfterSeconds":%d},`, retryAfter)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{},%s"status":"Failure","message":"made up, of the object with UID 5ad00000-0000-4000-8000-0000000000ed","reason":%q,"code":%d}`, details, reason, code)
		return true
	}
}

// unfair answers as the API server does where priority and fairness lets nobody in:
// the header alone says when to come back.
func unfair(retryAfter int) fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
		http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
		return true
	}
}

// only limits a fault to some requests.
func only(which func(*http.Request) bool, f fault) fault {
	return func(w http.ResponseWriter, r *http.Request) bool { return which(r) && f(w, r) }
}

func method(m string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == m && strings.Contains(r.URL.Path, "/nodes") }
}

// raw answers 200 with a body that is no Node.
func raw(contentType, body string) fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write([]byte(body))
		return true
	}
}

// reset ends the connection without an answer.
func reset(w http.ResponseWriter, _ *http.Request) bool {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return false
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
	return true
}

// cut promises more than it sends.
func cut(w http.ResponseWriter, _ *http.Request) bool {
	w.Header().Set("Content-Length", "100000")
	_, _ = w.Write([]byte(`{"kind":"PartialObjectMetadata","metadata":{"name":"`))
	return true
}

// slow sends a byte now and then, for ever.
func slow(w http.ResponseWriter, r *http.Request) bool {
	_, _ = io.Copy(io.Discard, r.Body) // or the end of the connection goes unnoticed
	w.Header().Set("Content-Type", "application/json")
	for {
		if _, err := w.Write([]byte(" ")); err != nil {
			return true
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return true
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// silent never answers.
func silent(_ http.ResponseWriter, r *http.Request) bool {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
	return true
}

// hold holds the first of some requests until whoever sent it has given up on it, or
// is gone. Then carryOut has the API server carry it out. held is closed when there
// is one.
func (h *host) hold(which func(*http.Request) bool) (held <-chan struct{}, carryOut func()) {
	var late *http.Request
	first := make(chan struct{})
	var once sync.Once
	h.proxy.set(only(which, func(_ http.ResponseWriter, r *http.Request) (mine bool) {
		once.Do(func() {
			mine = true
			body, err := io.ReadAll(r.Body)
			if err != nil {
				h.Errorf("the request that is held: %v", err)
			}
			late = r.Clone(context.WithoutCancel(r.Context()))
			late.Body = io.NopCloser(bytes.NewReader(body))
			close(first)
		})
		if mine {
			<-r.Context().Done()
		}
		return mine
	}))
	return first, func() {
		h.Helper()
		answer := httptest.NewRecorder()
		h.proxy.upstream.ServeHTTP(answer, late)
		if answer.Code != http.StatusOK {
			h.Errorf("the write that is late is not carried out: %d %s", answer.Code, answer.Body)
		}
	}
}

// lateRows have a write carried out late, when the hardware is what it was before.
// The labels must be right within a minute.
func lateRows(area, name string, which func(*http.Request) bool) []row {
	late := func(givenUp func(h *host)) func(*host) {
		return func(h *host) {
			held, carryOut := h.hold(which)
			newHardware(h)
			h.until("the write", 30*time.Second, func() bool {
				select {
				case <-held:
					return true
				default:
					return false
				}
			})
			oldHardware(h)
			h.awaitScans(2)
			givenUp(h)
			h.until("the end of the request", time.Minute, func() bool { return h.proxy.hits.Load() > 0 })
			h.awaitScans(2)
			from := len(h.history.since(0))
			carryOut()
			h.until("the labels of the hardware that is gone", 10*time.Second, func() bool { return len(h.history.since(from)) > 0 })
			h.until("the right labels again", time.Minute, func() bool { return maps.Equal(h.history.newest(), h.sets[all]) })
		}
	}
	return []row{
		{
			area: area, name: name + "late write",
			fault:  "a write is carried out after the agent has given up on it, when the hardware is the old one again; put right within a minute",
			setup:  func(h *host) { h.viaProxy() },
			during: []step{{do: late(func(*host) {}), want: want{of: all}, through: []want{{of: other}}}},
		},
		{
			area: area, name: name + "late write of a killed agent",
			fault:  "a write is carried out after the agent was killed (SIGKILL) and started again, when the hardware is the old one again",
			setup:  func(h *host) { h.viaProxy() },
			during: []step{{do: late(func(h *host) { h.restart(syscall.SIGKILL) }), want: want{of: all}, through: []want{{of: other}}}},
		},
	}
}

// authority issues certificates for the proxy.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(h *host) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	h.must(err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "proxy-ca"}, NotBefore: time.Now().Add(-48 * time.Hour),
		NotAfter: time.Now().Add(48 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	h.must(err)
	cert, err := x509.ParseCertificate(der)
	h.must(err)
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(h *host, until time.Time) *tls.Certificate {
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "proxy"}, NotBefore: time.Now().Add(-24 * time.Hour),
		NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.key.Public(), a.key)
	h.must(err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}
}
