package resume

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// minLength is the smallest length of a body that is resumed, in bytes. Smaller bodies usually arrive together with
// their header.
const minLength = 64 << 10

// clockSkew is how much earlier than Date the Last-Modified date must be to identify a version of the resource. The two
// dates may come from clocks that differ.
const clockSkew = time.Minute

// An Obstacle is the reason why a body was not resumed. Its text is the label of a metric.
type Obstacle string

// Obstacles in the request or the response. They are known when the response arrives.
const (
	NotGet    Obstacle = "request"   // the request is not a GET without a body, or its Range header is not a single range with a first byte
	Signed    Obstacle = "signed"    // a signature of the request covers its range
	BadStatus Obstacle = "status"    // the status is neither 200 nor 206 with the requested range, or the response has no body
	TooSmall  Obstacle = "small"     // the body is shorter than 64 KiB, or its length is unknown
	Encoded   Obstacle = "encoded"   // the transport decompressed the body, the body is encoded and has no ETag, or it has trailers
	NoRanges  Obstacle = "no_ranges" // the server does not accept byte ranges
	// the response has neither a strong ETag nor a strong Last-Modified date, so the remainder could be from another
	// version
	NoValidator Obstacle = "no_validator"
)

// Obstacles that are recorded at the end of a body. They are counted only if a Read has waited for at least 50 ms. If a
// request for the remainder was denied, a denied hedge is counted instead.
const (
	Learning     Obstacle = "learning" // too few bodies or calls have been observed to know the usual pauses
	UsualPause   Obstacle = "usual"    // the longest pause was shorter than the stall timeout, twice the 95th percentile of pauses
	NoHedgesLeft Obstacle = "spent"    // the call had used all its hedges
	NotRemainder Obstacle = "no_rest"  // the response to the request did not contain the remainder
)

// A ByteRange is the byte range of a representation that a body contains (RFC 9110, section 14.1.2). It also holds a
// validator, which identifies the version of the representation.
type ByteRange struct {
	validator   string // strong ETag or Last-Modified date, for the header If-Range
	first, last int64  // offsets in the representation, inclusive
	size        int64  // length of the whole representation in bytes
}

// ByteRangeOf returns the byte range that the body of resp contains. The argument req is the request to which resp is
// the response. If the remainder of the body cannot be requested later, why is the reason. Otherwise why is "".
func ByteRangeOf(req *http.Request, resp *http.Response) (p ByteRange, why Obstacle) {
	h := resp.Header
	tags, modified := h["Etag"], h["Last-Modified"]
	requested, one := requestedRange(req.Header)
	switch {
	case req.Method != "" && req.Method != http.MethodGet, req.Body != nil && req.Body != http.NoBody, !one:
		return p, NotGet
	case signsRange(req):
		return p, Signed
	case resp.Body == nil || !p.readResponse(resp, requested):
		return p, BadStatus
	case resp.Uncompressed, len(resp.Trailer) > 0, len(tags) == 0 && len(h["Content-Encoding"]) > 0:
		return p, Encoded
	case resp.ContentLength < minLength:
		return p, TooSmall
	case resp.StatusCode == http.StatusOK && !acceptsRanges(h["Accept-Ranges"]):
		return p, NoRanges
	case len(tags) == 1 && isStrongETag(tags[0]):
		p.validator = tags[0]
		return p, ""
	case len(tags) == 0 && len(modified) == 1 && isStrongDate(modified[0], h.Get("Date")): // RFC 9110, section 13.1.5: a client that has an ETag must not send a date
		p.validator = modified[0]
		return p, ""
	}
	return p, NoValidator
}

// readResponse sets the range of p from the status and the header of resp. The argument requested is the range in the
// Range header of the request, or nil if there is no such header. The result is false if resp is neither the whole
// representation nor the requested range.
func (p *ByteRange) readResponse(resp *http.Response, requested *interval) bool {
	ranges := resp.Header["Content-Range"]
	switch {
	case requested == nil || resp.StatusCode == http.StatusOK:
		p.last, p.size = resp.ContentLength-1, resp.ContentLength
		return resp.StatusCode == http.StatusOK && len(ranges) == 0
	case resp.StatusCode != http.StatusPartialContent || len(ranges) != 1:
		return false
	}
	unit, rangeText, _ := strings.Cut(ranges[0], " ")
	rangeText, whole, _ := strings.Cut(rangeText, "/")
	got, ok := parseInterval(rangeText)
	n, known := parseOffset(whole)
	p.first, p.last, p.size = got.first, got.last, n
	return strings.EqualFold(unit, "bytes") && ok && known && got.first == requested.first && got.last <= min(requested.last, n-1) &&
		(resp.ContentLength < 0 || resp.ContentLength == got.last-got.first+1)
}

