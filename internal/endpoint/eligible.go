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

// harmlessHeaders are request headers that any endpoint may get. They select a representation or identify the request,
// and contain no secret.
var harmlessHeaders = headerSet("Accept Accept-Charset Accept-Encoding Accept-Language Cache-Control Connection Content-Encoding Content-Language Content-Length Content-Type " +
	"Dnt Hedge-Attempt Idempotency-Key Keep-Alive Pragma Prefer Priority Range Save-Data User-Agent X-Idempotency-Key " +
	"B3 X-B3-Traceid X-B3-Spanid X-B3-Parentspanid X-B3-Sampled X-B3-Flags Traceparent Tracestate Uber-Trace-Id " +
	"X-Amzn-Trace-Id X-Client-Request-Id X-Cloud-Trace-Context X-Correlation-Id X-Request-Id " +
	"Amz-Sdk-Invocation-Id Amz-Sdk-Request X-Goog-Api-Client X-Amz-Checksum-Mode")

// removableHeaders are request headers without effect on the response. They identify the caller, so they are removed
// for another endpoint.
var removableHeaders = headerSet("From Referer")

// credentialHeaders are removed for an endpoint with a Prepare function, which sets credentials of its own. A request
// with one of these headers is not eligible for an endpoint without a Prepare.
var credentialHeaders = headerSet("Authorization Cookie Proxy-Authorization Signature Signature-Input " +
	"X-Amz-Content-Sha256 X-Amz-Date X-Amz-Security-Token X-Ms-Date Api-Key X-Api-Key X-Goog-Api-Key Ocp-Apim-Subscription-Key")

func headerSet(names string) map[string]bool {
	all := make(map[string]bool)
	for name := range strings.FieldsSeq(names) {
		all[name] = true
	}
	return all
}

// A namePatterns value lists names of headers and query parameters in lower case. A trailing * matches any rest of the
// name.
type namePatterns []string

// parseNames validates the names in the field Keep or Drop of a [Config], and converts them to lower case.
func parseNames(field string, given []string) (n namePatterns, err error) {
	for _, name := range given {
		if name == "" || strings.ContainsAny(strings.TrimSuffix(name, "*"), "* \t\r\n:") {
			return nil, fmt.Errorf("%s %q is neither a name nor the beginning of names and a *", field, name)
		}
		n = append(n, strings.ToLower(name))
	}
	return n, nil
}

// containsName reports whether n lists the full name, ignoring case. It ignores patterns with *.
func (n namePatterns) containsName(name string) bool {
	for _, other := range n {
		if strings.EqualFold(name, other) {
			return true
		}
	}
	return false
}

// matchesName reports whether a name or pattern in n matches the given name, ignoring case.
func (n namePatterns) matchesName(name string) bool {
	for _, other := range n {
		prefix, isPrefix := strings.CutSuffix(other, "*")
		if isPrefix && len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
			return true
		}
	}
	return n.containsName(name)
}

// Eligible returns the endpoints to which req may be sent. The set is empty if the URL of req is not below the URL of
// the first endpoint; otherwise it contains the first endpoint. If an endpoint is not eligible, obstacle describes a
// reason, such as "header X-Tenant".
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
		if o := s.endpoints[i].findObstacle(req, rest); o == "" {
			eligible = eligible.With(i)
		} else {
			obstacle = o
		}
	}
	return eligible, obstacle
}

// findObstacle returns the reason why req must not be sent to e, or "" if it may be sent. The argument rest is the path
// of req after the base path of the first endpoint.
func (e *endpoint) findObstacle(req *http.Request, rest string) string {
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

// classifyHeader decides about a request header of the given name. The result isSent reports whether e gets the header.
// The result isEligible reports whether a request with the header may be sent to e at all.
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

// filterQuery returns the parameters of a raw query that e gets. If the request must not be sent to e because of a
// parameter, it returns "" and a description of the obstacle.
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

// hasParameters reports whether an escaped path has path parameters, such as ;jsessionid=1. It is true for an invalid
// escape.
func hasParameters(escaped string) bool {
	path, err := url.PathUnescape(escaped)
	return err != nil || strings.Contains(path, ";")
}
