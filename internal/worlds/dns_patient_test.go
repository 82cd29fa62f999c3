package worlds_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/dnstest"
)

// The patient resolver has no memory. It queries all servers in turn, each for a part of the time. It sends a query
// again after one second, then after two seconds and so on, and accepts responses until the end.

// A patientAnswer is the result of one query of the patient resolver.
type patientAnswer struct {
	msg  *dns.Msg // nil: there is none
	late bool     // nothing came in time
}

func (a patientAnswer) succeeded() bool { return (&dnsResult{msg: a.msg}).succeeded() }

// resolvePatiently resolves a question by the patient resolver, which queries all servers in turn and has no memory.
func (p *dnsPlay) resolvePatiently(a *dnsQuestion, r *dnsResult) *dnsResult {
	if a.opcode != dns.OpcodeQuery { // which it has no answer to
		r.end = r.began
		return r
	}
	left := p.w.client.timeout
	if a.deadline > 0 && p.passesContext() {
		left = min(left, a.deadline)
	}
	ctx, cancel := context.WithTimeout(context.Background(), left)
	defer cancel()
	said := make(chan patientAnswer, 100)
	start := time.Now()
	var failure *dns.Msg
	failed := make(map[int]bool) // servers that have said that they cannot are not asked again
	for ctx.Err() == nil {
		at := p.since()
		if p.w.way.others { // the Client that was asked has the same servers until the end
			at = r.began
		}
		servers := p.w.serversAt(at, a.name)
		begun, silent := time.Now(), len(servers) == 0
		part := (left - begun.Sub(start)) / time.Duration(max(1, len(servers)))
		for i, s := range servers {
			if failed[s] {
				continue
			}
			x := p.queryServerInTurn(ctx, a, s, begun.Add(part*time.Duration(i+1)), said)
			if x.succeeded() {
				r.msg, r.end = x.msg, p.since()
				return r
			}
			silent, failed[s] = silent || x.late, x.msg != nil
			failure = cmp.Or(failure, x.msg)
		}
		if failure != nil && !silent {
			break // all servers that can be reached have refused
		}
		sleep(ctx, 200*ms)
	}
	r.msg, r.end = failure, p.since()
	return r
}

// passesContext reports whether the Client gets the context of a caller.
func (p *dnsPlay) passesContext() bool { return p.w.way.front == "" || p.w.way.front == "dial" }

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// queryServerInTurn queries one server until its part of the time ends. Responses of servers that were queried earlier
// are accepted as well.
func (p *dnsPlay) queryServerInTurn(ctx context.Context, a *dnsQuestion, server int, end time.Time, said chan patientAnswer) patientAnswer {
	mine := make(chan patientAnswer, 10)
	for wait := time.Second; ; wait *= 2 {
		go func() {
			x := patientAnswer{msg: p.queryOnce(ctx, a, server)}
			if x.succeeded() {
				said <- x
			} else {
				mine <- x
			}
		}()
		t := time.NewTimer(min(wait, time.Until(end)))
		select {
		case x := <-said:
			t.Stop()
			return x
		case x := <-mine:
			t.Stop()
			return x // the server fails or does not listen: the next server
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return patientAnswer{late: true}
		}
		if time.Until(end) <= 0 {
			return patientAnswer{late: true}
		}
	}
}

// queryOnce sends one query to a server. If the response is truncated, it sends the query again over TCP.
func (p *dnsPlay) queryOnce(ctx context.Context, a *dnsQuestion, server int) *dns.Msg {
	m := a.newMessage()
	m.Id = dns.Id()
	m.RecursionDesired = true
	m.Question[0].Name = a.name
	if m.IsEdns0() == nil {
		m.SetEdns0(1232, false)
	}
	network := p.w.way.net
	if network == "https" {
		network = "tls"
	}
	r := p.exchange(ctx, network, server, m)
	if r != nil && r.Truncated {
		r = p.exchange(ctx, "tcp", server, m)
	}
	return r
}

func (p *dnsPlay) exchange(ctx context.Context, network string, server int, m *dns.Msg) *dns.Msg {
	dial, port := network, ":53"
	if network == "tls" {
		dial, port = "tcp", ":853"
	}
	below, err := p.net.Host("client").DialContext(ctx, dial, p.host(server).Name()+port)
	if err != nil {
		return nil
	}
	defer below.Close()
	defer context.AfterFunc(ctx, func() { _ = below.SetDeadline(time.Unix(1, 0)) })()
	c := below
	if network == "tls" {
		_, trusting := dnstest.Certificate()
		trusting = trusting.Clone()
		trusting.ServerName = dnstest.Name
		c = tls.Client(below, trusting)
	}
	return patientExchange(c, network, m)
}

// patientExchange returns the response to m, or nil. It ignores other messages.
func patientExchange(c net.Conn, network string, m *dns.Msg) *dns.Msg {
	conn := &dns.Conn{Conn: c, UDPSize: 4096}
	if network == "udp" {
		b, err := m.Pack()
		if err != nil {
			return nil
		}
		if _, err := c.Write(b); err != nil {
			return nil
		}
		for {
			buf := make([]byte, 4096)
			n, err := c.Read(buf)
			if err != nil {
				return nil
			}
			if r := new(dns.Msg); r.Unpack(buf[:n]) == nil && isResponseTo(r, m) {
				return r
			}
		}
	}
	if conn.WriteMsg(m) != nil {
		return nil
	}
	for {
		r, err := conn.ReadMsg()
		if err != nil {
			return nil
		}
		if isResponseTo(r, m) {
			return r
		}
	}
}

func isResponseTo(r, m *dns.Msg) bool {
	return r.Id == m.Id && len(r.Question) == 1 && keyOf(r).name == keyOf(m).name && r.Question[0].Qtype == m.Question[0].Qtype
}
