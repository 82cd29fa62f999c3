package worlds_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"reflect"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// message is the question as a caller writes it.
func (a *dnsAsk) message() *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(a.name, a.typ)
	if a.upper {
		m.Question[0].Name = strings.ToUpper(a.name)
	}
	m.Question[0].Qclass = a.class
	m.RecursionDesired, m.CheckingDisabled = !a.noRD, a.cd
	if a.edns {
		m.SetEdns0(1232, a.do)
	}
	return m
}

// ended reports whether a caller gives up before a time since it asked, or at about that time.
func (a *dnsAsk) ended(took time.Duration) bool { return stops(a.deadline, a.cancel, took) }

// call asks the Client as a caller does.
func (p *dnsPlay) call(a *dnsAsk, r *dnsResult) *dnsResult {
	m := a.message()
	before := m.Copy()
	r.closed = p.w.way.change == "close" && r.began >= p.w.way.changeAt
	ctx, stop := context.Background(), func() {}
	if a.deadline > 0 || a.cancel >= 0 {
		ctx, stop = callerTimes(ctx, a.deadline, a.cancel)
	}
	var out *dns.Msg
	var err error
	switch p.w.way.front {
	case "serveDNS":
		w := new(dnsWriter)
		p.current().ServeDNS(w, m)
		out = w.msg
	case "udp", "tcp":
		out, err = p.overNetwork(p.w.way.front, m)
	case "dial":
		out, err = p.overDial(ctx, m)
	default:
		out, _, err = p.current().ExchangeContext(ctx, m, "")
	}
	stop()
	r.end = p.since()
	if err != nil {
		r.err = err.Error()
	} else if out != nil {
		r.msg = out.Copy()
		poison(out)
	}
	if !reflect.DeepEqual(m.Copy(), before) {
		p.note("6 question", "%s %v: the caller's message was changed: %v", a.what, a.dnsKey, m)
	}
	return r
}

// poison makes nonsense of a message that belongs to its caller.
func poison(m *dns.Msg) {
	for _, rrs := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for i, rr := range rrs {
			rr.Header().Ttl, rr.Header().Name = 77777, "poison."
			if a, ok := rr.(*dns.A); ok {
				clear(a.A)
			}
			if t, ok := rr.(*dns.TXT); ok {
				clear(t.Txt)
			}
			rrs[i] = nil
		}
	}
	for i := range m.Question {
		m.Question[i].Name = "poison."
	}
}

// A dnsWriter is what a server of package dns hands to a Handler.
type dnsWriter struct {
	dns.ResponseWriter
	msg *dns.Msg
}

func (w *dnsWriter) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(10, 77, 0, 99), Port: 5353}
}
func (w *dnsWriter) WriteMsg(m *dns.Msg) error { w.msg = m; return nil }
func (w *dnsWriter) Write(b []byte) (int, error) {
	w.msg = new(dns.Msg)
	return len(b), w.msg.Unpack(b)
}

// overNetwork asks the Client's Server, over TCP as well if the response was cut.
func (p *dnsPlay) overNetwork(network string, m *dns.Msg) (*dns.Msg, error) {
	c, err := p.net.Host("user").DialContext(context.Background(), network, "client:53")
	if err != nil {
		return nil, err
	}
	conn := &dns.Conn{Conn: c, UDPSize: 4096}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(4*p.w.client.timeout + 10*time.Second))
	if err := conn.WriteMsg(m); err != nil {
		return nil, err
	}
	r, err := conn.ReadMsg()
	if err == nil && r.Truncated && network == "udp" {
		return p.overNetwork("tcp", m)
	}
	return r, err
}

// overDial asks as net.Resolver does.
func (p *dnsPlay) overDial(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	c, err := p.current().Dial(ctx, "udp", "192.0.2.1:53")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	b, err := m.Pack()
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)); err != nil {
		return nil, err
	}
	var head [2]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return nil, err
	}
	b = make([]byte, binary.BigEndian.Uint16(head[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, err
	}
	r := new(dns.Msg)
	return r, r.Unpack(b)
}
