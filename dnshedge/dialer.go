package dnshedge

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
)

// A Dialer opens connections. It is implemented by *net.Dialer.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// CompleteNames returns a Dialer that appends the final dot to host names with a dot, so that resolvers do not append
// search domains, and connects through d. A nil d is a net.Dialer with Go's own resolver.
//
//	transport.DialContext = dnshedge.CompleteNames(&net.Dialer{Resolver: client.Resolver()}).DialContext
//
// Names with a dot that need a search domain, such as api.default, are not found. With the C library's resolver,
// neither are names with a dot in /etc/hosts.
func CompleteNames(d Dialer) Dialer {
	if d == nil {
		d = &net.Dialer{Resolver: &net.Resolver{PreferGo: true}}
	}
	return completeNamesDialer{d}
}

// A completeNamesDialer appends the final dot to host names with a dot, and then dials through its Dialer.
// CompleteNames returns it.
type completeNamesDialer struct{ Dialer }

func (d completeNamesDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	isPath := strings.HasPrefix(network, "unix")
	if _, notIP := netip.ParseAddr(host); !isPath && err == nil && notIP != nil && strings.Contains(host, ".") && !strings.HasSuffix(host, ".") {
		address = net.JoinHostPort(host+".", port)
	}
	return d.Dialer.DialContext(ctx, network, address)
}

// A dialConfig holds the settings with which a Client connects to its upstreams: the Dialer, the TLS configuration and
// the TLS sessions. Its fields do not change.
type dialConfig struct {
	with     Dialer                 // nil: a net.Dialer
	conf     *tls.Config            // Client.TLSConfig; may be nil
	sessions tls.ClientSessionCache // used unless conf has a session cache
}

// newDialer returns the Dialer for connections to an upstream: the Client's Dialer, or a net.Dialer if it has none. If
// the upstream's host is a name and Upstream.Addrs is empty, the Dialer is wrapped in a bootstrapDialer, because the
// name must be resolved.
func (d *dialConfig) newDialer(up Upstream) Dialer {
	with := d.with
	if with == nil {
		with = new(net.Dialer)
	}
	host, _, err := net.SplitHostPort(up.Addr)
	if _, bad := netip.ParseAddr(host); err == nil && bad == nil || len(up.Addrs) > 0 {
		return with
	}
	_, plain := with.(*net.Dialer)
	return &bootstrapDialer{Dialer: with, config: d, remembers: plain}
}

// rememberAddress is how long the address that a name resolved to is dialled instead of the name.
const rememberAddress = time.Minute

// dialRemembered limits a dial to the remembered address. After that the name is resolved again. A net.Dialer waits as
// long before it tries the second address of a name (RFC 8305 §5).
const dialRemembered = 300 * time.Millisecond

// A bootstrapDialer dials an upstream whose host is a name. The context of its dials makes Client.Dial fail, so that
// the name is not resolved through the upstream itself. If Dialer is a net.Dialer, the address of a successful dial is
// reused for one minute.
type bootstrapDialer struct {
	Dialer
	config    *dialConfig // configuration of the Client of the upstream
	remembers bool        // Dialer is a net.Dialer; others may connect to a proxy, whose address is not stored

	mu             sync.Mutex // guards the fields below
	rememberedAddr string     // the remembered address; empty: none
	until          time.Time
}

func (d *bootstrapDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if at := d.rememberedAddress(); at != "" {
		short, cancel := context.WithTimeout(ctx, dialRemembered)
		conn, err := d.Dialer.DialContext(short, network, at)
		cancel()
		if err == nil {
			return conn, nil
		}
		d.remember("")
		if ctx.Err() != nil {
			return nil, err
		}
	}
	conn, err := d.Dialer.DialContext(context.WithValue(ctx, bootstrapKey{}, &bootstrapMarker{d.config, bootstrapFromContext(ctx)}), network, address)
	if err != nil {
		return nil, err
	}
	if d.remembers {
		if to := conn.RemoteAddr(); to != nil { // it is nil if the connection is reset already
			d.remember(to.String())
		}
	}
	return conn, nil
}

// Forget removes the remembered address of the upstream, because a handshake with it has failed. The next dial resolves
// the upstream's name again.
func (d *bootstrapDialer) Forget() { d.remember("") }

func (d *bootstrapDialer) rememberedAddress() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().After(d.until) {
		d.rememberedAddr = ""
	}
	return d.rememberedAddr
}

func (d *bootstrapDialer) remember(at string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rememberedAddr, d.until = at, time.Now().Add(rememberAddress)
}

type bootstrapKey struct{}

// A bootstrapMarker is a value in the context of a dial to an upstream whose host is a name. It makes Client.Dial fail
// for the Client of the upstream: the query for the name would wait for the dial, and the dial for the query.
type bootstrapMarker struct {
	by   *dialConfig      // identifies the Client that has the upstream
	from *bootstrapMarker // the lookup of another upstream's name during which this lookup is made; nil: none
}

func bootstrapFromContext(ctx context.Context) *bootstrapMarker {
	b, _ := ctx.Value(bootstrapKey{}).(*bootstrapMarker)
	return b
}

// isResolvingUpstream reports whether ctx is the context of a dial that resolves the name of an upstream of this
// Client. Client.Dial must fail under ctx, because a query would wait for the connection to the upstream, and the dial
// for the query.
func (d *dialConfig) isResolvingUpstream(ctx context.Context) bool {
	for b := bootstrapFromContext(ctx); b != nil; b = b.from {
		if b.by == d {
			return true
		}
	}
	return false
}

// newTLSConfig returns the TLS configuration for connections to an upstream: a copy of Client.TLSConfig with the
// server's name, the pinned keys, and the session cache that all upstreams share.
func (d *dialConfig) newTLSConfig(up Upstream) *tls.Config {
	t := d.conf.Clone()
	if t == nil {
		t = new(tls.Config)
	}
	if up.ServerName != "" {
		t.ServerName = up.ServerName
	} else if t.ServerName == "" {
		host, _, _ := net.SplitHostPort(up.Addr)
		t.ServerName = strings.TrimSuffix(host, ".")
	}
	if t.ClientSessionCache == nil {
		t.ClientSessionCache = d.sessions
	}
	if len(up.Pins) > 0 {
		pinCertificate(t, up.Pins)
	}
	usercode.GuardTLS(t)
	return t
}

// pinCertificate makes handshakes with t fail if the server has no pinned public key. keys are base64 SHA-256 hashes. A
// key in a verified chain matches, or the key of the server's own certificate. If t.ServerName is an IP address,
// the pin replaces verification.
func pinCertificate(t *tls.Config, keys []string) {
	if _, err := netip.ParseAddr(t.ServerName); err == nil {
		t.InsecureSkipVerify = true // the pin identifies the server
	}
	check := t.VerifyConnection
	t.VerifyConnection = func(s tls.ConnectionState) error {
		if check != nil {
			if err := check(s); err != nil {
				return err
			}
		}
		own := publicKeyPin(s.PeerCertificates[0])
		found := slices.Contains(keys, own)
		for _, chain := range s.VerifiedChains { // empty without verification: the server has not proven that it has other keys
			found = found || slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return slices.Contains(keys, publicKeyPin(c)) })
		}
		if !found {
			return fmt.Errorf("dnshedge: the server has none of the pinned keys; its own is %s", own)
		}
		return nil
	}
}

// publicKeyPin returns the pin of a certificate's public key: the SHA-256 hash of its SubjectPublicKeyInfo in base64
// (RFC 7858 §4.2).
func publicKeyPin(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(sum[:])
}
