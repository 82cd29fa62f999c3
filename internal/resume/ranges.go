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

// minLength is the least length of a body that is resumed. Smaller bodies arrive with their header, or soon after.
const minLength = 64 << 10

// clockSkew is the least time between Last-Modified and Date for which Last-Modified is a strong validator: the clocks behind the two may differ.
const clockSkew = time.Minute

// An Obstacle is the reason why a body was not resumed.
type Obstacle string

// Obstacles in the request and the response.
const (
	NotGet      Obstacle = "request"   // the request is not a GET without a body, or asks for another range than a single one from a given byte
	Signed      Obstacle = "signed"    // the signature of the request covers its range
	BadStatus   Obstacle = "status"    // the status is neither 200, nor 206 with the requested range, or there is no body
	TooSmall    Obstacle = "small"     // the body has less than 64 KiB, or unknown length
	Encoded     Obstacle = "encoded"   // the transport decompressed the body, or the body is encoded without an ETag, or it has trailers
	NoRanges    Obstacle = "no_ranges" // the server does not accept byte ranges
	NoValidator Obstacle = "no_validator"
)

// Obstacles of bodies that made a Read wait for at least 50 ms. A denied hedge is counted as a denial instead.
const (
	Learning     Obstacle = "learning" // too few bodies or calls are known
	UsualPause   Obstacle = "usual"    // the pause was less than twice the 95th percentile of pauses
	NoHedgesLeft Obstacle = "spent"    // the call had sent all its hedges
	NotRemainder Obstacle = "no_rest"  // the response to the request for the remainder was something else
)

// A ByteRange is the range of a representation that a body holds, with the validator of the representation. Bytes are counted from 0 (RFC 9110,
// section 14.1.2).
type ByteRange struct {
	validator   string // strong
	first, last int64  // inclusive
	size        int64  // of the whole representation
}

// ByteRangeOf returns the range in the body of resp, the response to req, or the obstacle to a request for its remainder.
func ByteRangeOf(req *http.Request, resp *http.Response) (p ByteRange, why Obstacle) {
	h := resp.Header
	tags, modified := h["Etag"], h["Last-Modified"]
	asked, one := requestedRange(req.Header)
	switch {
	case req.Method != "" && req.Method != http.MethodGet, req.Body != nil && req.Body != http.NoBody, !one:
		return p, NotGet
	case signsRange(req):
		return p, Signed
	case resp.Body == nil || !p.readResponse(resp, asked):
		return p, BadStatus
	case resp.Uncompressed, len(resp.Trailer) > 0, len(tags) == 0 && len(h["Content-Encoding"]) > 0:
		return p, Encoded
	case resp.ContentLength < minLength:
		return p, TooSmall
	case resp.StatusCode == http.StatusOK && !acceptsRanges(h["Accept-Ranges"]):
		return p, NoRanges
	case len(tags) == 1 && isStrongTag(tags[0]):
		p.validator = tags[0]
		return p, ""
	case len(tags) == 0 && len(modified) == 1 && isStrongDate(modified[0], h.Get("Date")): // RFC 9110, section 13.1.5: a client that has an ETag must not send a date
		p.validator = modified[0]
		return p, ""
	}
	return p, NoValidator
}

// readResponse sets the range from a response. It reports false if the response is neither the whole representation nor starts at the first requested
// byte.
func (p *ByteRange) readResponse(resp *http.Response, asked *interval) bool {
	ranges := resp.Header["Content-Range"]
	switch {
	case asked == nil || resp.StatusCode == http.StatusOK:
		p.last, p.size = resp.ContentLength-1, resp.ContentLength
		return resp.StatusCode == http.StatusOK && len(ranges) == 0
	case resp.StatusCode != http.StatusPartialContent || len(ranges) != 1:
		return false
	}
	unit, told, _ := strings.Cut(ranges[0], " ")
	told, whole, _ := strings.Cut(told, "/")
	got, ok := parseInterval(told)
	n, known := parseNumber(whole)
	p.first, p.last, p.size = got.first, got.last, n
	return strings.EqualFold(unit, "bytes") && ok && known && got.first == asked.first && got.last <= min(asked.last, n-1) &&
		(resp.ContentLength < 0 || resp.ContentLength == got.last-got.first+1)
}

// rangeAfter returns the Range header for the bytes after the first n bytes of the body (RFC 9110, section 14.2).
func (p *ByteRange) rangeAfter(n int64) string {
	if p.last == p.size-1 {
		return fmt.Sprintf("bytes=%d-", p.first+n)
	}
	return fmt.Sprintf("bytes=%d-%d", p.first+n, p.last)
}