// rangeHeaderAfter returns the value of a Range header that requests the body without its first n bytes (RFC 9110, section
// 14.2).
func (p *ByteRange) rangeHeaderAfter(n int64) string {
	if p.last == p.size-1 {
		return fmt.Sprintf("bytes=%d-", p.first+n)
	}
	return fmt.Sprintf("bytes=%d-%d", p.first+n, p.last)
}

// An interval is a range of bytes, from the offset first to the offset last, inclusive.
type interval struct{ first, last int64 }

// requestedRange returns the range in the Range header of a request, or nil if there is no such header.
//
// The result ok is false if the request cannot be repeated with another Range header:
//
//   - the header has several ranges, or a range without a first byte;
//   - the name of the header is not in canonical case;
//   - there is an If-Range header without a Range header.
func requestedRange(h http.Header) (s *interval, ok bool) {
	for name, values := range h {
		switch {
		case len(values) == 0 || name == "If-Range":
		case strings.EqualFold(name, "If-Range"), strings.EqualFold(name, "Range") && (name != "Range" || len(values) > 1):
			return nil, false
		case name == "Range":
			unit, one, _ := strings.Cut(values[0], "=")
			if first, open := strings.CutSuffix(one, "-"); open {
				one = first + "-" + strconv.FormatInt(math.MaxInt64-1, 10)
			}
			got, known := parseInterval(one)
			if !strings.EqualFold(unit, "bytes") || !known {
				return nil, false
			}
			s = &got
		}
	}
	return s, s != nil || len(h["If-Range"]) == 0
}

// parseInterval parses an interval such as "0-499". The result ok is false if the text is invalid or the first number
// is larger than the last.
func parseInterval(text string) (s interval, ok bool) {
	first, last, _ := strings.Cut(text, "-")
	a, ok := parseOffset(first)
	b, ok2 := parseOffset(last)
	return interval{a, b}, ok && ok2 && a <= b
}

// parseOffset parses a decimal number from 0 to [math.MaxInt64]-1. The result ok is false if the text is not such a
// number.
func parseOffset(text string) (n int64, ok bool) {
	u, err := strconv.ParseUint(text, 10, 63)
	return int64(u), err == nil && u < math.MaxInt64
}

// signsRange reports whether a request has a signature that covers its Range header, so that the range cannot be
// changed. The signature is in the Authorization header, in the URL or in another header. These signatures are
// recognized:
//
//   - a signature with a list of the signed headers that contains Range or If-Range;
//   - a signature of Azure, which always covers the range;
//   - a signature after RFC 9421 or draft-cavage-http-signatures.
func signsRange(req *http.Request) bool {
	for name, values := range req.Header {
		switch {
		case strings.EqualFold(name, "Signature-Input") && len(values) > 0, strings.EqualFold(name, "Signature") && len(values) > 0:
			return true
		case hasSuffixFold(name, "Authorization") && (slices.ContainsFunc(values, maySignRange) || slices.ContainsFunc(values, listsRange)):
			return true
		case hasSuffixFold(name, "Headers") && isSignedHeadersName(name) && slices.ContainsFunc(values, mentionsRange):
			return true
		}
	}
	if req.URL == nil || !strings.Contains(strings.ToLower(req.URL.RawQuery), "range") {
		return false
	}
	q, _ := url.ParseQuery(strings.ReplaceAll(req.URL.RawQuery, ";", "%3B")) // ParseQuery drops parameters with a raw semicolon
	for name, values := range q {
		if isSignedHeadersName(name) && slices.ContainsFunc(values, mentionsRange) || slices.ContainsFunc(values, listsRange) {
			return true
		}
	}
	return false
}

