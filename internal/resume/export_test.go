package resume

import (
	"fmt"
	"net/http"
)

// Bounds returns the first and the last byte of a part, and the length of the whole.
func (p *Part) Bounds() (first, last, whole int64) { return p.first, p.last, p.whole }

// After is after.
func (p *Part) After(n int64) string { return p.after(n) }

// Continues is continues.
func (p *Part) Continues(given http.Header, rest *http.Response, n int64) bool {
	return p.continues(given, rest, n)
}

// ContentRange is how a server tells of a part (RFC 9110, section 14.4).
func ContentRange(first, last, whole int64) string {
	return fmt.Sprintf("bytes %d-%d/%d", first, last, whole)
}
