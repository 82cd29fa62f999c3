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
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
)

// A Dialer opens connections. *net.Dialer is one.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// dialConfig is how the servers of a Client are connected to. Its fields never change.
type dialConfig struct {
	with     Dialer // nil: a net.Dialer
	conf     *tls.Config
	sessions tls.ClientSessionCache // unless conf has one
}

// dialerFor returns the Dialer for connections to an upstream.
func (d *dialConfig) dialerFor(up Upstream) Dialer {
	with := d.with
	if with == nil {
		with = new(net.Dialer)
	}
	host, _, err := net.SplitHostPort(up.Addr)
	if _, bad := netip.ParseAddr(host); err == nil && bad == nil || len(up.Addrs) > 0 {
		return with
	}
	_, plain := with.(*net.Dialer)
	return &bootstrapDialer{Dialer: with, own: d, remembers: plain}
}

// rememberAddress is how long the address that a name led to is dialled instead of the
// name.
const rememberAddress = time.Minute

// dialRemembered is how long that address has to itself, before the name is dialled, which may lead to others: as long as the
// first address of a name has with a net.Dialer (RFC 8305 §5).
const dialRemembered = 300 * time.Millisecond

// bootstrapDialer dials an upstream whose address is a name. It marks the context
// under which the name is resolved, so that Client.Dial refuses to resolve it through the
// upstream itself. Other Clients may. An address that a net.Dialer found is used for a minute, and
// forgotten if it cannot be reached at once, or a handshake fails there. The remote address of a connection
// of another Dialer may be that of a proxy, or unknown: that Dialer is given the name for each connection.
type bootstrapDialer struct {
	Dialer
	own       *dialConfig
	remembers bool // the Dialer is a net.Dialer

	mu    sync.Mutex // guards the fields below
	found string     // empty: no address is remembered
	until time.Time
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
	conn, err := d.Dialer.DialContext(context.WithValue(ctx, bootstrapKey{}, &bootstrap{d.own, bootstrapFromContext(ctx)}), network, address)
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

// Forget makes the next connection resolve the name.
func (d *bootstrapDialer) Forget() { d.remember("") }

func (d *bootstrapDialer) rememberedAddress() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().After(d.until) {
		d.found = ""
	}
	return d.found
}

func (d *bootstrapDialer) remember(at string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found, d.until = at, time.Now().Add(rememberAddress)
}

type bootstrapKey struct{}

// bootstrap is the Client whose upstream's name is being looked up, and the lookup that asked for it.
type bootstrap struct {
	by   *dialConfig
	from *bootstrap // nil: none
}

func bootstrapFromContext(ctx context.Context) *bootstrap {
	b, _ := ctx.Value(bootstrapKey{}).(*bootstrap)
	return b
}

// isResolvingUpstream reports whether an upstream of this Client has its name resolved under ctx.
func (d *dialConfig) isResolvingUpstream(ctx context.Context) bool {
	for b := bootstrapFromContext(ctx); b != nil; b = b.from {
		if b.by == d {
			return true
		}
	}
	return false
}

// tlsConfigFor returns the TLS configuration of connections to an upstream.
func (d *dialConfig) tlsConfigFor(up Upstream) *tls.Config {
	t := d.conf.Clone()
	if t == nil {
		t = new(tls.Config)
	}
	if up.ServerName != "" || t.ServerName == "" {
		t.ServerName = up.serverName()
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

// pinCertificate makes handshakes fail if the server has none of the keys. Of a chain that is not
// verified only the first certificate counts, because the server has not shown that it
// has the keys of the others.
func pinCertificate(t *tls.Config, keys []string) {
	if _, err := netip.ParseAddr(t.ServerName); err == nil {
		t.InsecureSkipVerify = true // the pin is what identifies the server
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
		for _, chain := range s.VerifiedChains {
			found = found || slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return slices.Contains(keys, publicKeyPin(c)) })
		}
		if !found {
			return fmt.Errorf("dnshedge: the server has none of the pinned keys; its own is %s", own)
		}
		return nil
	}
}

// publicKeyPin returns a certificate's key as Upstream.Pins has it.
func publicKeyPin(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(sum[:])
}
