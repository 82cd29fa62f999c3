package worlds_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// A recPlay is one performance of a recWorld, and what was seen in it.
type recPlay struct {
	w       *recWorld
	start   time.Time
	net     *netsim.Network
	data    *recData
	broken  string
	results []*recResult // by ask

	validator *dnssec.Validator // nil: there is none
	inner     *dnshedge.Client  // which the Validator asks; nil: there is none
	validated []*recResult      // of the Validator, by ask
	put       atomic.Int64      // questions of the Validator

	cached *dnshedge.Client // which keeps what the Resolver answers; nil: there is none
	kept   []*recResult     // of that Client, by ask

	conns atomic.Int64 // open
	dials atomic.Int64

	mu        sync.Mutex // guards the fields below
	resolver  *recursor.Resolver
	resolvers []*recursor.Resolver // that one, and those before it
	seen      []recSeen
	heard     []recSeen // by upstreams
	notes     []finding
	started   int // attempts that the Trace was told of
	done      int
	hedges    int
	sent      int // without hedges
}

// A recResult is what a caller saw. Times are since the play began.
type recResult struct {
	began, end time.Duration
	msg        *dns.Msg // nil: there is an error
	err        error
	closed     bool // the Resolver is closed by then
	info       recursor.AnswerInfo
	told       int // how often the Trace was told of the answer
	hedges     int // sent until then, for all
}

func (r *recResult) String() string {
	if r == nil {
		return "{no end}"
	}
	took := r.end - r.began
	if r.msg == nil {
		return fmt.Sprintf("{%v after %v}", r.err, took)
	}
	s := dns.RcodeToString[r.msg.Rcode]
	if r.msg.AuthenticatedData {
		s += " AD"
	}
	if why := r.why(); why != "" {
		s += " (" + why + ")"
	}
	return fmt.Sprintf("{%s %.200s after %v, %d queries}", s, strings.Join(recordsOf(r.msg.Answer), "; "), took, r.info.Queries)
}

// why is the text of the response's extended error.
func (r *recResult) why() string {
	if r.msg == nil || r.msg.IsEdns0() == nil {
		return ""
	}
	for _, o := range r.msg.IsEdns0().Option {
		if e, ok := o.(*dns.EDNS0_EDE); ok {
			return fmt.Sprintf("%d %s", e.InfoCode, e.ExtraText)
		}
	}
	return ""
}

// good reports whether the result is an answer.
func (r *recResult) good() bool {
	return r.msg != nil && (r.msg.Rcode == dns.RcodeSuccess || r.msg.Rcode == dns.RcodeNameError)
}

func playRec(s *stage, w *recWorld) *recPlay {
	p := &recPlay{w: w}
	p.broken = s.bubble(p.run)
	return p
}

func (p *recPlay) since() time.Duration { return time.Since(p.start) }

func serverName(n int) string { return fmt.Sprintf("s%d", n) }

func (p *recPlay) note(promise, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, finding{promise, fmt.Sprintf(format, args...)})
}

func (p *recPlay) run() {
	p.start = time.Now()
	names := []string{"client"}
	for _, s := range p.w.servers {
		names = append(names, serverName(s.number))
	}
	for _, u := range p.w.upstreams {
		names = append(names, upstreamName(u.number))
	}
	n, err := netsim.NewMemory(1, names...)
	if err != nil {
		panic(err)
	}
	defer n.Close()
	p.net = n
	p.data = newRecData(p.w, p.addr)
	var servers []*dnstest.Server
	for _, s := range p.w.servers {
		n.Set("client", serverName(s.number), netsim.Profile{Delay: netsim.Constant(travel(s.number))})
		servers = append(servers, p.listen(serverName(s.number), func(q dnstest.Query) dnstest.Reply { return p.answer(s, q) }))
	}
	for _, u := range p.w.upstreams {
		n.Set("client", upstreamName(u.number), netsim.Profile{Delay: netsim.Constant(travel(u.number))})
		servers = append(servers, p.listen(upstreamName(u.number), func(q dnstest.Query) dnstest.Reply { return p.answerAsUpstream(u, q) }))
	}
	p.resolver = p.newResolver()
	p.newValidator()
	if p.w.client.cached {
		p.cached = &dnshedge.Client{Exchanger: recExchanger{play: p, above: true}, Cache: &dnshedge.Cache{MaxStale: -1}, SpecialUse: dnshedge.SpecialUseOff}
	}
	p.change()
	p.results, p.validated, p.kept = make([]*recResult, len(p.w.asks)), make([]*recResult, len(p.w.asks)), make([]*recResult, len(p.w.asks))
	var wg sync.WaitGroup
	for i, a := range p.w.asks {
		wg.Go(func() {
			time.Sleep(a.at)
			p.results[i] = p.call(a, p.current(), false)
		})
		if p.validator != nil && a.flood == nil {
			wg.Go(func() {
				time.Sleep(a.at + 210*time.Microsecond)
				p.validated[i] = p.call(a, p.validator, true)
			})
		}
		if p.cached != nil && a.flood == nil {
			wg.Go(func() {
				time.Sleep(a.at + 340*time.Microsecond)
				p.kept[i] = p.call(a, p.cached, true)
			})
		}
	}
	wg.Wait()
	time.Sleep(15 * time.Second)
	p.finish()
	for _, s := range servers {
		s.Close()
	}
	time.Sleep(time.Minute)
}

