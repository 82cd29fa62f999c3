package quic_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	quicgo "github.com/quic-go/quic-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/dnshedge/quic"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// loadServer is an environment variable that makes the test binary run runLoadServer instead of tests.
const loadServer = "HEDGE_TEST_QUIC_SERVER"

const (
	loadClients          = 1000
	loadQueriesPerClient = 10
	loadDials            = 8 // at the same time
)

// A slowExchanger needs 3 s for an answer.
type slowExchanger struct{}

func (slowExchanger) ExchangeContext(ctx context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	if err := doubles.Sleep(ctx, 3*time.Second); err != nil {
		return nil, 0, err
	}
	return dnstest.Answer(dnstest.Query{Msg: m}, "A 192.0.2.1"), 4 * time.Second, nil
}

// runLoadServer runs a forwarder that needs 3 s for an answer. For each line of its input, it prints its memory in
// bytes, its goroutines and its connections. It ends with its input.
func runLoadServer() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	quic.RestoreTimeouts()
	client := &dnshedge.Client{Exchanger: slowExchanger{}, MaxInFlight: loadClients * loadQueriesPerClient, Timeout: 10 * time.Second}
	serverTLS, _ := dnstest.Certificate()
	l, err := quic.Listen("127.0.0.1:0", serverTLS)
	must(err)
	f, err := forward.New(forward.Config{
		Client: client, Listeners: []forward.Listener{l}, Limits: &forward.Limits{Conns: 2 * loadClients, ConnsPerClient: 2 * loadClients},
	})
	must(err)
	go func() { must(f.Serve(context.Background())) }()
	fmt.Println(l.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		runtime.GC()
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fmt.Println(m.HeapAlloc+m.StackInuse, runtime.NumGoroutine(), l.OpenConns())
	}
	os.Exit(0)
}

// TestThousandClients measures the memory of a server, in a process of its own, for clients with queries in flight and
// after they have left.
func TestThousandClients(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), loadServer+"=1")
	server.Stderr = os.Stderr
	in, err := server.StdinPipe()
	require.NoError(t, err)
	out, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	defer func() {
		_ = in.Close()
		_ = server.Wait()
	}()
	lines := bufio.NewReader(out)
	at, err := lines.ReadString('\n')
	require.NoError(t, err)
	address, err := net.ResolveUDPAddr("udp", at[:len(at)-1])
	require.NoError(t, err)
	measure := func() (memory, goroutines, conns int) {
		_, err := io.WriteString(in, "\n")
		require.NoError(t, err)
		_, err = fmt.Fscan(lines, &memory, &goroutines, &conns)
		require.NoError(t, err)
		return memory, goroutines, conns
	}

	round := func(n int) (idle, busy, left, goroutinesLeft int) {
		socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		tr := &quicgo.Transport{Conn: socket}
		defer socket.Close()
		defer tr.Close()
		_, trusting := dnstest.Certificate()
		clientTLS := &tls.Config{InsecureSkipVerify: true, RootCAs: trusting.RootCAs, NextProtos: []string{"doq"}} // the other process has another certificate
		conns := make([]*quicgo.Conn, loadClients)
		var dialing sync.WaitGroup
		for i := range loadDials { // fewer at a time than the server takes without validation of their addresses
			dialing.Go(func() {
				for j := i; j < loadClients; j += loadDials {
					var err error
					conns[j], err = tr.Dial(t.Context(), address, clientTLS, &quicgo.Config{KeepAlivePeriod: 10 * time.Second})
					assert.NoError(t, err)
				}
			})
		}
		dialing.Wait()
		require.False(t, t.Failed())
		idle, _, open := measure()
		assert.Equal(t, loadClients, open)
		var streams []*quicgo.Stream
		for i, conn := range conns {
			for j := range loadQueriesPerClient {
				streams = append(streams, sendRaw(t, conn, frame(pack(t, question(fmt.Sprintf("q%d-%d-%d.example.", n, i, j)))), true))
			}
		}
		time.Sleep(time.Second)
		busy, _, _ = measure()
		answered := 0
		for _, stream := range streams {
			if len(readRaw(t, stream).Answer) == 1 {
				answered++
			}
		}
		assert.Greater(t, answered, loadClients*loadQueriesPerClient*9/10)
		var wg sync.WaitGroup
		for _, conn := range conns {
			wg.Go(func() { _ = conn.CloseWithError(noError, "") })
		}
		wg.Wait()
		for end := time.Now().Add(30 * time.Second); open > 0; time.Sleep(100 * time.Millisecond) {
			_, _, open = measure()
			require.True(t, time.Now().Before(end), "%d connections are open", open)
		}
		time.Sleep(2 * time.Second) // package quic-go keeps closed connections for a moment
		left, goroutinesLeft, _ = measure()
		return idle, busy, left, goroutinesLeft
	}
	before, _, _ := measure()
	idle, busy, left, goroutines := round(1)
	t.Logf("kB per connection: idle %d, with %d queries %d; after all have left %d in all", (idle-before)/loadClients/1000, loadQueriesPerClient, (busy-before)/loadClients/1000, (left-before)/1000)
	assert.Less(t, (idle-before)/loadClients, 100_000)
	assert.Less(t, (busy-before)/loadClients, 250_000)
	_, _, again, goroutinesAgain := round(2)
	assert.Less(t, again-left, 4_000_000, "grows")
	assert.LessOrEqual(t, goroutinesAgain, goroutines+20)
}
