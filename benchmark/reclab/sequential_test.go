package reclab

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/lab"
)

// A sequentialResolver is a recursive resolver that queries one server at a time, without hedges, mostly as unbound
// does. It chooses at random among the servers that are at most 400 ms slower than the best. A server with an unknown
// round-trip time counts with 376 ms.
//
// The timeout of a server is four deviations above the mean round-trip time, and doubles after each timeout. The
// resolver does not validate.
type sequentialResolver struct {
	network *network

	mu      sync.Mutex // guards the fields below
	servers map[string][]string
	addrs   map[string][]netip.Addr
	rtts    map[netip.Addr]*rttEstimate
	flights map[string]chan struct{} // names of servers that are looked up
}

type rttEstimate struct{ mean, deviation, backoff time.Duration }

const (
	unknownServerRTT = 376 * time.Millisecond
	rttBand          = 400 * time.Millisecond
	maxAttempts      = 8
)

var errUnanswered = errors.New("no server answers")

// Sequential measures a sequentialResolver in memory.
func Sequential(ctx context.Context, conf lab.Config) (Row, error) {
	if err := setDefaults(&conf); err != nil {
		return Row{}, err
	}
	n := newInternet(newInternetPlan(conf.Scenario, conf.Seed))
	s := &sequentialResolver{
		network: newNetwork(n, newImpairment(conf.Scenario), conf.Seed), servers: make(map[string][]string), addrs: make(map[string][]netip.Addr),
		rtts: make(map[netip.Addr]*rttEstimate), flights: make(map[string]chan struct{}),
	}
	for _, root := range n.roots {
		s.servers["."] = append(s.servers["."], root.name)
		s.addrs[root.name] = []netip.Addr{root.addr}
	}
	r := &resolver{name: "sequential", network: s.network, exchange: func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		return s.resolve(ctx, m.Question[0].Name, m.Question[0].Qtype, 0)
	}}
	if err := r.waitUntilReady(ctx); err != nil {
		return Row{}, err
	}
	return r.askAll(ctx, conf, n.drawQuestions(newInternetPlan(conf.Scenario, conf.Seed), conf.Calls, 0))
}

func (s *sequentialResolver) resolve(ctx context.Context, name string, qtype uint16, depth int) (*dns.Msg, error) {
	if depth > 8 {
		return nil, errUnanswered
	}
	for range 20 {
		s.mu.Lock()
		zone := name
		for s.servers[zone] == nil {
			zone = parentName(zone)
		}
		s.mu.Unlock()
		m, err := s.queryZone(ctx, zone, name, qtype, depth)
		switch {
		case err != nil:
			return nil, err
		case !m.Authoritative && m.Rcode == dns.RcodeSuccess:
			s.cacheRecords(m)
			continue
		case len(m.Answer) == 1 && m.Answer[0].Header().Rrtype == dns.TypeCNAME:
			rest, err := s.resolve(ctx, m.Answer[0].(*dns.CNAME).Target, qtype, depth+1)
			if err == nil {
				rest.Answer = append(m.Answer, rest.Answer...)
			}
			return rest, err
		}
		return m, nil
	}
	return nil, errUnanswered
}

func (s *sequentialResolver) cacheRecords(m *dns.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	zone := m.Ns[0].Header().Name
	s.servers[zone] = nil
	for _, rr := range m.Ns {
		s.servers[zone] = append(s.servers[zone], rr.(*dns.NS).Ns)
	}
	for _, rr := range m.Extra {
		if a, ok := rr.(*dns.A); ok {
			ip, _ := netip.AddrFromSlice(a.A.To4())
			s.addrs[a.Hdr.Name] = []netip.Addr{ip}
		}
	}
}

// queryZone queries the servers of a zone, one after another.
func (s *sequentialResolver) queryZone(ctx context.Context, zone, name string, qtype uint16, depth int) (*dns.Msg, error) {
	broken := make(map[netip.Addr]bool)
	for range maxAttempts {
		at, wait, err := s.chooseServer(ctx, zone, broken, depth)
		if err != nil {
			return nil, err
		}
		m, err := s.sendQuery(at, name, qtype, wait)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
		case m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError:
			return m, nil
		default:
			broken[at] = true
		}
	}
	return nil, errUnanswered
}

