package upload

import (
	"io"
	"net/http"
)

// CopyTrailers ensures that the trailers of an HTTP/1 request are also stored in a copy of the request when its body
// ends. The argument original is the request that net/http has created. Without CopyTrailers, net/http stores
// undeclared trailers only in original.
func CopyTrailers(original, copied *http.Request) {
	if original.ProtoMajor == 1 && original.ContentLength < 0 && original.Trailer == nil && original.Body != nil {
		copied.Body = &trailerBody{original.Body, original, copied}
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
