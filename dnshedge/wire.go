package dnshedge

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

const (
	headerLen = 12
	maxName   = 255
	maxMsg    = 1<<16 - 1

	flagQR = 1 << 15
	flagAA = 1 << 10
	flagTC = 1 << 9
	flagRD = 1 << 8
	flagRA = 1 << 7
	flagAD = 1 << 5
	flagCD = 1 << 4

	optECS       = 8
	optKeepalive = 11
	optPadding   = 12

	padBlock = 128 // RFC 8467 §4.1
)

// Why a message was not taken for the answer to a query.
var (
	errShort    = errors.New("dnshedge: message shorter than a header")
	errID       = errors.New("dnshedge: message with another ID")
	errNotReply = errors.New("dnshedge: message is not a response to a query")
	errQuestion = errors.New("dnshedge: response to another question")
)

// query is one question as a caller asked it. It is not changed once it is made.
type query struct {
	name  string // wire format, spelled as the caller did
	typ   uint16
	class uint16

	id   uint16
	rd   bool
	ad   bool
	cd   bool
	opt  bool // the caller speaks EDNS
	do   bool
	size int    // of the UDP message that the caller takes
	ecs  []byte // data of the caller's client subnet option

	raw []byte // a whole message to send as it is; anything but a plain query
}

// newQuery reads a query from a message.
func newQuery(m *dns.Msg) (*query, error) {
	if len(m.Question) != 1 {
		return nil, fmt.Errorf("dnshedge: message with %d questions; want 1", len(m.Question))
	}
	ask := m.Question[0]
	switch {
	case ask.Qtype == dns.TypeAXFR || ask.Qtype == dns.TypeIXFR:
		return nil, fmt.Errorf("dnshedge: question %s %s: zone transfers need a dns.Transfer", ask.Name, dns.TypeToString[ask.Qtype])
	case m.IsTsig() != nil:
		return nil, fmt.Errorf("dnshedge: question %s: TSIG needs a dns.Client, for every attempt has an ID of its own", ask.Name)
	}
	var buf [maxName]byte
	n, err := dns.PackDomainName(ask.Name, buf[:], 0, nil, false)
	if err != nil {
		return nil, fmt.Errorf("dnshedge: name %q: %w", ask.Name, err)
	}
	q := &query{
		name: string(buf[:n]), typ: ask.Qtype, class: ask.Qclass,
		id: m.Id, rd: m.RecursionDesired, ad: m.AuthenticatedData, cd: m.CheckingDisabled, size: dns.MinMsgSize,
	}
	if opt := m.IsEdns0(); opt != nil {
		q.opt, q.do, q.size = true, opt.Do(), max(int(opt.UDPSize()), dns.MinMsgSize)
		for _, o := range opt.Option {
			if o.Option() == dns.EDNS0SUBNET {
				// The only way to an option's bytes is through a packed message.
				return parseQueryOf(m)
			}
		}
	}
	if m.Opcode != dns.OpcodeQuery {
		if q.raw, err = m.Pack(); err != nil {
			return nil, fmt.Errorf("dnshedge: pack %s %s: %w", dns.OpcodeToString[m.Opcode], ask.Name, err)
		}
	}
	return q, nil
}

func parseQueryOf(m *dns.Msg) (*query, error) {
	b, err := m.Pack()
	if err != nil {
		return nil, fmt.Errorf("dnshedge: pack query: %w", err)
	}
	return parseQuery(b)
}

