package httpattempt

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/gohedge/hedge/internal/race"
)

// A Requests makes the requests of the attempts of one call. The requests do not refer to it, so that Reset makes it
// ready for another call. The zero value is ready to use.
//
// It is not safe for concurrent use. The goroutine of RoundTrip writes req, body, primary and connTrace before the
// first attempt starts. CopyHeader and CopyForHedges write snapshot; hedges read it after CopyForHedges. After its
// start, only the goroutine of the primary uses primaryReturned and connTrace.
type Requests struct {
	req      *http.Request // the caller's request, which the caller may change after RoundTrip
	snapshot Snapshot
	body     []byte // body of the request; nil: there is none, or ReadBody was not called

	primary         *primary   // nil: the call runs no race
	primaryReturned bool       // AttemptRequest has returned the primary's request
	connTrace       *ConnTrace // unused ConnTrace of a guarded primary; nil: there is none, or NewConnTrace has returned it
}

// A primary holds the context and the request of a primary in one allocation. It is never reused and does not refer to
// its call, because a RoundTripper may keep the context or the request.
type primary struct {
	race.Attempt
	request http.Request
}

// An ownedPrimary is a primary with copies of all parts of the request that the caller may change after RoundTrip.
// After a hedge has won, a RoundTripper may still read the primary's request: the goroutine that writes to an HTTP/2
// connection does.
type ownedPrimary struct {
	primary
	url url.URL
}

// A guardedPrimary is an ownedPrimary with a [ConnTrace] in the same allocation.
type guardedPrimary struct {
	ownedPrimary
	connTrace ConnTrace
}

// UseSnapshot prepares r for a call without a primary. Hedges of the call get copies of s.
func (r *Requests) UseSnapshot(s Snapshot) { r.snapshot = s }

// CopyHeader copies the header of the caller's request for the attempts, and returns its traits. A call uses it once,
// before any other method. The argument marks names the headers that mark hedges.
func (r *Requests) CopyHeader(header http.Header, marks AttemptHeaders) HeaderTraits {
	return r.snapshot.copyHeader(header, marks)
}

// PreparePrimary makes the primary's request from req, and returns the primary's context. If hedgeable is false, the
// request shares the URL, the header and the forms of req. If guarded is true, NewConnTrace allocates nothing for the
// primary; guarded requires hedgeable.
func (r *Requests) PreparePrimary(req *http.Request, hedgeable, guarded bool) *race.Attempt {
	r.req = req
	if !hedgeable {
		r.primary = new(primary)
		r.primary.request = *req.WithContext(&r.primary.Attempt) // a copy that is not allocated
		return &r.primary.Attempt
	}
	var p *ownedPrimary
	if guarded {
		g := new(guardedPrimary)
		p, r.connTrace = &g.ownedPrimary, &g.connTrace
	} else {
		p = new(ownedPrimary)
	}
	p.url = *req.URL
	p.request = *req.WithContext(&p.Attempt)
	p.request.URL, p.request.Header = &p.url, r.snapshot.newHeader(0)
	CloneForms(&p.request)
	r.primary = &p.primary
	return &p.Attempt
}

// CopyForHedges copies the parts of the caller's request that CopyHeader has not copied. The caller must hold the lock
// of the race: it ensures that RoundTrip has not returned, so that the program has not changed its request.
func (r *Requests) CopyForHedges() {
	if !r.snapshot.hasRequest {
		r.snapshot.hasRequest, r.snapshot.Request, r.snapshot.url = true, *r.req, *r.req.URL
		CloneForms(&r.snapshot.Request)
	}
}

// TakeSnapshot returns a snapshot of req, the caller's request, that stays valid after Reset. CopyHeader must have been
// called.
func (r *Requests) TakeSnapshot(req *http.Request) *Snapshot { return r.snapshot.cloneFor(req) }

// NewConnTrace returns an unused ConnTrace for attempt n; 0 is the primary.
func (r *Requests) NewConnTrace(n int) *ConnTrace {
	if n > 0 || r.connTrace == nil {
		return new(ConnTrace)
	}
	l := r.connTrace
	r.connTrace = nil
	return l
}

// SingleRequest returns a copy of req for a call without hedges, with the context ctx and the body that ReadBody has
// read.
func (r *Requests) SingleRequest(ctx context.Context, req *http.Request) *http.Request {
	r.req = req
	return r.AttemptRequest(ctx, 0)
}

// AttemptRequest returns the request of attempt n with the context ctx. It may be called again for the primary, and
// then returns a clone.
func (r *Requests) AttemptRequest(ctx context.Context, n int) *http.Request {
	var next *http.Request
	switch p := r.primary; {
	case n > 0:
		next = r.snapshot.hedgeRequest(ctx)
	case p == nil: // a call without a race
		next = r.req.WithContext(ctx)
	case r.primaryReturned: // the primary is sent again, and its first request may still be read
		next = p.request.Clone(ctx)
	default:
		r.primaryReturned = true
		if next = &p.request; ctx != context.Context(&p.Attempt) {
			*next = *next.WithContext(ctx)
		}
	}
	if r.body != nil {
		setBody(next, r.body)
	}
	return next
}

// setBody sets Body and GetBody of req to readers of body.
func setBody(req *http.Request, body []byte) {
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody()
}

// Reset prepares r for another call. It keeps the memory of the snapshot.
func (r *Requests) Reset() {
	r.snapshot.reset()
	r.req, r.body, r.primary, r.primaryReturned, r.connTrace = nil, nil, nil, false, nil
}
