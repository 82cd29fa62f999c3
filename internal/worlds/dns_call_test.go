package worlds_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/race"
)

// newMessage returns the question of the caller.
func (a *dnsQuestion) newMessage() *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(a.name, a.typ)
	if a.upper {
		m.Question[0].Name = strings.ToUpper(a.name)
	}
	m.Opcode, m.Question[0].Qclass = a.opcode, a.class
	m.RecursionDesired, m.CheckingDisabled = !a.noRD, a.cd
	if a.edns {
		m.SetEdns0(1232, a.do)
		m.IsEdns0().Option = a.newOptions()
	}
	return m
}

// newOptions returns the EDNS options of the caller.
func (a *dnsQuestion) newOptions() []dns.EDNS0 {
	subnet := func(data ...byte) dns.EDNS0 { return &dns.EDNS0_LOCAL{Code: dns.EDNS0SUBNET, Data: data} }
	switch a.option {
	case "subnet":
		return []dns.EDNS0{subnet(0, 1, 24, 0, 192, 0, 2)}
	case "subnet6":
		return []dns.EDNS0{subnet(0, 2, 56, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0)}
	case "subnetNone": // the caller wants no subnet to be sent (RFC 7871 §7.1.2)
		return []dns.EDNS0{subnet(0, 1, 0, 0)}
	case "oddBits":
		return []dns.EDNS0{subnet(0, 1, 20, 0, 192, 0, 255)}
	case "oddLength":
		return []dns.EDNS0{subnet(append([]byte{0, 1, 24, 0, 192, 0, 2}, make([]byte, 300)...)...)}
	case "oddTwo":
		return []dns.EDNS0{subnet(0, 1, 24, 0, 192, 0, 2), subnet(0, 1, 24, 0, 198, 51, 100)}
	case "cookie":
		return []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"}}
	case "padding":
		return []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, 40)}}
	case "private":
		return []dns.EDNS0{&dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART, Data: []byte("private")}}
	}
	return nil
}

// isMalformed reports whether a forwarder refuses the question (RFC 7871 §7.1.1).
func (a *dnsQuestion) isMalformed() bool { return strings.HasPrefix(a.option, "odd") }

// forwardedOptions returns the options of the caller that servers get: all options that do not concern one hop, and
// with a forwarder the subnet alone.
func (a *dnsQuestion) forwardedOptions(forwarded bool) string {
	if forwarded && (a.option == "private" || a.isMalformed()) {
		return ""
	}
	return formatOptions(a.newMessage())
}

// formatOptions returns the EDNS options of a message that concern more than one hop.
func formatOptions(m *dns.Msg) (words string) {
	if opt := m.IsEdns0(); opt == nil || len(opt.Option) == 0 {
		return ""
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	read := new(dns.Msg) // decodes options that were added as bytes
	if err := read.Unpack(b); err != nil {
		panic(err)
	}
	if opt := read.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			switch o.Option() {
			case dns.EDNS0COOKIE, dns.EDNS0TCPKEEPALIVE, dns.EDNS0PADDING, dns.EDNS0EDE:
			case dns.EDNS0SUBNET: // the bits behind the prefix are lost when it is read
				s := o.(*dns.EDNS0_SUBNET)
				words += fmt.Sprintf(" subnet:%v/%d", s.Address.Mask(net.CIDRMask(int(s.SourceNetmask), 8*len(s.Address))), s.SourceNetmask)
			default:
				words += fmt.Sprintf(" %d:%s", o.Option(), strings.ReplaceAll(o.String(), " ", "_"))
			}
		}
	}
	return words
}

// newContext returns a context with the caller's settings of hedging.
func (a *dnsQuestion) newContext() context.Context {
	ctx := context.Background()
	switch a.values {
	case "off":
		return hedge.WithoutHedging(ctx)
	case "nested":
		return race.HedgeContext(ctx, 1)
	case "delay":
		return hedge.WithDelay(ctx, 5*ms)
	}
	return ctx
}

// forbidsHedges reports whether the question must not be hedged.
func (a *dnsQuestion) forbidsHedges() bool {
	return a.opcode != dns.OpcodeQuery || a.values == "off" || a.values == "nested"
}

// callerEndsBy reports whether the deadline or the cancellation of the caller is before a time since the question, or
// at about that time.
func (a *dnsQuestion) callerEndsBy(took time.Duration) bool {
	return endsBy(a.deadline, a.cancel, took)
}

// askClient asks the Client as a caller does.
func (p *dnsPlay) askClient(a *dnsQuestion, r *dnsResult) *dnsResult {
	m := a.newMessage()
	before := m.Copy()
	r.closed = p.w.way.change == "close" && r.began >= p.w.way.changeAt
	ctx, stop := a.newContext(), func() {}
	if a.deadline > 0 || a.cancel >= 0 {
		ctx, stop = newCallerTimes(ctx, a.deadline, a.cancel)
	}
	var out *dns.Msg
	var err error
	switch p.w.way.front {
	case "serveDNS":
		w := new(dnsWriter)
		p.current().ServeDNS(w, m)
		out = w.msg
	case "udp", "tcp":
		out, err = p.askOverNetwork(p.w.way.front, m)
	case "dial":
		out, err = p.askOverDial(ctx, m)
	default:
		out, _, err = p.current().ExchangeContext(ctx, m, "")
	}
	stop()
	r.end = p.since()
	r.sent = p.countSent()
	if err != nil {
		r.err = err.Error()
	} else if out != nil {
		r.msg = out.Copy()
		overwriteMessage(out)
	}
	if !reflect.DeepEqual(m.Copy(), before) {
		p.note("6 question", "%s %v: the caller's message was changed: %v", a.what, a.dnsQuestionKey, m)
	}
	return r
}

// overwriteMessage overwrites a message that its caller owns again.
func overwriteMessage(m *dns.Msg) {
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

// A dnsWriter is the ResponseWriter of a Handler.
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

// askOverNetwork asks the Server of the Client, and again over TCP if the response is truncated.
func (p *dnsPlay) askOverNetwork(network string, m *dns.Msg) (*dns.Msg, error) {
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
		return p.askOverNetwork("tcp", m)
	}
	return r, err
}

// askOverDial asks as net.Resolver does.
func (p *dnsPlay) askOverDial(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
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
