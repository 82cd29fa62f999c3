package dnshedge

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gohedge/hedge/dnshedge/internal/group"
	"github.com/gohedge/hedge/dnshedge/internal/lookup"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/internal/redact"
)

// Upstream is a DNS server to which queries are sent. ParseUpstream creates an Upstream from a string, and String
// converts it back.
type Upstream struct {
	// Net is the transport: "udp" (and TCP for answers that do not fit a datagram), "tcp", "tls" (DNS over TLS, RFC
	// 7858), "https" (DNS over HTTPS, RFC 8484), or the Scheme of a Protocol that is registered with RegisterProtocol.
	// Empty: "udp".
	Net string

	// Addr is the server's host and port. If the host is a name, the Client's Dialer resolves it for every connection.
	// The Client sends no query for this name. With a net.Dialer, the address found is used again for a minute. Set
	// Addrs to avoid the lookup.
	Addr string

	// Addrs, if not empty, lists the addresses to connect to instead of Addr's host, with Addr's port. The first
	// address is used until it cannot be reached, or until a hedge to another address is faster.
	Addrs []netip.Addr

	// ServerName is the name in the certificate of a "tls" or "https" server. Empty: Addr's host.
	ServerName string

	// Path is the URL path of an "https" server, or of a registered Protocol with a Path, in escaped form. It must
	// begin with "/". Empty: "/dns-query", or the Path of the Protocol.
	Path string

	// Post sends the queries to an "https" server as POST requests, which HTTP caches do not answer. By default they
	// are GET requests (RFC 8484 §4.1).
	Post bool

	// Pins, if not empty, lists public keys. A "tls" or "https" server must have one of them, in its own certificate or
	// in its verified chain. A pin is the SHA-256 hash of the SubjectPublicKeyInfo in base64 (RFC 7858 §4.2).
	//
	// The certificate is verified as well. If the server's name is an IP address, only the key of the server's own
	// certificate is checked.
	Pins []string

	// TrustAD says that the server validates (DNSSEC), and that its answers cannot be changed on the way. That holds,
	// for example, for a server on this machine or over TLS.
	//
	// If TrustAD is set, an NXDOMAIN answer with the AD bit also holds for all names below its name (RFC 8020), and the
	// Client does not send queries for these names. By default it sends them.
	TrustAD bool
}

const (
	defaultNet = "udp" // of a server whose address has no scheme
	streamNet  = "tcp" // of the servers in resolv.conf if it has the option use-vc

	trustAD = "trust-ad" // as in resolv.conf
)

// joinSchemeNames lists the names of the transport schemes for which has returns true, for an error message. suffix
// follows each name, and conjunction precedes the last name. With the conjunction "or", the result is like "udp, tcp or
// tls".
func joinSchemeNames(suffix, conjunction string, has func(transport.Scheme) bool) string {
	var names []string
	for _, s := range transport.Schemes() {
		if has(s) {
			names = append(names, s.Name+suffix)
		}
	}
	last := len(names) - 1
	if last <= 0 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " " + conjunction + " " + names[last]
}

func hasScheme(transport.Scheme) bool { return true }

// ParseUpstream parses the address of an upstream:
//
//	192.0.2.1                            UDP, port 53
//	192.0.2.1:5353   [2001:db8::1]:53    UDP
//	udp://192.0.2.1  tcp://192.0.2.1:53
//	tls://192.0.2.1:853#dns.example      the certificate's name after the #
//	https://dns.example/dns-query
//	tls://192.0.2.1#dns.example;pin=...  also sets Pins; pin= may be repeated
//	https://dns.example#;post            sets Post
//	udp://127.0.0.1#;trust-ad            sets TrustAD
//
// With a scheme, which may be that of a registered Protocol, the host may be a name. Options are separated by
// semicolons. The default port is 53 for udp and tcp, 853 for tls, and 443 for https. Names and pins need TLS, and post
// needs a scheme with a Path, such as https.
func ParseUpstream(s string) (Upstream, error) {
	u, err := parseUpstream(s)
	if err != nil && strings.Contains(s, "@") { // and err may have a part of a password
		err = errors.New("user information has no place here")
	}
	if err != nil {
		return Upstream{}, fmt.Errorf("dnshedge: upstream %q: %v", redact.URL(s), err)
	}
	return u, nil
}

