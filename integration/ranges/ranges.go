// Package ranges has the recipes of docs/recipes.md: a [rangeread.Fetch] for the client of each store.
package ranges

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
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

// answer returns the body of an answer to r, and its Info. The body is the whole object if the status was 200. Otherwise its place in the
// object is in the header Content-Range: an answer without that header is refused (RFC 9110, section 15.3.7.1), and so is another part.
func answer(r rangeread.Range, body io.ReadCloser, whole bool, contentRange string, length int64, tag string) (io.ReadCloser, rangeread.Info, error) {
	info := rangeread.Info{Length: length, Size: length}
	if !strings.HasPrefix(tag, "W/") { // no If-Match holds for a weak one
		info.Tag = tag
	}
	if whole {
		return body, info, nil
	}
	var last int64
	info.Size = -1 // the server may not say it: bytes 0-9/*
	if n, _ := fmt.Sscanf(contentRange, "bytes %d-%d/%d", &info.Offset, &last, &info.Size); n < 2 || last < max(info.Offset, r.Offset) {
		body.Close()
		return nil, rangeread.Info{}, fmt.Errorf("an answer of status 206 has the Content-Range %q", contentRange)
	}
	info.Length = last - info.Offset + 1
	return body, info, nil
}

// refused returns the error of an answer to r with a status. Status 416 is the end of the object, unless the answer's Content-Range says
// that the object has bytes from r.Offset on, as in "bytes */100": there are servers that refuse a range that is not wholly inside the object.
func refused(r rangeread.Range, status int, contentRange string, err error) (io.ReadCloser, rangeread.Info, error) {
	size, _ := strconv.ParseInt(strings.TrimSpace(contentRange[strings.LastIndex(contentRange, "/")+1:]), 10, 64)
	switch {
	case status == http.StatusPreconditionFailed:
		err = fmt.Errorf("%w: %w", rangeread.ErrChanged, err)
	case status == http.StatusRequestedRangeNotSatisfiable && size <= r.Offset:
		err = io.EOF
	}
	return nil, rangeread.Info{}, err
}
