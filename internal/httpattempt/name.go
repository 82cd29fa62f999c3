package httpattempt

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"unicode/utf8"
)

// HostName returns host, with its port unless that is the scheme's own. All spellings of
// a host have the same name. A name that is not ASCII has the name in ASCII that net/http sends (RFC 5891).
func HostName(scheme, host string) string {
	canonical := !strings.HasPrefix(host, "[")
	for i := range len(host) {
		c := host[i]
		if c >= utf8.RuneSelf {
			return HostName(scheme, toASCII(host))
		}
		canonical = canonical && !(c >= 'A' && c <= 'Z' || c == '.' && (i == len(host)-1 || host[i+1] == ':'))
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

// HostOnly returns host in lower case, without its port and without a dot at its end. An IPv6 address has its canonical text, in
// brackets.
func HostOnly(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = toASCII(host)
	addr := canonicalAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if strings.Contains(addr, ":") {
		return "[" + addr + "]"
	}
	return strings.TrimSuffix(addr, ".")
}

// toASCII returns the A-labels of a host and its port (RFC 5891), if the host is not ASCII. It has them from the Host field that net/http
// writes, because no other function of the standard library converts names. It returns a host that net/http does not send with every byte
// above ASCII escaped.
func toASCII(host string) string {
	if !strings.ContainsFunc(host, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return host
	}
	var written bytes.Buffer
	if (&http.Request{URL: &url.URL{Scheme: "http", Host: strings.ToLower(host)}}).Write(&written) == nil {
		if sent, err := http.ReadRequest(bufio.NewReader(&written)); err == nil && sent.Host != "" {
			return sent.Host
		}
	}
	return url.PathEscape(host)
}

// canonicalAddr returns the canonical text (RFC 5952) of an IPv6 address, whose zone may be escaped as in a URL. It returns another
// name in lower case.
func canonicalAddr(name string) string {
	name = strings.ToLower(strings.Replace(name, "%25", "%", 1))
	if a, err := netip.ParseAddr(name); err == nil && a.Is6() {
		return a.String()
	}
	return name
}
