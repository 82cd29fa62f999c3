package hedge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/race"
)

// call is one request in flight: the Op and the Gate of its race. It is used again, so
// nothing that is handed out may refer to it.
//
// The goroutine of RoundTrip writes terms, key, grace, hooks and guarded before the race
// begins, and attempts read them. Each attempt writes its own element of setup before it
// ends; RoundTrip reads that of the winner. The primary writes peer, and hedges read it.
// likePrimary is written once, before a call for the rest of a body is made. What guards the
// others is said at their types.
type call struct {
	engine.Call
	terms
	race     race.Race[*http.Response]
	requests httpattempt.Requests
	t        *Transport
	key      *engine.Key        // kept for the next call, which is often one of the same key
	grace    time.Duration      // for losers to finish; 0: they are cancelled
	hooks    *httpattempt.Hooks // the caller's, if they must be muted; else nil
	setup    [1 + race.MaxHedges]time.Duration
	peer     atomic.Pointer[httpattempt.Peer] // where the primary went; nil: not known, or not needed

	guarded     bool // attempts may go over HTTP/1.1
	likePrimary bool // hedges go where primaries go, see [WithResume]
}

// maxResends is how often an attempt is sent again because the cancellation of a
// loser hit it. Once is rare; under load, four times in a row have been seen.
const maxResends = 16

// Admit decides about a hedge, and takes what it needs of the caller's request.
func (c *call) Admit(index int) bool {
	if !c.Call.Admit(index) {
		return false
	}
	c.requests.Keep()
	return true
}

func (c *call) Attempt(a *race.Attempt, n int) (*http.Response, error) {
	r, resp, err := c.try(a, n)
	// An attempt that has not lost and fails like one was hit by the cancellation of
	// another request on its connection, see [httpattempt.Link]. That cannot happen where
	// the base calls the hooks of httptrace; elsewhere, the attempt is sent again. It
	// yields first, so that those about to cancel do so: it may get a connection of theirs.
	for tries := 0; tries < maxResends && errors.Is(err, race.ErrLost) && a.Err() == nil; tries++ {
		runtime.Gosched()
		r, resp, err = c.try(a, n)
	}
	return resp, c.judge(r, resp, err)
}

// try sends attempt n.
func (c *call) try(a *race.Attempt, n int) (*http.Request, *http.Response, error) {
	ctx, link := c.contextOf(a, n)
	switch {
	case n > 0:
		ctx = engine.ForHedge(ctx, n)
	case c.strip:
		ctx = engine.ForAttempt(ctx)
	}
	r, rt := c.requests.Next(ctx, n), c.t.pools.Primary()
	if n > 0 {
		r.Header = mark(r.Header, c.t.settings.Load().AttemptHeader, n)
		if behindLimiter(c.key) {
			r.Header = mark(r.Header, AttemptHeader, n)
		}
		if !c.likePrimary {
			rt = c.t.pools.Hedge(r, httpVersion(c.key) == http2, c.peer.Load())
		}
	}
	resp, err := send(rt, r)
	if link != nil {
		c.setup[n] = link.Returned()
	}
	if n > 0 && err == nil && resp.StatusCode == http.StatusServiceUnavailable && len(resp.Header[refusedHeader]) > 0 {
		err = race.ErrRefused
	}
	return r, resp, err
}

// contextOf returns the context of attempt n, and what it will know of its connection; nil if
// nobody needs to know.
func (c *call) contextOf(a *race.Attempt, n int) (context.Context, *httpattempt.Link) {
	asks := c.t.pools.AskPeers()
	if n == 0 && !c.guarded && !asks {
		return a, nil
	}
	var peer *httpattempt.Peer
	if n == 0 && asks {
		peer = new(httpattempt.Peer)
		c.peer.Store(peer)
	}
	link := c.requests.NewLink(n)
	return link.Context(a, n > 0, c.guarded, c.hooks, peer), link
}

// judge records what a response to req tells of its host, and returns the error that keeps
// it from winning, if any.
func (c *call) judge(req *http.Request, resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	tag := int32(resp.ProtoMajor)
	if len(resp.Header[limitHeader]) > 0 {
		tag |= limited
	}
	if tag != c.key.Tag.Load() {
		c.key.Tag.Store(tag)
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		now := time.Now()
		c.key.PushBack(now, retryAfter(resp.Header.Get("Retry-After"), now))
	}
	if c.t.options.failed(req, resp) {
		return httpattempt.ErrFailure
	}
	if c.firstByte {
		return httpattempt.AwaitFirstByte(resp)
	}
	return nil
}

// Discard closes the response of a loser. Where losers linger, it reads up to 64 KiB
// of the body first: a connection is used again only after its body was read whole.
func (c *call) Discard(resp *http.Response, err error) {
	if _, ok := err.(*race.Panic); ok {
		c.t.stats.HedgePanics.Add(1)
	}
	if resp == nil || resp.Body == nil {
		return
	}
	defer func() {
		if recover() != nil {
			c.t.stats.HedgePanics.Add(1)
		}
	}()
	defer resp.Body.Close()
	if c.grace > 0 {
		late := time.AfterFunc(c.grace, func() { resp.Body.Close() })
		defer late.Stop()
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	}
}

// send sends req through rt, and turns neither a response nor an error into an error, as http.Client does.
func send(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
	resp, err := rt.RoundTrip(req)
	if resp == nil && err == nil {
		err = fmt.Errorf("hedge: RoundTripper %T returned a nil *Response with a nil error", rt)
	}
	return resp, err
}
