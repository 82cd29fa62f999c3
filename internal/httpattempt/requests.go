package httpattempt

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/gohedge/hedge/internal/race"
)

// Requests make the requests of one call's attempts. They can be used for another call after
// Forget, so nothing that is handed out refers to them. The zero Requests are ready.
//
// The goroutine of RoundTrip writes req, body, primary and link before the first
// attempt is made; attempts read them. Sent is written by ReadHeader, and by Keep with
// the race locked; a hedge reads it after Keep. Handed and link change hands to the goroutine of the
// primary when that starts.
type Requests struct {
	req  *http.Request // the caller's, which it may change once RoundTrip has returned
	sent Snapshot
	body []byte // the request's, whole; nil if it has none

	primary *primary // nil: the call is sent alone
	handed  bool     // the primary's request is in use
	link    *Link    // of a guarded primary; nil: there is none, or it was taken
}

// A primary is what is handed out for the primary of a call: its context and its request, in
// one allocation. Whoever is below RoundTrip may keep either, so it is in no pool, and refers
// to nothing that is: not to its call.
type primary struct {
	race.Attempt
	request http.Request
}

// An ownedPrimary has copies of everything that the caller may change after its call. When a hedge wins, a
// goroutine of the RoundTripper may read the request after its RoundTrip and the caller's have
// returned: the writer of an HTTP/2 connection does.
type ownedPrimary struct {
	primary
	url url.URL
}

// A guardedPrimary also has the hooks for an HTTP/1.1 connection, which may be called later still.
type guardedPrimary struct {
	ownedPrimary
	link Link
}

// Rest makes r the requests for the rest of a body: hedges alone, all made of s.
func (r *Requests) Rest(s Snapshot) { r.sent = s }

// ReadHeader returns what the header of the caller's request says of sending it twice, and keeps a copy for the attempts.
// It is called before all others, once for each call.
func (r *Requests) ReadHeader(header http.Header, marks Marks) Heading {
	return r.sent.keepHeader(header, marks)
}

// Prepare makes the primary's request from req, and returns the context of the primary. The request shares
// the URL, the header and the forms of req unless the call may be hedged. Guarded says that the
// primary needs a [Link]; only a call that may be hedged is guarded.
func (r *Requests) Prepare(req *http.Request, hedgeable, guarded bool) *race.Attempt {
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
	p.request.URL, p.request.Header = &p.url, r.sent.header(0)
	OwnForms(&p.request)
	r.primary = &p.primary
	return &p.Attempt
}

// Keep copies the rest of the caller's request, for hedges. It is called with the race locked, so RoundTrip
// cannot have returned, and the caller has not changed its request.
func (r *Requests) Keep() {
	if !r.sent.taken {
		r.sent.taken, r.sent.Request, r.sent.url = true, *r.req, *r.req.URL
		OwnForms(&r.sent.Request)
	}
}

// Snapshot returns a snapshot of req, the call's request, that is not used again.
func (r *Requests) Snapshot(req *http.Request) *Snapshot { return r.sent.clone(req) }

// NewLink returns a link for attempt n. The first one of a guarded primary is in memory that
// it has already.
func (r *Requests) NewLink(n int) *Link {
	if n > 0 || r.link == nil { // the link is the primary's
		return new(Link)
	}
	l := r.link
	r.link = nil
	return l
}

// Alone returns the request of a call that is sent once, with a body that was read.
func (r *Requests) Alone(ctx context.Context, req *http.Request) *http.Request {
	r.req = req
	return r.Next(ctx, 0)
}

// Next returns the request of attempt n. The primary may be sent again.
func (r *Requests) Next(ctx context.Context, n int) *http.Request {
	var next *http.Request
	switch p := r.primary; {
	case n > 0:
		next = r.sent.request(ctx)
	case p == nil: // the call is sent alone
		next = r.req.WithContext(ctx)
	case r.handed: // the primary is sent again, and its first request may still be read
		next = p.request.Clone(ctx)
	default:
		r.handed = true
		if next = &p.request; ctx != context.Context(&p.Attempt) {
			*next = *next.WithContext(ctx)
		}
	}
	if r.body != nil {
		giveBody(next, r.body)
	}
	return next
}

func giveBody(req *http.Request, body []byte) {
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody()
}

// Forget drops what the requests refer to.
func (r *Requests) Forget() {
	r.sent.forget()
	r.req, r.body, r.primary, r.handed, r.link = nil, nil, nil, false, nil
}
