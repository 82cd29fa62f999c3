package netsim_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/gohedge/hedge/internal/netsim"
)

const ms = time.Millisecond

// memory runs f in a bubble with a memory network of two hosts.
func memory(t *testing.T, seed uint64, f func(t *testing.T, n *netsim.Network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n, err := netsim.NewMemory(seed, "client", "server")
		require.NoError(t, err)
		defer n.Close()
		f(t, n)
	})
}

func kernel(t *testing.T, seed uint64) *netsim.Network {
	t.Helper()
	n, err := netsim.NewKernel(seed, "client", "server")
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, n.Close()) })
	return n
}

// echo returns every datagram to its sender until the socket is closed.
func echo(t *testing.T, n *netsim.Network) {
	t.Helper()
	pc, err := n.Host("server").ListenPacket("udp", ":53")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			k, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(buf[:k], from)
		}
	}()
	t.Cleanup(func() { pc.Close(); <-done })
}

// ask sends one datagram from a new socket and returns the time until the echo arrives.
func ask(n *netsim.Network, timeout time.Duration) (time.Duration, error) {
	c, err := n.Host("client").DialContext(context.Background(), "udp", "server:53")
	if err != nil {
		return 0, err
	}
	defer c.Close()
	start := time.Now()
	_ = c.SetDeadline(start.Add(timeout))
	if _, err := c.Write([]byte("hello")); err != nil {
		return 0, err
	}
	buf := make([]byte, 64)
	k, err := c.Read(buf)
	if err == nil && string(buf[:k]) != "hello" {
		err = errors.New("another echo")
	}
	return time.Since(start), err
}

func TestDatagramTakesDelayOfLink(t *testing.T) {
	memory(t, 1, func(t *testing.T, n *netsim.Network) {
		echo(t, n)
		n.Link("client", "server").Set(netsim.Profile{Delay: netsim.Constant(7 * ms)})
		n.Link("server", "client").Set(netsim.Profile{Delay: netsim.Constant(3 * ms)})
		took, err := ask(n, time.Second)
		require.NoError(t, err)
		assert.Equal(t, 10*ms, took)
	})
}

