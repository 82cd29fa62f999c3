package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/netsim"
)

var (
	burst = flag.Duration("burst", 20*time.Second, "as of the command")
	each  = flag.Duration("for", time.Second, "as of the command, in fake time")
)

// memory is a network without a machine's noise, for fake time. To each backend and back it is half a millisecond.
type memory struct{ *netsim.Network }

func newMemory(t *testing.T, backends int) memory {
	hosts := []string{"callers"}
	for n := range backends {
		hosts = append(hosts, fmt.Sprint("backend", n))
	}
	network, err := netsim.NewMemory(1, hosts...)
	require.NoError(t, err)
	for _, host := range hosts[1:] {
		network.Link("callers", host).Set(netsim.Profile{Delay: netsim.Constant(250 * time.Microsecond)})
		network.Link(host, "callers").Set(netsim.Profile{Delay: netsim.Constant(250 * time.Microsecond)})
	}
	return memory{network}
}

func (m memory) listen(n int) (net.Listener, error) { return m.listenAt(n, "443") }

func (m memory) listenAt(n int, port string) (net.Listener, error) {
	if port == "0" {
		port = "443"
	}
	return m.Host(fmt.Sprint("backend", n)).Listen("tcp", ":"+port)
}

func (m memory) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return m.Host("callers").DialContext(ctx, network, addr)
}

// TestFiguresInFakeTime prints the table for any machine, however busy.
func TestFiguresInFakeTime(t *testing.T) {
	all := newTable()
	for _, protocol := range []string{"grpc", "http1", "http2"} {
		for _, world := range worlds {
			if protocol == "grpc" && world != "stop" { // no address of its own to be first, or dead
				continue
			}
			for _, n := range []int{2, 3, 10} {
				if world != "stop" && n != 3 {
					continue
				}
				t.Run(protocol+"-"+world+"-"+strconv.Itoa(n), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						network := newMemory(t, n)
						f := newFleet(network, world, n, *burst)
						rows, err := f.measure(t.Context(), protocols[protocol], protocol, *each)
						require.NoError(t, err)
						f.close()
						time.Sleep(time.Minute)
						synctest.Wait()
						require.NoError(t, network.Close())
						all.AppendRows(rows)
						all.AppendSeparator()
						for _, row := range rows {
							assert.Zero(t, row[len(row)-1], "failed calls")
						}
					})
				})
			}
		}
	}
	t.Log("\n" + all.Render())
}

func TestTheCommandRuns(t *testing.T) {
	require.NoError(t, run(t.Context(), []string{"-backends", "2", "-for", "50ms", "-md"}, io.Discard))
	assert.EqualError(t, run(t.Context(), []string{"-world", "flat"}, io.Discard), `-world "flat" is not one of stop, rotate, calm, dead`)
	assert.EqualError(t, run(t.Context(), []string{"-protocol", "smtp"}, io.Discard), `-protocol "smtp" is not known`)
	assert.EqualError(t, run(t.Context(), []string{"-backends", "0"}, io.Discard), `-backends "0" is not a number from 1 to 100`)
}
