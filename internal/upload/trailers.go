package upload

import (
	"io"
	"net/http"
)

// CopyTrailers makes a copy of an HTTP/1 request get the trailers that its client has not declared, once its body is read: net/http tells only the
// request that it has made itself of them.
func CopyTrailers(made, copied *http.Request) {
	if made.ProtoMajor == 1 && made.ContentLength < 0 && made.Trailer == nil && made.Body != nil {
		copied.Body = &trailerBody{made.Body, made, copied}
	}
}

// trailerBody is the body of a copy.
type trailerBody struct {
	io.ReadCloser
	made, copied *http.Request
}

func (t *trailerBody) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF && t.copied.Trailer == nil {
		t.copied.Trailer = t.made.Trailer
	}
	return n, err
}