func TestPreciseTimingIsNotEarly(t *testing.T) {
	n, err := netsim.NewMemory(1, "client", "server")
	require.NoError(t, err)
	defer n.Close()
	n.EnablePreciseTiming()
	server, err := n.Host("server").ListenPacket("udp", ":53")
	require.NoError(t, err)
	defer server.Close()
	client, err := n.Host("client").DialContext(t.Context(), "udp", "server:53")
	require.NoError(t, err)
	defer client.Close()
	buf := make([]byte, 8)
	for _, way := range []time.Duration{ms / 4, 3 * ms} {
		n.Link("client", "server").Set(netsim.Profile{Delay: netsim.Constant(way)})
		var took []time.Duration
		for range 20 {
			start := time.Now()
			_, err := client.Write([]byte("question"))
			require.NoError(t, err)
			_, _, err = server.ReadFrom(buf)
			require.NoError(t, err)
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		assert.GreaterOrEqual(t, took[0], way)
		t.Logf("%v takes %v, %v at worst", way, took[len(took)/2], took[len(took)-1])
	}
}

func TestLinkWithSameSeedLosesSamePackets(t *testing.T) {
	fates := func(seed uint64, delay netsim.Dist) (lost []int) {
		memory(t, seed, func(t *testing.T, n *netsim.Network) {
			echo(t, n)
			n.Link("client", "server").Set(netsim.Profile{Delay: delay, Loss: 0.2})
			for i := range 200 {
				if _, err := ask(n, time.Second); err != nil {
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
					lost = append(lost, i)
				}
			}
		})
		return lost
	}
	first := fates(7, netsim.Constant(ms))
	assert.InDelta(t, 40, len(first), 20)
	assert.Equal(t, first, fates(7, netsim.Constant(9*ms)))
	assert.NotEqual(t, first, fates(8, netsim.Constant(ms)))
}

func TestBurstLosesConsecutivePackets(t *testing.T) {
	memory(t, 3, func(t *testing.T, n *netsim.Network) {
		echo(t, n)
		n.Link("client", "server").Set(netsim.Profile{Burst: &netsim.Burst{GoodToBad: 0.01, BadToGood: 0.2, LossBad: 1}})
		lost, pairs, before := 0, 0, false
		const asked = 5000
		for range asked {
			_, err := ask(n, time.Second)
			if err != nil {
				lost++
				if before {
					pairs++
				}
			}
			before = err != nil
		}
		// A burst begins every 100 packets on average and loses 5 packets.
		assert.InDelta(t, 0.048, float64(lost)/asked, 0.015)
		assert.InDelta(t, 0.8, float64(pairs)/float64(lost), 0.08)
	})
}

func TestLinkKeepsOrderOfFlowWithoutReorder(t *testing.T) {
	for _, reorder := range []float64{0, 1} {
		memory(t, 5, func(t *testing.T, n *netsim.Network) {
			pc, err := n.Host("server").ListenPacket("udp", ":9")
			require.NoError(t, err)
			defer pc.Close()
			n.Link("client", "server").Set(netsim.Profile{Delay: netsim.Uniform(0, 100*ms), Reorder: reorder})
			c, err := n.Host("client").DialContext(context.Background(), "udp", "server:9")
			require.NoError(t, err)
			defer c.Close()
			for i := range 50 {
				_, err := c.Write([]byte{byte(i)})
				require.NoError(t, err)
			}
			var got []byte
			for range 50 {
				b := make([]byte, 1)
				_, _, err := pc.ReadFrom(b)
				require.NoError(t, err)
				got = append(got, b[0])
			}
			assert.Equal(t, reorder == 0, slices.IsSorted(got))
		})
	}
}

func TestLinkDelaysPacketsByRate(t *testing.T) {
	memory(t, 1, func(t *testing.T, n *netsim.Network) {
		pc, err := n.Host("server").ListenPacket("udp", ":9")
		require.NoError(t, err)
		defer pc.Close()
		n.Link("client", "server").Set(netsim.Profile{Rate: 1000})
		c, err := n.Host("client").DialContext(context.Background(), "udp", "server:9")
		require.NoError(t, err)
		defer c.Close()
		start := time.Now()
		for range 20 {
			_, err := c.Write(make([]byte, 100))
			require.NoError(t, err)
		}
		for i := range 10 {
			_, _, err := pc.ReadFrom(make([]byte, 100))
			require.NoError(t, err)
			assert.Equal(t, time.Duration(i+1)*100*ms, time.Since(start))
		}
		assert.EqualValues(t, 10, n.Link("client", "server").Counters().Lost, "packets of one second wait, and the others are lost")
	})
}

func TestBlackHoleLosesPacketsUntilReset(t *testing.T) {
	memory(t, 1, func(t *testing.T, n *netsim.Network) {
		echo(t, n)
		n.Link("server", "client").Set(netsim.Profile{BlackHole: true})
		_, err := ask(n, time.Second)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		n.Link("server", "client").Set(netsim.Profile{})
		_, err = ask(n, time.Second)
		require.NoError(t, err)
		assert.Equal(t, netsim.Counters{Packets: 2, Lost: 1, Bytes: 10, UDP: 2}, n.Link("server", "client").Counters())
	})
}

func TestDatagramToClosedPortIsRefused(t *testing.T) {
	memory(t, 1, func(t *testing.T, n *netsim.Network) {
		n.Set("client", "server", netsim.Profile{Delay: netsim.Constant(5 * ms)})
		start := time.Now()
		_, err := ask(n, time.Second)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.Equal(t, 10*ms, time.Since(start))
	})
}

func TestConnectedSocketReceivesFromPeerOnly(t *testing.T) {
	memory(t, 1, func(t *testing.T, n *netsim.Network) {
		echo(t, n)
		c, err := n.Host("client").DialContext(context.Background(), "udp", "server:53")
		require.NoError(t, err)
		defer c.Close()
		other, err := n.Host("server").ListenPacket("udp", ":54")
		require.NoError(t, err)
		defer other.Close()
		_, err = other.WriteTo([]byte("forged"), c.LocalAddr())
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Second)))
		_, err = c.Read(make([]byte, 10))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
}

func TestMemoryStreamSurvivesLossAndReordering(t *testing.T) {
	memory(t, 2, func(t *testing.T, n *netsim.Network) {
		n.Set("client", "server", netsim.Profile{Delay: netsim.Uniform(ms, 20*ms), Loss: 0.1, Reorder: 0.3})
		transfer(t, n)
	})
}

