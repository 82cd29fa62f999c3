package upload

import (
	"io"
	"net/http"
)

// CopyTrailers makes the trailers of an HTTP/1 request available in a copy of the request. The argument made is the request that net/http
// has made, and copied the copy. Without CopyTrailers, net/http sets undeclared trailers only in made.
func CopyTrailers(made, copied *http.Request) {
	if made.ProtoMajor == 1 && made.ContentLength < 0 && made.Trailer == nil && made.Body != nil {
		copied.Body = &trailerBody{made.Body, made, copied}
	}
}

// A trailerBody is the body of a copied request. At its end, it copies the trailers.
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
