package wire

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// An Answer is a response that can be served to several callers. It has no ID and no OPT record, and its flags do not
// depend on the caller. After LimitTTLs it may be shared and must not be changed.
type Answer struct {
	EDE []EDE // extended errors (RFC 8914)
	// Cookie is the data of the COOKIE option (RFC 7873), if there is one; nil after LimitTTLs.
	Cookie []byte
	// Keepalive is the server's idle timeout of the connection (RFC 7828). It is valid if HasKeepalive is set.
	Keepalive time.Duration

	options []byte   // EDNS options for callers that sent some, in wire format
	packed  []byte   // the message; its question is in lower case
	ttls    []uint16 // offset in packed of the TTL of each record

	// The small fields stand together: there is an Answer for each entry of a cache.

	Outcome      Outcome
	HasKeepalive bool
	// EDNS reports that the response had an OPT record: the server supports EDNS.
	EDNS      bool
	name      uint8 // length of the question's name in bytes
	addresses addressRange
	// Extended is the response code if it is above 15, else 0. Such a code concerns the hop to the server (RFC 6891
	// §6.1.3, RFC 7873 §5.3). Callers get SERVFAIL.
	Extended uint16
}

// An addressRange locates the address records of an answer that are rotated.
type addressRange struct{ first, n uint8 } // index of the first one in ttls, and their number

// An EDE is an extended DNS error (RFC 8914): the info code and the extra text.
type EDE struct {
	Code uint16
	Text string
}

// ParseDatagram parses the response to q over UDP; q.Check must have returned nil. It returns nil and no error if the
// response is truncated (TC): the question must be asked over TCP. It does not keep b.
func ParseDatagram(b []byte, q *Query) (*Answer, error) {
	if b[2]&(flagTC>>8) != 0 {
		return nil, nil
	}
	return ParseAnswer(b, q)
}

// ParseAnswer parses the response to q; q.Check must have returned nil. If q is nil, any response with one question is
// accepted. The error is a *MalformedError. It does not keep b.
func ParseAnswer(b []byte, q *Query) (*Answer, error) {
	if len(b) > MaxMsg {
		return nil, &MalformedError{fmt.Errorf("%d bytes do not fit a message", len(b))}
	}
	if q != nil && !q.IsStandard() && b[2]&(flagTC>>8) != 0 {
		b = append(make([]byte, 0, HeaderLen), b[:HeaderLen]...) // the header says it all, and the message is not sent again
		clear(b[4:])
	}
	a := new(Answer)
	code, err := a.readOPT(b, q != nil && q.options != nil)
	if err == nil && len(a.options) > 0 && unpackOptions(a.options) == nil {
		err = errOption
	}
	if err != nil {
		return nil, &MalformedError{err}
	}
	var m []byte
	foreign := false
	if end, ok := checkStorable(b); ok && isRelevant(b) {
		m = append(make([]byte, 0, end), b[:end]...)
		clear(m[:2]) // the ID
		if a.EDNS {
			binary.BigEndian.PutUint16(m[10:], binary.BigEndian.Uint16(m[10:])-1)
		}
	} else if m, foreign, err = rewriteMessage(b, q); err != nil {
		return nil, &MalformedError{err}
	}
	if err := a.indexMessage(m); err != nil {
		return nil, &MalformedError{err}
	}
	if code |= uint16(a.Rcode()); code > 15 {
		a.Extended = code
		m[3] = m[3]&0xf0 | dns.RcodeServerFailure
		a.EDE = append(a.EDE, EDE{Text: "server answered " + extendedName(int(code))})
	}
	a.Outcome = classifyResponse(m, a.EDE)
	if foreign && a.Outcome == NoData {
		a.Outcome = Failure // what it answered is another question
	}
	if a.isTruncated() {
		a.Outcome = Failure // over a stream a server has no reason to cut; another one may have it all
	}
	return a, nil
}

