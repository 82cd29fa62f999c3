package httpattempt

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gohedge/hedge/internal/race"
)

// Divisible reports whether two copies of req can be under way at once, safe or not: the list
// is of what can. It must have a URL, no body or one that can be kept, and nothing to say after
// that; its header must not bind it to a connection, see [Heading]; and it must have no nonce.
func Divisible(req *http.Request, h Heading, maxBody int64, streams bool) bool {
	if req.URL == nil || req.Method == http.MethodConnect || req.Trailer != nil || len(req.TransferEncoding) > 0 {
		return false
	}
	if HasBody(req) && (req.ContentLength <= 0 || req.ContentLength > maxBody) {
		return false
	}
	return !h.bound && !hasNonce(req.URL.RawQuery) && (streams || !h.stream)
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

// hasNonce reports whether a query, credentials or a signature have a parameter, NAME=VALUE, that is a nonce: the server refuses
// the second of two copies.
func hasNonce(params string) bool {
	for {
		name, rest, ok := strings.Cut(params, "=")
		switch {
		case !ok:
			return false
		case isNonce(strings.TrimRight(name, " \t")):
			return true
		}
		params = rest
	}
}

// isNonce reports whether a name, with whatever before it, ends as those do of what is good for one request: oauth_nonce,
// SignatureNonce of Alibaba, X-Ca-Nonce.
func isNonce(name string) bool {
	n := len(name)
	return n >= 5 && name[n-2]|0x20 == 'c' && strings.EqualFold(name[n-5:], "nonce")
}
