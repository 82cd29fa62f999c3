package forward_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// right returns the address of a name, so that any other is a wrong answer.
func right(name string) netip.Addr {
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.ToLower(name)))
	b := [4]byte{203, 0, 113, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(h.Sum32()))
	return netip.AddrFrom4(b)
}

// unsteady is a server that is stopped and started.
type unsteady struct {
	at string

	mu     sync.Mutex // guards server
	server *dnstest.Server
}

func (u *unsteady) start(t *testing.T) {
	u.mu.Lock()
	defer u.mu.Unlock()
	pc, err := net.ListenPacket("udp", u.at)
	require.NoError(t, err)
	u.at = pc.LocalAddr().String()
	u.server = &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
		return dnstest.Reply{Msg: dnstest.Answer(q, "A "+right(q.Question[0].Name).String())}
	}}
	u.server.ServeUDP(pc)
}

func (u *unsteady) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.server.Close()
}

// TestForwarderStaysFlatWhileServersChange asks 2,000 questions a second while one
// server or the other, and sometimes both, are down. HEDGE_TEST_SOAK=10m makes it long.
func TestForwarderStaysFlatWhileServersChange(t *testing.T) {
	const workers, perWorker = 20, 100 // each sends so many a second
	const maxLate = 50 * time.Millisecond
	long := doubles.SoakTime(t, 3*time.Second)
	client := &dnshedge.Client{Cache: &dnshedge.Cache{MaxBytes: 4 << 20}}
	var servers []*unsteady
	for range 2 {
		u := &unsteady{at: doubles.FreeAddress(t)}
		u.start(t)
		defer u.stop()
		servers = append(servers, u)
		client.Upstreams = append(client.Upstreams, dnshedge.Upstream{Addr: u.at})
	}
	f := begin(t, forward.Config{Client: client})

	var sent, answered, failed, wrong atomic.Int64
	load := func(long time.Duration) {
		var wg sync.WaitGroup
		for w := range workers {
			c, err := net.Dial("udp", f.Listen[0])
			require.NoError(t, err)
			wg.Go(func() { // until c is closed
				b, r := make([]byte, 4096), new(dns.Msg)
				for {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					switch err := r.Unpack(b[:n]); {
					case err == nil && r.Rcode == dns.RcodeServerFailure:
						failed.Add(1)
					case err == nil && len(r.Answer) == 1 && r.Answer[0].(*dns.A).A.String() == right(r.Question[0].Name).String():
						answered.Add(1)
					default:
						wrong.Add(1)
					}
				}
			})
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(1, uint64(w)))
				start := time.Now()
				for due := time.Duration(0); due < long; due += time.Second / perWorker {
					time.Sleep(time.Until(start.Add(due)))
					// A machine that is busy for a moment sends what is due, and one that is
					// busy for longer less, or the sockets would overflow.
					due = max(due, time.Since(start)-maxLate)
					name := fmt.Sprintf("hot%d.example.", rnd.IntN(500))
					if rnd.IntN(10) < 3 {
						name = fmt.Sprintf("n%d.example.", rnd.Uint64())
					}
					b, _ := ask(name).Pack() // a name that can be packed
					if _, err := c.Write(b); err == nil {
						sent.Add(1)
					}
				}
				for late := 0; late < 60 && answered.Load()+failed.Load()+wrong.Load() < sent.Load(); late++ {
					time.Sleep(100 * time.Millisecond) // 6 s are longer than an answer may take
				}
				c.Close()
			})
		}
		wg.Wait()
	}
	load(time.Second)
	before := doubles.MeasureUsage()

	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			down := servers[i%2 : i%2+1]
			if i%5 == 4 {
				down = servers
			}
			for _, u := range down {
				u.stop()
			}
			time.Sleep(300 * time.Millisecond)
			for _, u := range down {
				u.start(t)
			}
			select {
			case <-end:
				return
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	load(long)
	close(end)
	<-ended
	after := doubles.MeasureUsage()
	// Queries whose callers have left keep their sockets for some time.
	for patience := 100; patience > 0 && (after.Goroutines > before.Goroutines+20 || after.Files > before.Files+20); patience-- {
		time.Sleep(100 * time.Millisecond)
		after = doubles.MeasureUsage()
	}
	asked := client.Stats().Queries
	t.Logf("%d sent, %d asked, %d answered, %d failed, %d wrong; %v before, %v after", sent.Load(), asked, answered.Load(), failed.Load(), wrong.Load(), before, after)
	assert.Zero(t, wrong.Load())
	assert.Greater(t, answered.Load(), asked*9/10, "of what fitted into the forwarder's socket")
	assert.LessOrEqual(t, after.Goroutines, before.Goroutines+20)
	assert.LessOrEqual(t, after.Files, before.Files+20)
	assert.LessOrEqual(t, after.Heap, before.Heap+20<<20)
}
