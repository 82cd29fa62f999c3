package httpattempt

import (
	"context"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"reflect"
	"slices"
)

// A Snapshot is a copy of a request, from which the requests of hedges are made: the caller may change its request after RoundTrip, and the RoundTripper of the
// primary may have changed URL and header in place. Its memory is used again, so a call without a hedge allocates nothing. It is not safe for concurrent
// use.
type Snapshot struct {
	http.Request // without URL and Header
	url          url.URL
	hasRequest   bool // Request and url are set
	nilHeader    bool // the Header is nil
	names        []headerName
	values       []string // of all names, in their order
}

// A headerName is the name of a header field and the number of its values; -1: they are nil.
type headerName struct {
	name   string
	values int
}

// copyHeader copies a header and returns its traits.
func (s *Snapshot) copyHeader(header http.Header, marks AttemptHeaders) (h HeaderTraits) {
	s.nilHeader = header == nil
	if len(header) == 0 {
		return h
	}
	names, values := s.names, s.values
	for k, v := range header {
		h.addField(k, v, &marks)
		n := len(v)
		switch {
		case n == 1: // most headers
			values = append(values, v[0])
		case v == nil:
			n = -1
		default:
			values = append(values, v...)
		}
		names = append(names, headerName{k, n})
	}
	s.names, s.values = names, values
	return h
}

// CloneForms replaces the forms and path values of req by copies.
func CloneForms(req *http.Request) {
	if req.Pattern != "" || hasPathValues(req) {
		own := *req.Clone(req.Context())
		own.URL, own.Header, own.Body, own.Trailer = req.URL, req.Header, req.Body, req.Trailer
		*req = own
		return
	}
	if req.Form != nil || req.PostForm != nil {
		req.Form, req.PostForm = url.Values(http.Header(req.Form).Clone()), url.Values(http.Header(req.PostForm).Clone())
	}
	if f := req.MultipartForm; f != nil {
		req.MultipartForm = &multipart.Form{Value: http.Header(f.Value).Clone(), File: maps.Clone(f.File)}
	}
}

// pathValues is the field of http.Request that SetPathValue writes if no pattern has matched. The standard library exports no function that reports
// whether there are path values.
var pathValues, _ = reflect.TypeFor[http.Request]().FieldByName("otherValues")

// hasPathValues reports whether SetPathValue was called for a request that no pattern has matched.
func hasPathValues(req *http.Request) bool {
	return pathValues.Type != nil && pathValues.Type.Kind() == reflect.Map && reflect.ValueOf(req).Elem().FieldByIndex(pathValues.Index).Len() > 0
}

// reset prepares s for another request.
func (s *Snapshot) reset() {
	if s.URL != nil {
		s.Request, s.url = http.Request{}, url.URL{}
	}
	s.hasRequest = false
	clear(s.names)
	clear(s.values)
	s.names, s.values = s.names[:0], s.values[:0]
}

// cloneFor returns a copy of s for req that shares no memory with s.
func (s *Snapshot) cloneFor(req *http.Request) *Snapshot {
	own := &Snapshot{
		Request: *req, url: *req.URL, hasRequest: true, nilHeader: s.nilHeader,
		names: slices.Clone(s.names), values: slices.Clone(s.values),
	}
	CloneForms(&own.Request)
	return own
}

// WithHeaders returns a copy of s in which two headers have the given values. It does not write memory of s.
func (s *Snapshot) WithHeaders(name, value, name2, value2 string) Snapshot {
	more := *s
	more.nilHeader = false
	more.names = slices.Concat(s.names, []headerName{{name, 1}, {name2, 1}})
	more.values = slices.Concat(s.values, []string{value, value2})
	return more
}

// hedgeRequest returns the request of a hedge.
func (s *Snapshot) hedgeRequest(ctx context.Context) *http.Request {
	r := s.WithContext(ctx)
	u := s.url
	r.URL, r.Header = &u, s.newHeader(1)
	CloneForms(r)
	return r
}

// newHeader returns a copy of the header with room for more fields.
func (s *Snapshot) newHeader(extra int) http.Header {
	if s.nilHeader {
		return nil
	}
	h := make(http.Header, len(s.names)+extra)
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
