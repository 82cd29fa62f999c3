// Package ranges has the recipes of docs/integrations-ranges.md: a [rangeread.Fetch] for the client of each store.
package ranges

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/gohedge/hedge/rangeread"
)

// header is the value of the header Range that asks for r.
func header(r rangeread.Range) string {
	if r.Length < 0 {
		return fmt.Sprintf("bytes=%d-", r.Offset)
	}
	return fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1)
}

// answer returns a body with what its headers say about it. Without Content-Range it is the whole object.
func answer(body io.ReadCloser, contentRange string, length int64, tag string) (io.ReadCloser, rangeread.Info, error) {
	info := rangeread.Info{Length: length, Size: length}
	if !strings.HasPrefix(tag, "W/") { // no If-Match holds for a weak one
		info.Tag = tag
	}
	if contentRange != "" {
		var last int64
		info.Size = -1 // the server may not say it: bytes 0-9/*
		if n, _ := fmt.Sscanf(contentRange, "bytes %d-%d/%d", &info.Offset, &last, &info.Size); n < 2 || last < info.Offset {
			body.Close()
			return nil, rangeread.Info{}, fmt.Errorf("the answer has the Content-Range %q", contentRange)
		}
		info.Length = last - info.Offset + 1
	}
	return body, info, nil
}

// refused returns the error of an answer with that status.
func refused(status int, err error) (io.ReadCloser, rangeread.Info, error) {
	switch status {
	case http.StatusPreconditionFailed:
		err = fmt.Errorf("%w: %w", rangeread.ErrChanged, err)
	case http.StatusRequestedRangeNotSatisfiable:
		err = io.EOF
	}
	return nil, rangeread.Info{}, err
}
