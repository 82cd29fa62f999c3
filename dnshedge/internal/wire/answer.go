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

// An Answer is a parsed response from which responses to several clients can be made. It has no ID and no OPT record,
// and its flags do not depend on the client. After LimitTTLs, several goroutines may share an Answer, which must not be
// changed.
type Answer struct {
	EDE []EDE // extended errors (RFC 8914)
	// Cookie is the data of the COOKIE option (RFC 7873). It is nil if the response has no such option, and after
	// LimitTTLs.
	Cookie []byte
	// Keepalive is the idle timeout that the server asks for (RFC 7828). It is only valid if HasKeepalive is true.
	Keepalive time.Duration

	options []byte   // EDNS options for clients that have sent EDNS options, in wire format
	packed  []byte   // the message in wire format; the name of the question is in lower case
	ttls    []uint16 // offset in packed of each record's TTL

	// The small fields stand together: there is an Answer for each entry of a cache.

	Outcome      Outcome // what the response means for the client
	HasKeepalive bool    // the response has a keepalive option
	// EDNS is true if the response had an OPT record, which shows that the server supports EDNS.
	EDNS            bool
	questionNameLen uint8        // length in bytes of the question's name
	addresses       addressRange // the address records that ResponseOptions.Rotation rotates
	// Extended is the response code of the server if it is above 15, or else 0. These codes concern only the connection to
	// that server (RFC 6891 §6.1.3, RFC 7873 §5.3). Clients get SERVFAIL instead.
	Extended uint16
}

// An addressRange is the range of consecutive address records of an Answer whose order may be rotated. The zero value
// contains no records.
type addressRange struct{ first, n uint8 } // index of the first record in Answer.ttls, and number of records

// An EDE is an extended DNS error (RFC 8914), which explains a response code.
type EDE struct {
	Code uint16 // info code
	Text string // extra text for humans; may be empty
}

// ParseDatagram parses b, a UDP response to q that q.CheckResponse has accepted. If the response is truncated (TC), it
// returns a nil Answer and no error; the question must then be sent over TCP. An error is a *MalformedError. b is not
// retained.
func ParseDatagram(b []byte, q *Query) (*Answer, error) {
	if b[2]&(flagTC>>8) != 0 {
		return nil, nil
	}
	return ParseAnswer(b, q)
}

// ParseAnswer parses b, the response to q. q.CheckResponse must have accepted b. If q is nil, b may be any response
// with one question. The error is a *MalformedError. b is not retained.
func ParseAnswer(b []byte, q *Query) (*Answer, error) {
	if len(b) > MaxMsg {
		return nil, &MalformedError{fmt.Errorf("%d bytes do not fit a message", len(b))}
	}
	if q != nil && !q.IsStandard() && b[2]&(flagTC>>8) != 0 {
		b = append(make([]byte, 0, HeaderLen), b[:HeaderLen]...) // only the header is used, because the message must not be sent again
		clear(b[4:])
	}
	a := new(Answer)
	code, err := a.readOPT(b, q != nil && q.options != nil) // a client without EDNS options gets none
	if err == nil && len(a.options) > 0 && unpackOptions(a.options) == nil {
		err = errOption
	}
	if err != nil {
		return nil, &MalformedError{err}
	}
	var m []byte
	foreign := false
	if end, ok := checkStorable(b); ok && hasOnlyRelevantRecords(b) {
		m = append(make([]byte, 0, end), b[:end]...)
		clear(m[:2]) // set the ID to 0
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
		a.Outcome = Failure // the server has answered another question
	}
	if a.isTruncated() {
		a.Outcome = Failure // a server has no reason to truncate over TCP; another server may return all records
	}
	return a, nil
}

