package quic_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	quicgo "github.com/quic-go/quic-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

// A world is a random scenario in fake time: servers with faults, a network that loses packets, a Client with options, and
// questions. Times are since the start of the world.
type world struct {
	scheme  string
	servers []*worldServer
	loss    float64 // in each direction
	order   dnshedge.Order
	hedge   string // "", off or 30ms
	cached  bool
	asks    []worldQuestion
	last    time.Duration // when the final questions begin; all faults that end have ended a minute before

	net      *netsim.Network
	start    time.Time
	sockets  atomic.Int64 // open sockets of the Client
	attempts atomic.Int64 // attempts whose end was not traced
	queries  atomic.Int64 // received by servers, without those that are probes of connections
	answers  sync.Map     // name and address of each answer
}

// A worldServer is a server whose fault is active for some time.
type worldServer struct {
	name        string
	fault       string // "": none
	from, until time.Duration

	mu   sync.Mutex // guards the fields below
	runs []*quicServer
	stop func() // ends the last of runs; nil: it has ended
}

type worldQuestion struct {
	name string
	at   time.Duration
}

const (
	worldTimeout = 5 * time.Second
	worldWarmUp  = 2 * time.Second  // at 50 ms intervals questions are asked before it
	maxRecovery  = 30 * time.Second // time after which the end of a fault is known
	forever      = 1000 * time.Hour
)

// The faults of servers. With slow faults, queries get no answer, or a late one, or all packets are lost. With lostpath, the path
// of connections so far loses all packets from the beginning of the fault on, and other connections work. With prompt faults,
// servers answer with a failure, end connections in place of an answer or in the middle of one, reset streams or end them in the
// middle of an answer, or their process has ended.
var (
	slowFaults   = []string{"silent", "late1s", "late3s", "blackhole", "lostpath", "lostpath"}
	promptFaults = []string{"servfail", "refused", "closes", "cut", "reset", "half", "down"}
)

// newWorld returns the world of a number.
func newWorld(number uint64) *world {
	r := rand.New(rand.NewPCG(number, 9250))
	w := &world{scheme: pick(r, schemes...), loss: pick(r, 0, 0, 0, .02, .1), hedge: pick(r, "", "", "", "off", "30ms"), cached: r.IntN(2) == 0}
	w.order = pick(r, dnshedge.OrderAuto, dnshedge.OrderAuto, dnshedge.OrderStrict)
	w.last = worldWarmUp
	for i := range pick(r, 1, 2, 2, 3) {
		s := &worldServer{name: fmt.Sprintf("s%d", i)}
		if r.IntN(2) == 0 {
			s.fault = pick(r, slices.Concat(slowFaults, promptFaults)...)
			s.from = pick(r, 0, worldWarmUp-time.Millisecond, worldWarmUp+300*time.Millisecond)
			s.until = s.from + pick(r, 700*time.Millisecond, 7*time.Second, 30*time.Second, forever)
			if s.until < forever {
				w.last = max(w.last, s.until)
			}
		}
		w.servers = append(w.servers, s)
	}
	for i := range 8 {
		w.asks = append(w.asks, worldQuestion{fmt.Sprintf("past%d.example.", i), time.Duration(i) * 50 * time.Millisecond})
	}
	for i := range 1 + r.IntN(5) {
		at := worldWarmUp + pick(r, 0, 310*time.Millisecond, time.Duration(i)*2*time.Second, 20*time.Second)
		number, gap, others := 1, time.Duration(0), false
		switch pick(r, "", "", "same5", "many30", "repeat8") {
		case "same5":
			number = 5
		case "many30":
			number, gap, others = 30, 7*time.Millisecond, true
		case "repeat8":
			number, gap = 8, time.Second
		}
		for n := range number {
			q := worldQuestion{fmt.Sprintf("call%d.example.", i), at + time.Duration(n)*gap}
			if others {
				q.name = fmt.Sprintf("call%d-%d.example.", i, n)
			}
			w.asks = append(w.asks, q)
			w.last = max(w.last, q.at)
		}
	}
	w.last += time.Minute
	for i := range 10 {
		w.asks = append(w.asks, worldQuestion{fmt.Sprintf("last%d.example.", i), w.last + time.Duration(i)*5*time.Second})
	}
	return w
}

// String describes the world without its questions.
func (w *world) String() string {
	s := fmt.Sprintf("%s order=%v hedge=%q loss=%v cache=%v", w.scheme, w.order, w.hedge, w.loss, w.cached)
	for _, server := range w.servers {
		s += fmt.Sprintf(" %s=%s[%v,%v]", server.name, server.fault, server.from, server.until)
	}
	return s
}

func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

// isFaulty reports whether the fault is active at a time between two times.
func (s *worldServer) isFaulty(from, until time.Duration) bool {
	return s.fault != "" && s.from <= until && from <= s.until
}

func (w *world) since() time.Duration { return time.Since(w.start) }

