package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// Answer is a response without what belongs to one caller or one path: it has no
// ID and no OPT record, and its flags do not yet depend on the caller's. After
// Seal it may be shared, and must not be changed any more.
type Answer struct {
	Msg     *dns.Msg // with exactly one question
	Outcome Outcome
	EDE     []EDE // extended errors (RFC 8914)

	// Keepalive is how long the server lets a connection be idle (RFC 7828), if
	// HasKeepalive is set.
	Keepalive    time.Duration
	HasKeepalive bool

	packed []byte   // Msg, packed by Seal
	ttls   []uint16 // offsets of the TTLs in packed
}

// EDE is an extended DNS error (RFC 8914).
type EDE struct {
	Code uint16
	Text string
}

// ParseDatagram reads the response to q, which was sent over UDP with the given
// ID. It returns nil and no error if the server cut the response (TC): then the
// whole one has to be asked for over a stream. It does not keep b.
func ParseDatagram(b []byte, q *Query, id uint16) (*Answer, error) {
	if err := q.Check(b, id); err != nil {
		return nil, err
	}
	if b[2]&(flagTC>>8) != 0 {
		return nil, nil
	}
	return ParseAnswer(append([]byte(nil), b...), q)
}

// ParseAnswer reads the response to q, for which Check must have returned nil. The
// Answer may refer to b. If q is nil, any response with one question is read.
func ParseAnswer(b []byte, q *Query) (*Answer, error) {
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		return nil, fmt.Errorf("dnshedge: malformed response: %w", err)
	}
	if q == nil || q.Standard() {
		if err := recordsHaveData(b); err != nil {
			return nil, fmt.Errorf("dnshedge: malformed response: %w", err)
		}
	}
	a := &Answer{Msg: m}
	extra := m.Extra[:0]
	for _, rr := range m.Extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			extra = append(extra, rr)
			continue
		}
		for _, o := range opt.Option {
			switch o := o.(type) {
			case *dns.EDNS0_EDE:
				a.EDE = append(a.EDE, EDE{o.InfoCode, o.ExtraText})
			case *dns.EDNS0_TCP_KEEPALIVE:
				a.Keepalive, a.HasKeepalive = time.Duration(o.Timeout)*100*time.Millisecond, true
			}
		}
	}
	m.Extra = extra
	if m.Rcode > 15 {
		return nil, fmt.Errorf("dnshedge: response code %d needs what we did not ask for", m.Rcode)
	}
	if len(m.Question) == 0 && q != nil {
		m.Question = []dns.Question{{Name: q.Text(), Qtype: q.Type, Qclass: q.Class}}
	}
	if len(m.Question) != 1 {
		return nil, errors.New("dnshedge: malformed response: not one question")
	}
	a.Outcome = outcome(m, a.EDE)
	return a, nil
}

// Seal packs the answer, whose TTLs it first changes as the limits and the RFCs
// demand, and returns how long it may be kept; 0 means not at all. Without limits
// (nil) the TTLs stay as they are, and it returns 0.
func (a *Answer) Seal(limits *TTLLimits) (keep time.Duration, err error) {
	if limits != nil {
		keep = limits.apply(a)
	}
	a.Msg.Id, a.Msg.Compress = 0, true
	packed, err := a.Msg.Pack()
	if err != nil {
		return 0, fmt.Errorf("dnshedge: response does not fit a message: %w", err)
	}
	if len(packed) > MaxMsg {
		return 0, fmt.Errorf("dnshedge: response of %d bytes does not fit a message", len(packed))
	}
	a.packed, a.ttls = packed, a.ttls[:0]
	return keep, walk(packed, func(r record) { a.ttls = append(a.ttls, uint16(r.ttl)) })
}

// Packed returns the message that Seal packed. It must not be changed.
func (a *Answer) Packed() []byte { return a.packed }

// Len returns the number of records, after Seal.
func (a *Answer) Len() int { return len(a.ttls) }

// Lower takes d off all TTLs, which do not fall below 0. It is for responses that
// have been in another cache, and must come before Seal.
func (a *Answer) Lower(d time.Duration) {
	if n := seconds(d); n > 0 {
		a.records(func(rr dns.RR) { h := rr.Header(); h.Ttl -= min(h.Ttl, n) })
	}
}

// records calls f for every record.
func (a *Answer) records(f func(dns.RR)) {
	for _, section := range [...][]dns.RR{a.Msg.Answer, a.Msg.Ns, a.Msg.Extra} {
		for _, rr := range section {
			f(rr)
		}
	}
}

// View is how an answer is shown to a caller. The zero View shows it as it came.
type View struct {
	Age   time.Duration // taken off the TTLs, which stay at least 1 s, unless they were 0
	Stale time.Duration // if not 0, every TTL is this, and Age has no effect
	EDE   []EDE         // extended errors, besides the answer's own
}

// ttl returns the TTL to show in place of t.
func (v View) ttl(t uint32) uint32 {
	switch {
	case v.Stale > 0:
		return uint32(v.Stale / time.Second)
	case v.Age <= 0 || t == 0:
		return t
	}
	// The rest is rounded down to whole seconds; less than one second counts as one.
	up := uint32(min((v.Age+time.Second-1)/time.Second, 1<<31))
	if t <= up {
		return 1
	}
	return t - up
}