// rewriteMessage parses b, the response to q, and packs it again without the OPT record. It removes answer records that
// do not belong to the question; foreign reports whether there were any. q may be nil. The error means that the
// response is malformed.
func rewriteMessage(b []byte, q *Query) (out []byte, foreign bool, err error) {
	m, err := unpackMessage(b)
	if err != nil {
		return nil, false, err
	}
	if len(m.Question) == 0 && q != nil {
		m.Question = []dns.Question{{Name: q.PresentationName(), Qtype: q.Type, Qclass: q.Class}}
		m.Answer = nil // records without a question answer nothing
	}
	if len(m.Question) != 1 {
		return nil, false, errQuestion
	}
	m.Extra = slices.DeleteFunc(m.Extra, func(rr dns.RR) bool { _, ok := rr.(*dns.OPT); return ok })
	m.Rcode &= 15
	foreign = m.Opcode == dns.OpcodeQuery && removeUnrelatedRecords(m, b)
	out, err = packMessage(m)
	return out, foreign, err
}

// packMessage returns m in wire format, with compressed names and the ID 0. It changes m.Id and m.Compress. It returns
// an error if the message would be too long.
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

// extendedName returns the mnemonic of the extended response code, for example BADCOOKIE for 23. It returns an empty
// string for unknown codes.
func extendedName(code int) string {
	if code == dns.RcodeBadVers {
		return "BADVERS" // package dns uses the name BADSIG, which is for TSIG records
	}
	return dns.RcodeToString[code]
}

// A MalformedError is the error of a response that cannot be parsed. Query.CheckResponse may have accepted that
// response, because CheckResponse does not read the records.
type MalformedError struct{ err error }

func (e *MalformedError) Error() string { return "dnshedge: malformed response: " + e.err.Error() }
func (e *MalformedError) Unwrap() error { return e.err }

// readOPT stores the contents of the OPT record of the response b in a. It stores the EDNS options that are passed on
// to clients only if keepOptions is true. code has the upper bits of the response code, shifted left by 4 bits.
func (a *Answer) readOPT(b []byte, keepOptions bool) (code uint16, err error) {
	err = walkRecords(b, func(r messageRecord) {
		if r.typ != dns.TypeOPT || r.section != additional {
			return
		}
		a.EDNS = true
		code = uint16(b[r.ttl]) << 4
		for kind, o := range forEachOption(r.data) {
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
			case keepOptions && isEndToEnd(kind):
				a.options = append(a.options, o...)
			}
		}
	})
	return code, err
}

