package upload

import (
	"io"
	"net/http"
)

// CopyTrailers makes the trailers of an HTTP/1 request available in copied, a copy of made. made is the request that net/http
// has created. Without CopyTrailers, net/http stores undeclared trailers only in made.
func CopyTrailers(made, copied *http.Request) {
	if made.ProtoMajor == 1 && made.ContentLength < 0 && made.Trailer == nil && made.Body != nil {
		copied.Body = &trailerBody{made.Body, made, copied}
	}
}

// A trailerBody is the body of a copied HTTP/1 request. When it has been read to its end, it copies the trailers of the
// original request to the copy.
type trailerBody struct {
	io.ReadCloser
	made, copied *http.Request // original request and its copy
}

// Read reads from the original body. With io.EOF, it copies the trailers.
func (t *trailerBody) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF && t.copied.Trailer == nil {
		t.copied.Trailer = t.made.Trailer
	}
	return n, err
}
