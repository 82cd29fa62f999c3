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
	NoGet       Obstacle = "request"      // the request is no GET without a body, or asks for more than one range from a byte on
	Signed      Obstacle = "signed"       // its signature covers the range that it asks for
	NoOK        Obstacle = "status"       // the status is not 200, nor 206 with the range that was asked for, or there is no body
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

// A Part is the part of one version of a whole that a body holds, and whose rest can be asked for. Bytes are counted from 0, as in RFC 9110,
// section 14.1.2.
type Part struct {
	validator   string // strong
	first, last int64
	whole       int64 // the length of the whole
}

// PartOf returns which part resp, the answer to req, holds, or why its rest cannot be asked for.
func PartOf(req *http.Request, resp *http.Response) (p Part, why Obstacle) {
	h := resp.Header
	tags, modified := h["Etag"], h["Last-Modified"]
	asked, one := rangeOf(req.Header)
	switch {
	case req.Method != "" && req.Method != http.MethodGet, req.Body != nil && req.Body != http.NoBody, !one:
		return p, NoGet
	case signsRange(req):
		return p, Signed
	case resp.Body == nil || !p.take(resp, asked):
		return p, NoOK
	case resp.Uncompressed, len(resp.Trailer) > 0, len(tags) == 0 && len(h["Content-Encoding"]) > 0:
		return p, Encoded
	case resp.ContentLength < minLength:
		return p, Small
	case resp.StatusCode == http.StatusOK && !acceptsRanges(h["Accept-Ranges"]):
		return p, NoRanges
	case len(tags) == 1 && strongTag(tags[0]):
		p.validator = tags[0]
		return p, ""
	case len(tags) == 0 && len(modified) == 1 && older(modified[0], h.Get("Date")): // a client that has a tag must not send a date
		p.validator = modified[0]
		return p, ""
	}
	return p, NoValidator
}

// take reads which part a response holds, and reports false if that is neither the whole nor what was asked for. A server may send less than
// that, from the first byte on.
func (p *Part) take(resp *http.Response, asked *span) bool {
	ranges := resp.Header["Content-Range"]
	switch {
	case asked == nil || resp.StatusCode == http.StatusOK:
		p.last, p.whole = resp.ContentLength-1, resp.ContentLength
		return resp.StatusCode == http.StatusOK && len(ranges) == 0
	case resp.StatusCode != http.StatusPartialContent || len(ranges) != 1:
		return false
	}
	unit, told, _ := strings.Cut(ranges[0], " ")
	told, whole, _ := strings.Cut(told, "/")
	got, ok := readSpan(told)
	n, known := number(whole)
	p.first, p.last, p.whole = got.first, got.last, n
	return strings.EqualFold(unit, "bytes") && ok && known && got.first == asked.first && got.last <= min(asked.last, n-1) &&
		(resp.ContentLength < 0 || resp.ContentLength == got.last-got.first+1)
}

// after returns the Range header that asks for what follows the first n bytes of the body (RFC 9110, section 14.2).
func (p *Part) after(n int64) string {
	if p.last == p.whole-1 {
		return fmt.Sprintf("bytes=%d-", p.first+n)
	}
	return fmt.Sprintf("bytes=%d-%d", p.first+n, p.last)
}

// A span is from one byte to another one, which is in it.
type span struct{ first, last int64 }

// rangeOf returns the range of bytes that a request asks for, nil if it asks for none. It is not ok if that is more than one, or one counted from
// the end, or if a header is spelt so that the rest cannot replace it.
func rangeOf(h http.Header) (s *span, ok bool) {
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
			got, known := readSpan(one)
			if !strings.EqualFold(unit, "bytes") || !known {
				return nil, false
			}
			s = &got
		}
	}
	return s, s != nil || len(h["If-Range"]) == 0
}

func readSpan(text string) (s span, ok bool) {
	first, last, _ := strings.Cut(text, "-")
	a, ok := number(first)
	b, ok2 := number(last)
	return span{a, b}, ok && ok2 && a <= b
}

// number reads digits.
func number(text string) (n int64, ok bool) {
	u, err := strconv.ParseUint(text, 10, 63)
	return int64(u), err == nil && u < math.MaxInt64
}

