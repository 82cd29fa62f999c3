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

// A Snapshot is what requests are made of that start later than their call, or may outlive
// RoundTrip: by then, the caller may change the request, and the primary's RoundTripper may
// have changed the URL and the header in place. It costs a call without a hedge no
// allocation, because it is used again. It is not safe for concurrent use.
type Snapshot struct {
	http.Request // but for its URL and Header
	url          url.URL
	taken        bool // all is there that a hedge needs
	bare         bool // there is no Header
	names        []headerName
	values       []string // of all names, one after another
}

// A headerName has so many values; -1 stands for nil.
type headerName struct {
	name   string
	values int
}

// keepHeader copies a header, and returns what it says of sending it twice.
func (s *Snapshot) keepHeader(header http.Header, marks Marks) (h Heading) {
	s.bare = header == nil
	if len(header) == 0 {
		return h
	}
	names, values := s.names, s.values
	for k, v := range header {
		h.read(k, v, &marks)
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

// OwnForms gives req copies of the forms and the path values that it has, if any.
func OwnForms(req *http.Request) {
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

// pathValues is the field of http.Request that SetPathValue writes to if no pattern has matched. No exported function tells whether there
// are path values.
var pathValues, _ = reflect.TypeFor[http.Request]().FieldByName("otherValues")

// hasPathValues reports whether SetPathValue was called for a request that no pattern has matched.
func hasPathValues(req *http.Request) bool {
	return pathValues.Type != nil && pathValues.Type.Kind() == reflect.Map && reflect.ValueOf(req).Elem().FieldByIndex(pathValues.Index).Len() > 0
}

// forget drops what the snapshot refers to.
func (s *Snapshot) forget() {
	if s.URL != nil {
		s.Request, s.url = http.Request{}, url.URL{}
	}
	s.taken = false
	clear(s.names)
	clear(s.values)
	s.names, s.values = s.names[:0], s.values[:0]
}

// clone returns a copy of which no call makes use, for req.
func (s *Snapshot) clone(req *http.Request) *Snapshot {
	own := &Snapshot{
		Request: *req, url: *req.URL, taken: true, bare: s.bare,
		names: slices.Clone(s.names), values: slices.Clone(s.values),
	}
	OwnForms(&own.Request)
	return own
}

// With returns a snapshot that has two more headers, of one value each, in place of those of the same names. It shares no memory
// that is written with s.
func (s *Snapshot) With(name, value, name2, value2 string) Snapshot {
	more := *s
	more.bare = false
	more.names = slices.Concat(s.names, []headerName{{name, 1}, {name2, 1}})
	more.values = slices.Concat(s.values, []string{value, value2})
	return more
}

// request returns a request for a hedge.
func (s *Snapshot) request(ctx context.Context) *http.Request {
	r := s.WithContext(ctx)
	u := s.url
	r.URL, r.Header = &u, s.header(1)
	OwnForms(r)
	return r
}

// header returns a copy of the header, which has room for so many more.
func (s *Snapshot) header(more int) http.Header {
	if s.bare {
		return nil
	}
	h := make(http.Header, len(s.names)+more)
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
