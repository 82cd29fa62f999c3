package upload

import (
	"io"
	"net/http"
)

// CopyTrailers sets undeclared trailers of an HTTP/1 request in a copy of the request, when the body of the copy has been read. Without it,
// net/http sets these trailers only in the request that it has made.
func CopyTrailers(made, copied *http.Request) {
	if made.ProtoMajor == 1 && made.ContentLength < 0 && made.Trailer == nil && made.Body != nil {
		copied.Body = &trailerBody{made.Body, made, copied}
	}
}

// A trailerBody is the body of a copy. At its end, it copies the trailers.
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