// rewriteMessage parses a message and packs it again with package dns, without OPT and unrelated records. foreign
// reports whether there were unrelated records, see removeUnrelated.
func rewriteMessage(b []byte, q *Query) (out []byte, foreign bool, err error) {
	m, err := unpackMessage(b)
	if err != nil {
		return nil, false, err
	}
	if len(m.Question) == 0 && q != nil {
		m.Question = []dns.Question{{Name: q.Text(), Qtype: q.Type, Qclass: q.Class}}
		m.Answer = nil // a server that could not read the question has no answer
	}
	if len(m.Question) != 1 {
		return nil, false, errQuestion
	}
	m.Extra = slices.DeleteFunc(m.Extra, func(rr dns.RR) bool { _, ok := rr.(*dns.OPT); return ok })
	m.Rcode &= 15
	foreign = m.Opcode == dns.OpcodeQuery && removeUnrelated(m, b)
	out, err = packMessage(m)
	return out, foreign, err
}

// packMessage returns m in wire format, compressed and with ID 0.
func packMessage(m *dns.Msg) ([]byte, error) {
	m.Id, m.Compress = 0, true
	buf := messageBuffers.Get().(*[]byte)
	defer messageBuffers.Put(buf)
	b, err := m.PackBuffer((*buf)[:cap(*buf)])
	if err != nil {
		return nil, fmt.Errorf("dnshedge: response does not fit a message: %w", err)
	}
	if len(b) > MaxMsg {
		return nil, fmt.Errorf("dnshedge: response of %d bytes does not fit a message", len(b))
	}
	return append(make([]byte, 0, len(b)), b...), nil
}

// extendedName returns the mnemonic of an extended response code.
func extendedName(code int) string {
	if code == dns.RcodeBadVers {
		return "BADVERS" // package dns calls it BADSIG, as in TSIG records
	}
	return dns.RcodeToString[code]
}

// A MalformedError is the error of a response that answers the query but cannot be parsed.
type MalformedError struct{ err error }

func (e *MalformedError) Error() string { return "dnshedge: malformed response: " + e.err.Error() }
func (e *MalformedError) Unwrap() error { return e.err }

// readOPT stores the contents of the OPT record. asked is set if the caller has sent EDNS options; then the server's
// end-to-end options are kept. It returns the upper bits of the response code, shifted to their place.
func (a *Answer) readOPT(b []byte, asked bool) (code uint16, err error) {
	err = walkRecords(b, func(r messageRecord) {
		if r.typ != dns.TypeOPT || r.section != additional {
			return
		}
		a.EDNS = true
		code = uint16(b[r.ttl]) << 4
		for kind, o := range eachOption(r.data) {
			data := o[4:]
			switch {
			case kind == optCookie:
				a.Cookie = append([]byte(nil), data...)
			case kind == optKeepalive:
				a.HasKeepalive = true
				if len(data) >= 2 {
					a.Keepalive = time.Duration(binary.BigEndian.Uint16(data)) * 100 * time.Millisecond
				}
			case kind == dns.EDNS0EDE && len(data) >= 2:
				a.EDE = append(a.EDE, EDE{binary.BigEndian.Uint16(data), string(data[2:])})
			case asked && isEndToEnd(kind):
				a.options = append(a.options, o...)
			}
		}
	})
	return code, err
}

// indexMessage sets the message of the answer to m, which it keeps, and computes the offsets into it.
func (a *Answer) indexMessage(m []byte) error {
	end, err := skipName(m, HeaderLen)
	if err != nil || end-HeaderLen > MaxName {
		return errQuestion
	}
	a.packed, a.name, a.addresses = m, uint8(end-HeaderLen), addressRange{}
	for i := HeaderLen; i < end; i++ {
		m[i] = lowerByte(m[i])
	}
	asked := binary.BigEndian.Uint16(m[end:])
	var last messageRecord
	ttls := make([]uint16, 0, int(binary.BigEndian.Uint16(m[6:]))+int(binary.BigEndian.Uint16(m[8:]))+int(binary.BigEndian.Uint16(m[10:])))
	err = walkRecords(m, func(r messageRecord) {
		i := len(ttls)
		ttls = append(ttls, uint16(r.ttl))
		if r.section != answer || i > 255 || r.typ != asked || r.typ != dns.TypeA && r.typ != dns.TypeAAAA {
			return
		}
		switch {
		case a.addresses.n == 0:
			a.addresses = addressRange{uint8(i), 1}
		case int(a.addresses.first)+int(a.addresses.n) == i && a.addresses.n < 255 && hasSameOwner(m, last, r) && len(last.data) == len(r.data):
			a.addresses.n++
		}
		last = r
	})
	a.ttls = ttls
	return err
}

