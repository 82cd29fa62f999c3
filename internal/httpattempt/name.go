package httpattempt

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"unicode/utf8"
)

// HostName returns the canonical form of host, which may contain a port. All spellings of a host have the same
// canonical form. It is in lower case and ASCII (RFC 5891), and has no trailing dot. The port is removed if it is the
// default port of the scheme.
func HostName(scheme, host string) string {
	canonical, ascii := !strings.HasPrefix(host, "["), true
	for i := range len(host) {
		switch c := host[i]; {
		case c >= 'a' && c <= 'z': // most bytes; the other cases are slower
		case c >= 'A' && c <= 'Z', c == '.' && (i == len(host)-1 || host[i+1] == ':'):
			canonical = false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	if !ascii {
		if name, ok := toASCII(host); ok {
			return HostName(scheme, name)
		}
	}
	switch scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	if canonical {
		return host
	}
	if end := strings.LastIndexByte(host, ']'); host[0] == '[' && end > 0 {
		return "[" + canonicalAddr(host[1:end]) + "]" + host[end+1:]
	}
	name, port, ok := strings.Cut(host, ":")
	host = strings.TrimSuffix(name, ".")
	if ok {
		host += ":" + port
	}
	return strings.ToLower(host)
}

// HostOnly returns the canonical form of host without its port: lower case, ASCII, and no trailing dot. An IPv6 address
// is in brackets.
func HostOnly(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if name, ok := toASCII(host); ok {
		host = name
	}
	addr := canonicalAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if strings.Contains(addr, ":") {
		return "[" + addr + "]"
	}
	return strings.TrimSuffix(addr, ".")
}

// toASCII converts an internationalized host name, with an optional port, to ASCII (A-labels, RFC 5891). The result ok
// is false if host is already ASCII, is not valid UTF-8, or cannot be converted.
//
// The standard library exports no function for this conversion. So toASCII lets net/http write a request and reads the
// Host header.
func toASCII(host string) (name string, ok bool) {
	if !strings.ContainsFunc(host, func(r rune) bool { return r >= utf8.RuneSelf }) || !utf8.ValidString(host) {
		return "", false
	}
	var written strings.Builder
	if (&http.Request{URL: &url.URL{Scheme: "http", Host: strings.ToLower(host)}}).Write(&written) != nil {
		return "", false
	}
	_, fields, _ := strings.Cut(written.String(), "\r\nHost: ")
	name, _, ok = strings.Cut(fields, "\r\n")
	return name, ok && name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf })
}

// canonicalAddr returns the canonical text (RFC 5952) of an IPv6 address, whose zone may be percent-encoded. If name is
// not an IPv6 address, canonicalAddr returns it in lower case.
func canonicalAddr(name string) string {
	name = strings.ToLower(strings.Replace(name, "%25", "%", 1))
	if a, err := netip.ParseAddr(name); err == nil && a.Is6() {
		return a.String()
	}
	return name
}