// parseQuery reads a query from its wire format.
func parseQuery(b []byte) (*query, error) {
	if len(b) < headerLen {
		return nil, errShort
	}
	bits := binary.BigEndian.Uint16(b[2:])
	if bits&flagQR != 0 {
		return nil, errors.New("dnshedge: message is a response, not a query")
	}
	if n := binary.BigEndian.Uint16(b[4:]); n != 1 {
		return nil, fmt.Errorf("dnshedge: message with %d questions; want 1", n)
	}
	end, err := skipName(b, headerLen)
	if err != nil || end+4 > len(b) || end-headerLen > maxName || !plainName(b[headerLen:end]) {
		return nil, errors.New("dnshedge: malformed question")
	}
	q := &query{
		name: string(b[headerLen:end]), typ: binary.BigEndian.Uint16(b[end:]), class: binary.BigEndian.Uint16(b[end+2:]),
		id: binary.BigEndian.Uint16(b), rd: bits&flagRD != 0, ad: bits&flagAD != 0, cd: bits&flagCD != 0, size: dns.MinMsgSize,
	}
	if bits>>11&15 != dns.OpcodeQuery {
		q.raw = append([]byte(nil), b...)
		return q, nil
	}
	err = walk(b, func(r record) {
		if r.typ != dns.TypeOPT {
			return
		}
		q.opt, q.do = true, b[r.ttl+2]&0x80 != 0
		q.size = max(int(r.class), dns.MinMsgSize)
		for o := r.data; len(o) >= 4; {
			n := 4 + int(binary.BigEndian.Uint16(o[2:]))
			if n > len(o) {
				break
			}
			if binary.BigEndian.Uint16(o) == optECS {
				q.ecs = append([]byte{}, o[4:n]...)
			}
			o = o[n:]
		}
	})
	if err != nil {
		return nil, err
	}
	return q, nil
}

// cacheable reports whether answers to q may be kept and shared.
func (q *query) cacheable() bool {
	return q.raw == nil && q.rd && q.ecs == nil && q.class == dns.ClassINET && q.typ != dns.TypeANY
}

// key returns what tells questions with different answers apart: the name in
// lower case, type, class, DO and CD.
func (q *query) key() string {
	var buf [maxName + 5]byte
	return string(q.appendKey(buf[:0]))
}

func (q *query) appendKey(b []byte) []byte {
	b = appendLower(b, q.name)
	var bits byte
	if q.do {
		bits |= 1
	}
	if q.cd {
		bits |= 2
	}
	return append(b, byte(q.typ>>8), byte(q.typ), byte(q.class>>8), byte(q.class), bits)
}

// appendLower appends a name in wire format in lower case. A label's length is
// below 64 and so no letter.
func appendLower(b []byte, name string) []byte {
	for i := range len(name) {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		b = append(b, c)
	}
	return b
}

// shape is how a query is sent.
type shape struct {
	size      int  // of the UDP messages that we take
	plain     bool // without EDNS
	keepalive bool // ask how long the connection may idle, RFC 7828
	pad       bool // RFC 7830
}

// append appends the message to send, with the given ID.
func (q *query) append(b []byte, id uint16, s shape) []byte {
	start := len(b)
	if q.raw != nil {
		b = append(b, q.raw...)
		binary.BigEndian.PutUint16(b[start:], id)
		return b
	}
	var bits uint16
	for _, f := range [...]struct {
		on  bool
		bit uint16
	}{{q.rd, flagRD}, {q.ad, flagAD}, {q.cd, flagCD}} {
		if f.on {
			bits |= f.bit
		}
	}
	b = binary.BigEndian.AppendUint16(b, id)
	b = binary.BigEndian.AppendUint16(b, bits)
	b = append(b, 0, 1, 0, 0, 0, 0, 0, 0)
	b = append(b, q.name...)
	b = binary.BigEndian.AppendUint16(b, q.typ)
	b = binary.BigEndian.AppendUint16(b, q.class)
	if s.plain {
		return b
	}
	b[start+11] = 1 // additional records
	b = q.appendOPTHead(b, uint16(s.size))
	options := len(b)
	if q.ecs != nil {
		b = append(b, 0, optECS)
		b = binary.BigEndian.AppendUint16(b, uint16(len(q.ecs)))
		b = append(b, q.ecs...)
	}
	if s.keepalive {
		b = append(b, 0, optKeepalive, 0, 0)
	}
	if s.pad {
		n := (padBlock - (len(b)-start+4)%padBlock) % padBlock
		b = append(b, 0, optPadding, 0, byte(n))
		b = append(b, make([]byte, n)...)
	}
	binary.BigEndian.PutUint16(b[options-2:], uint16(len(b)-options))
	return b
}