func parseUpstream(s string) (u Upstream, err error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return parseAddress(s)
	}
	u.Net = strings.ToLower(scheme)
	known, ok := transport.FindScheme(u.Net)
	if !ok {
		return u, fmt.Errorf("scheme %q; want %s", scheme, joinSchemeNames("", "or", hasScheme))
	}
	rest, fragment, ok := strings.Cut(rest, "#")
	if err := u.parseFragment(fragment, ok, known); err != nil {
		return u, err
	}
	if known.Path != "" {
		if rest, err = u.parsePath(rest, known); err != nil {
			return u, err
		}
	}
	host, port, err := splitHostPort(rest)
	u.Addr = net.JoinHostPort(host, cmp.Or(port, known.Port))
	return u, err
}

// parseAddress parses an upstream without a scheme: an IP address with an optional port.
func parseAddress(s string) (Upstream, error) {
	if ip, err := netip.ParseAddr(s); err == nil && isValidHost(s) {
		known, _ := transport.FindScheme(defaultNet)
		return Upstream{Net: defaultNet, Addr: net.JoinHostPort(ip.String(), known.Port)}, nil
	}
	ap, err := netip.ParseAddrPort(s)
	switch {
	case err != nil || !isValidHost(ap.Addr().String()):
		return Upstream{}, fmt.Errorf("want an IP address, one with a port, or %s and a host", joinSchemeNames("://", "or", hasScheme))
	case ap.Port() == 0:
		return Upstream{}, errors.New("port 0")
	}
	return Upstream{Net: defaultNet, Addr: ap.String()}, nil
}

// parseFragment parses the part of an address after #, such as "dns.example;post", and stores the certificate's name
// and options in u. hasFragment is true if there is a #; then the part must not be empty. Names and options that the
// scheme lacks are errors.
func (u *Upstream) parseFragment(fragment string, hasFragment bool, scheme transport.Scheme) error {
	name, options, more := strings.Cut(fragment, ";")
	u.ServerName = name
	for more {
		var o string
		o, options, more = strings.Cut(options, ";")
		pin, isPin := strings.CutPrefix(o, "pin=")
		switch {
		case isPin && isValidPin(pin):
			u.Pins = append(u.Pins, pin)
		case isPin:
			return fmt.Errorf("pin %q; want 32 bytes in base64", pin)
		case o == "post" && scheme.Path != "" && !u.Post:
			u.Post = true
		case o == trustAD && !u.TrustAD:
			u.TrustAD = true
		default:
			return fmt.Errorf("option %q; want pin=..., trust-ad, or post for https", o)
		}
	}
	switch {
	case hasFragment && u.ServerName == "" && u.Pins == nil && !u.Post && !u.TrustAD:
		return errors.New("empty name behind #")
	case !scheme.TLS && (u.ServerName != "" || u.Pins != nil):
		return fmt.Errorf("a name behind # is for %s", joinSchemeNames("", "and", func(s transport.Scheme) bool { return s.TLS }))
	case u.ServerName != "" && !isValidHost(u.ServerName):
		return fmt.Errorf("name %q behind #", u.ServerName)
	}
	return nil
}

// parsePath parses rest, the part of an address between scheme and #. It stores the URL path, or the scheme's default
// path, in u, and returns the host and port. User information, a query, an IPv6 zone and an invalid URL are errors.
func (u *Upstream) parsePath(rest string, scheme transport.Scheme) (hostPort string, err error) {
	p, err := url.Parse(u.Net + "://" + rest)
	failed := (*url.Error)(nil)
	switch {
	case errors.As(err, &failed):
		return "", failed.Err // failed has the whole query
	case strings.Contains(p.Host, "%"):
		return "", errors.New("an IPv6 zone has no place in a URL")
	case p.User != nil:
		return "", errors.New("user information has no place here")
	case p.RawQuery != "" || p.ForceQuery:
		return "", errors.New("a query has no place here")
	}
	if u.Path = p.EscapedPath(); u.Path == "" || u.Path == "/" {
		u.Path = scheme.Path
	}
	return p.Host, nil
}

// splitHostPort splits s into a host and a port, which may be missing. It returns an error if the host is neither an IP
// address nor a valid host name, or if the port is not a number from 1 to 65535.
func splitHostPort(s string) (host, port string, err error) {
	host = s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		host = s[1 : len(s)-1]
	}
	ip, err := netip.ParseAddr(host)
	if err != nil && strings.Contains(s, ":") {
		if host, port, err = net.SplitHostPort(s); err != nil {
			return "", "", err
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", "", fmt.Errorf("port %q; want 1 to 65535", port)
		}
		ip, err = netip.ParseAddr(host)
	}
	switch {
	case !isValidHost(host):
		return "", "", fmt.Errorf("host %q", host)
	case err == nil:
		host = ip.String()
	}
	return host, port, nil
}

