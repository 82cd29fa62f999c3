package httpattempt

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gohedge/hedge/internal/race"
)

// Divisible reports whether two copies of req can be under way at once, safe or not: the list
// is of what can. It must have a URL, no body or one that can be kept, and nothing to say after
// that; its header must not bind it to a connection, see [Heading]; and it must have no nonce, nor another credential
// that is good once.
func Divisible(req *http.Request, h Heading, maxBody int64, streams bool) bool {
	if req.URL == nil || req.Method == http.MethodConnect || req.Trailer != nil || len(req.TransferEncoding) > 0 {
		return false
	}
	if HasBody(req) && (req.ContentLength <= 0 || req.ContentLength > maxBody) {
		return false
	}
	return !h.bound && !isSingleUse(req.URL) && (streams || !h.stream)
}

// A Heading is what the header of a request says of sending it twice.
type Heading struct {
	Hedge  int  // the number of the hedge that the request is made for; 0: none
	bound  bool // to one connection, to being sent once, or to an agreement with the server before its body is sent
	stream bool // it asks for an event stream
}

// Marks are the names of the headers in which a hedge says that it is one. Own may be empty.
type Marks struct{ Attempt, Own string }

// read adds what one header says. Names and words have no case, also in a map whose names are not canonical: net/http
// sends them as they are. Most names differ from those asked about in length or in how they begin, which is cheap to see.
func (h *Heading) read(name string, values []string, marks *Marks) {
	if name == "" {
		return
	}
	if is(name, marks.Attempt) || is(name, marks.Own) {
		h.Hedge = max(h.Hedge, race.HedgeNumber(values))
		return
	}
	if isNonce(name) {
		h.bound = true
		return
	}
	switch beginning(name) {
	case beginning("Accept"):
		h.stream = h.stream || is(name, "Accept") && slices.ContainsFunc(values, asksForStream)
	case beginning("Expect"):
		h.bound = h.bound || is(name, "Expect") && len(values) > 0
	case beginning("DPoP"): // RFC 9449
		h.bound = h.bound || is(name, "DPoP")
	case beginning("Signature-Input"): // RFC 9421
		h.bound = h.bound || is(name, "Signature-Input") && slices.ContainsFunc(values, hasNonce)
	case beginning("X-WSSE"):
		h.bound = h.bound || is(name, "X-WSSE") && slices.ContainsFunc(values, hasNonce)
	case beginning("Upgrade"):
		h.bound = h.bound || is(name, "Upgrade") && len(values) > 0
	case beginning("Connection"):
		h.bound = h.bound || is(name, "Connection") && slices.ContainsFunc(values, agrees)
	case beginning("Authorization"):
		h.bound = h.bound || is(name, "Authorization") && slices.ContainsFunc(values, goodOnce)
	case beginning("X-Authorization"):
		h.bound = h.bound || is(name, "X-Authorization") && slices.ContainsFunc(values, goodOnce)
	case beginning("Proxy-Authorization"):
		h.bound = h.bound || is(name, "Proxy-Authorization") && slices.ContainsFunc(values, goodOnce)
	}
}

// beginning is the length and the first letter, in lower case, of a word that is not empty.
func beginning(word string) int { return len(word)<<8 | int(word[0]|0x20) }

// is reports whether s is word, in any case.
func is(s, word string) bool { return len(s) == len(word) && strings.EqualFold(s, word) }

// asksForStream reports whether an Accept header names an event stream.
func asksForStream(accept string) bool {
	const stream = "text/event-stream"
	return len(accept) >= len(stream) && strings.Contains(strings.ToLower(accept), stream)
}

// agrees reports whether a Connection header says more than how long the connection lasts.
func agrees(connection string) bool {
	for option := range strings.SplitSeq(connection, ",") {
		switch strings.ToLower(strings.TrimSpace(option)) {
		case "", "close", "keep-alive":
		default:
			return true
		}
	}
	return false
}

// once are the registered authentication schemes (RFC 9110, section 16.4.1) whose credentials are good for one connection or
// for one request: the server refuses the second of two copies, which may be the primary. Basic, Bearer and vapid are the
// others. A scheme that is not registered is taken to be a secret that stays the same, as it is with Bearer, unless its
// credentials have a nonce.
var once = []string{
	"Concealed", "Digest", "DPoP", "GNAP", "HOBA", "Mutual", "Negotiate", "OAuth", "PrivateToken", "SCRAM-SHA-1", "SCRAM-SHA-256",
	"NTLM", "Nego2", "Kerberos", // Microsoft's, which are not registered
}

