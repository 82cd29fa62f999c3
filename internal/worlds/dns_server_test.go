package worlds_test

import (
	"fmt"
	"hash/fnv"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/dnstest"
)

// A dnsSaid is a response that is as it should be. Every one has a serial number in its records, by which it is known again.
type dnsSaid struct {
	server int
	at     time.Duration // when it was sent
	key    dnsKey
	msg    *dns.Msg
}

// A dnsFailed is a response that is a failure, or was cut.
type dnsFailed struct {
	server int
	at     time.Duration // when it was sent
	key    dnsKey
}

// A dnsSeen is a query that a server saw.
type dnsSeen struct {
	server int
	at     time.Duration
	key    dnsKey
	net    string
}

// A dnsCount is how often a server has seen a question.
type dnsCount struct {
	server int
	key    dnsKey
}

func keyOf(m *dns.Msg) dnsKey {
	q := m.Question[0]
	k := dnsKey{name: strings.ToLower(q.Name), typ: q.Qtype, class: q.Qclass, cd: m.CheckingDisabled, options: optionsOf(m), opcode: m.Opcode}
	if opt := m.IsEdns0(); opt != nil {
		k.do = opt.Do()
	}
	return k
}

// serve has the servers serve, and stop and begin again as their faults say.
func (p *dnsPlay) serve() {
	for _, s := range p.w.servers {
		down := false
		for _, f := range s.faults {
			if f.kind != "down" {
				continue
			}
			down = down || f.from < 0
			if f.from >= 0 {
				time.AfterFunc(f.from, func() { p.stop(s) })
			}
			if f.until < forever {
				time.AfterFunc(f.until, func() { p.listen(s) })
			}
		}
		if !down {
			p.listen(s)
		}
	}
}

// listen opens a server's sockets, unless they are open.
func (p *dnsPlay) listen(s *dnsServer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[s.number] != nil || p.over {
		return
	}
	server := &dnstest.Server{Streams: p.w.way.streams, Handler: func(q dnstest.Query) dnstest.Reply { return p.answer(s, q) }}
	p.open[s.number] = server
	host := p.host(s.number)
	pc, err := host.ListenPacket("udp", ":53")
	if err != nil {
		panic(err)
	}
	server.ServeUDP(pc)
	for port, serve := range map[string]func(net.Listener){":53": server.ServeTCP, ":853": server.ServeTLS, ":443": server.ServeHTTPS} {
		over := port != ":53" // TLS; the patient resolver does not know HTTPS
		if s.noTCP && p.w.way.net == "udp" || over && p.w.way.net != "tls" && p.w.way.net != "https" {
			continue
		}
		ln, err := host.Listen("tcp", port)
		if err != nil {
			panic(err)
		}
		serve(ln)
	}
}

// stop closes a server's sockets.
func (p *dnsPlay) stop(s *dnsServer) {
	p.mu.Lock()
	server := p.open[s.number]
	p.open[s.number] = nil
	p.mu.Unlock()
	if server != nil {
		server.Close()
	}
}

// stopAll ends all servers for good.
func (p *dnsPlay) stopAll() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	for _, s := range p.w.servers {
		p.stop(s)
	}
}

// travel is how long a packet travels to or from a server.
func travel(server int) time.Duration { return 10*ms + time.Duration(server)*170*time.Microsecond }

// answer is what a server says.
func (p *dnsPlay) answer(s *dnsServer, q dnstest.Query) dnstest.Reply {
	now, k := p.since(), keyOf(q.Msg)
	p.mu.Lock()
	p.seen = append(p.seen, dnsSeen{s.number, now, k, q.Net})
	n := p.count[dnsCount{s.number, k}]
	p.count[dnsCount{s.number, k}]++
	p.serial++
	serial := p.serial
	p.mu.Unlock()
	r := dnstest.Reply{Msg: s.truth(q, k, serial)}
	repeatOptions(r.Msg, q.Msg)
	if q.Net == "udp" && r.Msg.Len() > 1232 {
		r.Msg = cutMessage(q)
		p.failed(s, r, k)
		return r
	}
	for _, f := range s.faults {
		if f.kind != "down" && f.matches(k) && f.during(now, now) {
			if !f.spoil(&r, q, k, n) {
				if f.failure() || f.kind == "cut" && q.Net == "udp" {
					p.failed(s, r, k)
				}
				return r
			}
			break
		}
	}
	p.mu.Lock()
	stray := s.stray && q.Net == "udp" && r.Raw == nil && !p.strayed[s.number]
	p.strayed[s.number] = p.strayed[s.number] || stray
	p.mu.Unlock()
	if stray {
		strayBefore(&r)
	}
	p.mu.Lock()
	p.answers++
	p.said[serial] = &dnsSaid{s.number, now + r.Delay, k, r.Msg.Copy()}
	if r.Raw != nil { // the true response comes second
		p.said[serial].msg = new(dns.Msg)
		_ = p.said[serial].msg.Unpack(r.Raw)
	}
	p.mu.Unlock()
	return r
}

