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

// A dnsSentAnswer is a correct response that a server has sent. Its records contain its serial number, by which the
// checker recognizes the response.
type dnsSentAnswer struct {
	server int
	at     time.Duration // when it was sent
	key    dnsQuestionKey
	msg    *dns.Msg
}

// A dnsSentFailure is a failure or a truncated response that a server has sent.
type dnsSentFailure struct {
	server int
	at     time.Duration // when it was sent
	key    dnsQuestionKey
}

// A dnsReceivedQuery is a query that a server has received.
type dnsReceivedQuery struct {
	server int
	at     time.Duration
	key    dnsQuestionKey
	net    string
}

// A dnsQueryCountKey is the map key for the number of queries that a server has received for a question.
type dnsQueryCountKey struct {
	server int
	key    dnsQuestionKey
}

func keyOf(m *dns.Msg) dnsQuestionKey {
	q := m.Question[0]
	k := dnsQuestionKey{name: strings.ToLower(q.Name), typ: q.Qtype, class: q.Qclass, cd: m.CheckingDisabled, options: formatOptions(m), opcode: m.Opcode}
	if opt := m.IsEdns0(); opt != nil {
		k.do = opt.Do()
	}
	return k
}

// runServers starts the servers, and stops and restarts them by their faults.
func (p *dnsPlay) runServers() {
	for _, s := range p.w.servers {
		down := false
		for _, f := range s.faults {
			if f.kind != "down" {
				continue
			}
			down = down || f.from < 0
			if f.from >= 0 {
				time.AfterFunc(f.from, func() { p.stopServer(s) })
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

// listen opens the sockets of a server, unless they are open.
func (p *dnsPlay) listen(s *dnsServer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[s.number] != nil || p.over {
		return
	}
	server := &dnstest.Server{Streams: p.w.way.streams, Handler: func(q dnstest.Query) dnstest.Reply { return p.respond(s, q) }}
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

// stopServer closes the sockets of a server.
func (p *dnsPlay) stopServer(s *dnsServer) {
	p.mu.Lock()
	server := p.open[s.number]
	p.open[s.number] = nil
	p.mu.Unlock()
	if server != nil {
		server.Close()
	}
}

// stopAll stops all servers for good.
func (p *dnsPlay) stopAll() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	for _, s := range p.w.servers {
		p.stopServer(s)
	}
}

// oneWayDelay returns the delay of a packet to or from a server.
func oneWayDelay(server int) time.Duration { return 10*ms + time.Duration(server)*170*time.Microsecond }

// respond is the handler of a server.
func (p *dnsPlay) respond(s *dnsServer, q dnstest.Query) dnstest.Reply {
	now, k := p.since(), keyOf(q.Msg)
	p.mu.Lock()
	p.seen = append(p.seen, dnsReceivedQuery{s.number, now, k, q.Net})
	n := p.count[dnsQueryCountKey{s.number, k}]
	p.count[dnsQueryCountKey{s.number, k}]++
	p.serial++
	serial := p.serial
	p.mu.Unlock()
	r := dnstest.Reply{Msg: s.correctResponse(q, k, serial)}
	repeatOptions(r.Msg, q.Msg)
	if q.Net == "udp" && r.Msg.Len() > 1232 {
		r.Msg = newTruncated(q)
		p.recordFailure(s, r, k)
		return r
	}
	for _, f := range s.faults {
		if f.kind != "down" && f.matches(k) && f.isActiveDuring(now, now) {
			if !f.applyTo(&r, q, k, n) {
				if f.isFailure() || f.kind == "cut" && q.Net == "udp" {
					p.recordFailure(s, r, k)
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
		addStrayMessage(&r)
	}
	p.mu.Lock()
	p.answers++
	p.said[serial] = &dnsSentAnswer{s.number, now + r.Delay, k, r.Msg.Copy()}
	if r.Raw != nil { // the true response comes second
		p.said[serial].msg = new(dns.Msg)
		_ = p.said[serial].msg.Unpack(r.Raw)
	}
	p.mu.Unlock()
	return r
}

// recordFailure records a response of a server that is not an answer.
func (p *dnsPlay) recordFailure(s *dnsServer, r dnstest.Reply, k dnsQuestionKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers++
	p.failures = append(p.failures, dnsSentFailure{s.number, p.since() + r.Delay, k})
}

// repeatOptions adds the options that a server has used to its response.
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

// applyTo applies the fault to a response, and reports whether the response is still valid. n is the number of earlier
// queries for the question.
func (f *dnsFault) applyTo(r *dnstest.Reply, q dnstest.Query, k dnsQuestionKey, n int) (good bool) {
	code := func(rcode int, ede ...uint16) bool {
		r.Msg = dnstest.Rcode(q, rcode)
		for _, e := range ede {
			dnstest.EDE(r.Msg, e)
		}
		return false
	}
	switch f.kind {
	case "drops1", "drops2", "half", "closes", "wrongID", "wrongName", "stray", "cut", "silent", "empty":
		return f.applyLoss(r, q, k, n)
	case "late1s", "late3s", "late7s":
		r.Delay = f.answerDelay() + 110*time.Microsecond
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

// applyLoss is applyTo for faults that lose or damage a response.
func (f *dnsFault) applyLoss(r *dnstest.Reply, q dnstest.Query, k dnsQuestionKey, n int) (good bool) {
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
		addStrayMessage(r)
		return true
	case "cut":
		if q.Net != "udp" {
			return true
		}
		r.Msg = newTruncated(q)
	default:
		return none()
	}
	return false
}

// addStrayMessage sends another message before a response.
func addStrayMessage(r *dnstest.Reply) {
	right, err := r.Msg.Pack()
	if err != nil {
		panic(err)
	}
	r.Msg.Id++
	r.Raw = right
}

// newTruncated returns a response that is too long for a datagram.
func newTruncated(q dnstest.Query) *dns.Msg {
	m := dnstest.Answer(q)
	m.Truncated = true
	return m
}

// correctResponse returns the response of a server without faults.
func (s *dnsServer) correctResponse(q dnstest.Query, k dnsQuestionKey, serial uint16) *dns.Msg {
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
		m := newNegative(q, dns.RcodeNameError, k, serial)
		m.AuthenticatedData = true
		return m
	case strings.HasPrefix(first, "v4") && k.typ != dns.TypeA, len(records) == 0:
		return newNegative(q, dns.RcodeSuccess, k, serial)
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

// newNegative returns a response without records. The minimum of the SOA limits the TTL of short-lived responses, the
// TTL of the SOA that of others.
func newNegative(q dnstest.Query, rcode int, k dnsQuestionKey, serial uint16) *dns.Msg {
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

// serialOf returns the serial number in the records of a response, if there is one.
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
