package main

import (
	"bytes"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/hedgetest"
	"github.com/gohedge/hedge/internal/netsim"
)

// With the real clients, servers and Limiters, over connections in memory and in fake time,
// so that no machine is too busy.
func TestHedgingBehindLimitersKeepsItsPromises(t *testing.T) {
	t.Parallel()
	if hedgetest.RaceEnabled {
		t.Skip("too long with the race detector")
	}
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				network, err := netsim.NewMemory(1, "client", "server")
				require.NoError(t, err)
				port := 8000
				w := world{load: 0.8, slow: 1, lasts: 12 * time.Second, seed: 1, dial: network.Host("client").DialContext}
				w.listen = func() (net.Listener, error) {
					port++
					return network.Host("server").Listen("tcp", fmt.Sprint(":", port))
				}
				found, err := w.measure(protocol)
				require.NoError(t, err)
				none, hedged, limited := found["none"], found["hedge"], found["limited"]
				for _, r := range found {
					assert.Zero(t, r.failed)
				}
				assert.Greater(t, hedged.quantile(0.99), none.quantile(0.99), "without Limiters hedging harms")
				atMost(t, "p99 with Limiters against no hedging", limited.quantile(0.99)/none.quantile(0.99), 0.75)
				atMost(t, "requests worked on per call", limited.share(limited.worked), 1.03)
				atMost(t, "connections beyond those without hedging per loser that left", float64(limited.conns-none.conns)/float64(limited.left), 1.1)
				time.Sleep(time.Minute)
				require.NoError(t, network.Close())
			})
		})
	}
}

func atMost(t *testing.T, what string, x, limit float64) {
	t.Helper()
	assert.LessOrEqual(t, x, limit, what)
	t.Logf("%s: %.3f, at most %v", what, x, limit)
}

// In real time, so only what holds on any machine.
func TestEveryProtocolAndStrategyHasALine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run([]string{"-d", "1s", "-slow", "20", "-load", "0.5"}, &out))
	lines := strings.Split(out.String(), "\n")
	require.Len(t, lines, 1+9+1+3+1, out.String())
	for i, line := range lines[1:10] {
		cells := strings.Fields(line)
		assert.Equal(t, []string{protocols[i/3], strategies[i%3]}, cells[:2])
		assert.Equal(t, "0", cells[3], "no call fails: %s", line)
	}
	for i, said := range lines[11:14] {
		assert.Regexp(t, `^`+protocols[i]+`: p99 is [\d.]+ × .*promised: 0\.75.*\(1\.03\).*\(1\.1\)$`, said)
	}
	assert.Regexp(t, regexp.MustCompile(`(?m)^ *http2 +none +\d+ +0 .* 1\.000 +0 +0 +\d+ +[\d.]+$`), out.String())
}

func TestBadFlagsOfLimiterAreNamed(t *testing.T) {
	for _, args := range []string{"-load 1", "-load NaN", "-d 10ms", "-slow 0", "-protocol http3"} {
		name, value, _ := strings.Cut(args, " ")
		err := run([]string{name, value}, new(bytes.Buffer))
		require.ErrorContains(t, err, name)
		assert.ErrorContains(t, err, value)
	}
}