// signsRange reports whether a request has a signature that covers its range: one that names the headers it covers, in credentials, in the URL or in
// a header of its own; Azure's, which covers the range always; one after RFC 9421; or one after the draft before it
// (draft-cavage-http-signatures), in a header of its own or in Authorization.
func signsRange(req *http.Request) bool {
	for name, values := range req.Header {
		switch {
		case strings.EqualFold(name, "Signature-Input") && len(values) > 0, strings.EqualFold(name, "Signature") && len(values) > 0:
			return true
		case endsWith(name, "Authorization") && (slices.ContainsFunc(values, coversRange) || slices.ContainsFunc(values, listsRange)):
			return true
		case endsWith(name, "Headers") && listsSigned(name) && slices.ContainsFunc(values, namesRange):
			return true
		}
	}
	if req.URL == nil || !strings.Contains(strings.ToLower(req.URL.RawQuery), "range") {
		return false
	}
	q, _ := url.ParseQuery(strings.ReplaceAll(req.URL.RawQuery, ";", "%3B")) // a list is left out whose semicolons are not encoded
	for name, values := range q {
		if listsSigned(name) && slices.ContainsFunc(values, namesRange) || slices.ContainsFunc(values, listsRange) {
			return true
		}
	}
	return false
}

// endsWith reports whether a name ends so, in whichever case.
func endsWith(name, end string) bool {
	return len(name) >= len(end) && strings.EqualFold(name[len(name)-len(end):], end)
}

// listsSigned reports whether a parameter, or a header, has a name as those have that list the headers which a signature covers: X-Amz-SignedHeaders
// of AWS and, spelt alike, of Google, Volcengine, Huawei and Escher; x-oss-additional-headers of Alibaba, and X-Ca-Signature-Headers of its gateways;
// X-HMAC-Signed-Headers of APISIX; q-header-list of Tencent.
func listsSigned(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "header") && (strings.Contains(name, "sign") || strings.Contains(name, "additional") || strings.HasSuffix(name, "header-list"))
}

// coversRange reports whether credentials are a signature that covers a Range header, or may do so in words that are not read here.
func coversRange(credentials string) bool {
	scheme, _, _ := strings.Cut(strings.TrimSpace(credentials), " ")
	return slices.Contains([]string{"sharedkey", "sharedkeylite", "signature"}, strings.ToLower(scheme))
}

// listsRange reports whether credentials have a parameter, NAME=LIST or, as Alibaba's of version 2, NAME:LIST, that lists headers, Range or If-Range
// among them. Baidu's have the list in the middle, without a name.
func listsRange(credentials string) bool {
	lower := strings.ToLower(strings.TrimSpace(credentials))
	if !strings.Contains(lower, "range") {
		return false
	}
	if strings.HasPrefix(lower, "bce-auth-v") {
		return namesRange(lower)
	}
	headers := false
	for param := range strings.FieldsFuncSeq(lower, func(r rune) bool { return r == ',' || r == '&' }) {
		if strings.ContainsAny(param, "=:") { // else the list before goes on
			headers = strings.Contains(param, "header")
		}
		if headers && namesRange(param) {
			return true
		}
	}
	return false
}

// namesRange reports whether a list of names of headers, with whatever between them, has Range or If-Range.
func namesRange(list string) bool {
	for name := range strings.FieldsFuncSeq(list, func(r rune) bool {
		return r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		if strings.EqualFold(name, "range") || strings.EqualFold(name, "if-range") {
			return true
		}
	}
	return false
}

// older reports whether a Last-Modified is so much older than a Date that it is a strong validator.
func older(modified, date string) bool {
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

// strongTag reports whether tag is an entity tag (RFC 9110, section 8.8.3) that is not weak.
func strongTag(tag string) bool {
	return len(tag) >= 2 && tag[0] == '"' && tag[len(tag)-1] == '"' && !strings.ContainsAny(tag[1:len(tag)-1], "\" \x7f")
}

// continues reports whether rest holds what follows the first n bytes of a body that came with the header given, all of it.
func (p *Part) continues(given http.Header, rest *http.Response, n int64) bool {
	ranges := rest.Header["Content-Range"]
	if rest.StatusCode != http.StatusPartialContent || rest.Body == nil || rest.Uncompressed ||
		len(ranges) != 1 || !strings.EqualFold(ranges[0], fmt.Sprintf("bytes %d-%d/%d", p.first+n, p.last, p.whole)) ||
		rest.ContentLength >= 0 && rest.ContentLength != p.last+1-p.first-n {
		return false
	}
	same := func(name string) bool { return slices.Equal(given[name], rest.Header[name]) }
	sameIfTold := func(name string) bool { return len(rest.Header[name]) == 0 || same(name) }
	modified := same // nothing else says that it is the same version
	if len(given["Etag"]) > 0 {
		modified = sameIfTold
	}
	return same("Etag") && modified("Last-Modified") && same("Content-Encoding") && sameIfTold("Content-Type")
}