// handle answers a query, or does what the fault of the server demands.
func (w *world) handle(s *worldServer, conn *quicgo.Conn, query []byte, to responseStream) {
	m := new(dns.Msg)
	if len(query) < 2 || m.Unpack(query[2:]) != nil { // the client has cancelled it
		return
	}
	name, number, fault := strings.ToLower(m.Question[0].Name), int64(0), ""
	if name != "." {
		number = w.queries.Add(1)
	}
	if s.isFaulty(w.since(), w.since()) {
		fault = s.fault
	}
	answer := dnstest.Rcode(dnstest.Query{Msg: m}, dns.RcodeServerFailure)
	switch fault {
	case "silent":
		<-to.ctx.Done()
		return
	case "reset":
		to.reset()
		return
	case "closes":
		_ = conn.CloseWithError(noError, "")
		return
	case "refused":
		answer.Rcode = dns.RcodeRefused
	case "servfail":
	default:
		address := fmt.Sprintf("10.0.%d.%d", number>>8, number&255)
		w.answers.Store(name+address, true)
		answer = dnstest.Answer(dnstest.Query{Msg: m}, "A "+address)
		time.Sleep(map[string]time.Duration{"late1s": time.Second, "late3s": 3 * time.Second}[fault])
	}
	b, err := answer.Pack()
	if err != nil {
		panic(err)
	}
	b = frame(b)
	if fault == "cut" || fault == "half" {
		b = b[:20]
	}
	to.respond(b, fault != "cut")
	if fault == "cut" {
		time.Sleep(time.Millisecond) // the part is sent
		_ = conn.CloseWithError(internalError, "")
	}
}

// serve starts a server and plans its faults.
func (w *world) serve(s *worldServer) {
	if s.fault != "down" || s.from > 0 {
		w.listen(s)
	}
	w.net.Set("client", s.name, w.profile())
	switch s.fault {
	case "down":
		time.AfterFunc(s.from, s.end)
		if s.until < forever {
			time.AfterFunc(s.until, func() { w.listen(s) })
		}
	case "blackhole":
		time.AfterFunc(s.from, func() { w.net.Set("client", s.name, netsim.Profile{BlackHole: true}) })
		time.AfterFunc(s.until, func() { w.net.Set("client", s.name, w.profile()) })
	}
}

func (w *world) profile() netsim.Profile {
	return netsim.Profile{Delay: netsim.Constant(10 * time.Millisecond), Loss: w.loss}
}

// listen starts a server.
func (w *world) listen(s *worldServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	socket, err := w.net.Host(s.name).ListenPacket("udp", ":853")
	if err != nil {
		panic(err)
	}
	t := &quicgo.Transport{Conn: socket}
	l, err := t.Listen(serverConfig(w.scheme), new(quicgo.Config))
	if err != nil {
		panic(err)
	}
	run := serveQUIC(l, w.scheme, func(conn *quicgo.Conn, query []byte, to responseStream) { w.handle(s, conn, query, to) })
	s.runs = append(s.runs, run)
	s.stop = func() {
		_ = socket.Close() // first, so that the client learns nothing
		_ = t.Close()
		run.wg.Wait()
	}
}

// end ends a server.
func (s *worldServer) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// DialContext is the Dialer of the Client.
func (w *world) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := w.net.Host("client").DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.sockets.Add(1)
	host, _, _ := net.SplitHostPort(address)
	i := slices.IndexFunc(w.servers, func(s *worldServer) bool { return w.net.Host(s.name).Addr().String() == host })
	return &worldConn{Conn: c, w: w, server: w.servers[i], opened: w.since()}, nil
}

// A worldConn is a socket of the Client.
type worldConn struct {
	net.Conn
	w      *world
	server *worldServer
	opened time.Duration
	once   sync.Once
}

func (c *worldConn) Write(b []byte) (int, error) {
	if s := c.server; s.fault == "lostpath" && c.opened < s.from && s.from <= c.w.since() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *worldConn) Close() error {
	c.once.Do(func() { c.w.sockets.Add(-1) })
	return c.Conn.Close()
}

func (w *world) newClient() *dnshedge.Client {
	_, trusting := dnstest.Certificate()
	c := &dnshedge.Client{Dialer: w, TLSConfig: trusting, Timeout: worldTimeout, Order: w.order, SpecialUse: dnshedge.SpecialUseOff}
	for _, s := range w.servers {
		at := net.JoinHostPort(w.net.Host(s.name).Addr().String(), "853")
		c.Upstreams = append(c.Upstreams, dnshedge.Upstream{Net: w.scheme, Addr: at, ServerName: dnstest.Name})
	}
	if w.cached {
		c.Cache = new(dnshedge.Cache)
	}
	c.Hedge.Off = w.hedge == "off"
	if w.hedge == "30ms" {
		c.Hedge.Fixed = 30 * time.Millisecond
	}
	c.Trace = &dnshedge.Trace{
		Attempt: func(context.Context, dnshedge.AttemptInfo) { w.attempts.Add(1) },
		Done:    func(context.Context, dnshedge.AttemptInfo, time.Duration, error) { w.attempts.Add(-1) },
	}
	return c
}