// listen opens a server's sockets.
func (p *recPlay) listen(name string, answer dnstest.Handler) *dnstest.Server {
	server := &dnstest.Server{Handler: answer}
	host := p.net.Host(name)
	pc, err := host.ListenPacket("udp", ":53")
	if err != nil {
		panic(err)
	}
	ln, err := host.Listen("tcp", ":53")
	if err != nil {
		panic(err)
	}
	server.ServeUDP(pc)
	server.ServeTCP(ln)
	return server
}

// finish closes the Resolver, and looks what is left.
func (p *recPlay) finish() {
	if p.cached != nil {
		if err := p.cached.Close(); err != nil {
			p.note("6 close", "%v", err)
		}
	}
	for _, r := range p.resolvers {
		if s := r.Stats(); s.InFlight != 0 {
			p.note("6 queries", "%d are in flight when all is over", s.InFlight)
		} else if s.Bytes > s.MaxBytes || s.Bytes < 0 {
			p.note("6 memory", "%d bytes of %d", s.Bytes, s.MaxBytes)
		} else if s.Wire > 0 && float64(s.Hedges) > .15*float64(s.Wire)+20 {
			p.note("5 budget", "%d hedges of %d queries", s.Hedges, s.Wire)
		}
		if n := r.Stats().PassedOver; n > 0 && p.w.sound() {
			p.note("8 passed over", "%d responses, though nothing is wrong with a zone or a server", n)
		}
		if err := r.Close(); err != nil {
			p.note("6 close", "%v", err)
		}
	}
	p.finishValidator()
	if n := p.conns.Load(); n != 0 {
		p.note("6 connections", "%d are open after Close", n)
	}
	p.mu.Lock()
	a, b := p.started, p.done
	p.mu.Unlock()
	if a != b {
		p.note("6 counters", "the Trace was told of %d attempts, and of the end of %d", a, b)
	}
}

// change changes something when it is time.
func (p *recPlay) change() {
	switch p.w.client.change {
	case "close":
		time.AfterFunc(p.w.client.changeAt, func() {
			if p.validator != nil {
				_ = p.validator.Close()
			}
			_ = p.current().Close()
		})
	case "import":
		time.AfterFunc(p.w.client.changeAt, func() {
			old, next := p.current(), p.newResolver()
			var b bytes.Buffer
			if err := errors.Join(old.Export(&b), next.Import(&b)); err != nil {
				p.note("2 import", "%v", err)
			}
			p.mu.Lock()
			p.resolver = next
			p.mu.Unlock()
		})
	}
}

func (p *recPlay) current() *recursor.Resolver {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resolver
}

