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
// The goroutine of RoundTrip writes req, body, primary, link and detached before the first
// attempt is made; attempts read them. Sent is written by ReadHeader and Prepare, and by Keep with
// the race locked; a hedge reads it after Keep. Handed and link change hands to the goroutine of the
// primary when that starts.
type Requests struct {
	req  *http.Request // the caller's, which it may change once RoundTrip has returned
	sent Snapshot
	body []byte // the request's, whole; nil if it has none

	detached bool     // the primary may outlive RoundTrip
	primary  *primary // nil: the call is sent alone
	handed   bool     // the primary's request is in use
	link     *Link    // of a detached primary; nil: it was taken
}

// A primary is what is handed out for the primary of a call: its context and its request, in
// one allocation. Whoever is below RoundTrip may keep either, so it is in no pool, and refers
// to nothing that is: not to its call.
type primary struct {
	race.Attempt
	request http.Request
}

// A detachedPrimary has copies of what the caller may change, because it may outlive
// RoundTrip, and the hooks for an HTTP/1.1 connection, which may be called later still.
type detachedPrimary struct {
	primary
	url  url.URL
	link Link
}

// Rest makes r the requests for the rest of a body: hedges alone, all made of s.
func (r *Requests) Rest(s Snapshot) { r.sent = s }

// ReadHeader returns what the header of the caller's request says of sending it twice, and keeps a copy for the attempts.
// It is called before all others, once for each call.
func (r *Requests) ReadHeader(header http.Header, marks Marks) Heading {
	return r.sent.keepHeader(header, marks)
}

// Prepare takes what the call needs of req before the primary starts, and returns the context
// of that. A detached primary gets copies; another one has the caller's URL and header, and
// RoundTrip waits for it.
func (r *Requests) Prepare(req *http.Request, detached bool) *race.Attempt {
	r.req, r.detached, r.sent.url = req, detached, *req.URL
	if !detached {
		r.primary = new(primary)
		return &r.primary.Attempt
	}
	p := &detachedPrimary{url: *req.URL}
	p.request = *req
	p.request.URL, p.request.Header = &p.url, r.sent.header(0)
	OwnForms(&p.request)
	r.primary, r.link = &p.primary, &p.link
	return &p.Attempt
}

// Keep takes what is missing for a hedge. It is called with the race locked, so RoundTrip
// cannot have returned, and the caller has not changed its request.
func (r *Requests) Keep() {
	if !r.sent.taken {
		r.sent.taken, r.sent.Request = true, *r.req
		OwnForms(&r.sent.Request)
	}
}

// Snapshot returns a snapshot of req, the call's request, that is not used again.
func (r *Requests) Snapshot(req *http.Request) *Snapshot { return r.sent.clone(req) }

// NewLink returns a link for attempt n. The first one of a detached primary is in memory that
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
	from, p := r.req, r.primary
	if n == 0 && r.detached {
		from = &p.request
	}
	switch {
	case n > 0:
		next = r.sent.request(ctx)
	case p != nil && !r.handed:
		p.request = *from.WithContext(ctx) // a copy that is not allocated
		r.handed = true
		next = &p.request
	default: // the call is sent alone, or the primary again
		next = from.WithContext(ctx)
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
	r.req, r.body, r.detached, r.primary, r.handed, r.link = nil, nil, false, nil, false, nil
}