// hasSameOwner reports whether two consecutive address records have the same owner, which b compresses to a pointer.
func hasSameOwner(m []byte, a, b messageRecord) bool {
	owner := binary.BigEndian.Uint16(m[b.name:])
	return owner >= 0xc000 && (owner == binary.BigEndian.Uint16(m[a.name:]) || int(owner) == 0xc000+a.name)
}

// Packed returns the message in wire format. It must not be modified.
func (a *Answer) Packed() []byte { return a.packed }

// Rcode returns the response code of the header.
func (a *Answer) Rcode() int { return int(a.packed[3] & 15) }

// Authentic reports whether AD is set: the server says that it has validated the answer (RFC 4035 §3.2.3).
func (a *Answer) Authentic() bool { return a.packed[3]&flagAD != 0 }

// isTruncated reports whether TC is set.
func (a *Answer) isTruncated() bool { return a.packed[2]&(flagTC>>8) != 0 }

// Question returns the question in wire format, with the name in lower case. It must not be modified.
func (a *Answer) Question() []byte { return a.packed[HeaderLen : HeaderLen+int(a.name)+4] }

// DeniesQuestionName reports whether the answer is a name error for the name of the question itself, and not for the target of an
// alias.
func (a *Answer) DeniesQuestionName() bool {
	return a.Outcome == NXDomain && binary.BigEndian.Uint16(a.packed[6:]) == 0
}

// Len returns the number of records.
func (a *Answer) Len() int { return len(a.ttls) }

// Edit parses the records, calls f to change them, and stores the result. Nothing changes if f returns false. The
// Outcome is not updated. Edit must not be called after LimitTTLs.
func (a *Answer) Edit(f func(m *dns.Msg) bool) error {
	m, err := unpackMessage(a.packed)
	if err != nil || !f(m) {
		return err
	}
	b, err := packMessage(m)
	if err != nil {
		return err
	}
	return a.indexMessage(b)
}

// DenyNameBelow returns the answer to q from a, a name error for a name above q's name. Nothing exists below a name that does
// not exist (RFC 8020 §2). a does not change.
func (a *Answer) DenyNameBelow(q *Query) (*Answer, error) {
	b := &Answer{packed: a.packed, Outcome: a.Outcome, EDE: a.EDE}
	err := b.Edit(func(m *dns.Msg) bool {
		m.Question[0] = dns.Question{Name: q.Text(), Qtype: q.Type, Qclass: q.Class}
		return true
	})
	return b, err
}

// A ResponseOptions describes how an answer is adapted for a caller. The zero value changes nothing.
type ResponseOptions struct {
	Age      time.Duration // subtracted from the TTLs; a TTL above 0 stays at least 1 s
	Stale    time.Duration // if not 0, every TTL becomes this value, and Age has no effect
	Rotation uint32        // number of positions by which the addresses are rotated
	EDE      []EDE         // extended errors in addition to the answer's
}