// appendOPTHead appends an OPT record up to its options, whose length, in the last
// two bytes, is to be filled in (RFC 6891 §6.1).
func (q *query) appendOPTHead(b []byte, size uint16) []byte {
	b = append(b, 0, 0, byte(dns.TypeOPT))
	b = binary.BigEndian.AppendUint16(b, size)
	var do byte
	if q.do {
		do = 0x80
	}
	return append(b, 0, 0, do, 0, 0, 0)
}

// check reports whether a message answers q when it was sent with the given ID.
func (q *query) check(b []byte, id uint16) error {
	if len(b) < headerLen {
		return errShort
	}
	if binary.BigEndian.Uint16(b) != id {
		return errID
	}
	bits := binary.BigEndian.Uint16(b[2:])
	var opcode uint16 = dns.OpcodeQuery
	if q.raw != nil {
		opcode = binary.BigEndian.Uint16(q.raw[2:]) >> 11 & 15
	}
	if bits&flagQR == 0 || bits>>11&15 != opcode {
		return errNotReply
	}
	switch binary.BigEndian.Uint16(b[4:]) {
	case 1:
	case 0: // servers that could not read the question cannot repeat it
		switch int(bits & 15) {
		case dns.RcodeFormatError, dns.RcodeNotImplemented, dns.RcodeRefused:
			return nil
		}
		return errQuestion
	default:
		return errQuestion
	}
	end := headerLen + len(q.name)
	if len(b) < end+4 || !equalFold(b[headerLen:end], q.name) ||
		binary.BigEndian.Uint16(b[end:]) != q.typ || binary.BigEndian.Uint16(b[end+2:]) != q.class {
		return errQuestion
	}
	return nil
}

func equalFold(a []byte, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i, c := range a {
		d := b[i]
		if c == d {
			continue
		}
		if c|0x20 != d|0x20 || c|0x20 < 'a' || c|0x20 > 'z' {
			return false
		}
	}
	return true
}

// randomID returns an ID that cannot be foretold.
func randomID() uint16 {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint16(b[:])
}

// record is one resource record of a message.
type record struct {
	typ, class uint16
	ttl        int // offset of the TTL
	data       []byte
}

var errRecord = errors.New("dnshedge: malformed record")

// walk calls f for every record of a message behind its questions.
func walk(b []byte, f func(record)) error {
	if len(b) < headerLen {
		return errShort
	}
	off := headerLen
	for range binary.BigEndian.Uint16(b[4:]) {
		end, err := skipName(b, off)
		if err != nil {
			return err
		}
		off = end + 4
	}
	count := 0
	for i := 6; i < headerLen; i += 2 {
		count += int(binary.BigEndian.Uint16(b[i:]))
	}
	for range count {
		end, err := skipName(b, off)
		if err != nil {
			return err
		}
		if end+10 > len(b) {
			return errRecord
		}
		data := end + 10
		off = data + int(binary.BigEndian.Uint16(b[end+8:]))
		if off > len(b) {
			return errRecord
		}
		f(record{typ: binary.BigEndian.Uint16(b[end:]), class: binary.BigEndian.Uint16(b[end+2:]), ttl: end + 4, data: b[data:off]})
	}
	return nil
}

// skipName returns the offset behind the name at off.
func skipName(b []byte, off int) (int, error) {
	for off < len(b) {
		switch n := int(b[off]); {
		case n == 0:
			return off + 1, nil
		case n >= 0xc0:
			if off+2 > len(b) {
				return 0, errRecord
			}
			return off + 2, nil
		case n > 63:
			return 0, errRecord
		default:
			off += 1 + n
		}
	}
	return 0, errRecord
}

// plainName reports whether a name holds no compression pointer, given that
// skipName accepted it.
func plainName(name []byte) bool { return name[len(name)-1] == 0 && (len(name) < 2 || !pointed(name)) }

