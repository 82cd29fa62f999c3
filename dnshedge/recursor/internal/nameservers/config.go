package nameservers

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// Config configures a Pool. The zero value has the defaults below.
type Config struct {
	Hedge Hedge

	// NoIPv4 and NoIPv6 disable the address family.
	NoIPv4, NoIPv6 bool

	// PrivateOK allows queries to private addresses, see recursor.Resolver.PrivateOK.
	PrivateOK bool

	// MaxPerServer and MaxPerZone limit the queries in flight to one server and to all servers of one zone. Further
	// queries wait. Zero: 64 and 256.
	MaxPerServer, MaxPerZone int

	// MaxBytes limits the estimated memory of the tables. Zero: 16 MiB.
	MaxBytes int64

	// Dialer opens connections over "udp" and "tcp". Nil: a net.Dialer.
	Dialer Dialer

	// OnQueryStart is called before a query is sent. OnQueryEnd is called when the query was answered or abandoned,
	// with its duration and error. Both run on the goroutine that called QueryServers. They may be nil.
	OnQueryStart func(context.Context, Attempt)
	OnQueryEnd   func(context.Context, Attempt, time.Duration, error)
}

// Hedge configures hedges. recursor.Hedge documents the fields and their defaults.
type Hedge struct {
	Off           bool
	Percentile    float64
	BudgetPercent float64
	MaxPerSecond  float64
}

// A Dialer opens connections to name servers. *net.Dialer implements it.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// An Attempt describes one query to one server. recursor.AttemptInfo documents the fields.
type Attempt struct {
	Name    string
	Type    uint16
	Zone    string
	Server  netip.AddrPort
	TCP     bool
	Attempt int
	Hedge   bool
}