// indexMessage makes m, a message in wire format, the message of a. It changes the question's name in m to lower case,
// and records where the TTLs and addresses are. The Answer retains m. The error means that m is malformed.
func (a *Answer) indexMessage(m []byte) error {
	end, err := skipName(m, HeaderLen)
	if err != nil || end-HeaderLen > MaxName {
		return errQuestion
	}
	a.packed, a.questionNameLen, a.addresses = m, uint8(end-HeaderLen), addressRange{}
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

// hasSameOwner reports whether two consecutive address records of m, a and b, have the same owner. It only compares
// compression pointers, so the result is false if the owner of b is not compressed.
func hasSameOwner(m []byte, a, b messageRecord) bool {
	owner := binary.BigEndian.Uint16(m[b.name:])
	return owner >= 0xc000 && (owner == binary.BigEndian.Uint16(m[a.name:]) || int(owner) == 0xc000+a.name)
}

// Packed returns the response in wire format, with the ID 0 and without an OPT record. The Answer still uses the
// returned slice, so the caller must not modify it.
func (a *Answer) Packed() []byte { return a.packed }

// Rcode returns the response code in the header of the message, from 0 to 15.
func (a *Answer) Rcode() int { return int(a.packed[3] & 15) }

// IsAuthentic reports whether the flag AD is set: the server has validated the answer (RFC 4035 §3.2.3).
func (a *Answer) IsAuthentic() bool { return a.packed[3]&flagAD != 0 }

// isTruncated reports whether the flag TC is set, which means that records are missing.
func (a *Answer) isTruncated() bool { return a.packed[2]&(flagTC>>8) != 0 }

// Question returns the question in wire format: the name in lower case, the type and the class. The Answer still uses
// the returned slice, so the caller must not modify it.
func (a *Answer) Question() []byte { return a.packed[HeaderLen : HeaderLen+int(a.questionNameLen)+4] }

// DeniesQuestionName reports whether the response denies the existence of the question's name. It returns false if only
// the target of an alias does not exist.
func (a *Answer) DeniesQuestionName() bool {
	return a.Outcome == NXDomain && binary.BigEndian.Uint16(a.packed[6:]) == 0
}

// RecordCount returns the number of records in all sections of the message.
func (a *Answer) RecordCount() int { return len(a.ttls) }

// Edit parses the message of a and calls f, which may change the parsed message. If f returns true, the changed message
// becomes the message of a. After an error, a is unchanged. Edit never changes a.Outcome. It must not be called after
// LimitTTLs.
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

// NewDenialBelow returns a response that denies the existence of q's name. The Answer, which does not change, must deny
// a domain at or above that name: nothing exists in a domain that does not exist (RFC 8020 §2).
func (a *Answer) NewDenialBelow(q *Query) (*Answer, error) {
	b := &Answer{packed: a.packed, Outcome: a.Outcome, EDE: a.EDE}
	err := b.Edit(func(m *dns.Msg) bool {
		m.Question[0] = dns.Question{Name: q.PresentationName(), Qtype: q.Type, Qclass: q.Class}
		return true
	})
	return b, err
}

// A ResponseOptions describes how an Answer is adapted for one client: its age, rotation and extended errors. The zero
// value changes nothing.
type ResponseOptions struct {
	Age      time.Duration // time since the Answer was received, which is subtracted from the TTLs; a TTL above 0 stays at least 1 s
	Stale    time.Duration // if not 0, every TTL has this value, and Age has no effect
	Rotation uint32        // number of positions by which the address records are rotated
	EDE      []EDE         // extended errors to add to those of the Answer
}

// adjustTTL returns the TTL that a client gets for a record with the stored TTL t. Both TTLs are in seconds. It
// subtracts v.Age, but leaves at least one second of a TTL above 0. If v.Stale is not 0, the result is v.Stale instead.
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

// appendAdjusted appends to b the response to q, adapted as v describes, without an OPT record. It returns the extended
// slice.
func (a *Answer) appendAdjusted(b []byte, q *Query, v *ResponseOptions) []byte {
	start := len(b)
	b = append(b, a.packed...)
	m := b[start:]
	binary.BigEndian.PutUint16(m, q.ID)
	bits := q.responseFlags(binary.BigEndian.Uint16(m[2:]))
	if v.Stale > 0 {
		bits &^= flagAD // the signatures may have expired too
	}
	binary.BigEndian.PutUint16(m[2:], bits)
	// The letter case and the type are those of q. The type may differ from the type in a,
	// because the cache stores a response about a missing name once for all types.
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

// rotateAddresses rotates the address records of m, a copy of a.packed, by the given number of positions, so that
// clients do not all use the first address. It moves only the addresses, because the owner, type, TTL and length of
// these records are equal.
func (a *Answer) rotateAddresses(m []byte, positions int) {
	ttls := a.ttls[a.addresses.first:][:a.addresses.n]
	for i, to := range ttls {
		from := int(ttls[(i+positions)%len(ttls)]) + 6
		copy(m[int(to)+6:], a.packed[from:from+int(binary.BigEndian.Uint16(a.packed[from-2:]))])
	}
}

// Append appends to b the response to q, adapted as v describes, and returns the extended slice. The response has at
// most limit bytes (0: MaxMsg). If the records do not fit, they are left out and the flag TC is set.
func (a *Answer) Append(b []byte, q *Query, v ResponseOptions, limit int) []byte {
	if limit <= 0 {
		limit = MaxMsg
	}
	start := len(b)
	b = a.appendAdjusted(b, q, &v)
	size := len(b) - start
	switch {
	case size <= limit && !q.opt, size <= limit && size+optLen > limit && limit == MaxMsg:
		return b // over TCP, a complete response without an OPT record is better than a truncated one
	case size+optLen > limit:
		b = b[:start+HeaderLen+len(q.Name)+4]
		clear(b[start+6 : start+HeaderLen])
		b[start+2] |= flagTC >> 8
	}
	if !q.opt {
		return b
	}
	return q.appendOPT(b, start, limit, a.options, slices.Concat(a.EDE, v.EDE))
}

// SetForwarderFlags sets the flags of the response b to the flags of a forwarder. RA is set, because a forwarder
// resolves names for its clients. AA is cleared, because a forwarder is authoritative for no zone.
func SetForwarderFlags(b []byte) {
	b[2] &^= flagAA >> 8
	b[3] |= flagRA
}

// optLen is the length in bytes of an OPT record without options.
const optLen = 11

// appendOPT appends an OPT record to the response that begins at b[start], and returns the extended slice. It adds EDNS
// options of the server and extended errors if the response then has at most limit bytes. The response must leave room
// for 11 bytes (optLen).
func (q *Query) appendOPT(b []byte, start, limit int, options []byte, errs []EDE) []byte {
	codes, texts := 0, 0
	for _, e := range errs {
		codes += 6
		texts += len(e.Text)
	}
	room := limit - (len(b) - start) - optLen
	n := binary.BigEndian.Uint16(b[start+10:])
	binary.BigEndian.PutUint16(b[start+10:], n+1)
	b = q.appendOPTHead(b, DefaultUDPSize)
	data := len(b)
	if q.options != nil && len(options) <= room { // the client has sent EDNS options
		b = append(b, options...)
		room -= len(options)
	}
	if codes > room {
		codes, errs = 0, nil
	}
	for _, e := range errs {
		if codes+texts > room {
			e.Text = "" // the codes fit, but not the texts
		}
		b = append(b, 0, dns.EDNS0EDE)
		b = binary.BigEndian.AppendUint16(b, uint16(2+len(e.Text)))
		b = binary.BigEndian.AppendUint16(b, e.Code)
		b = append(b, e.Text...)
	}
	binary.BigEndian.PutUint16(b[data-2:], uint16(len(b)-data))
	return b
}

// messageBuffers holds unused buffers for messages. A buffer must be returned before the function that took it returns.
var messageBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// Message returns the response to m, adapted as v describes. q must have been made from m. The result shares no memory
// with a, so the caller may change it.
func (a *Answer) Message(m *dns.Msg, q *Query, v ResponseOptions) *dns.Msg {
	buf := messageBuffers.Get().(*[]byte)
	defer messageBuffers.Put(buf)
	b := a.appendAdjusted((*buf)[:0], q, &v)
	*buf = b
	// One allocation holds the parts that every response has.
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
	seen := newOwnerNameCache(b)
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
		for _, e := range slices.Concat(a.EDE, v.EDE) {
			opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: e.Code, ExtraText: e.Text})
		}
		r.Extra = append(r.Extra, opt)
	}
	return r
}

// unpackRecord parses the record at the offset off of b, and returns the offset after it. owner is the question's name
// in presentation format. seen caches other owner names. Data that package dns cannot represent becomes a dns.RFC3597.
// walkRecords must have accepted b.
func unpackRecord(b []byte, off int, owner string, seen ownerNameCache) (dns.RR, int) {
	h := dns.RR_Header{Name: owner}
	if b[off] == 0xc0 && b[off+1] == HeaderLen {
		off += 2
	} else if name, ok := seen.lookUpOwner(b, off); ok {
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
		// One allocation holds the record and its address.
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
	if !isLossy(b, messageRecord{typ: h.Rrtype, class: h.Class, ttl: off - 6, data: data}) {
		if rr, _, err := dns.UnpackRRWithHeader(h, b[:off+len(data)], off); err == nil {
			return rr, off + len(data)
		}
	}
	return &dns.RFC3597{Hdr: h, Rdata: hex.EncodeToString(data)}, off + len(data)
}
