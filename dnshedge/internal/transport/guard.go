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
	guardTime = 10 * time.Minute // after the last wrong message

	clientCookie = 8  // bytes (RFC 7873 §4)
	shortCookie  = 16 // both cookies, the server's as short as it may be
	longCookie   = 40
)

var errCookie = errors.New("dnshedge: message without our cookie")

// spoofGuard makes queries to one server harder to guess while an attacker sends wrong messages. Queries then have a
// random spelling, which most servers repeat (up to one bit for each letter), and a cookie (RFC 7873), if the server
// supports cookies. The zero value is inactive. It is safe for concurrent use.
type spoofGuard struct {
	until atomic.Int64 // when it is at ease again, Unix ns

	mu     sync.Mutex // guards cookie
	cookie []byte     // the client's and the server's, if that is known; replaced as a whole
}

// recordWrongMessage is called for each wrong message.
func (g *spoofGuard) recordWrongMessage() {
	now := time.Now()
	if g.until.Swap(now.Add(guardTime).UnixNano()) > now.UnixNano() {
		return
	}
	c := make([]byte, clientCookie)
	_, _ = rand.Read(c) // never fails
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cookie = c
}

// protectQuery returns the query to send in place of q, and the cookie to send with it.
func (g *spoofGuard) protectQuery(q *wire.Query) (*wire.Query, []byte) {
	until := g.until.Load()
	if until == 0 || time.Now().UnixNano() >= until || !q.Standard() {
		return q, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if q.IsPlain() {
		return q.Spelled(), nil
	}
	return q.Spelled(), g.cookie
}

// verifyCookie checks the cookie of the answer to a query with the given one. An answer
// without any is right if the server has never sent one; otherwise it is asked for
// over TCP.
func (g *spoofGuard) verifyCookie(sent []byte, a *wire.Answer) error {
	got := a.Cookie
	if len(got) == 0 {
		if len(sent) > clientCookie || a.Rcode() == dns.RcodeFormatError {
			return errUnsure
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