// adjustTTL returns the TTL for the caller in place of t.
func (v *ResponseOptions) adjustTTL(t uint32) uint32 {
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

// appendAdjusted appends the message adapted to q and v, without an OPT record.
func (a *Answer) appendAdjusted(b []byte, q *Query, v *ResponseOptions) []byte {
	start := len(b)
	b = append(b, a.packed...)
	m := b[start:]
	binary.BigEndian.PutUint16(m, q.ID)
	bits := q.responseFlags(binary.BigEndian.Uint16(m[2:]))
	if v.Stale > 0 {
		bits &^= flagAD // the signatures may have expired as well
	}
	binary.BigEndian.PutUint16(m[2:], bits)
	// The spelling is the caller's. So is the type: that a name does not exist is
	// kept once for all types.
	n := HeaderLen + copy(m[HeaderLen:], q.Name)
	binary.BigEndian.PutUint16(m[n:], q.Type)
	binary.BigEndian.PutUint16(m[n+2:], q.Class)
	if v.Age > 0 || v.Stale > 0 {
		for _, off := range a.ttls {
			binary.BigEndian.PutUint32(m[off:], v.adjustTTL(binary.BigEndian.Uint32(m[off:])))
		}
	}
	if a.addresses.n > 1 && v.Rotation > 0 {
		a.rotateAddresses(m, int(v.Rotation%uint32(a.addresses.n)))
	}
	return b
}

// rotateAddresses rotates the address records of m, a copy of the packed message, by turn positions. It moves only the
// addresses: owner, type, TTL and length of the records are equal.
func (a *Answer) rotateAddresses(m []byte, turn int) {
	ttls := a.ttls[a.addresses.first:][:a.addresses.n]
	for i, to := range ttls {
		from := int(ttls[(i+turn)%len(ttls)]) + 6
		copy(m[int(to)+6:], a.packed[from:from+int(binary.BigEndian.Uint16(a.packed[from-2:]))])
	}
}

// Append appends the response to q in wire format. If it exceeds limit bytes, first the texts of the extended errors
// are dropped. Then the message is truncated to its question, with TC set. A limit of 0 means MaxMsg.
func (a *Answer) Append(b []byte, q *Query, v ResponseOptions, limit int) []byte {
	if limit <= 0 {
		limit = MaxMsg
	}
	start := len(b)
	b = a.appendAdjusted(b, q, &v)
	size := len(b) - start
	switch {
	case size <= limit && !q.opt, size <= limit && size+optLen > limit && limit == MaxMsg:
		return b // over a stream, a whole answer without an OPT record is better than a cut one
	case size+optLen > limit:
		b = b[:start+HeaderLen+len(q.Name)+4]
		clear(b[start+6 : start+HeaderLen])
		b[start+2] |= flagTC >> 8
	}
	if !q.opt {
		return b
	}
	return q.appendOPT(b, start, limit, a.options, a.EDE, v.EDE)
}

// SetForwarderFlags sets the flags of a packed response to those of a forwarder. RA is set, because a forwarder recurses for
// its clients. AA is cleared, because it is authoritative for no zone.
func SetForwarderFlags(b []byte) {
	b[2] &^= flagAA >> 8
	b[3] |= flagRA
}

// optLen is the length of an OPT record without options, in bytes.
const optLen = 11

// appendOPT appends an OPT record to the message that begins at start and has at most limit bytes. It includes options,
// the server's EDNS options, if the caller sent some and they fit. It includes the extended errors that fit: all, all
// without texts, or none.
func (q *Query) appendOPT(b []byte, start, limit int, options []byte, errs ...[]EDE) []byte {
	codes, texts := 0, 0
	for _, e := range errs {
		for _, e := range e {
			codes += 6
			texts += len(e.Text)
		}
	}
	room := limit - (len(b) - start) - optLen
	n := binary.BigEndian.Uint16(b[start+10:])
	binary.BigEndian.PutUint16(b[start+10:], n+1)
	b = q.appendOPTHead(b, DefaultUDPSize)
	data := len(b)
	if q.options != nil && len(options) <= room {
		b = append(b, options...)
		room -= len(options)
	}
	if codes > room {
		codes, errs = 0, nil
	}
	for _, e := range errs {
		for _, e := range e {
			if codes+texts > room {
				e.Text = ""
			}
			b = append(b, 0, dns.EDNS0EDE)
			b = binary.BigEndian.AppendUint16(b, uint16(2+len(e.Text)))
			b = binary.BigEndian.AppendUint16(b, e.Code)
			b = append(b, e.Text...)
		}
	}
	binary.BigEndian.PutUint16(b[data-2:], uint16(len(b)-data))
	return b
}

// messageBuffers holds buffers for messages that are in use only briefly.
var messageBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// Message returns the response to m as a dns.Msg. q was made from m. The result shares no memory with the answer.
func (a *Answer) Message(m *dns.Msg, q *Query, v ResponseOptions) *dns.Msg {
	buf := messageBuffers.Get().(*[]byte)
	defer messageBuffers.Put(buf)
	b := a.appendAdjusted((*buf)[:0], q, &v)
	*buf = b
	// One allocation for what every response has.
	out := &struct {
		dns.Msg
		question [1]dns.Question
		records  [4]dns.RR
	}{}
	r := &out.Msg
	bits := binary.BigEndian.Uint16(b[2:])
	r.MsgHdr = dns.MsgHdr{
		Id: m.Id, Response: true, Opcode: int(bits >> 11 & 15), Rcode: int(bits & 15),
		Authoritative: bits&flagAA != 0, Truncated: bits&flagTC != 0, Zero: bits&flagZ != 0,
		RecursionDesired: bits&flagRD != 0, RecursionAvailable: bits&flagRA != 0,
		AuthenticatedData: bits&flagAD != 0, CheckingDisabled: bits&flagCD != 0,
	}
	r.Compress = true
	out.question[0] = m.Question[0]
	r.Question = out.question[:]
	owner := dns.Fqdn(m.Question[0].Name)
	off := HeaderLen + len(q.Name) + 4
	room := out.records[:0]
	seen := newOwners(b)
	for i, section := range [...]*[]dns.RR{&r.Answer, &r.Ns, &r.Extra} {
		n := int(binary.BigEndian.Uint16(b[6+2*i:]))
		if n == 0 {
			continue
		}
		if n <= cap(room)-len(room) {
			*section = room[len(room) : len(room) : len(room)+n]
			room = room[:len(room)+n]
		} else {
			*section = make([]dns.RR, 0, n)
		}
		for range n {
			var rr dns.RR
			rr, off = unpackRecord(b, off, owner, seen)
			*section = append(*section, rr)
		}
	}
	if q.opt {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(DefaultUDPSize)
		if q.do {
			opt.SetDo()
		}
		if q.options != nil && len(a.options) > 0 {
			opt.Option = unpackOptions(a.options)
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

// unpackRecord parses the record at off of a message that walkRecords has accepted. It returns the record and the
// offset after it. owner is the name of the question. seen caches owner names.
//
// A record that package dns cannot parse becomes a record of unknown type (RFC 3597).
func unpackRecord(b []byte, off int, owner string, seen ownerNames) (dns.RR, int) {
	h := dns.RR_Header{Name: owner}
	if b[off] == 0xc0 && b[off+1] == HeaderLen {
		off += 2
	} else if name, ok := seen.ownerAt(b, off); ok {
		h.Name = name
		off += 2
	} else if name, end, err := dns.UnpackDomainName(b, off); err == nil {
		seen.addOwner(b, off, name)
		h.Name, off = name, end
	} else {
		off, _ = skipName(b, off)
	}
	h.Rrtype, h.Class = binary.BigEndian.Uint16(b[off:]), binary.BigEndian.Uint16(b[off+2:])
	h.Ttl, h.Rdlength = binary.BigEndian.Uint32(b[off+4:]), binary.BigEndian.Uint16(b[off+8:])
	off += 10
	data := b[off : off+int(h.Rdlength)]
	switch {
	case h.Rrtype == dns.TypeA && len(data) == 4:
		// These two in one allocation.
		c := &struct {
			dns.A
			ip [4]byte
		}{}
		c.Hdr, c.A.A = h, c.ip[:copy(c.ip[:], data)]
		return &c.A, off + len(data)
	case h.Rrtype == dns.TypeAAAA && len(data) == 16:
		c := &struct {
			dns.AAAA
			ip [16]byte
		}{}
		c.Hdr, c.AAAA.AAAA = h, c.ip[:copy(c.ip[:], data)]
		return &c.AAAA, off + len(data)
	}
	if !isDataChanged(b, messageRecord{typ: h.Rrtype, class: h.Class, ttl: off - 6, data: data}) {
		if rr, _, err := dns.UnpackRRWithHeader(h, b[:off+len(data)], off); err == nil {
			return rr, off + len(data)
		}
	}
	return &dns.RFC3597{Hdr: h, Rdata: hex.EncodeToString(data)}, off + len(data)
}
