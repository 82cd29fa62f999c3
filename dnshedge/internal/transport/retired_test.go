package transport_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/dnstest"
)

// A blockingDialer dials connections whose Write blocks while writing is full.
type blockingDialer struct {
	usercode.Dialer
	writing chan struct{} // capacity 1
	open    atomic.Int64  // number of open connections
}

func (d *blockingDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, address)
	d.open.Add(1)
	return &blockingConn{Conn: c, d: d}, err
}

type blockingConn struct {
	net.Conn
	d    *blockingDialer
	once sync.Once
}

func (c *blockingConn) Write(b []byte) (int, error) {
	c.d.writing <- struct{}{}
	defer func() { <-c.d.writing }()
	return c.Conn.Write(b)
}

func (c *blockingConn) Close() error {
	c.once.Do(func() { c.d.open.Add(-1) })
	return c.Conn.Close()
}

// A server does not respond, and reads nothing for a while. The connection is retired after a probe without a response.
// The last query on it ends before it is written, because the probe is still being written.
func TestRetiredConnectionClosesAfterUnwrittenQuery(t *testing.T) {
	var d *blockingDialer
	silent := func(dnstest.Query) dnstest.Reply { return dnstest.Reply{} }
	runNetwork(t, "tcp", silent, func(c *transport.Config) {
		d = &blockingDialer{Dialer: c.Dialer, writing: make(chan struct{}, 1)}
		c.Dialer = d
	}, func(t *testing.T, client transport.Transport) {
		var wg sync.WaitGroup
		query := func(at, end time.Duration) {
			wg.Go(func() {
				time.Sleep(at)
				ctx, cancel := context.WithTimeout(context.Background(), end-at)
				defer cancel()
				_, _, err := client.Exchange(ctx, wire.RootServers, 0, new(transport.QueryPath))
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		query(0, 1100*time.Millisecond)
		query(600*time.Millisecond, 1200*time.Millisecond)
		time.Sleep(400 * time.Millisecond)
		d.writing <- struct{}{}
		time.Sleep(900 * time.Millisecond) // the probe begins half a second after the first query
		<-d.writing
		wg.Wait()
		assert.EqualValues(t, 1, d.open.Load())
		time.Sleep(time.Second) // Owner.AbandonedQueryLifetime
		assert.Zero(t, d.open.Load())
	})
}