// An interval is a range of bytes, inclusive.
type interval struct{ first, last int64 }

// requestedRange returns the byte range that a request asks for, or nil if it asks for none. It is not ok if a request for the remainder cannot
// replace it: several ranges, a suffix range, or a header with another spelling.
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

// parseInterval parses an interval such as "0-499".
func parseInterval(text string) (s interval, ok bool) {
	first, last, _ := strings.Cut(text, "-")
	a, ok := parseNumber(first)
	b, ok2 := parseNumber(last)
	return interval{a, b}, ok && ok2 && a <= b
}

// parseNumber parses decimal digits.
func parseNumber(text string) (n int64, ok bool) {
	u, err := strconv.ParseUint(text, 10, 63)
	return int64(u), err == nil && u < math.MaxInt64
}

// signsRange reports whether a request has a signature that covers its range. Signatures stand in credentials, in the URL or in a header:
//
//   - with a list of the signed headers;
//   - of Azure, which always covers the range;
//   - after RFC 9421, or its draft draft-cavage-http-signatures.
func signsRange(req *http.Request) bool {
	for name, values := range req.Header {
		switch {
		case strings.EqualFold(name, "Signature-Input") && len(values) > 0, strings.EqualFold(name, "Signature") && len(values) > 0:
			return true
		case hasSuffixFold(name, "Authorization") && (slices.ContainsFunc(values, mayCoverRange) || slices.ContainsFunc(values, listsRange)):
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

// hasSuffixFold reports whether a name has a suffix, in any case.
func hasSuffixFold(name, end string) bool {
	return len(name) >= len(end) && strings.EqualFold(name[len(name)-len(end):], end)
}

// isSignedHeadersName reports whether the name of a parameter or header is that of a list of signed headers. Such names are X-Amz-SignedHeaders (AWS;
// also Google, Volcengine, Huawei and Escher), x-oss-additional-headers and X-Ca-Signature-Headers (Alibaba), X-HMAC-Signed-Headers (APISIX) and
// q-header-list (Tencent).
func isSignedHeadersName(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "header") && (strings.Contains(name, "sign") || strings.Contains(name, "additional") || strings.HasSuffix(name, "header-list"))
}

// mayCoverRange reports whether credentials are a signature that covers, or may cover, the Range header.
func mayCoverRange(credentials string) bool {
	scheme, _, _ := strings.Cut(strings.TrimSpace(credentials), " ")
	return slices.Contains([]string{"sharedkey", "sharedkeylite", "signature"}, strings.ToLower(scheme))
}

// listsRange reports whether credentials have a list of signed headers with Range or If-Range. The list is a parameter NAME=LIST, or NAME:LIST
// (Alibaba version 2), or has no name (Baidu).
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

// mentionsRange reports whether a list of header names, with any separators, has Range or If-Range.
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

// isStrongDate reports whether a Last-Modified is old enough, compared with Date, to be a strong validator.
func isStrongDate(modified, date string) bool {
	m, err := http.ParseTime(modified)
	d, err2 := http.ParseTime(date)
	return err == nil && err2 == nil && d.Sub(m) >= clockSkew
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

// isStrongTag reports whether a tag is a strong entity tag (RFC 9110, section 8.8.3).
func isStrongTag(tag string) bool {
	return len(tag) >= 2 && tag[0] == '"' && tag[len(tag)-1] == '"' && !strings.ContainsAny(tag[1:len(tag)-1], "\" \x7f")
}

// isContinuedBy reports whether rest holds all bytes after the first n bytes of the body. The body came with the given header.
func (p *ByteRange) isContinuedBy(given http.Header, rest *http.Response, n int64) bool {
	ranges := rest.Header["Content-Range"]
	if rest.StatusCode != http.StatusPartialContent || rest.Body == nil || rest.Uncompressed ||
		len(ranges) != 1 || !strings.EqualFold(ranges[0], fmt.Sprintf("bytes %d-%d/%d", p.first+n, p.last, p.size)) ||
		rest.ContentLength >= 0 && rest.ContentLength != p.last+1-p.first-n {
		return false
	}
	same := func(name string) bool { return slices.Equal(given[name], rest.Header[name]) }
	sameIfSet := func(name string) bool { return len(rest.Header[name]) == 0 || same(name) }
	modified := same // the date alone identifies the version
	if len(given["Etag"]) > 0 {
		modified = sameIfSet
	}
	return same("Etag") && modified("Last-Modified") && same("Content-Encoding") && sameIfSet("Content-Type")
}