func pointed(name []byte) bool {
	for off := 0; off < len(name); off += 1 + int(name[off]) {
		if name[off] >= 0xc0 {
			return true
		}
	}
	return false
}

// answer is a response with all that is ours and the path's taken out: ID, OPT,
// and what the caller's flags decide. Once it is sealed it may be shared and is
// never changed.
type answer struct {
	msg  *dns.Msg // without OPT
	wire []byte   // the same, packed by seal
	ttls []uint16 // offsets of the TTLs in wire
	ede  []ede    // RFC 8914

	keepalive    time.Duration // what the server offers, RFC 7828
	hasKeepalive bool
}

// ede is an extended DNS error.
type ede struct {
	code uint16
	text string
}

// newAnswer takes a response apart. The message must have passed check.
func newAnswer(b []byte, q *query) (*answer, error) {
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		return nil, fmt.Errorf("dnshedge: malformed response: %w", err)
	}
	if q == nil || q.raw == nil {
		if err := whole(b); err != nil {
			return nil, fmt.Errorf("dnshedge: malformed response: %w", err)
		}
	}
	a := &answer{msg: m}
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
				a.ede = append(a.ede, ede{o.InfoCode, o.ExtraText})
			case *dns.EDNS0_TCP_KEEPALIVE:
				a.keepalive, a.hasKeepalive = time.Duration(o.Timeout)*100*time.Millisecond, true
			}
		}
	}
	m.Extra = extra
	if m.Rcode > 15 {
		return nil, fmt.Errorf("dnshedge: response code %d needs what we did not ask for", m.Rcode)
	}
	if len(m.Question) == 0 && q != nil {
		name, _, err := dns.UnpackDomainName([]byte(q.name), 0)
		if err != nil {
			return nil, err
		}
		m.Question = []dns.Question{{Name: name, Qtype: q.typ, Qclass: q.class}}
	}
	return a, nil
}

// whole finds records without data. Updates have such, and so they can be
// unpacked, but there is no packing them again.
func whole(b []byte) error {
	var bad error
	err := walk(b, func(r record) {
		switch r.typ {
		case dns.TypeOPT, dns.TypeAPL, dns.TypeNULL:
			return
		}
		if _, known := dns.TypeToRR[r.typ]; known && len(r.data) == 0 {
			bad = errRecord
		}
	})
	return cmp.Or(err, bad)
}

// seal packs the message. The answer must not be changed afterwards.
func (a *answer) seal() error {
	a.msg.Id, a.msg.Compress = 0, true
	wire, err := a.msg.Pack()
	if err != nil {
		return fmt.Errorf("dnshedge: response does not fit a message: %w", err)
	}
	if len(wire) > maxMsg {
		return fmt.Errorf("dnshedge: response of %d bytes does not fit a message", len(wire))
	}
	a.wire, a.ttls = wire, a.ttls[:0]
	return walk(wire, func(r record) { a.ttls = append(a.ttls, uint16(r.ttl)) })
}

// records calls f for every record of the answer's message.
func (a *answer) records(f func(dns.RR)) {
	for _, section := range [...][]dns.RR{a.msg.Answer, a.msg.Ns, a.msg.Extra} {
		for _, rr := range section {
			f(rr)
		}
	}
}

// view is how an answer is shown: aged, or stale.
type view struct {
	age   time.Duration // taken from the TTLs, which stay at least 1 s, unless they were 0
	stale time.Duration // all TTLs instead; 0: age counts
	ede   []ede         // besides the answer's own
}

func (v view) ttl(t uint32) uint32 {
	switch {
	case v.stale > 0:
		return uint32(v.stale / time.Second)
	case v.age <= 0 || t == 0:
		return t
	}
	// Rounded down: what is left of the last second still counts as one.
	up := uint32(min((v.age+time.Second-1)/time.Second, 1<<31))
	if t <= up {
		return 1
	}
	return t - up
}

