package resume

import (
	"fmt"
	"net/http"
)

// Bounds returns the first and the last byte of the range, and the size of the representation.
func (p *ByteRange) Bounds() (first, last, whole int64) { return p.first, p.last, p.size }

func (p *ByteRange) RangeAfter(n int64) string { return p.rangeHeaderAfter(n) }

func (p *ByteRange) IsContinuedBy(given http.Header, rest *http.Response, n int64) bool {
	return p.isContinuedBy(given, rest, n)
}

// ContentRange returns a Content-Range header (RFC 9110, section 14.4).
func ContentRange(first, last, whole int64) string {
	return fmt.Sprintf("bytes %d-%d/%d", first, last, whole)
}
