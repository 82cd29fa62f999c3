package httpattempt_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/httpattempt"
)

// resolverFunc is a Resolver.
type resolverFunc func() ([]netip.Addr, error)

func (f resolverFunc) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) { return f() }

// net/http dials in a goroutine of its own, and waits for the result of the dial function.
func TestDialOfReplicaThatCallsGoexitEndsRequest(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	found := func() ([]netip.Addr, error) { return addrs, nil }
	for name, test := range map[string]struct {
		host   string
		lookup func() ([]netip.Addr, error)
	}{
		"address":            {"192.0.2.1", found},
		"name":               {"catalog.test", found},
		"only address":       {"catalog.test", func() ([]netip.Addr, error) { return addrs[:1], nil }},
		"failed lookup":      {"catalog.test", func() ([]netip.Addr, error) { return nil, errors.New("down") }},
		"exit of the lookup": {"catalog.test", func() ([]netip.Addr, error) { runtime.Goexit(); return nil, nil }},
	} {
		for _, maxConns := range []int{0, 1} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					base := &http.Transport{MaxConnsPerHost: maxConns, DialContext: func(context.Context, string, string) (net.Conn, error) {
						runtime.Goexit()
						return nil, nil
					}}
					pools := httpattempt.NewPools(base, nil, resolverFunc(test.lookup))
					for range 2 { // the first one returns its slot
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+test.host, nil)
						require.NoError(t, err)
						start := time.Now()
						_, err = pools.HedgeTransport(req, false, nil).RoundTrip(req)
						assert.ErrorContains(t, err, "returned no result")
						assert.Less(t, time.Since(start), time.Second)
					}
				})
			})
		}
	}
}