// failed remembers what a server said in place of an answer.
func (p *dnsPlay) failed(s *dnsServer, r dnstest.Reply, k dnsKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers++
	p.failures = append(p.failures, dnsFailed{s.number, p.since() + r.Delay, k})
}

// repeatOptions has a response tell of the options that its server has used.
func repeatOptions(r, q *dns.Msg) {
	to, from := r.IsEdns0(), q.IsEdns0()
	if to == nil || from == nil {
		return
	}
	for _, o := range from.Option {
		switch o.Option() {
		case dns.EDNS0SUBNET, dns.EDNS0LOCALSTART:
			to.Option = append(to.Option, o)
		}
	}
}

// spoil does to a response what the fault says, and reports whether it is still one to believe. The question was asked n
// times before.
func (f *dnsFault) spoil(r *dnstest.Reply, q dnstest.Query, k dnsKey, n int) (good bool) {
	code := func(rcode int, ede ...uint16) bool {
		r.Msg = dnstest.Rcode(q, rcode)
		for _, e := range ede {
			dnstest.EDE(r.Msg, e)
		}
		return false
	}
	switch f.kind {
	case "drops1", "drops2", "half", "closes", "wrongID", "wrongName", "stray", "cut", "silent", "empty":
		return f.lose(r, q, k, n)
	case "late1s", "late3s", "late7s":
		r.Delay = f.delay() + 110*time.Microsecond
	case "servfail":
		return code(dns.RcodeServerFailure)
	case "refused":
		return code(dns.RcodeRefused)
	case "prohibited":
		return code(dns.RcodeRefused, dns.ExtendedErrorCodeProhibited)
	case "notauth":
		return code(dns.RcodeNotAuth)
	case "notimp":
		return code(dns.RcodeNotImplemented)
	case "blocked":
		return code(dns.RcodeRefused, dns.ExtendedErrorCodeBlocked)
	case "censored":
		return code(dns.RcodeRefused, dns.ExtendedErrorCodeCensored)
	case "filtered":
		return code(dns.RcodeServerFailure, dns.ExtendedErrorCodeFiltered)
	case "bogus":
		return code(dns.RcodeServerFailure, dns.ExtendedErrorCodeDNSBogus)
	case "lame":
		code(dns.RcodeSuccess)
		r.Msg.RecursionAvailable = false
		return false
	}
	return true
}

// lose is spoil for faults by which a response does not come, or not as it should.
func (f *dnsFault) lose(r *dnstest.Reply, q dnstest.Query, k dnsKey, n int) (good bool) {
	none := func() bool { *r = dnstest.Reply{}; return false }
	switch f.kind {
	case "drops1", "drops2":
		if n < int(f.kind[5]-'0') && q.Net == "udp" {
			return none()
		}
		return true
	case "half":
		h := fnv.New32a()
		fmt.Fprint(h, k.name, k.typ, n)
		if h.Sum32()>>5%2 == 0 && q.Net == "udp" {
			return none()
		}
		return true
	case "closes":
		if q.Net != "udp" {
			*r = dnstest.Reply{Close: true}
			return false
		}
		return true
	case "wrongID":
		r.Msg.Id++
	case "wrongName":
		for i := range r.Msg.Question {
			r.Msg.Question[i].Name = "other." + r.Msg.Question[i].Name
		}
	case "stray":
		if q.Net != "udp" || n > 0 {
			return true
		}
		strayBefore(r)
		return true
	case "cut":
		if q.Net != "udp" {
			return true
		}
		r.Msg = cutMessage(q)
	default:
		return none()
	}
	return false
}

// strayBefore has another message come before a response.
func strayBefore(r *dnstest.Reply) {
	right, err := r.Msg.Pack()
	if err != nil {
		panic(err)
	}
	r.Msg.Id++
	r.Raw = right
}

