package dnshedge

import (
	"context"
	"errors"
	"net"
	"time"
)

// A Dialer opens connections. *net.Dialer is one.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// transport carries queries to one server.
//
// exchange sends q and returns the response, which has passed q.check. Lanes
// share nothing that can stall: a query in lane 1 reaches the server though lane
// 0 hangs. When ctx ends, exchange returns at once, with its cause, and the query
// is abandoned: what it comes to within the linger time is told to the observer.
type transport interface {
	exchange(ctx context.Context, q *query, lane int) (reply, error)
	// ready reports whether a query in lane 0 needs no handshake.
	ready() bool
	// keepalive says how long the server lets connections idle, RFC 7828.
	keepalive(d time.Duration)
	close()
}

// reply is a response and what is known of its way.
type reply struct {
	*answer
	age   time.Duration // in an HTTP cache
	setup time.Duration // of the time that exchange took, what a handshake needed
}

// observer is told what the transports see.
type observer interface {
	// wrote is called for each query that goes out on the wire.
	wrote()
	// answered is called for each response, also an abandoned query's, with the
	// time since the query was written and the connection's round trip as the
	// kernel measures it, or 0.
	answered(took, path time.Duration)
	// shook is called when a handshake has ended.
	shook(took time.Duration)
	// ignored is called for each message that is no query's answer.
	ignored(err error)
	// retried is called when a query is sent again because a connection that
	// was used before turned out to be closed.
	retried()
	// abandon asks whether one more query may run on without a caller. If so,
	// abandoned must be called once it has ended.
	abandon() bool
	abandoned()
	// stall is how long a connection may be silent while queries wait.
	stall() time.Duration
	// linger is how long abandoned queries run on.
	linger() time.Duration
}

// errClosed is why a transport of a closed Client does not send.
var errClosed = errors.New("dnshedge: client is closed")

// connError is a failure of a connection, not of the server.
type connError struct{ err error }

func (e *connError) Error() string { return e.err.Error() }
func (e *connError) Unwrap() error { return e.err }

// opener opens connections to one server.
type opener struct {
	dialer Dialer
	up     Upstream
}

// open dials the upstream's addresses in order.
func (o opener) open(ctx context.Context, network string) (net.Conn, error) {
	if len(o.up.Addrs) == 0 {
		return o.dialer.DialContext(bootstrapping(ctx), network, o.up.Addr)
	}
	_, port, err := net.SplitHostPort(o.up.Addr)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range o.up.Addrs {
		c, err := o.dialer.DialContext(ctx, network, net.JoinHostPort(a.String(), port))
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// bootstrapKey marks the contexts under which an upstream's own name is resolved.
type bootstrapKey struct{}

func bootstrapping(ctx context.Context) context.Context {
	return context.WithValue(ctx, bootstrapKey{}, true)
}
