package httpattempt

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/gohedge/hedge/internal/race"
)

// A Requests creates the requests of all attempts of one call. The requests do not refer to it, so Reset can prepare it
// for another call. The zero value is ready to use.
//
// A Requests is not safe for concurrent use. The goroutine that runs RoundTrip writes req, body, primary and connTrace
// before the first attempt starts. CopyHeader and CopyForHedges write snapshot; hedges read it after CopyForHedges.
// After the primary has started, only its goroutine uses primaryReturned and connTrace.
type Requests struct {
	req      *http.Request // the caller's request; the caller may change it after RoundTrip has returned
	snapshot Snapshot      // copy of the caller's request, from which requests of hedges are created
	body     []byte        // body of the request; nil if there is none or ReadBody was not called

	primary         *primary   // nil if the call does not run a race of attempts
	primaryReturned bool       // AttemptRequest has already returned the primary's request
	connTrace       *ConnTrace // unused ConnTrace of a guarded primary; nil if there is none or NewConnTrace has returned it
}

// A primary holds the context and the request of a call's first attempt in one allocation. It is never reused and does
// not refer to the call, because a RoundTripper may keep the context or the request.
type primary struct {
	race.Attempt
	request http.Request
}

// An ownedPrimary is a primary that shares no memory with the caller's request. A RoundTripper may still read the
// primary's request after a hedge has won, for example in the goroutine that writes to an HTTP/2 connection. At that
// time, the caller may already change its own request.
type ownedPrimary struct {
	primary
	url url.URL
}

// A guardedPrimary is an ownedPrimary with a [ConnTrace] in the same allocation. It is used if cancelling the primary
// may fail other requests on its connection.
type guardedPrimary struct {
	ownedPrimary
	connTrace ConnTrace
}

// UseSnapshot prepares r for a call that has no primary, such as the request for the remainder of a body. The requests
// of its hedges are copies of s.
func (r *Requests) UseSnapshot(s Snapshot) { r.snapshot = s }

// CopyHeader copies the header of the caller's request for the attempts, and returns its traits. It must be called once
// per call, before other methods. The argument marks names the headers that contain the number of a hedge.
func (r *Requests) CopyHeader(header http.Header, marks AttemptHeaders) HeaderTraits {
	return r.snapshot.copyHeader(header, marks)
}

// PreparePrimary creates the primary's request from req, the caller's request. It returns the primary as an attempt of
// a race. The attempt is also the context of the request.
//
// If hedgeable is true, the request has copies of the URL, the header and the forms of req. Otherwise it shares them
// with req.
//
// If guarded is true, memory for the primary's ConnTrace is allocated at the same time, so that NewConnTrace need not
// allocate. The caller may set guarded only together with hedgeable.
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
	if guarded {
		p.request = *req // AttemptRequest sets the context
	} else {
		p.request = *req.WithContext(&p.Attempt)
	}
	p.request.URL, p.request.Header = &p.url, r.snapshot.newHeader(0)
	CloneForms(&p.request)
	r.primary = &p.primary
	return &p.Attempt
}

// CopyForHedges copies the parts of the caller's request that CopyHeader has not copied, for the requests of hedges.
// The caller must hold the lock of the race. That lock ensures that RoundTrip has not returned, so the program has not
// changed its request yet.
func (r *Requests) CopyForHedges() {
	if !r.snapshot.hasRequest {
		r.snapshot.hasRequest, r.snapshot.Request, r.snapshot.url = true, *r.req, *r.req.URL
		CloneForms(&r.snapshot.Request)
	}
}

// TakeSnapshot returns a copy of req, the caller's request, that stays valid after Reset. The caller must have called
// CopyHeader with the header of req.
func (r *Requests) TakeSnapshot(req *http.Request) *Snapshot { return r.snapshot.cloneFor(req) }

// NewConnTrace returns an unused ConnTrace for the attempt with number n; 0 is the primary.
func (r *Requests) NewConnTrace(n int) *ConnTrace {
	if n > 0 || r.connTrace == nil {
		return new(ConnTrace)
	}
	l := r.connTrace
	r.connTrace = nil
	return l
}

// UnhedgedRequest returns the request of a call without hedges. It is a copy of req with the context ctx, and with the
// body that ReadBody has read, if ReadBody was called.
func (r *Requests) UnhedgedRequest(ctx context.Context, req *http.Request) *http.Request {
	r.req = req
	return r.AttemptRequest(ctx, 0)
}

// AttemptRequest returns the request of attempt n with the context ctx; n = 0 is the primary. If it was called for the
// primary before, it returns a clone of the primary's request, because a RoundTripper may still use the first request.
func (r *Requests) AttemptRequest(ctx context.Context, n int) *http.Request {
	var next *http.Request
	switch p := r.primary; {
	case n > 0:
		next = r.snapshot.newHedgeRequest(ctx)
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

// setBody makes Body and GetBody of req read from the bytes in body.
func setBody(req *http.Request, body []byte) {
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody()
}

// Reset prepares r for another call. The memory of the snapshot is reused.
func (r *Requests) Reset() {
	r.snapshot.reset()
	r.req, r.body, r.primary, r.primaryReturned, r.connTrace = nil, nil, nil, false, nil
}