// cutMessage is a response that is too long for a datagram.
func cutMessage(q dnstest.Query) *dns.Msg {
	m := dnstest.Answer(q)
	m.Truncated = true
	return m
}

// truth is what servers say that are well.
func (s *dnsServer) truth(q dnstest.Query, k dnsKey, serial uint16) *dns.Msg {
	first, _, _ := strings.Cut(k.name, ".")
	hi, lo := serial>>8, serial&255
	records := map[uint16][]string{
		dns.TypeA:     {fmt.Sprintf("A 10.%d.%d.%d", s.number, hi, lo), fmt.Sprintf("A 11.%d.%d.%d", s.number, hi, lo)},
		dns.TypeAAAA:  {fmt.Sprintf("AAAA 2001:db8::%x", serial)},
		dns.TypeTXT:   {fmt.Sprintf("TXT %d", serial)},
		dns.TypeMX:    {fmt.Sprintf("MX %d mail.example.", serial)},
		dns.TypeANY:   {fmt.Sprintf("TXT %d", serial)},
		dns.TypeHTTPS: {fmt.Sprintf("HTTPS %d . alpn=h2", serial)},
	}[k.typ]
	ttl := 300
	switch {
	case k.opcode != dns.OpcodeQuery:
		return acceptMessage(q, k)
	case k.name == "." && s.noRoot:
		return dnstest.Rcode(q, dns.RcodeRefused)
	case strings.HasPrefix(first, "broken"): // whoever is asked
		return dnstest.Rcode(q, dns.RcodeServerFailure)
	case k.name == ".":
		return dnstest.Answer(q, "NS a.root-servers.net.")
	case strings.HasPrefix(first, "no"), strings.HasPrefix(first, "shortno"):
		m := negativeOf(q, dns.RcodeNameError, k, serial)
		m.AuthenticatedData = true
		return m
	case strings.HasPrefix(first, "v4") && k.typ != dns.TypeA, len(records) == 0:
		return negativeOf(q, dns.RcodeSuccess, k, serial)
	case strings.HasPrefix(first, "short"):
		ttl = 5
	case strings.HasPrefix(first, "zero"):
		ttl = 0
	case strings.HasPrefix(first, "long"):
		for i := range 30 {
			records = append(records, fmt.Sprintf("TXT %d%s", i, strings.Repeat("x", 60)))
		}
	}
	owner := q.Question[0].Name
	if s.lower {
		owner = strings.ToLower(owner)
		q.Msg = q.Copy()
		q.Question[0].Name = owner
	}
	var all []string
	if strings.HasPrefix(first, "alias") {
		_, zone, _ := strings.Cut(k.name, ".")
		all = append(all, owner+" 20 CNAME www."+zone)
		owner = "www." + zone
	}
	for _, r := range records {
		all = append(all, fmt.Sprintf("%s %d %s", owner, ttl, r))
	}
	return dnstest.Answer(q, all...)
}

// negativeOf is a response without records. What is short is so by the minimum of its SOA, the others by the TTL.
func negativeOf(q dnstest.Query, rcode int, k dnsKey, serial uint16) *dns.Msg {
	m := dnstest.Negative(q, rcode, 60, 600)
	soa := m.Ns[0].(*dns.SOA)
	soa.Serial = uint32(serial)
	labels := dns.SplitDomainName(k.name)
	soa.Hdr.Name = dns.Fqdn(strings.Join(labels[max(0, len(labels)-2):], "."))
	if strings.HasPrefix(k.name, "shortno") {
		soa.Minttl = 5
	}
	return m
}

// serialOf is the number in the records of a response, and whether there is one.
func serialOf(m *dns.Msg) (uint16, bool) {
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		switch rr := rr.(type) {
		case *dns.A:
			b := rr.A.To4()
			return uint16(b[2])<<8 | uint16(b[3]), true
		case *dns.AAAA:
			return uint16(rr.AAAA[14])<<8 | uint16(rr.AAAA[15]), true
		case *dns.TXT:
			if len(rr.Txt[0]) < 7 {
				var n uint16
				_, err := fmt.Sscan(rr.Txt[0], &n)
				return n, err == nil
			}
		case *dns.MX:
			return rr.Preference, true
		case *dns.HTTPS:
			return rr.Priority, true
		case *dns.SOA:
			return uint16(rr.Serial), true
		}
	}
	return 0, false
}