// chooseServer returns the next server of a zone and the timeout of the query. It looks up the names of servers one
// after another until the address of a server is known.
func (s *sequentialResolver) chooseServer(ctx context.Context, zone string, broken map[netip.Addr]bool, depth int) (netip.Addr, time.Duration, error) {
	s.mu.Lock()
	names := slices.Clone(s.servers[zone])
	s.mu.Unlock()
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for lookedUp := 0; ; lookedUp++ {
		s.mu.Lock()
		best, expected := time.Hour, make(map[netip.Addr]time.Duration)
		for _, n := range names {
			for _, a := range s.addrs[n] {
				if !broken[a] {
					expected[a] = s.expectedRTT(a)
					best = min(best, expected[a])
				}
			}
		}
		s.mu.Unlock()
		var near []netip.Addr
		for a, d := range expected {
			if d <= best+rttBand {
				near = append(near, a)
			}
		}
		if len(near) > 0 {
			a := near[rand.IntN(len(near))]
			return a, s.timeoutOf(a), nil
		}
		if lookedUp == len(names) {
			return netip.Addr{}, 0, errUnanswered
		}
		s.lookUpServer(ctx, names[lookedUp], depth)
	}
}

// expectedRTT returns the expected round-trip time of a server. The caller holds mu.
func (s *sequentialResolver) expectedRTT(a netip.Addr) time.Duration {
	if t := s.rtts[a]; t != nil {
		return max(t.mean+4*t.deviation, 50*time.Millisecond, t.backoff)
	}
	return unknownServerRTT
}

// timeoutOf returns the timeout of a server: twice the expected round-trip time if that is known.
func (s *sequentialResolver) timeoutOf(a netip.Addr) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.rtts[a]; t != nil && t.backoff == 0 {
		return 2 * s.expectedRTT(a)
	}
	return s.expectedRTT(a)
}

// lookUpServer looks up the address of a server. Concurrent lookups of one name share the result.
func (s *sequentialResolver) lookUpServer(ctx context.Context, name string, depth int) {
	s.mu.Lock()
	done := s.flights[name]
	if done != nil || s.addrs[name] != nil {
		s.mu.Unlock()
		if done != nil {
			select {
			case <-done:
			case <-ctx.Done():
			}
		}
		return
	}
	done = make(chan struct{})
	s.flights[name] = done
	s.mu.Unlock()
	m, err := s.resolve(ctx, name, dns.TypeA, depth+1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		for _, rr := range m.Answer {
			if a, ok := rr.(*dns.A); ok {
				ip, _ := netip.AddrFromSlice(a.A.To4())
				s.addrs[name] = append(s.addrs[name], ip)
			}
		}
	}
	delete(s.flights, name)
	close(done)
}

// sendQuery sends a query to a server. It sends the query again over TCP or without EDNS if the server requires
// that.
func (s *sequentialResolver) sendQuery(at netip.Addr, name string, qtype uint16, wait time.Duration) (*dns.Msg, error) {
	q := new(dns.Msg)
	q.SetQuestion(strings.ToLower(name), qtype)
	q.SetEdns0(ednsSize, false)
	network := "udp"
	for {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		began := time.Now()
		conn, err := s.network.DialContext(ctx, network, netip.AddrPortFrom(at, 53).String())
		cancel()
		if err != nil {
			return nil, err
		}
		client := dns.Client{Timeout: wait}
		m, _, err := client.ExchangeWithConn(q, &dns.Conn{Conn: conn, UDPSize: ednsSize})
		_ = conn.Close()
		if network == "udp" {
			s.recordRoundTrip(at, time.Since(began), err == nil)
		}
		switch {
		case err != nil:
			return nil, err
		case m.Truncated && network == "udp":
			network, wait = "tcp", 3*wait
		case m.Rcode == dns.RcodeFormatError && q.IsEdns0() != nil:
			q.Extra = nil
		default:
			return m, nil
		}
	}
}

// recordRoundTrip updates the expected round-trip time of a server after a query (RFC 6298).
func (s *sequentialResolver) recordRoundTrip(at netip.Addr, took time.Duration, answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.rtts[at]
	switch {
	case !answered:
		again := min(2*s.expectedRTT(at), 2*time.Minute)
		if t == nil {
			t = new(rttEstimate)
			s.rtts[at] = t
		}
		t.backoff = again
	case t == nil || t.mean == 0:
		s.rtts[at] = &rttEstimate{mean: took, deviation: took / 2}
	default:
		off := took - t.mean
		t.mean += off / 8
		t.deviation += (max(off, -off) - t.deviation) / 4
		t.backoff = 0
	}
}
