package endpoint

import (
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"

	"github.com/gohedge/hedge/internal/httpattempt"
)

// Another endpoint gets the harmless headers, the headers and parameters in its Keep, and the headers that its Prepare adds. A request with
// any other header or parameter is not sent to it: without that header, the request could have another meaning.

// harmlessHeaders are request headers that are sent to every endpoint. They select a representation of the resource or
// identify the request, and contain no secret.
var harmlessHeaders = headerSet("Accept Accept-Charset Accept-Encoding Accept-Language Cache-Control Connection Content-Encoding Content-Language Content-Length Content-Type " +
	"Dnt Hedge-Attempt Idempotency-Key Keep-Alive Pragma Prefer Priority Range Save-Data User-Agent X-Idempotency-Key " +
	"B3 X-B3-Traceid X-B3-Spanid X-B3-Parentspanid X-B3-Sampled X-B3-Flags Traceparent Tracestate Uber-Trace-Id " +
	"X-Amzn-Trace-Id X-Client-Request-Id X-Cloud-Trace-Context X-Correlation-Id X-Request-Id " +
	"Amz-Sdk-Invocation-Id Amz-Sdk-Request X-Goog-Api-Client X-Amz-Checksum-Mode")

// removableHeaders are request headers that identify the caller and have no effect on the response. They are sent to
// the first endpoint only.
var removableHeaders = headerSet("From Referer")

// credentialHeaders are request headers that may contain credentials for the first endpoint, so no other endpoint gets
// them unless its Keep names them. An endpoint with a Prepare function gets the request without these headers, because
// Prepare sets other credentials. An endpoint without Prepare does not get the request at all.
var credentialHeaders = headerSet("Authorization Cookie Proxy-Authorization Signature Signature-Input " +
	"X-Amz-Content-Sha256 X-Amz-Date X-Amz-Security-Token X-Ms-Date Api-Key X-Api-Key X-Goog-Api-Key Ocp-Apim-Subscription-Key")

// headerSet returns the set of the header names in a list of names that are separated by spaces.
func headerSet(names string) map[string]bool {
	all := make(map[string]bool)
	for name := range strings.FieldsSeq(names) {
		all[name] = true
	}
	return all
}

// A namePatterns value is a list of names of headers and query parameters, in lower case. An element that ends in *
// matches all names that begin with the text before the asterisk.
type namePatterns []string

// parseNames validates names and patterns, and converts them to lower case. The argument field is the name of the
// [Config] field that holds them, Keep or Drop; the error contains it.
func parseNames(field string, given []string) (n namePatterns, err error) {
	for _, name := range given {
		if name == "" || strings.ContainsAny(strings.TrimSuffix(name, "*"), "* \t\r\n:") {
			return nil, fmt.Errorf("%s %q is neither a name nor the beginning of names and a *", field, name)
		}
		n = append(n, strings.ToLower(name))
	}
	return n, nil
}

// containsName reports whether an element of n equals the given name, ignoring case. Elements that end in * do not
// match here.
func (n namePatterns) containsName(name string) bool {
	for _, other := range n {
		if strings.EqualFold(name, other) {
			return true
		}
	}
	return false
}

// matchesName reports whether an element of n equals the given name, or is a pattern with * that matches the name. Case
// is ignored.
func (n namePatterns) matchesName(name string) bool {
	for _, other := range n {
		prefix, isPrefix := strings.CutSuffix(other, "*")
		if isPrefix && len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
			return true
		}
	}
	return n.containsName(name)
}

// Eligible returns the endpoints to which req may be sent. The set is empty if the URL of req is not within the URL of
// the first endpoint. Otherwise it contains at least the first endpoint.
//
// If req may not be sent to some endpoint, obstacle describes the part of req that prevents it, such as "header
// X-Tenant". If several endpoints are ineligible, obstacle belongs to the last of them. Otherwise obstacle is "".
func (s *Set) Eligible(req *http.Request) (eligible Mask, obstacle string) {
	u, first := req.URL, &s.endpoints[0]
	if u == nil || u.Scheme != first.scheme || u.Opaque != "" || httpattempt.HostName(u.Scheme, u.Host) != first.host {
		return 0, ""
	}
	if req.Host != "" && httpattempt.HostName(u.Scheme, req.Host) != first.host {
		return 0, ""
	}
	rest, ok := first.cutBasePath(u.EscapedPath())
	if !ok || hasDotSegment(rest) {
		return 0, ""
	}
	eligible = 1
	for i := 1; i < len(s.endpoints); i++ {
		if o := s.endpoints[i].ineligibleReason(req, rest); o == "" {
			eligible = eligible.With(i)
		} else {
			obstacle = o
		}
	}
	return eligible, obstacle
}

// ineligibleReason returns "" if the request req may be sent to the endpoint e. Otherwise it describes the part of req
// that prevents it, such as "header X-Tenant". rest is the escaped path of req without the base path of the first
// endpoint.
func (e *endpoint) ineligibleReason(req *http.Request, rest string) string {
	for name := range req.Header {
		if _, ok := e.classifyHeader(name); !ok {
			return "header " + name
		}
	}
	switch {
	case req.URL.User != nil && e.prepare == nil:
		return "user and password in the URL"
	case hasParameters(rest):
		return "; in the path"
	}
	_, obstacle := e.filterQuery(req.URL.RawQuery)
	return obstacle
}

// classifyHeader decides whether e gets the request header with the given name. If isSent is true, the header is sent
// to e. If isSent is false and isEligible is true, the request is sent to e without the header. If isEligible is false,
// the request must not be sent to e at all.
func (e *endpoint) classifyHeader(header string) (isSent, isEligible bool) {
	switch known := textproto.CanonicalMIMEHeaderKey(header); {
	case e.drop.matchesName(header):
		return false, true
	case e.keep.containsName(header):
		return true, true
	case credentialHeaders[known]:
		return false, e.prepare != nil
	case harmlessHeaders[known], e.keep.matchesName(header):
		return true, true
	case removableHeaders[known]:
		return false, true
	}
	return false, false
}

// filterQuery removes from a raw query the parameters that e must not get, and returns the other parameters. If a
// parameter prevents the request from being sent to e, kept is "" and obstacle describes the parameter. Otherwise
// obstacle is "".
func (e *endpoint) filterQuery(raw string) (kept, obstacle string) {
	if strings.Contains(raw, ";") { // some servers read it as &
		return "", "; in the query"
	}
	var parts []string
	for part := range strings.SplitSeq(raw, "&") {
		name, _, hasValue := strings.Cut(part, "=")
		if unescaped, err := url.QueryUnescape(name); err == nil {
			name = unescaped
		}
		switch {
		case part == "" || !e.drop.matchesName(name) && e.keep.matchesName(name):
			parts = append(parts, part)
		case !e.drop.matchesName(name) && !hasValue:
			return "", "a parameter without a value" // the name may be a secret, and would be logged
		case !e.drop.matchesName(name):
			return "", "parameter " + name
		}
	}
	return strings.Join(parts, "&"), ""
}

// hasParameters reports whether an escaped URL path has path parameters, such as ;jsessionid=1. It returns true for a
// path with an invalid escape.
func hasParameters(escaped string) bool {
	path, err := url.PathUnescape(escaped)
	return err != nil || strings.Contains(path, ";")
}
