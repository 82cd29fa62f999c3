package nameservers

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// Config has the settings of a Pool. The zero value has the defaults below.
type Config struct {
	Hedge Hedge

	// NoIPv4 and NoIPv6 disable the address family.
	NoIPv4, NoIPv6 bool

	// PrivateOK allows servers at addresses that are meaningful only in one network.
	PrivateOK bool

	// MaxPerServer and PerZone limit the queries in flight to one server and to all servers of one zone. Further queries
	// wait. Zero: 64 and 256.
	MaxPerServer, MaxPerZone int

	// MaxBytes limits the estimated memory of the tables. Zero: 16 MiB.
	MaxBytes int64

	// Dialer opens connections over "udp" and "tcp". Nil: a net.Dialer.
	Dialer Dialer

	// OnQueryStart is called before a query is sent, and Ended when it was answered or abandoned, both on the goroutine of Query.
	// They may be nil.
	OnQueryStart func(context.Context, Attempt)
	OnQueryEnd   func(context.Context, Attempt, time.Duration, error)
}

// Hedge configures hedges. The fields and defaults are those of recursor.Hedge.
type Hedge struct {
	Off           bool
	Percentile    float64
	BudgetPercent float64
	MaxPerSecond  float64
}

// A Dialer opens connections.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// An Attempt describes a query. The fields are those of recursor.AttemptInfo.
type Attempt struct {
	Name    string
	Type    uint16
	Zone    string
	Server  netip.AddrPort
	TCP     bool
	Attempt int
	Hedge   bool
}