// goodOnce reports whether credentials are of a scheme in once.
func goodOnce(credentials string) bool {
	scheme, _, _ := strings.Cut(strings.TrimSpace(credentials), " ")
	if scheme == "Bearer" || scheme == "Basic" { // most are
		return false
	}
	for _, o := range once {
		if is(scheme, o) {
			return true
		}
	}
	return hasNonce(credentials)
}

// hasNonce reports whether a query, a path, credentials or a signature have a parameter, NAME=VALUE, that is a nonce: the server
// refuses the second of two copies.
func hasNonce(params string) bool {
	for {
		name, rest, ok := strings.Cut(params, "=")
		if !ok {
			return false
		}
		name = strings.TrimRight(name, " \t")
		if isNonce(unescape(name[strings.LastIndexAny(name, separators)+1:])) {
			return true
		}
		params = rest
	}
}

// separators stand before the name of a parameter.
const separators = "&;,/? \t\""

// isNonce reports whether a name contains "nonce", in any case: oauth_nonce, noncestr of WeChat, auth[nonce],
// SignatureNonce of Alibaba, X-Ca-Nonce. It looks at every fifth byte as long as that is in no "nonce".
func isNonce(name string) bool {
	for i := 4; i < len(name); {
		switch name[i] | 0x20 {
		case 'e':
			if strings.EqualFold(name[i-4:i+1], "nonce") {
				return true
			}
			i += 5
		case 'c':
			i++
		case 'n':
			i += 2
		case 'o':
			i += 3
		default:
			i += 5
		}
	}
	return false
}

// unescape returns a name without percent-encoding, as far as that is valid.
func unescape(name string) string {
	if strings.IndexByte(name, '%') < 0 {
		return name
	}
	if plain, err := url.QueryUnescape(name); err == nil {
		return plain
	}
	var plain strings.Builder
	for i := 0; i < len(name); i++ {
		if b, err := url.PathUnescape(name[i:min(i+3, len(name))]); name[i] == '%' && err == nil {
			plain.WriteString(b)
			i += 2
			continue
		}
		plain.WriteByte(name[i])
	}
	return plain.String()
}

// isSingleUse reports whether a URL has a nonce, or credentials that are good once by their specification: a ticket of CAS (protocol
// 3.0, section 3.1.1), an authorization code (RFC 6749, section 4.1.2) or verifier (RFC 5849, section 2.2) on its
// way to the client, an answer or artifact of SAML (bindings 2.0, sections 3.4 and 3.6), or a one-time password (RFC 6238, section 5.2).
// So is a grant that some servers take by GET: a grant_type (RFC 6749, section 4), an authorization code with the secret of its client, or
// WeChat's js_code.
func isSingleUse(u *url.URL) bool {
	if hasNonce(u.RawQuery) || hasNonce(u.Path) || hasNonce(u.Opaque) {
		return true
	}
	query := u.RawQuery
	if u.Opaque != "" {
		_, inOpaque, _ := strings.Cut(u.Opaque, "?")
		query = inOpaque + "&" + query
	}
	var code, ofClient bool
	for query != "" {
		var pair string
		if i := strings.IndexAny(query, "&;"); i >= 0 {
			pair, query = query[:i], query[i+1:]
		} else {
			pair, query = query, ""
		}
		name, value, _ := strings.Cut(pair, "=")
		switch name = unescape(name); {
		case is(name, "code"):
			code = true
		case is(name, "state"), is(name, "secret"), is(name, "client_secret"), is(name, "code_verifier"):
			ofClient = true
		case is(name, "ticket"):
			if isTicket(unescape(value)) || validatesTickets(u.Path) {
				return true
			}
		case is(name, "oauth_verifier"), is(name, "SAMLart"), is(name, "SAMLResponse"), is(name, "otp"), is(name, "grant_type"), is(name, "js_code"):
			return true
		}
	}
	return code && ofClient
}

// isTicket reports whether a value is a service ticket or a proxy ticket of CAS.
func isTicket(value string) bool {
	return strings.HasPrefix(value, "ST-") || strings.HasPrefix(value, "PT-")
}

// validatesTickets reports whether a path is one at which a server of CAS validates tickets.
func validatesTickets(path string) bool {
	switch path = strings.TrimRight(path, "/"); path[strings.LastIndexByte(path, '/')+1:] {
	case "validate", "serviceValidate", "proxyValidate":
		return true
	}
	return false
}
