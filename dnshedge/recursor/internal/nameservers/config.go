package nameservers

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// Config says how a Fleet asks. The zero value has the defaults below.
type Config struct {
	Hedge Hedge

	// NoIPv4 and NoIPv6 keep it from asking servers at addresses of that family.
	NoIPv4, NoIPv6 bool

	// PrivateOK allows to ask servers at addresses that mean something in one network only.
	PrivateOK bool

	// PerServer is how many queries wait for one server's answers, and PerZone for those of one
	// zone's servers. Zero: 64 and 256.
	PerServer, PerZone int

	// MaxBytes bounds the memory that tables take, by an estimate. Zero: 16 MiB.
	MaxBytes int64

	// Dialer opens connections, over "udp" and "tcp". Nil: a net.Dialer.
	Dialer Dialer

	// Began is called before a query is sent, and Ended when it was answered or given up. They are
	// called by the goroutine that asks, and may be nil.
	Began func(context.Context, Attempt)
	Ended func(context.Context, Attempt, time.Duration, error)
}

// Hedge says when a question goes to a second server. The fields are those of recursor.Hedge, and have
// the same defaults; Percentile is a percentage.
type Hedge struct {
	Off           bool
	Percentile    float64
	BudgetPercent float64
	MaxPerSecond  float64
}

// Dialer opens connections.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Attempt is a query to a server. The fields are those of recursor.AttemptInfo.
type Attempt struct {
	Name    string
	Type    uint16
	Zone    string
	Server  netip.AddrPort
	TCP     bool
	Attempt int
	Hedge   bool
}