// append appends the response to q in wire format. It fits a message of
// limit bytes, or is cut to its question and says so; 0 is no limit.
func (a *answer) append(b []byte, q *query, v view, limit int) []byte {
	start := len(b)
	b = append(b, a.wire...)
	m := b[start:]
	binary.BigEndian.PutUint16(m, q.id)
	bits := binary.BigEndian.Uint16(m[2:])
	binary.BigEndian.PutUint16(m[2:], q.flags(bits))
	if binary.BigEndian.Uint16(m[4:]) == 1 {
		// The spelling; and the type, for a name that does not exist has none of any.
		n := headerLen + copy(m[headerLen:], q.name)
		binary.BigEndian.PutUint16(m[n:], q.typ)
		binary.BigEndian.PutUint16(m[n+2:], q.class)
	}
	if v.age > 0 || v.stale > 0 {
		for _, off := range a.ttls {
			binary.BigEndian.PutUint32(m[off:], v.ttl(binary.BigEndian.Uint32(m[off:])))
		}
	}
	opt := 0
	if q.opt {
		opt = 11
		for _, e := range [...][]ede{a.ede, v.ede} {
			for _, e := range e {
				opt += 6 + len(e.text)
			}
		}
	}
	if limit > 0 && len(m)+opt > limit {
		m = m[:headerLen+len(q.name)+4]
		clear(m[6:headerLen])
		m[2] |= flagTC >> 8
		b = b[:start+len(m)]
	}
	if !q.opt {
		return b
	}
	return appendOPT(b, start, q, a.ede, v.ede)
}

// appendOPT appends an OPT record with extended errors to the message that begins at start.
func appendOPT(b []byte, start int, q *query, errs ...[]ede) []byte {
	n := binary.BigEndian.Uint16(b[start+10:])
	binary.BigEndian.PutUint16(b[start+10:], n+1)
	b = q.appendOPTHead(b, defaultUDPSize)
	options := len(b)
	for _, e := range errs {
		for _, e := range e {
			b = append(b, 0, dns.EDNS0EDE)
			b = binary.BigEndian.AppendUint16(b, uint16(2+len(e.text)))
			b = binary.BigEndian.AppendUint16(b, e.code)
			b = append(b, e.text...)
		}
	}
	binary.BigEndian.PutUint16(b[options-2:], uint16(len(b)-options))
	return b
}

// flags gives a response's flags what the query decides: RD and CD are its
// own, TC is ours to set, and AD is for those who asked (RFC 6840 §5.8).
func (q *query) flags(bits uint16) uint16 {
	bits &^= flagRD | flagCD | flagTC
	if q.rd {
		bits |= flagRD
	}
	if q.cd {
		bits |= flagCD
	}
	if !q.ad && !q.do {
		bits &^= flagAD
	}
	return bits
}

// failure appends a response without records: the caller's question and a code.
func (q *query) failure(b []byte, rcode int, errs ...ede) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, q.id)
	b = binary.BigEndian.AppendUint16(b, q.flags(flagQR|flagRA|uint16(rcode)))
	b = append(b, 0, 1, 0, 0, 0, 0, 0, 0)
	b = append(b, q.name...)
	b = binary.BigEndian.AppendUint16(b, q.typ)
	b = binary.BigEndian.AppendUint16(b, q.class)
	if !q.opt {
		return b
	}
	return appendOPT(b, start, q, errs)
}

// message returns the response to m, which q was read from, sharing nothing
// with the answer.
func (a *answer) message(m *dns.Msg, q *query, v view) *dns.Msg {
	// One allocation for what every response has.
	out := &struct {
		dns.Msg
		question [1]dns.Question
		records  [4]dns.RR
	}{Msg: dns.Msg{MsgHdr: a.msg.MsgHdr, Compress: true}}
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
	r.Answer, r.Ns, r.Extra = section(a.msg.Answer), section(a.msg.Ns), section(a.msg.Extra)
	if q.opt {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(defaultUDPSize)
		if q.do {
			opt.SetDo()
		}
		for _, e := range [...][]ede{a.ede, v.ede} {
			for _, e := range e {
				opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: e.code, ExtraText: e.text})
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