// Append appends the response to q in wire format, after Seal. A response of more
// than limit bytes is cut to its question, and TC is set; 0 means no limit.
func (a *Answer) Append(b []byte, q *Query, v View, limit int) []byte {
	start := len(b)
	b = append(b, a.packed...)
	m := b[start:]
	binary.BigEndian.PutUint16(m, q.ID)
	bits := binary.BigEndian.Uint16(m[2:])
	binary.BigEndian.PutUint16(m[2:], q.flags(bits))
	if binary.BigEndian.Uint16(m[4:]) == 1 {
		// The spelling is the caller's. So is the type: that a name does not exist is
		// kept once for all types.
		n := HeaderLen + copy(m[HeaderLen:], q.Name)
		binary.BigEndian.PutUint16(m[n:], q.Type)
		binary.BigEndian.PutUint16(m[n+2:], q.Class)
	}
	if v.Age > 0 || v.Stale > 0 {
		for _, off := range a.ttls {
			binary.BigEndian.PutUint32(m[off:], v.ttl(binary.BigEndian.Uint32(m[off:])))
		}
	}
	opt := 0
	if q.opt {
		opt = 11
		for _, e := range [...][]EDE{a.EDE, v.EDE} {
			for _, e := range e {
				opt += 6 + len(e.Text)
			}
		}
	}
	if limit > 0 && len(m)+opt > limit {
		m = m[:HeaderLen+len(q.Name)+4]
		clear(m[6:HeaderLen])
		m[2] |= flagTC >> 8
		b = b[:start+len(m)]
	}
	if !q.opt {
		return b
	}
	return appendOPT(b, start, q, a.EDE, v.EDE)
}

// Forwarded marks a packed response as a forwarder's: it has RA, because it
// recurses for its clients, and not AA, because it has authority over no zone.
func Forwarded(b []byte) {
	b[2] &^= flagAA >> 8
	b[3] |= flagRA
}

// appendOPT appends an OPT record with extended errors to the message that begins at start.
func appendOPT(b []byte, start int, q *Query, errs ...[]EDE) []byte {
	n := binary.BigEndian.Uint16(b[start+10:])
	binary.BigEndian.PutUint16(b[start+10:], n+1)
	b = q.appendOPTHead(b, DefaultUDPSize)
	options := len(b)
	for _, e := range errs {
		for _, e := range e {
			b = append(b, 0, dns.EDNS0EDE)
			b = binary.BigEndian.AppendUint16(b, uint16(2+len(e.Text)))
			b = binary.BigEndian.AppendUint16(b, e.Code)
			b = append(b, e.Text...)
		}
	}
	binary.BigEndian.PutUint16(b[options-2:], uint16(len(b)-options))
	return b
}

// Message returns the response to m, from which q was read. It shares no memory
// with the answer.
func (a *Answer) Message(m *dns.Msg, q *Query, v View) *dns.Msg {
	// One allocation for what every response has.
	out := &struct {
		dns.Msg
		question [1]dns.Question
		records  [4]dns.RR
	}{Msg: dns.Msg{MsgHdr: a.Msg.MsgHdr, Compress: true}}
	r := &out.Msg
	r.Id = m.Id
	r.RecursionDesired, r.CheckingDisabled, r.Truncated = q.rd, q.cd, false
	r.AuthenticatedData = r.AuthenticatedData && (q.ad || q.do)
	out.question[0] = m.Question[0]
	r.Question = out.question[:]
	room := out.records[:0]
	section := func(from []dns.RR) []dns.RR {
		if len(from) == 0 {
			return nil
		}
		var to []dns.RR
		if len(from) <= cap(room)-len(room) {
			to = room[len(room) : len(room) : len(room)+len(from)]
			room = room[:len(room)+len(from)]
		} else {
			to = make([]dns.RR, 0, len(from))
		}
		for _, rr := range from {
			c := copyRR(rr)
			h := c.Header()
			h.Ttl = v.ttl(h.Ttl)
			to = append(to, c)
		}
		return to
	}
	r.Answer, r.Ns, r.Extra = section(a.Msg.Answer), section(a.Msg.Ns), section(a.Msg.Extra)
	if q.opt {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(DefaultUDPSize)
		if q.do {
			opt.SetDo()
		}
		for _, e := range [...][]EDE{a.EDE, v.EDE} {
			for _, e := range e {
				opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: e.Code, ExtraText: e.Text})
			}
		}
		r.Extra = append(r.Extra, opt)
	}
	return r
}

// copyRR copies a record, those with addresses in one allocation.
func copyRR(rr dns.RR) dns.RR {
	switch rr := rr.(type) {
	case *dns.A:
		c := &struct {
			dns.A
			ip [16]byte
		}{}
		c.Hdr = rr.Hdr
		c.A.A = c.ip[:copy(c.ip[:], rr.A)]
		return &c.A
	case *dns.AAAA:
		c := &struct {
			dns.AAAA
			ip [16]byte
		}{}
		c.Hdr = rr.Hdr
		c.AAAA.AAAA = c.ip[:copy(c.ip[:], rr.AAAA)]
		return &c.AAAA
	}
	return dns.Copy(rr)
}