// hasSuffixFold reports whether name ends with suffix. It ignores the case of both.
func hasSuffixFold(name, suffix string) bool {
	return len(name) >= len(suffix) && strings.EqualFold(name[len(name)-len(suffix):], suffix)
}

// isSignedHeadersName reports whether a header or parameter with this name contains a list of signed headers. Examples
// are X-Amz-SignedHeaders (AWS, Google, Volcengine, Huawei and Escher), x-oss-additional-headers and
// X-Ca-Signature-Headers (Alibaba), X-HMAC-Signed-Headers (APISIX) and q-header-list (Tencent).
func isSignedHeadersName(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "header") && (strings.Contains(name, "sign") || strings.Contains(name, "additional") || strings.HasSuffix(name, "header-list"))
}

// maySignRange reports whether credentials, the value of an Authorization header, use an authentication scheme that
// may sign the Range header.
func maySignRange(credentials string) bool {
	scheme, _, _ := strings.Cut(strings.TrimSpace(credentials), " ")
	return slices.Contains([]string{"sharedkey", "sharedkeylite", "signature"}, strings.ToLower(scheme))
}

// listsRange reports whether credentials contain a list of signed headers that includes Range or If-Range. The list is
// a parameter NAME=LIST, or NAME:LIST (Alibaba, version 2), or has no name (Baidu).
func listsRange(credentials string) bool {
	lower := strings.ToLower(strings.TrimSpace(credentials))
	if !strings.Contains(lower, "range") {
		return false
	}
	if strings.HasPrefix(lower, "bce-auth-v") {
		return mentionsRange(lower)
	}
	headers := false
	for param := range strings.FieldsFuncSeq(lower, func(r rune) bool { return r == ',' || r == '&' }) {
		if strings.ContainsAny(param, "=:") { // otherwise the list continues
			headers = strings.Contains(param, "header")
		}
		if headers && mentionsRange(param) {
			return true
		}
	}
	return false
}

// mentionsRange reports whether a list of header names, with any separators, contains Range or If-Range.
func mentionsRange(list string) bool {
	for name := range strings.FieldsFuncSeq(list, func(r rune) bool {
		return r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		if strings.EqualFold(name, "range") || strings.EqualFold(name, "if-range") {
			return true
		}
	}
	return false
}

// isStrongDate reports whether modified, the Last-Modified date of a response, is a strong validator (RFC 9110, section
// 8.8.2.2). The result is true if modified is at least clockSkew earlier than date, the Date header of the response.
func isStrongDate(modified, date string) bool {
	m, err := http.ParseTime(modified)
	d, err2 := http.ParseTime(date)
	return err == nil && err2 == nil && d.Sub(m) >= clockSkew
}

// acceptsRanges reports whether the values of an Accept-Ranges header contain the unit bytes.
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

// isStrongETag reports whether tag is a strong entity tag (RFC 9110, section 8.8.3).
func isStrongETag(tag string) bool {
	return len(tag) >= 2 && tag[0] == '"' && tag[len(tag)-1] == '"' && !strings.ContainsAny(tag[1:len(tag)-1], "\" \x7f")
}

// isContinuedBy reports whether the response rest contains the remainder of the body: the bytes of p after the first n
// bytes. They must be from the same version of the representation. The argument header is the header of the response
// with the original body.
func (p *ByteRange) isContinuedBy(header http.Header, rest *http.Response, n int64) bool {
	ranges := rest.Header["Content-Range"]
	if rest.StatusCode != http.StatusPartialContent || rest.Body == nil || rest.Uncompressed ||
		len(ranges) != 1 || !strings.EqualFold(ranges[0], fmt.Sprintf("bytes %d-%d/%d", p.first+n, p.last, p.size)) ||
		rest.ContentLength >= 0 && rest.ContentLength != p.last+1-p.first-n {
		return false
	}
	same := func(name string) bool { return slices.Equal(header[name], rest.Header[name]) }
	sameIfSet := func(name string) bool { return len(rest.Header[name]) == 0 || same(name) }
	modified := same // the date alone identifies the version
	if len(header["Etag"]) > 0 {
		modified = sameIfSet
	}
	return same("Etag") && modified("Last-Modified") && same("Content-Encoding") && sameIfSet("Content-Type")
}
