package httpattempt

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/gohedge/hedge/internal/race"
)

// Requests makes the requests of the attempts of one call. It is used again for another call after Reset, so no request that it returns refers to it. The
// zero Requests is ready.
//
// The goroutine of RoundTrip writes req, body, primary and link before the first attempt; attempts read them. ReadHeader writes sent, and so does
// KeepForHedges with the race locked; a hedge reads it after KeepForHedges. The goroutine of the primary owns handed and link after its start.
type Requests struct {
	req      *http.Request // of the caller, which may change it after RoundTrip
	snapshot Snapshot
	body     []byte // of the request; nil: none, or not read

	primary         *primary // nil: no race is run for the call
	primaryReturned bool     // the request of the primary was returned
	link            *Link    // of a guarded primary; nil: none, or it was returned
}

// A primary holds the context and the request of a primary in one allocation. A RoundTripper may keep either, so a primary is in no pool and does not refer to
// its call.
type primary struct {
	race.Attempt
	request http.Request
}

// An ownedPrimary has copies of every part of the request that the caller may change after its call. If a hedge wins, a RoundTripper may read the
// request of the primary later: the writer of an HTTP/2 connection does.
type ownedPrimary struct {
	primary
	url url.URL
}

// A guardedPrimary also has the trace hooks of an HTTP/1.1 connection, which may be called after the call.
type guardedPrimary struct {
	ownedPrimary
	link Link
}

// UseSnapshot prepares r for a call without a primary, whose hedges are made from s.
func (r *Requests) UseSnapshot(s Snapshot) { r.snapshot = s }

// ReadHeader returns the traits of a header, and keeps a copy of it for the attempts. It is the first method that a call uses, once.
func (r *Requests) ReadHeader(header http.Header, marks AttemptHeaders) HeaderTraits {
	return r.snapshot.copyHeader(header, marks)
}

// PreparePrimary makes the request of the primary from req, and returns the context of the primary. If the call can have no hedge, the request shares the
// URL, the header and the forms of req. A guarded primary has a [Link]; guarded implies hedgeable.
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
		p, r.link = &g.ownedPrimary, &g.link
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

// KeepForHedges copies the parts of the request that ReadHeader has not copied. It is called with the race locked, so that RoundTrip has not returned and the
// caller has not changed its request.
func (r *Requests) KeepForHedges() {
	if !r.snapshot.hasRequest {
		r.snapshot.hasRequest, r.snapshot.Request, r.snapshot.url = true, *r.req, *r.req.URL
		CloneForms(&r.snapshot.Request)
	}
}

// TakeSnapshot returns a snapshot of req, the request of the call, that stays valid after Reset.
func (r *Requests) TakeSnapshot(req *http.Request) *Snapshot { return r.snapshot.cloneFor(req) }

// NewLink returns a link for attempt n. The first link of a guarded primary needs no allocation.
func (r *Requests) NewLink(n int) *Link {
	if n > 0 || r.link == nil {
		return new(Link)
	}
	l := r.link
	r.link = nil
	return l
}

// SingleRequest returns the request of a call without a race, with the body that ReadBody has read.
func (r *Requests) SingleRequest(ctx context.Context, req *http.Request) *http.Request {
	r.req = req
	return r.AttemptRequest(ctx, 0)
}

// AttemptRequest returns the request of attempt n. It may be called again for the primary.
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

// setBody sets the Body and GetBody of req to readers of body.
func setBody(req *http.Request, body []byte) {
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody()
}

// Reset prepares r for another call.
func (r *Requests) Reset() {
	r.snapshot.reset()
	r.req, r.body, r.primary, r.primaryReturned, r.link = nil, nil, nil, false, nil
}
