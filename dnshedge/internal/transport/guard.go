package transport

import (
	"bytes"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	protectionTime = 10 * time.Minute // how long queries are protected after a message that fits no query

	clientCookie = 8  // length in bytes of a client cookie (RFC 7873 §4)
	shortCookie  = 16 // least length in bytes of a client and a server cookie together
	longCookie   = 40 // maximum length in bytes of a client and a server cookie together
)

// errCookie is the error of a message whose client cookie differs from the cookie of the query.
var errCookie = errors.New("dnshedge: message without our cookie")

// A spoofGuard makes queries to one server harder to guess while an attacker sends spoofed messages. It randomizes the
// case of the letters of the name, which most servers copy to the response. Each letter adds up to one bit of entropy.
// It also adds a cookie (RFC 7873) to queries with EDNS.
//
// The zero value is inactive. It is safe for concurrent use.
type spoofGuard struct {
	activeUntil atomic.Int64 // end of the protection, in Unix nanoseconds; 0: never active

	mu     sync.Mutex // guards cookie
	cookie []byte     // client cookie, followed by the server cookie if known; never modified in place
}

// recordWrongMessage activates the guard until protectionTime from now. It must be called for each received message
// that matches no waiting query, because that message may be spoofed.
func (g *spoofGuard) recordWrongMessage() {
	now := time.Now()
	if g.activeUntil.Swap(now.Add(protectionTime).UnixNano()) > now.UnixNano() {
		return
	}
	c := make([]byte, clientCookie)
	_, _ = rand.Read(c) // never fails
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cookie = c
}

// protectQuery returns the query to send in place of q, with random letter case, and the cookie to add to it. While the
// guard is inactive, it returns q and nil. The cookie is also nil if q must have no EDNS.
func (g *spoofGuard) protectQuery(q *wire.Query) (*wire.Query, []byte) {
	until := g.activeUntil.Load()
	if until == 0 || time.Now().UnixNano() >= until || !q.IsStandard() {
		return q, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if q.OmitsEDNS() {
		return q.WithRandomCase(), nil
	}
	return q.WithRandomCase(), g.cookie
}

// verifyCookie checks the cookie of the response a, and stores a new server cookie. sent is the cookie that the query
// had. The error is nil if the cookie of a is correct. It is also nil if a has no cookie and the query had no server
// cookie.
//
// The error is errCookie if the client cookie is wrong. It is errUnverified if the server has returned cookies before
// and now does not. It is errTruncated for the code BADCOOKIE, so that the question is sent over TCP.
func (g *spoofGuard) verifyCookie(sent []byte, a *wire.Answer) error {
	got := a.Cookie
	if len(got) == 0 {
		if len(sent) > clientCookie || a.Rcode() == dns.RcodeFormatError {
			return errUnverified
		}
		return nil
	}
	if len(got) < clientCookie || !bytes.Equal(got[:clientCookie], sent[:clientCookie]) {
		return errCookie // RFC 7873 §5.3
	}
	if shortCookie <= len(got) && len(got) <= longCookie {
		g.mu.Lock()
		if bytes.Equal(g.cookie[:clientCookie], got[:clientCookie]) {
			g.cookie = got
		}
		g.mu.Unlock()
	}
	if a.Extended == dns.RcodeBadCookie {
		return errTruncated // the next query has the server's new cookie
	}
	return nil
}
