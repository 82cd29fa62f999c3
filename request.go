package hedge

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
)

// snapshot is a request as it was when its call began. Attempts that start later, or may
// outlive RoundTrip, are made from it: by then, the caller may change the request, and
// the primary's RoundTripper may have done so.
type snapshot struct {
	http.Request // its URL and Header are the caller's
	url          url.URL
	bare         bool // there is no Header
	names        []name
	values       []string // of all names, one after another
}

// A name is that of a header, which has so many values; -1 is nil.
type name struct {
	name   string
	values int
}

// take copies req. If hedges may follow, it copies what req points to as well; that costs
// no allocation, because a snapshot is used again.
func (s *snapshot) take(req *http.Request, hedges bool) {
	s.Request = *req
	if !hedges {
		return
	}
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
	s.Request, s.url = http.Request{}, url.URL{}
	clear(s.names)
	clear(s.values)
	s.names, s.values = s.names[:0], s.values[:0]
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

// request returns a request for one attempt. If u is given, the request shares nothing with
// the caller's, nor with another attempt's, and u is its URL from now on. If it is nil, the
// URL and the header are the caller's: that is for primaries which RoundTrip waits for.
func (c *call) request(ctx context.Context, u *url.URL) *http.Request {
	r := c.sent.WithContext(ctx)
	if u != nil {
		*u = c.sent.url
		r.URL, r.Header = u, c.sent.header()
	}
	if body := c.body; body != nil {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		r.Body, _ = r.GetBody()
	}
	return r
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
