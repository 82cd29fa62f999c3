package dialrace_test

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/dialrace"
)

var (
	errNoResult = errors.New("no result")
	ip          = netip.MustParseAddr("192.0.2.1")
)

// closingConn is a connection that counts calls of Close, which panics.
type closingConn struct {
	net.Conn
	closed int
}

func (c *closingConn) Close() error {
	c.closed++
	panic("Close")
}

func TestRacePassesOutcomeOfDial(t *testing.T) {
	conn, failed := new(closingConn), errors.New("failed")
	for want, dial := range map[string]func() (net.Conn, error){
		"":             func() (net.Conn, error) { return conn, nil },
		failed.Error(): func() (net.Conn, error) { return nil, failed },
		"broken":       func() (net.Conn, error) { panic("broken") },
		errNoResult.Error(): func() (net.Conn, error) {
			runtime.Goexit()
			return conn, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := dialrace.New(errNoResult)
			defer r.Close()
			r.Start(ip, dial)
			got := <-r.Results
			assert.Equal(t, ip, got.IP)
			if want == "" {
				require.NoError(t, got.Err)
				assert.Equal(t, conn, got.Conn)
				return
			}
			assert.ErrorContains(t, got.Err, want)
		})
	}
	assert.Zero(t, conn.closed)
}

func TestRaceClosesConnectionsWithoutReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := dialrace.New(errNoResult)
		early, late := new(closingConn), new(closingConn)
		r.Start(ip, func() (net.Conn, error) { return early, nil })
		r.Start(ip, func() (net.Conn, error) {
			time.Sleep(time.Second)
			return late, nil
		})
		r.Start(ip, func() (net.Conn, error) {
			time.Sleep(time.Second)
			return nil, nil // as no dial should
		})
		synctest.Wait()
		assert.Zero(t, early.closed)
		r.Close()
		synctest.Wait()
		assert.Equal(t, 1, early.closed)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, 1, late.closed)
	})
}
