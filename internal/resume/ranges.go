package resume

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// minLength is the least length of a body that is resumed. A smaller one arrives with
// its header, or nearly so.
const minLength = 64 << 10

// clockSkew is how much later than Last-Modified a response must have been made, if the
// former is to be a strong validator: the clocks behind the two may differ.
const clockSkew = time.Minute

// Validator returns the validator by which the rest of resp, the answer to req, can be asked
// for; "" if it cannot be.
func Validator(req *http.Request, resp *http.Response) string {
	h := resp.Header
	switch {
	case req.Method != "" && req.Method != http.MethodGet, req.Body != nil && req.Body != http.NoBody,
		asksForRange(req.Header),
		resp.StatusCode != http.StatusOK, resp.Body == nil, resp.ContentLength < minLength,
		resp.Uncompressed, len(resp.Trailer) > 0, len(h["Content-Range"]) > 0, !acceptsRanges(h["Accept-Ranges"]):
		return ""
	}
	if tags := h["Etag"]; len(tags) > 0 { // a client that has one must not send a date
		if len(tags) > 1 || !strongTag(tags[0]) {
			return ""
		}
		return tags[0]
	}
	modified, err := http.ParseTime(h.Get("Last-Modified"))
	date, err2 := http.ParseTime(h.Get("Date"))
	if err != nil || err2 != nil || date.Sub(modified) < clockSkew || len(h["Last-Modified"]) > 1 || len(h["Content-Encoding"]) > 0 {
		return ""
	}
	return h.Get("Last-Modified")
}

// asksForRange reports whether a request's header does so, in whatever spelling.
func asksForRange(h http.Header) bool {
	for name, values := range h {
		if len(values) > 0 && (strings.EqualFold(name, "Range") || strings.EqualFold(name, "If-Range")) {
			return true
		}
	}
	return false
}

func acceptsRanges(values []string) bool {
	return slices.ContainsFunc(values, func(v string) bool {
		for unit := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(unit), "bytes") {
				return true
			}
		}
		return false
	})
}

// strongTag reports whether tag is an entity tag (RFC 9110, section 8.8.3) that is not weak.
func strongTag(tag string) bool {
	return len(tag) >= 2 && tag[0] == '"' && tag[len(tag)-1] == '"' && !strings.ContainsAny(tag[1:len(tag)-1], "\" \x7f")
}

// continues reports whether rest holds the bytes from off on, all of them, of a body of the
// given length that came with the header whole.
func continues(whole http.Header, length int64, rest *http.Response, off int64) bool {
	ranges := rest.Header["Content-Range"]
	if rest.StatusCode != http.StatusPartialContent || rest.Body == nil || rest.Uncompressed ||
		len(ranges) != 1 || !strings.EqualFold(ranges[0], fmt.Sprintf("bytes %d-%d/%d", off, length-1, length)) ||
		rest.ContentLength >= 0 && rest.ContentLength != length-off {
		return false
	}
	same := func(name string) bool { return slices.Equal(whole[name], rest.Header[name]) }
	sameIfTold := func(name string) bool { return len(rest.Header[name]) == 0 || same(name) }
	modified := same // nothing else says that it is the same version
	if len(whole["Etag"]) > 0 {
		modified = sameIfTold
	}
	return same("Etag") && modified("Last-Modified") && same("Content-Encoding") && sameIfTold("Content-Type")
}
