package endpoint

import (
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"

	"github.com/gohedge/hedge/internal/httpattempt"
)

// What goes to an endpoint is what is known to tell nothing about the caller, what the endpoint keeps by name, and what its Prepare adds.
// A call that has anything else is not sent there: another request could mean something else.

// harmless are headers that say what is asked for, how the answer is to look, and which request it is.
var harmless = set("Accept Accept-Charset Accept-Encoding Accept-Language Cache-Control Connection Content-Encoding Content-Language Content-Length Content-Type " +
	"Dnt Hedge-Attempt Idempotency-Key Keep-Alive Pragma Prefer Priority Range Save-Data User-Agent X-Idempotency-Key " +
	"B3 X-B3-Traceid X-B3-Spanid X-B3-Parentspanid X-B3-Sampled X-B3-Flags Traceparent Tracestate Uber-Trace-Id " +
	"X-Amzn-Trace-Id X-Client-Request-Id X-Cloud-Trace-Context X-Correlation-Id X-Request-Id " +
	"Amz-Sdk-Invocation-Id Amz-Sdk-Request X-Goog-Api-Client X-Amz-Checksum-Mode")

// needless are headers without which a request means the same.
var needless = set("From Referer")

// credentials are headers that Prepare sets anew, if there is one.
var credentials = set("Authorization Cookie Proxy-Authorization Signature Signature-Input " +
	"X-Amz-Content-Sha256 X-Amz-Date X-Amz-Security-Token X-Ms-Date Api-Key X-Api-Key X-Goog-Api-Key Ocp-Apim-Subscription-Key")

func set(names string) map[string]bool {
	all := make(map[string]bool)
	for name := range strings.FieldsSeq(names) {
		all[name] = true
	}
	return all
}

// names are names in lower case; those that end in * stand for all that begin so.
type names []string

func namesOf(field string, given []string) (n names, err error) {
	for _, name := range given {
		if name == "" || strings.ContainsAny(strings.TrimSuffix(name, "*"), "* \t\r\n:") {
			return nil, fmt.Errorf("%s %q is neither a name nor the beginning of names and a *", field, name)
		}
		n = append(n, strings.ToLower(name))
	}
	return n, nil
}

// is reports whether n has a name itself, in any case.
func (n names) is(name string) bool {
	for _, one := range n {
		if strings.EqualFold(name, one) {
			return true
		}
	}
	return false
}

// has reports whether n has a name, in any case, or a beginning of it.
func (n names) has(name string) bool {
	for _, one := range n {
		beginning, open := strings.CutSuffix(one, "*")
		if open && len(name) >= len(beginning) && strings.EqualFold(name[:len(beginning)], beginning) {
			return true
		}
	}
	return n.is(name)
}

// header reports whether a header goes to p, and whether a request can that has it.
func (p *endpoint) header(name string) (goes, ok bool) {
	switch known := textproto.CanonicalMIMEHeaderKey(name); {
	case p.drop.has(name):
		return false, true
	case p.keep.is(name):
		return true, true
	case credentials[known]:
		return false, p.prepare != nil
	case harmless[known], p.keep.has(name):
		return true, true
	case needless[known]:
		return false, true
	}
	return false, false
}

// query returns what of a query goes to p, or the name of a parameter with which a request cannot.
func (p *endpoint) query(raw string) (kept, stays string) {
	if strings.Contains(raw, ";") { // which some servers take for &
		return "", "; in the query"
	}
	var parts []string
	for part := range strings.SplitSeq(raw, "&") {
		name, _, named := strings.Cut(part, "=")
		if read, err := url.QueryUnescape(name); err == nil {
			name = read
		}
		switch {
		case part == "" || !p.drop.has(name) && p.keep.has(name):
			parts = append(parts, part)
		case !p.drop.has(name) && !named:
			return "", "a parameter without a value" // which may be a secret itself
		case !p.drop.has(name):
			return "", "parameter " + name
		}
	}
	return strings.Join(parts, "&"), ""
}

// stays returns why the request, which is for the first endpoint, cannot go to p; "": it can.
func (p *endpoint) stays(req *http.Request, rest string) string {
	for name := range req.Header {
		if _, ok := p.header(name); !ok {
			return "header " + name
		}
	}
	switch {
	case req.URL.User != nil && p.prepare == nil:
		return "user and password in the URL"
	case hasParameters(rest):
		return "; in the path"
	}
	_, stays := p.query(req.URL.RawQuery)
	return stays
}

// hasParameters reports whether a path has parameters, such as ;jsessionid=.
func hasParameters(escaped string) bool {
	path, err := url.PathUnescape(escaped)
	return err != nil || strings.Contains(path, ";")
}

// move makes req, whose URL and header others may have, a request to p instead of to the first endpoint. It leaves the header of that name as
// it is, which is the library's own; "": there is none.
func (p *endpoint) move(req *http.Request, first *endpoint, own string) {
	u := *req.URL
	rest, _ := first.below(u.EscapedPath())
	escaped := p.path + rest
	if path, err := url.PathUnescape(escaped); err == nil {
		u.Path, u.RawPath = path, escaped
	}
	u.Scheme, u.Host, u.User = p.scheme, p.authority, nil
	u.RawQuery, _ = p.query(u.RawQuery)
	header := make(http.Header, len(req.Header))
	for name, values := range req.Header {
		if goes, _ := p.header(name); goes || name == own && own != "" {
			header[name] = append([]string(nil), values...)
		}
	}
	req.URL, req.Header, req.Host = &u, header, p.authority
	httpattempt.CloneForms(req)
}