// isValidHost reports whether s is an IP address or a valid host name.
func isValidHost(s string) bool {
	if ip, err := netip.ParseAddr(s); err == nil {
		return ip.Zone() == "" || isValidHost(ip.Zone())
	}
	return lookup.IsHostName(s)
}

// String returns the upstream in the form that ParseUpstream reads. It omits Addrs.
func (u Upstream) String() string {
	s := cmp.Or(u.Net, defaultNet) + "://" + u.Addr + u.urlPath()
	options := u.ServerName
	for _, pin := range u.Pins {
		options += ";pin=" + pin
	}
	if u.Post {
		options += ";post"
	}
	if u.TrustAD {
		options += ";" + trustAD
	}
	if options != "" {
		s += "#" + options
	}
	return s
}

// isValidPin reports whether s has the form of a pin, which identifies a public key of a server (see Upstream.Pins): a
// SHA-256 hash in base64.
func isValidPin(s string) bool {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	return err == nil && len(b) == sha256.Size && !strings.ContainsAny(s, "\r\n")
}

// identityKey returns a string that is equal for upstreams with the same settings. Unlike String, it includes Addrs.
func (u Upstream) identityKey() string {
	s := u.String()
	for i, a := range u.Addrs {
		sep := ","
		if i == 0 {
			sep = " at "
		}
		s += sep + a.String()
	}
	return s
}

// transportScheme returns the scheme of the transport in the field Net, such as udp or https, and true. It returns false
// if no transport has that name.
func (u Upstream) transportScheme() (transport.Scheme, bool) {
	return transport.FindScheme(cmp.Or(u.Net, defaultNet))
}

// urlPath returns the URL path of the server: the field Path, or its default. It is empty for a transport without URLs,
// such as UDP.
func (u Upstream) urlPath() string {
	s, _ := u.transportScheme()
	if s.Path == "" {
		return ""
	}
	return cmp.Or(u.Path, s.Path)
}

// validate returns an error that names the first invalid field, or nil.
func (u Upstream) validate() error {
	known, ok := u.transportScheme()
	if !ok {
		return fmt.Errorf("dnshedge: upstream %s: Net %q; want %s", u.Addr, u.Net, joinSchemeNames("", "or", hasScheme))
	}
	host, port, err := net.SplitHostPort(u.Addr)
	if err != nil {
		return fmt.Errorf("dnshedge: upstream %s: Addr: %w", u, err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("dnshedge: upstream %s: port %q; want 1 to 65535", u, port)
	}
	if !isValidHost(host) && len(u.Addrs) == 0 {
		return fmt.Errorf("dnshedge: upstream %s: host %q", u, host)
	}
	for _, pin := range u.Pins {
		if !known.TLS || !isValidPin(pin) {
			return fmt.Errorf("dnshedge: upstream %s: Pins: %q; want 32 bytes in base64, for %s", u, pin,
				joinSchemeNames("", "and", func(s transport.Scheme) bool { return s.TLS }))
		}
	}
	if u.Post && known.Path == "" {
		return fmt.Errorf("dnshedge: upstream %s: Post is for https", u)
	}
	if known.Path != "" && u.urlPath()[0] != '/' {
		return fmt.Errorf("dnshedge: upstream %s: Path %q does not begin with /", u, u.Path)
	}
	if _, err := url.PathUnescape(u.Path); err != nil || strings.ContainsAny(u.Path, "?#") {
		return fmt.Errorf("dnshedge: upstream %s: Path %q; want the path of a URL, without a query", u, u.Path)
	}
	return nil
}

// isLoopback reports whether the server runs on this machine: every address in Addrs is a loopback address. If Addrs is
// empty, the host of Addr must be a loopback address or the name localhost.
func (u Upstream) isLoopback() bool {
	addrs := u.Addrs
	if len(addrs) == 0 {
		host, _, _ := net.SplitHostPort(u.Addr)
		ip, err := netip.ParseAddr(host)
		if err != nil {
			return host == "localhost"
		}
		addrs = []netip.Addr{ip}
	}
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !a.Unmap().IsLoopback() })
}

// upstreamOf returns the Upstream from which the Client has created the server s.
func upstreamOf(s *group.Server) Upstream { return *s.Upstream.(*Upstream) }
