package nameservers

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// Config configures a Pool. In the zero value, each field has its default.
type Config struct {
	Hedge Hedge // Hedge configures hedges.

	// NoIPv4 and NoIPv6 disable queries over an address family.
	NoIPv4, NoIPv6 bool

	// PrivateOK allows queries to private addresses, see recursor.Resolver.PrivateOK.
	PrivateOK bool

	// MaxPerServer and MaxPerZone limit the number of queries in flight to one server, and to all servers of one zone.
	// Further queries wait for a slot. 0 means 64 and 256.
	MaxPerServer, MaxPerZone int

	// MaxBytes limits the estimated memory of the Pool's tables, in bytes. 0 means 16 MiB.
	MaxBytes int64

	// Dialer opens connections to servers, with the networks "udp" and "tcp". Nil means a net.Dialer.
	Dialer Dialer

	// OnQueryStart is called before a query is sent. OnQueryEnd is called when the query was answered, has failed or was
	// abandoned, with its duration and error. Both run on the goroutine that called QueryServers. They may be nil.
	OnQueryStart func(context.Context, Attempt)
	OnQueryEnd   func(context.Context, Attempt, time.Duration, error)
}

// Hedge configures hedges. The fields and their defaults are those of recursor.Hedge.
type Hedge struct {
	Off           bool
	Percentile    float64
	BudgetPercent float64
	MaxPerSecond  float64
}

// A Dialer opens connections to name servers. *net.Dialer implements it. It must be safe for concurrent use.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// An Attempt describes one query to one server, for OnQueryStart and OnQueryEnd. The fields are those of
// recursor.AttemptInfo.
type Attempt struct {
	Name    string
	Type    uint16
	Zone    string
	Server  netip.AddrPort
	TCP     bool
	Attempt int
	Hedge   bool
}