// newResolver makes a Resolver as the world says.
func (p *recPlay) newResolver() *recursor.Resolver {
	w, c := p.w, p.w.client
	r := &recursor.Resolver{Dialer: p, PrivateOK: true, NoIPv6: true, NoMinimise: c.noMinimise, MaxBytes: c.maxBytes, Trace: p.trace()}
	for _, s := range w.zones[0].servers {
		r.Hints = append(r.Hints, p.addr(s))
	}
	r.Hedge.Off = c.hedgeOff
	r.Trust = p.newTrust()
	l := &r.Limits
	if of := map[string]*int{
		"queries": &l.Queries, "chainQueries": &l.ChainQueries, "verifications": &l.Verifications, "inFlight": &l.InFlight,
		"zoneInFlight": &l.ZoneInFlight, "referrals": &l.Referrals, "aliases": &l.Aliases, "names": &l.ServerNames,
	}[c.limit]; of != nil {
		*of = c.most
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resolvers = append(p.resolvers, r)
	return r
}

// newTrust returns what the Resolver and the Validator trust.
func (p *recPlay) newTrust() dnssec.Trust {
	w, c := p.w, p.w.client
	t := dnssec.Trust{Off: c.trust == "off", Report: c.trust == "report", Anchors: []dns.RR{}}
	for _, z := range w.zones {
		if w.isAnchored(z) {
			t.Anchors = append(t.Anchors, p.data.keys[z].ds...)
		}
	}
	if c.insecure >= 0 {
		t.Insecure = []string{w.zones[c.insecure].name}
	}
	return t
}

// trace counts attempts, and gives answers to those who asked.
func (p *recPlay) trace() *recursor.Trace {
	return &recursor.Trace{
		Attempt: func(_ context.Context, i recursor.AttemptInfo) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.started++
			if i.Hedge {
				p.hedges++
			} else {
				p.sent++
			}
		},
		Done: func(context.Context, recursor.AttemptInfo, time.Duration, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.done++
		},
		Answer: func(ctx context.Context, i recursor.AnswerInfo) {
			if r, ok := ctx.Value(recCaller{}).(*recResult); ok { // or the Validator asks
				r.info = i
				r.told++
			}
		},
	}
}

// A recCaller is the key of the recResult in the context of a question.
type recCaller struct{}

// DialContext is the Resolver's way to its network.
func (p *recPlay) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if n := p.dials.Add(1); n == dialsAtMost { // or the world takes minutes
		p.note("5 queries", "%d sockets are opened", n)
	}
	c, err := p.net.Host("client").DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return counted(c, &p.conns), nil
}

// message is the question as a caller writes it.
func (a *recAsk) message() *dns.Msg {
	m := new(dns.Msg).SetQuestion(a.name, a.typ)
	if a.upper {
		m.Question[0].Name = strings.ToUpper(a.name)
	}
	m.CheckingDisabled, m.AuthenticatedData = a.cd, a.ad
	if a.edns {
		m.SetEdns0(1232, a.do)
	}
	return m
}

// call asks the Resolver as a caller does, or what is beside or above it and has no Trace.
func (p *recPlay) call(a *recAsk, of dnssec.Exchanger, traceless bool) *recResult {
	r := &recResult{began: p.since()}
	m := a.message()
	before := m.Copy()
	ctx, stop := context.Background(), func() {}
	if !traceless {
		ctx = context.WithValue(ctx, recCaller{}, r)
	}
	if a.deadline > 0 || a.cancel >= 0 {
		ctx, stop = callerTimes(ctx, a.deadline, a.cancel)
	}
	out, _, err := of.ExchangeContext(ctx, m, "")
	stop()
	r.end = p.since()
	r.closed = p.w.client.change == "close" && r.end >= p.w.client.changeAt
	r.err = err
	if (out == nil) == (err == nil) {
		p.note("4 result", "%v: response %v and error %v", a, out, err)
	}
	if out != nil {
		if out.Id != m.Id {
			p.note("2 form", "%v: its ID is another one", a)
		}
		r.msg = out.Copy()
		if !traceless || !a.cd && p.w.client.trust != "off" { // a Validator passes the Exchanger's response on
			poison(out)
		}
	}
	if traceless && out != nil {
		r.told, r.info.Rcode = 1, r.msg.Rcode
		if r.msg.AuthenticatedData {
			r.info.Security = dnssec.Secure
		}
	}
	if !reflect.DeepEqual(m.Copy(), before) {
		p.note("6 question", "%v: the caller's message was changed: %v", a, m)
	}
	p.mu.Lock()
	r.hedges = p.hedges
	p.mu.Unlock()
	return r
}
