package forward

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/connlimit"
)

const (
	mediaType = "application/dns-message"
	dohPath   = "/dns-query"

	// Limits of open requests, which include the requests of slow clients.
	maxRequests         = 8192
	maxRequestsOfClient = 2048
)

// dohHandler is an http.Handler that answers DNS over HTTPS (RFC 8484), for the methods GET and POST. Requests for other
// paths than dohPath count against the limits as well.
type dohHandler struct {
	client   *dnshedge.Client
	access   *accessControl
	requests *clientLimiter
}

func (d *dohHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, "no client", http.StatusBadRequest)
		return
	}
	at := net.TCPAddrFromAddrPort(from)
	if !d.access.allowQuestion(at) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many questions", http.StatusTooManyRequests)
		return
	}
	client := connlimit.ClientAddress(at)
	if !d.requests.tryAdd(client) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable) // without a body, because the client may not read it
		return
	}
	defer d.requests.remove(client)
	if r.URL.Path != dohPath {
		http.NotFound(w, r)
		return
	}
	b, code, err := readMessage(w, r)
	if err != nil {
		http.Error(w, err.Error(), code)
		return
	}
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil || m.Response {
		http.Error(w, "not a DNS query", http.StatusBadRequest)
		return
	}
	d.client.ServeDNS(&responseWriter{tls: r.TLS, remote: at, send: func(b []byte) error {
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Cache-Control", fmt.Sprintf("max-age=%d", maxAge(b)))
		announceClose(w, r)
		_, err := w.Write(b)
		return err
	}}, m)
}

// readMessage returns the DNS message in an HTTP request, in wire format. The message is in the URL (GET) or in the
// body (POST). After an error, code is the HTTP status of the response to the request.
func readMessage(w http.ResponseWriter, r *http.Request) (b []byte, code int, err error) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		b, err = base64.RawURLEncoding.DecodeString(r.URL.Query().Get("dns"))
		if err != nil || len(b) == 0 {
			return nil, http.StatusBadRequest, fmt.Errorf("the parameter dns is not a message in base64url")
		}
	case http.MethodPost:
		if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != mediaType {
			return nil, http.StatusUnsupportedMediaType, fmt.Errorf("the body is %q; want %s", r.Header.Get("Content-Type"), mediaType)
		}
		if b, err = io.ReadAll(http.MaxBytesReader(w, r.Body, dns.MaxMsgSize)); err != nil {
			return nil, http.StatusBadRequest, err
		}
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		return nil, http.StatusMethodNotAllowed, fmt.Errorf("method %s; want GET or POST", r.Method)
	}
	return b, 0, nil
}

// maxAge returns how long an HTTP cache may store the DNS response b, in seconds (RFC 8484 §5.1). b is in wire format.
// The result is the lowest TTL in the answer section. If that section is empty, it is the negative TTL of the SOA
// record.
//
// The result is 0 if the response has neither, or if its response code is a failure other than NXDOMAIN.
func maxAge(b []byte) uint32 {
	m := new(dns.Msg)
	if m.Unpack(b) != nil || m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return 0
	}
	age, known := ^uint32(0), false
	for _, rr := range m.Answer {
		age, known = min(age, rr.Header().Ttl), true
	}
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok && len(m.Answer) == 0 {
			age, known = min(soa.Hdr.Ttl, soa.Minttl), true
		}
	}
	if !known {
		return 0
	}
	return age
}

// A responseWriter is the dns.ResponseWriter through which a Client answers one HTTP request. It passes the response,
// in wire format, to its function send. Methods that Client.ServeDNS does not call panic.
type responseWriter struct {
	dns.ResponseWriter // nil
	tls                *tls.ConnectionState
	remote             net.Addr
	send               func([]byte) error
}

var _ dns.ConnectionStater = (*responseWriter)(nil) // makes the Client pad the response, and call Write

func (r *responseWriter) ConnectionState() *tls.ConnectionState { return r.tls }
func (r *responseWriter) RemoteAddr() net.Addr                  { return r.remote }
func (r *responseWriter) Write(b []byte) (int, error)           { return len(b), r.send(b) }