func TestKernelStreamSurvivesLossAndReordering(t *testing.T) {
	n := kernel(t, 2)
	n.Set("client", "server", netsim.Profile{Delay: netsim.Uniform(ms, 2*ms), Loss: 0.01, Reorder: 0.1})
	transfer(t, n)
	assert.Positive(t, n.Link("client", "server").Counters().TCP)
}

// transfer sends a megabyte to the server, which echoes it.
func transfer(t *testing.T, n *netsim.Network) {
	t.Helper()
	l, err := n.Host("server").Listen("tcp", ":80")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	defer func() { l.Close(); <-done }()
	c, err := n.Host("client").DialContext(context.Background(), "tcp", "server:80")
	require.NoError(t, err)
	defer c.Close()
	sent := make([]byte, 1<<20)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range sent {
		sent[i] = byte(rng.Uint32())
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		wrote <- err
	}()
	got := make([]byte, len(sent))
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.NoError(t, <-wrote)
	assert.True(t, bytes.Equal(sent, got))
}

func TestHandshakeTakesRoundTripAndOneSecondPerLoss(t *testing.T) {
	memory(t, 1, func(t *testing.T, n *netsim.Network) {
		n.Set("client", "server", netsim.Profile{Delay: netsim.Constant(10 * ms)})
		l, err := n.Host("server").Listen("tcp", ":80")
		require.NoError(t, err)
		defer l.Close()
		dial := func() time.Duration {
			start := time.Now()
			c, err := n.Host("client").DialContext(context.Background(), "tcp", "server:80")
			require.NoError(t, err)
			require.NoError(t, c.Close())
			return time.Since(start)
		}
		assert.Equal(t, 20*ms, dial())
		n.Link("client", "server").Set(netsim.Profile{Delay: netsim.Constant(10 * ms), BlackHole: true})
		time.AfterFunc(500*ms, func() { n.Set("client", "server", netsim.Profile{Delay: netsim.Constant(10 * ms)}) })
		assert.Equal(t, 1020*ms, dial())
	})
}

func TestDialReturnsRefusalAndCancellation(t *testing.T) {
	memory(t, 1, func(t *testing.T, n *netsim.Network) {
		_, err := n.Host("client").DialContext(context.Background(), "tcp", "server:80")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		n.Set("client", "server", netsim.Profile{BlackHole: true})
		ctx, cancel := context.WithTimeout(context.Background(), 1500*ms)
		defer cancel()
		start := time.Now()
		_, err = n.Host("client").DialContext(ctx, "tcp", "server:80")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 1500*ms, time.Since(start))
	})
}

func TestMemoryStreamImplementsConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		n, err := netsim.NewMemory(1, "a", "b")
		if err != nil {
			return nil, nil, nil, err
		}
		l, err := n.Host("b").Listen("tcp", ":1")
		if err != nil {
			return nil, nil, nil, err
		}
		c1, err = n.Host("a").DialContext(context.Background(), "tcp", "b:1")
		if err != nil {
			return nil, nil, nil, err
		}
		c2, err = l.Accept()
		return c1, c2, func() { c1.Close(); c2.Close(); l.Close(); n.Close() }, err
	})
}

func TestErrorsNameInvalidArguments(t *testing.T) {
	_, err := netsim.NewMemory(1, "only")
	require.ErrorContains(t, err, "1 hosts")
	_, err = netsim.NewMemory(1, "a", "a")
	require.ErrorContains(t, err, `"a"`)
	n, err := netsim.NewMemory(1, "a", "b")
	require.NoError(t, err)
	defer n.Close()
	_, err = n.Host("a").DialContext(context.Background(), "udp", "c:1")
	require.ErrorContains(t, err, `"c"`)
	_, err = n.Host("a").DialContext(context.Background(), "udp", "b:domain")
	require.ErrorContains(t, err, `"domain"`)
	_, err = n.Host("a").DialContext(context.Background(), "ip", "b:1")
	require.ErrorContains(t, err, "ip")
	_, err = n.Host("a").DialContext(context.Background(), "tcp", "192.0.2.1:1")
	require.ErrorIs(t, err, syscall.ENETUNREACH)
	require.ErrorIs(t, n.Host("a").Start(exec.Command("true")), netsim.ErrUnsupported)
	assert.Panics(t, func() { n.Host("c") })
}

