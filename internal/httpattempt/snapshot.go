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

// A Snapshot is a copy of a request, from which the requests of hedges are made. Hedges need the copy, because the
// program may change its request after RoundTrip, and the primary's RoundTripper may change URL and header in place.
//
// A Snapshot reuses its memory, so a call without a hedge allocates nothing. It is not safe for concurrent use.
type Snapshot struct {
	http.Request // URL and Header are not used
	url          url.URL
	hasRequest   bool // Request and url are set
	nilHeader    bool // the header of the request is nil
	// fields of the header
	names  []headerName
	values []string // values of all fields, in the order of names
}

// A headerName is the name of a header field, with the number of its values.
type headerName struct {
	name string
	// -1: the slice of values is nil
	values int
}

// copyHeader stores a copy of the header and returns its traits.
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

// CloneForms replaces the forms and path values of req by copies, so that req shares none of them with another request.
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

// pathValues is the unexported field of http.Request with the values that SetPathValue stores in a request without a
// pattern. It is the zero StructField if the field does not exist. The standard library has no function that reports
// such values.
var pathValues, _ = reflect.TypeFor[http.Request]().FieldByName("otherValues")

// hasPathValues reports whether req has values of SetPathValue although it matched no pattern.
func hasPathValues(req *http.Request) bool {
	return pathValues.Type != nil && pathValues.Type.Kind() == reflect.Map && reflect.ValueOf(req).Elem().FieldByIndex(pathValues.Index).Len() > 0
}

// reset clears s and keeps its memory for another request.
func (s *Snapshot) reset() {
	if s.URL != nil {
		s.Request, s.url = http.Request{}, url.URL{}
	}
	s.hasRequest = false
	clear(s.names)
	clear(s.values)
	s.names, s.values = s.names[:0], s.values[:0]
}

// cloneFor returns a snapshot with the header of s and all other parts of req. It shares no memory with s.
func (s *Snapshot) cloneFor(req *http.Request) *Snapshot {
	own := &Snapshot{
		Request: *req, url: *req.URL, hasRequest: true, nilHeader: s.nilHeader,
		names: slices.Clone(s.names), values: slices.Clone(s.values),
	}
	CloneForms(&own.Request)
	return own
}

// WithHeaders returns a copy of s with two further header fields, which replace fields of the same names. It does not
// change s.
func (s *Snapshot) WithHeaders(name, value, name2, value2 string) Snapshot {
	more := *s
	more.nilHeader = false
	more.names = slices.Concat(s.names, []headerName{{name, 1}, {name2, 1}})
	more.values = slices.Concat(s.values, []string{value, value2})
	return more
}

// hedgeRequest returns a new request with the content of s and the context ctx.
func (s *Snapshot) hedgeRequest(ctx context.Context) *http.Request {
	r := s.WithContext(ctx)
	u := s.url
	r.URL, r.Header = &u, s.newHeader(1)
	CloneForms(r)
	return r
}

// newHeader returns a copy of the header with room for extra further fields.
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