// play asks the questions in a bubble of fake time, and checks the promises of the Client.
func (w *world) play(t *testing.T) {
	w.start = time.Now()
	names := []string{"client"}
	for _, s := range w.servers {
		names = append(names, s.name)
	}
	var err error
	w.net, err = netsim.NewMemory(1, names...)
	require.NoError(t, err)
	defer w.net.Close()
	for _, s := range w.servers {
		w.serve(s)
	}
	c := w.newClient()
	var wg sync.WaitGroup
	for _, q := range w.asks {
		wg.Go(func() {
			time.Sleep(q.at)
			r, _, err := c.ExchangeContext(t.Context(), new(dns.Msg).SetQuestion(q.name, dns.TypeA), "")
			w.checkResult(t, q, r, err)
		})
	}
	wg.Wait()
	time.Sleep(15 * time.Second)
	w.checkStats(t, c.Stats())
	_ = c.Close()
	synctest.Wait()
	assert.Zero(t, w.sockets.Load(), "sockets are open")
	assert.Zero(t, w.attempts.Load(), "attempts have no end")
	time.Sleep(time.Second)
	for _, s := range w.servers {
		for _, run := range s.runs {
			for _, conn := range run.accepted() {
				assert.True(t, conn.Context().Err() != nil || w.loss > 0 || s.fault == "blackhole" || s.fault == "lostpath", "a connection of %s is open", s.name)
			}
		}
		s.end()
	}
	time.Sleep(time.Minute) // package quic-go keeps closed connections for a moment
}

// checkResult checks that a question is answered if a server can answer it, and how long that takes.
func (w *world) checkResult(t *testing.T, q worldQuestion, r *dns.Msg, err error) {
	took := w.since() - q.at
	t.Logf("%v %s: %v, %v after %v", q.at, q.name, r != nil && r.Rcode == dns.RcodeSuccess, err, took)
	healthy, lostPath, prompt, final := 0, 0, 0, 0 // servers: final is the number of those whose response is a failure
	for _, s := range w.servers {
		switch {
		case !s.isFaulty(q.at-maxRecovery, q.at+took):
			healthy++
		case s.fault == "lostpath":
			lostPath++
		case s.fault == "servfail" || s.fault == "refused":
			final++
			fallthrough
		case slices.Contains(promptFaults, s.fault):
			prompt++
		}
	}
	limit, all := worldTimeout+50*time.Millisecond, len(w.servers)
	if w.loss == 0 {
		switch {
		case healthy == all:
			limit = 200 * time.Millisecond
		case healthy > 0 && healthy+prompt == all, final == all:
			limit = time.Second
		case w.order != dnshedge.OrderStrict && (healthy > 0 || lostPath == all): // else the Client waits for late servers
			limit = 3500 * time.Millisecond
		}
	}
	assert.LessOrEqual(t, took, limit, "%v %s: %v", q.at, q.name, err)
	if r != nil && r.Rcode == dns.RcodeSuccess {
		require.Len(t, r.Answer, 1)
		_, sent := w.answers.Load(q.name + r.Answer[0].(*dns.A).A.String())
		assert.True(t, sent, "no server has sent %v", r.Answer[0])
	} else {
		assert.False(t, healthy > 0 || lostPath == all, "%v %s: %v", q.at, q.name, err)
	}
}

// checkStats checks that no query is sent again to the same server, that hedges stay within the budget, and that all queries are
// counted.
func (w *world) checkStats(t *testing.T, s dnshedge.Stats) {
	if len(w.servers) == 1 {
		assert.Zero(t, s.Resends)
	}
	switch w.hedge {
	case "off":
		assert.Zero(t, s.Hedges)
	case "":
		assert.LessOrEqual(t, float64(s.Hedges), .05*float64(s.Wire)+21)
	}
	assert.LessOrEqual(t, w.queries.Load(), s.Wire+s.Retries)
}

// TestWorldsKeepPromises plays worlds from the number HEDGE_TEST_WORLD on, for the time HEDGE_TEST_SOAK.
func TestWorldsKeepPromises(t *testing.T) {
	dnstest.Certificate() // outside the bubbles
	first, _ := strconv.ParseUint(os.Getenv("HEDGE_TEST_WORLD"), 10, 64)
	count, end := uint64(60), time.Now().Add(doubles.SoakTime(t, 0))
	if doubles.RaceEnabled {
		count = 20
	}
	for number := first; number < first+count || time.Now().Before(end); number++ {
		t.Run(strconv.FormatUint(number, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(number)
				t.Log(w)
				w.play(t)
			})
		})
	}
}