func TestKernelSocketsHaveDelayAndLossOfLink(t *testing.T) {
	n := kernel(t, 1)
	echo(t, n)
	n.Link("client", "server").Set(netsim.Profile{Delay: netsim.Constant(10 * ms), Loss: 0.05})
	n.Link("server", "client").Set(netsim.Profile{Delay: netsim.Constant(10 * ms)})
	link := n.Link("client", "server")
	c, err := n.Host("client").DialContext(t.Context(), "udp", "server:53")
	require.NoError(t, err)
	defer c.Close()
	var took []time.Duration
	lost := 0
	for i := range 100 {
		start := time.Now()
		_, err := c.Write([]byte{byte(i)})
		require.NoError(t, err)
		answered := false
		for buf := make([]byte, 64); !answered && link.Counters().Lost == int64(lost); {
			_ = c.SetReadDeadline(time.Now().Add(30 * ms)) // then sees whether it is lost
			_, err := c.Read(buf)
			answered = err == nil
			require.Less(t, time.Since(start), 10*time.Second, "neither lost nor answered")
		}
		if answered {
			took = append(took, time.Since(start))
		} else {
			lost++
		}
	}
	slices.Sort(took)
	assert.GreaterOrEqual(t, took[0], 20*ms)
	assert.Less(t, took[0], 25*ms)
	assert.Positive(t, lost)
	assert.EqualValues(t, 100, link.Counters().UDP)
	assert.EqualValues(t, lost, link.Counters().Lost)
	t.Logf("median %v, p99 %v, lost %d", took[len(took)/2], took[len(took)*99/100], lost)
}

func TestKernelDatagramToClosedPortIsRefused(t *testing.T) {
	n := kernel(t, 1)
	_, err := ask(n, time.Second)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestStartRunsCommandOnHost(t *testing.T) {
	n := kernel(t, 1)
	cmd := exec.Command("cat", "/proc/net/dev")
	var out strings.Builder
	cmd.Stdout = &out
	require.NoError(t, n.Host("client").Start(cmd))
	require.NoError(t, cmd.Wait())
	assert.Contains(t, out.String(), "sim0")
}

func TestCloseOfKernelNetworkReleasesDescriptors(t *testing.T) {
	files := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(e)
	}
	kernel(t, 1) // whatever the first one opens for good
	before := files()
	const networks = 10
	for range networks {
		n, err := netsim.NewKernel(1, "client", "server", "third")
		require.NoError(t, err)
		pc, err := n.Host("third").ListenPacket("udp", ":53")
		require.NoError(t, err)
		require.NoError(t, n.Close())
		require.NoError(t, n.Close())
		require.NoError(t, pc.Close(), "Close does not close sockets")
		_, err = n.Host("client").DialContext(context.Background(), "udp", "server:53")
		require.Error(t, err)
	}
	assert.Less(t, files(), before+networks) // a few may be the process's own, for good
}

func TestNamespaceReceivesForEveryAddressOfPrefix(t *testing.T) {
	n, err := netsim.NewNamespace(netip.MustParsePrefix("198.18.0.0/15"))
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer n.Close()
	var pc net.PacketConn
	var c, far net.Conn
	require.NoError(t, n.Do(func() (err error) {
		if pc, err = net.ListenPacket("udp4", ":53"); err != nil {
			return err
		}
		c, err = net.Dial("udp4", "198.19.255.77:53")
		return err
	}))
	defer pc.Close()
	defer c.Close()
	_, err = c.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, pc.SetReadDeadline(time.Now().Add(10*time.Second)))
	b := make([]byte, 16)
	k, _, err := pc.ReadFrom(b)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(b[:k]))
	err = n.Do(func() (err error) { far, err = net.Dial("udp4", "192.0.2.1:53"); return err })
	require.ErrorIs(t, err, syscall.ENETUNREACH, "%v", far)
	_, err = netsim.NewNamespace(netip.MustParsePrefix("2001:db8::/32"))
	require.ErrorContains(t, err, "2001:db8::/32")
}
