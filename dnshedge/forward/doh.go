package forward

import (
	"encoding/base64"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/connlimit"
)

const (
	mediaType = "application/dns-message"
	dohPath   = "/dns-query"

	// Limits of open requests, which include the requests of slow clients.
	maxRequests         = 8192
	maxRequestsOfClient = 2048
)

// dohHandler is an http.Handler that answers DNS over HTTPS (RFC 8484), for the methods GET, HEAD and POST. Requests
// for other paths than /dns-query get the status 404. These requests count against the limits of requests and questions
// as well.
type dohHandler struct {
	server   *dnshedge.Server // answers the queries; it has no Admit, because access decides before
	access   *accessControl
	requests *clientLimiter
}

func (d *dohHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	announceClose(w, r)
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
	response := d.server.AnswerQuery(b, at)
	if response == nil {
		http.Error(w, "not a DNS query", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Cache-Control", fmt.Sprintf("max-age=%d", wire.HTTPMaxAge(response)))
	announceClose(w, r)      // again, because the connection may have lost its slot meanwhile
	_, _ = w.Write(response) // if this fails, the client is gone
}

// readMessage returns the DNS message in an HTTP request, in wire format. The message is in the URL (GET and HEAD) or
// in the body (POST). After an error, code is the HTTP status of the response to the request.
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
		return nil, http.StatusMethodNotAllowed, fmt.Errorf("method %s; want GET, HEAD or POST", r.Method)
	}
	return b, 0, nil
}
