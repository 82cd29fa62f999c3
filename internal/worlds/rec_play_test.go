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

// A recPlay is one play of a recScenario with its observations.
type recPlay struct {
	w       *recScenario
	start   time.Time
	net     *netsim.Network
	data    *recData
	broken  string
	results []*recResult // by ask

	validator *dnssec.Validator // nil: there is none
	inner     *dnshedge.Client  // which the Validator asks; nil: there is none
	validated []*recResult      // of the Validator, by ask
	put       atomic.Int64      // questions of the Validator

	cached *dnshedge.Client // caches the answers of the Resolver; nil: none
	kept   []*recResult     // of that Client, by ask

	conns atomic.Int64 // open
	dials atomic.Int64

	mu        sync.Mutex // guards the fields below
	resolver  *recursor.Resolver
	resolvers []*recursor.Resolver // the current one and earlier ones
	seen      []recReceivedQuery
	heard     []recReceivedQuery                // by upstreams
	denials   map[recDenialRecord]time.Duration // time at which a record was sent first
	notes     []finding
	started   int // attempts that the Trace was told of
	done      int
	hedges    int
	sent      int // without hedges
}

// A recResult is the result of a question. Times are since the start of the play.
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
	if why := r.extendedErrorText(); why != "" {
		s += " (" + why + ")"
	}
	return fmt.Sprintf("{%s %.200s after %v, %d queries}", s, strings.Join(formatRecords(r.msg.Answer), "; "), took, r.info.Queries)
}

// extendedErrorText returns the text of the response's extended error.
func (r *recResult) extendedErrorText() string {
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

// succeeded reports whether the result is an answer.
func (r *recResult) succeeded() bool {
	return r.msg != nil && (r.msg.Rcode == dns.RcodeSuccess || r.msg.Rcode == dns.RcodeNameError)
}

func playRec(s *stage, w *recScenario) *recPlay {
	p := &recPlay{w: w, denials: make(map[recDenialRecord]time.Duration)}
	p.broken = s.runInBubble(p.run)
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
	p.data = newRecData(p.w, p.addressOf)
	var servers []*dnstest.Server
	for _, s := range p.w.servers {
		n.Set("client", serverName(s.number), netsim.Profile{Delay: netsim.Constant(oneWayDelay(s.number))})
		servers = append(servers, p.listen(serverName(s.number), func(q dnstest.Query) dnstest.Reply { return p.respond(s, q) }))
	}
	for _, u := range p.w.upstreams {
		n.Set("client", upstreamName(u.number), netsim.Profile{Delay: netsim.Constant(oneWayDelay(u.number))})
		servers = append(servers, p.listen(upstreamName(u.number), func(q dnstest.Query) dnstest.Reply { return p.answerAsUpstream(u, q) }))
	}
	p.resolver = p.newResolver()
	p.newValidator()
	if p.w.client.cached {
		p.cached = &dnshedge.Client{Exchanger: recExchanger{play: p, above: true}, Cache: &dnshedge.Cache{MaxStale: -1}, SpecialUse: dnshedge.SpecialUseOff}
	}
	p.applyChange()
	p.results, p.validated, p.kept = make([]*recResult, len(p.w.asks)), make([]*recResult, len(p.w.asks)), make([]*recResult, len(p.w.asks))
	var wg sync.WaitGroup
	for i, a := range p.w.asks {
		wg.Go(func() {
			time.Sleep(a.at)
			p.results[i] = p.askResolver(a, p.current(), false)
		})
		if p.validator != nil && a.flood == nil {
			wg.Go(func() {
				time.Sleep(a.at + 210*time.Microsecond)
				p.validated[i] = p.askResolver(a, p.validator, true)
			})
		}
		if p.cached != nil && a.flood == nil {
			wg.Go(func() {
				time.Sleep(a.at + 340*time.Microsecond)
				p.kept[i] = p.askResolver(a, p.cached, true)
			})
		}
	}
	wg.Wait()
	time.Sleep(15 * time.Second)
	p.closeResolver()
	for _, s := range servers {
		s.Close()
	}
	time.Sleep(time.Minute)
}

// listen opens the sockets of a server.
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

// closeResolver closes the Resolver, and checks that nothing of it is left.
func (p *recPlay) closeResolver() {
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
		if n := r.Stats().PassedOver; n > 0 && p.w.isFlawless() {
			p.note("8 passed over", "%d responses, though nothing is wrong with a zone or a server", n)
		}
		if err := r.Close(); err != nil {
			p.note("6 close", "%v", err)
		}
	}
	p.closeValidator()
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

// applyChange applies the change of the scenario at its time.
func (p *recPlay) applyChange() {
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

// newResolver makes a Resolver with the settings of the scenario.
func (p *recPlay) newResolver() *recursor.Resolver {
	w, c := p.w, p.w.client
	r := &recursor.Resolver{Dialer: p, PrivateOK: true, NoIPv6: true, NoMinimise: c.noMinimise, MaxBytes: c.maxBytes, Trace: p.newTrace()}
	for _, s := range w.zones[0].servers {
		r.Hints = append(r.Hints, p.addressOf(s))
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

// newTrust returns the trust settings of the Resolver and the Validator.
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

// newTrace returns a Trace that counts attempts, and assigns answers to their questions.
func (p *recPlay) newTrace() *recursor.Trace {
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
			if r, ok := ctx.Value(recResultKey{}).(*recResult); ok { // or the Validator asks
				r.info = i
				r.told++
			}
		},
	}
}

// A recResultKey is the context key of the recResult of a question.
type recResultKey struct{}

// DialContext is the Dialer of the Resolver.
func (p *recPlay) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if n := p.dials.Add(1); n == maxDials { // otherwise the play takes minutes
		p.note("5 queries", "%d sockets are opened", n)
	}
	c, err := p.net.Host("client").DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return countConn(c, &p.conns), nil
}

// newMessage returns the question of the caller.
func (a *recQuestion) newMessage() *dns.Msg {
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

// askResolver asks the Resolver as a caller does, or a Validator or a Client, which has no Trace.
func (p *recPlay) askResolver(a *recQuestion, of dnssec.Exchanger, traceless bool) *recResult {
	r := &recResult{began: p.since()}
	m := a.newMessage()
	before := m.Copy()
	ctx, stop := context.Background(), func() {}
	if !traceless {
		ctx = context.WithValue(ctx, recResultKey{}, r)
	}
	if a.deadline > 0 || a.cancel >= 0 {
		ctx, stop = newCallerTimes(ctx, a.deadline, a.cancel)
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
			overwriteMessage(out)
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
