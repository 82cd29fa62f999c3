package httpattempt

import (
	"context"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"unsafe"
)

// A Snapshot is a copy of the caller's request, from which the requests of hedges are created. Hedges need the copy for
// two reasons. The program may change its request after RoundTrip. The primary's RoundTripper may change the URL and
// the header in place.
//
// A Snapshot reuses its memory, so a call without a hedge allocates nothing. It is not safe for concurrent use.
type Snapshot struct {
	http.Request // URL and Header are not used
	url          url.URL
	hasRequest   bool // the fields Request and url are set
	nilHeader    bool // the header of the copied request is nil
	// names of the header fields
	names  []headerName
	values []string // values of all fields, in the order of names
}

// A headerName is the name of a header field in a [Snapshot], with the number of values of the field.
type headerName struct {
	name string
	// number of values; -1 if the slice of values is nil
	values int
}

// copyHeader stores a copy of the header in s. It returns the traits of the header, which decide whether the request
// may be hedged. The argument marks names the headers that contain the number of a hedge.
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

// CloneForms replaces the forms and path values of req by copies. It is used for a shallow copy of another request, so
// that the two requests do not share them.
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

// pathValuesField is the unexported field of [http.Request] that holds the values stored by SetPathValue in a request
// without a pattern. The variable hasPathValuesField is false if this version of net/http has no such map.
var pathValuesField, hasPathValuesField = func() (reflect.StructField, bool) {
	f, ok := reflect.TypeFor[http.Request]().FieldByName("otherValues")
	return f, ok && f.Type == reflect.TypeFor[map[string]string]()
}()

// hasPathValues reports whether req has path values that were stored by SetPathValue, although req matched no pattern
// of a [http.ServeMux].
//
// It reads an unexported field, because the standard library has no function that reports these values. It does so without
// package reflect, which takes 20 times as long: every call that may be hedged calls hasPathValues.
func hasPathValues(req *http.Request) bool {
	return hasPathValuesField && len(*(*map[string]string)(unsafe.Add(unsafe.Pointer(req), pathValuesField.Offset))) > 0
}

// reset clears s, so that it can be reused for another request. It keeps the allocated memory.
func (s *Snapshot) reset() {
	if s.URL != nil {
		s.Request, s.url = http.Request{}, url.URL{}
	}
	s.hasRequest = false
	clear(s.names)
	clear(s.values)
	s.names, s.values = s.names[:0], s.values[:0]
}

// cloneFor returns a Snapshot of req with the header that copyHeader has stored in s. The result shares no memory with
// s or req.
func (s *Snapshot) cloneFor(req *http.Request) *Snapshot {
	own := &Snapshot{
		Request: *req, url: *req.URL, hasRequest: true, nilHeader: s.nilHeader,
		names: slices.Clone(s.names), values: slices.Clone(s.values),
	}
	CloneForms(&own.Request)
	return own
}

// WithHeaders returns a copy of s with two header fields added: name with value, and name2 with value2. They replace
// fields with the same names. It does not change s.
func (s *Snapshot) WithHeaders(name, value, name2, value2 string) Snapshot {
	more := *s
	more.nilHeader = false
	more.names = slices.Concat(s.names, []headerName{{name, 1}, {name2, 1}})
	more.values = slices.Concat(s.values, []string{value, value2})
	return more
}

// newHedgeRequest returns a new request with the method, URL, header and other fields of s, and with the context ctx.
func (s *Snapshot) newHedgeRequest(ctx context.Context) *http.Request {
	r := s.WithContext(ctx)
	u := s.url
	r.URL, r.Header = &u, s.newHeader(1)
	CloneForms(r)
	return r
}

// newHeader returns a copy of the header that copyHeader has stored. The map has capacity for extra more fields. The
// result is nil if the copied request has a nil header.
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
