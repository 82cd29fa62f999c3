package hedge

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"

	"github.com/gohedge/hedge/internal/race"
)

// snapshot is what attempts are made of that start later than their call, or may outlive
// RoundTrip: by then, the caller may change the request, and the primary's RoundTripper may
// have changed the URL and the header in place. It costs a call without a hedge no
// allocation, because it is used again.
type snapshot struct {
	http.Request // but for its URL and Header
	url          url.URL
	taken        bool // all is there that a hedge needs
	bare         bool // there is no Header
	names        []name
	values       []string // of all names, one after another
}

// A name is that of a header, which has so many values; -1 is nil.
type name struct {
	name   string
	values int
}

// keep copies what req points to.
func (s *snapshot) keep(req *http.Request) {
	s.url, s.bare = *req.URL, req.Header == nil
	for k, v := range req.Header {
		n := len(v)
		if v == nil {
			n = -1
		}
		s.names = append(s.names, name{k, n})
		s.values = append(s.values, v...)
	}
}

// forget drops what the snapshot refers to.
func (s *snapshot) forget() {
	if s.URL != nil {
		s.Request = http.Request{}
	}
	s.url, s.taken = url.URL{}, false
	clear(s.names)
	clear(s.values)
	s.names, s.values = s.names[:0], s.values[:0]
}

// request returns a request for a hedge.
func (s *snapshot) request(ctx context.Context) *http.Request {
	r := s.WithContext(ctx)
	u := s.url
	r.URL, r.Header = &u, s.header()
	return r
}

// header returns a copy of the header.
func (s *snapshot) header() http.Header {
	if s.bare {
		return nil
	}
	h := make(http.Header, len(s.names)+1)
	values := slices.Clone(s.values)
	for _, k := range s.names {
		if k.values < 0 {
			h[k.name] = nil
			continue
		}
		h[k.name] = values[:k.values:k.values]
		values = values[k.values:]
	}
	return h
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
	link link
}

// prepare takes what the call needs of its request before the primary starts. A detached
// primary gets copies; another one has the caller's URL and header, and RoundTrip waits for it.
func (c *call) prepare(req *http.Request) {
	c.req = req
	if !c.detached {
		c.primary = new(primary)
		c.sent.keep(req)
		return
	}
	p := &detachedPrimary{url: *req.URL}
	p.request = *req
	p.request.URL, p.request.Header = &p.url, req.Header.Clone()
	c.primary, c.link = &p.primary, &p.link
}

// Admit takes what is missing for a hedge. It is called with the race locked, so RoundTrip
// cannot have returned, and the caller has not changed its request.
func (c *call) Admit(index int) bool {
	if !c.Call.Admit(index) {
		return false
	}
	if !c.sent.taken {
		c.sent.taken, c.sent.Request = true, *c.req
		if c.detached {
			c.sent.keep(c.req)
		}
	}
	return true
}

// snapshot returns a snapshot of req, the call's request, that is not used again.
func (c *call) snapshot(req *http.Request) *snapshot {
	if c.detached && !c.sent.taken {
		c.sent.keep(req)
	}
	return &snapshot{
		Request: *req, url: c.sent.url, taken: true, bare: c.sent.bare,
		names: slices.Clone(c.sent.names), values: slices.Clone(c.sent.values),
	}
}

// request returns the request of attempt n.
func (c *call) request(ctx context.Context, n int) *http.Request {
	var r *http.Request
	from, p := c.req, c.primary
	if n == 0 && c.detached {
		from = &p.request
	}
	switch {
	case n > 0:
		r = c.sent.request(ctx)
	case p != nil && !c.handed:
		p.request = *from.WithContext(ctx) // a copy that is not allocated
		c.handed = true
		r = &p.request
	default: // nothing is learned yet, or the primary is sent again
		r = from.WithContext(ctx)
	}
	if c.body != nil {
		giveBody(r, c.body)
	}
	return r
}

func giveBody(r *http.Request, body []byte) {
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, _ = r.GetBody()
}

// readBody reads the caller's body, so that each attempt can have a copy. GetBody would
// not do: some callers return the same reader each time, or none. If the body fails, or
// has another length than ContentLength, readBody returns an error and a request whose
// body fails in the same way. If the caller gives up, it returns the cause alone.
func (c *call) readBody(req *http.Request) (*http.Request, error) {
	body, err := readAll(req)
	switch {
	case err == errGone:
		return nil, context.Cause(req.Context())
	case err == nil && int64(len(body)) != req.ContentLength:
		err = errLength
	case err == nil:
		c.body = body
		// A Close that fails comes too late to matter: net/http ignores it as well.
		_ = req.Body.Close()
		return req, nil
	}
	rest := io.Reader(req.Body)
	if err != errLength {
		rest = failingReader{err}
	}
	whole := req.WithContext(req.Context())
	whole.GetBody = nil
	whole.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), rest), req.Body}
	return whole, err
}

var (
	errLength = errors.New("hedge: body is not of ContentLength")
	errGone   = errors.New("hedge: caller gave up")
)

// readAll reads the body of req, and one byte more than ContentLength, which shows a body
// that is too long. It returns errGone as soon as the context of req ends; the body is
// closed then, as HTTP/2 does, so that its Read returns.
func readAll(req *http.Request) ([]byte, error) {
	read := func() ([]byte, error) { return io.ReadAll(io.LimitReader(req.Body, req.ContentLength+1)) }
	done := req.Context().Done()
	if done == nil || req.GetBody != nil { // one that can be had again is not a pipe
		return read()
	}
	type result struct {
		body     []byte
		err      error
		panicked any
	}
	results := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			r.panicked = recover()
			results <- r
		}()
		r.body, r.err = read()
	}()
	select {
	case r := <-results:
		if r.panicked != nil {
			panic(r.panicked)
		}
		return r.body, r.err
	case <-done:
		go func() { _ = req.Body.Close() }()
		return nil, errGone
	}
}

// failingReader fails with err.
type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }
