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

// An Obstacle is why a body was not resumed.
type Obstacle string

// The obstacles of answers whose rest cannot be asked for.
const (
	NoGet       Obstacle = "request"      // the request is no GET without a body, or asks for a range itself
	NoOK        Obstacle = "status"       // the status is not 200, or there is no body
	Small       Obstacle = "small"        // the body is below 64 KiB, or of unknown length
	Encoded     Obstacle = "encoded"      // it was decompressed on the way, or has no ETag and is encoded, or has trailers
	NoRanges    Obstacle = "no_ranges"    // the server does not accept ranges of bytes
	NoValidator Obstacle = "no_validator" // there is no strong validator
)

// The obstacles of bodies that made a Read wait for 50 ms or more, and whose rest was not asked for, or not given. That a hedge was
// denied is counted as such.
const (
	Learning Obstacle = "learning" // too few bodies or calls were known
	Usual    Obstacle = "usual"    // for less than twice what one body in twenty makes one wait
	Spent    Obstacle = "spent"    // the call had sent all its hedges
	NoRest   Obstacle = "no_rest"  // what the server sent was not the rest
)

// Validator returns the validator by which the rest of resp, the answer to req, can be asked for, or why it cannot be.
func Validator(req *http.Request, resp *http.Response) (validator string, why Obstacle) {
	h := resp.Header
	tags, modified := h["Etag"], h["Last-Modified"]
	switch {
	case req.Method != "" && req.Method != http.MethodGet, req.Body != nil && req.Body != http.NoBody, asksForRange(req.Header):
		return "", NoGet
	case resp.StatusCode != http.StatusOK, resp.Body == nil, len(h["Content-Range"]) > 0:
		return "", NoOK
	case resp.Uncompressed, len(resp.Trailer) > 0, len(tags) == 0 && len(h["Content-Encoding"]) > 0:
		return "", Encoded
	case resp.ContentLength < minLength:
		return "", Small
	case !acceptsRanges(h["Accept-Ranges"]):
		return "", NoRanges
	case len(tags) == 1 && strongTag(tags[0]):
		return tags[0], ""
	case len(tags) == 0 && len(modified) == 1 && older(modified[0], h.Get("Date")): // a client that has a tag must not send a date
		return modified[0], ""
	}
	return "", NoValidator
}

// older reports whether a Last-Modified is so much older than a Date that it is a strong validator.
func older(modified, date string) bool {
	m, err := http.ParseTime(modified)
	d, err2 := http.ParseTime(date)
	return err == nil && err2 == nil && d.Sub(m) >= clockSkew
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
