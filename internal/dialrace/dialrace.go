// Package dialrace runs dials to several addresses at the same time, of which one connection is used (RFC 8305 §5).
package dialrace

import (
	"net"
	"net/netip"

	"github.com/gohedge/hedge/internal/race"
)

// A Result is the outcome of a dial to the address IP. Err is nil if there is a connection.
type Result struct {
	net.Conn
	IP  netip.Addr
	Err error
}

// A Race runs dials to several addresses at the same time. Its user decides when each dial starts and which connection
// is used, and calls Close when no more results are needed.
type Race struct {
	Results  chan Result   // receives the outcome of each dial, until Close is called
	noResult error         // outcome of a dial that ends its goroutine
	closed   chan struct{} // closed by Close
}

// New returns a Race without dials. noResult is the error of a dial whose function does not return, because it calls
// [runtime.Goexit].
func New(noResult error) *Race {
	return &Race{Results: make(chan Result), noResult: noResult, closed: make(chan struct{})}
}

// Start calls dial in a new goroutine, to open a connection to the address ip. The outcome is sent to r.Results. If
// dial panics, the panic becomes the error of the outcome.
func (r *Race) Start(ip netip.Addr, dial func() (net.Conn, error)) {
	go func() {
		d := Result{IP: ip, Err: r.noResult}
		defer func() {
			select {
			case r.Results <- d:
			case <-r.closed:
				if d.Err == nil && d.Conn != nil {
					_ = race.RecoverPanic(d.Conn.Close)
				}
			}
		}()
		d.Err = race.RecoverPanic(func() (err error) {
			d.Conn, err = dial()
			return err
		})
	}()
}

// Close ends the Race. Connections whose result was not received are closed, also those that are established later. Close
// must be called once.
func (r *Race) Close() { close(r.closed) }
