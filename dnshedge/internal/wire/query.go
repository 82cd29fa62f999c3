package wire

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/miekg/dns"
)

const (
	optECS       = 8
	optCookie    = 10
	optKeepalive = 11
)

// A Query is a question of a caller, with the flags and EDNS options of its message. It does not change once it is in
// use.
type Query struct {
	Name  string // wire format, in the caller's spelling
	Type  uint16
	Class uint16
	ID    uint16
	Size  int // maximum size of a UDP response that the caller accepts, in bytes

	rd  bool
	ad  bool
	cd  bool
	opt bool // the caller sent an OPT record
	do  bool

	options       []byte // EDNS options of the caller that are sent to servers, in wire format
	withoutEDNS   bool   // sent without an OPT record
	direct        bool   // sent to authoritative servers
	hasRandomCase bool   // letters have random case, which the response must copy
	ownConnection bool   // shares no connection with other queries

	raw []byte // the message, if the opcode is not QUERY; never modified
}

// WithOwnConnection returns a copy of the query that must be sent over a connection of its own.
func (q *Query) WithOwnConnection() *Query {
	r := *q
	r.ownConnection = true
	return &r
}

// NeedsOwnConnection reports whether the query must be sent over a connection of its own.
func (q *Query) NeedsOwnConnection() bool { return q.ownConnection }

// RootServers is the question for the NS records of the root, which every resolver can answer from its cache or hints.
// Probes use it.
var RootServers = &Query{Name: "\x00", Type: dns.TypeNS, Class: dns.ClassINET, Size: dns.MinMsgSize, rd: true}

// NewQuery converts a message to a Query. It returns an error for messages that cannot be hedged: zone transfers,
// signed messages, and queries with records other than OPT. It drops the EDNS options that are hop-by-hop: cookies,
// padding, keepalive and extended errors. It does not keep m.
func NewQuery(m *dns.Msg) (*Query, error) {
	q := new(Query)
	if err := q.Read(m); err != nil {
		return nil, err
	}
	return q, nil
}

// Read is NewQuery into an existing Query that is not in use.
func (q *Query) Read(m *dns.Msg) error {
	if len(m.Question) != 1 {
		return fmt.Errorf("dnshedge: message with %d questions; want 1", len(m.Question))
	}
	ask := m.Question[0]
	if ask.Qtype == dns.TypeAXFR || ask.Qtype == dns.TypeIXFR {
		return fmt.Errorf("dnshedge: question %s %s: zone transfers need a dns.Transfer", ask.Name, dns.TypeToString[ask.Qtype])
	}
	if m.Opcode != dns.OpcodeQuery {
		b, err := m.Pack()
		if err == nil {
			err = q.parseMessage(b, isEndToEnd)
		}
		if err != nil {
			return fmt.Errorf("dnshedge: %s %s: %w", dns.OpcodeToString[m.Opcode], ask.Name, err)
		}
		return nil
	}
	if err := checkRecords(m); err != nil {
		return fmt.Errorf("dnshedge: question %s: %w", ask.Name, err)
	}
	var buf [MaxName]byte
	n := packName(buf[:], ask.Name)
	var err error
	if n == 0 {
		if n, err = dns.PackDomainName(ask.Name, buf[:], 0, nil, false); err != nil {
			return fmt.Errorf("dnshedge: name %q: %w", ask.Name, err)
		}
	}
	*q = Query{
		Name: string(buf[:n]), Type: ask.Qtype, Class: ask.Qclass, ID: m.Id, Size: dns.MinMsgSize,
		rd: m.RecursionDesired, ad: m.AuthenticatedData, cd: m.CheckingDisabled,
	}
	if opt := m.IsEdns0(); opt != nil {
		if slices.ContainsFunc(m.Extra, func(rr dns.RR) bool { o, ok := rr.(*dns.OPT); return ok && o != opt }) {
			return errOPT
		}
		if opt.Version() != 0 {
			return ErrVersion
		}
		q.opt, q.do, q.Size = true, opt.Do(), max(int(opt.UDPSize()), dns.MinMsgSize)
		for _, o := range opt.Option {
			if isEndToEnd(o.Option()) {
				// Package dns gives an option's bytes only as part of a packed message.
				b, err := m.Pack()
				if err != nil {
					return fmt.Errorf("dnshedge: pack query: %w", err)
				}
				return q.parseMessage(b, isEndToEnd)
			}
		}
	}
	return nil
}

// checkRecords returns an error if a query has records other than OPT: ErrSigned for a signature, otherwise errRecords.
func checkRecords(m *dns.Msg) error {
	err := error(nil)
	if len(m.Answer)+len(m.Ns) > 0 {
		err = errRecords
	}
	for _, rr := range m.Extra {
		switch rr.Header().Rrtype {
		case dns.TypeOPT:
		case dns.TypeTSIG, dns.TypeSIG:
			return ErrSigned
		default:
			err = errRecords
		}
	}
	return err
}

// NewDirect returns a query for authoritative servers: of class IN, without RD and AD. name must be absolute. do asks
// for DNSSEC records; cd sets CD.
func NewDirect(name string, typ uint16, do, cd bool) (*Query, error) {
	var buf [MaxName]byte
	n := packName(buf[:], name)
	if n == 0 {
		var err error
		if n, err = dns.PackDomainName(name, buf[:], 0, nil, false); err != nil {
			return nil, fmt.Errorf("dnshedge: name %q: %w", name, err)
		}
	}
	return &Query{
		Name: string(buf[:n]), Type: typ, Class: dns.ClassINET, Size: DefaultUDPSize,
		do: do, cd: cd, direct: true,
	}, nil
}

// packName writes an absolute name in presentation format to b in wire format. It returns the length, or 0 if the name
// has escapes or is invalid. It takes a third of the time of dns.PackDomainName.
func packName(b []byte, name string) int {
	if len(name) < 2 || len(name)+1 > len(b) || name[len(name)-1] != '.' {
		return 0
	}
	start := 0
	for i := range len(name) {
		switch c := name[i]; c {
		case '.':
			if i == start || i-start > 63 {
				return 0
			}
			b[start] = byte(i - start)
			start = i + 1
		case '\\':
			return 0
		default:
			b[i+1] = c
		}
	}
	b[start] = 0
	return start + 1
}

// WithForwardedOptions returns the query as a forwarder sends it. Of the EDNS options it keeps the client subnet (RFC 7871); all
// others are meant for the next server only (RFC 6891 §6.2.6). A malformed or second client subnet is an error.
func (q *Query) WithForwardedOptions() (*Query, error) {
	if q.options == nil {
		return q, nil
	}
	f := *q
	f.options = nil
	for code, o := range eachOption(q.options) {
		if !isForwardedOption(code) {
			continue
		}
		if f.options != nil || !isClientSubnet(o) {
			return nil, errSubnet
		}
		f.options = slices.Clone(o)
	}
	return &f, nil
}

// WithoutOptions returns the query without the caller's EDNS options.
func (q *Query) WithoutOptions() *Query {
	if q.options == nil {
		return q
	}
	f := *q
	f.options = nil
	return &f
}

// isEndToEnd reports whether an EDNS option is passed on between caller and server. Cookies, keepalive, padding and
// extended errors are hop-by-hop.
func isEndToEnd(code uint16) bool {
	return code != optCookie && code != optKeepalive && code != optPadding && code != dns.EDNS0EDE
}

// isForwardedOption reports whether a forwarder passes on an EDNS option.
func isForwardedOption(code uint16) bool { return code == optECS }

// isClientSubnet reports whether o is a valid client subnet option of a query (RFC 7871 §6). Such an option has at most
// 20 bytes, and two different options never mean the same subnet.
func isClientSubnet(o []byte) bool {
	data := o[4:]
	if len(data) < 4 {
		return false
	}
	family, prefix, scope, address := binary.BigEndian.Uint16(data), int(data[2]), data[3], data[4:]
	most := [...]int{0, 32, 128} // bits of an address; a family of 0 is for no address at all
	if int(family) >= len(most) || prefix > most[family] || scope != 0 || len(address) != (prefix+7)/8 {
		return false
	}
	return prefix%8 == 0 || address[len(address)-1]<<(prefix%8) == 0
}

// eachOption yields the EDNS options in the data of an OPT record: the option code, and the whole option in wire
// format.
func eachOption(data []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(data) >= 4 {
			n := 4 + int(binary.BigEndian.Uint16(data[2:]))
			if n > len(data) || !yield(binary.BigEndian.Uint16(data), data[:n]) {
				return
			}
			data = data[n:]
		}
	}
}

// unpackOptions parses EDNS options in wire format. It returns nil if they are malformed.
func unpackOptions(b []byte) []dns.EDNS0 {
	h := dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT, Rdlength: uint16(len(b))}
	rr, _, err := dns.UnpackRRWithHeader(h, b, 0)
	if opt, ok := rr.(*dns.OPT); ok && err == nil {
		return opt.Option
	}
	return nil
}

// ParseQuery parses the query of a forwarder's client. It does not keep b.
func ParseQuery(b []byte) (*Query, error) {
	q := new(Query)
	if err := q.Parse(b); err != nil {
		return nil, err
	}
	return q, nil
}

// Parse is ParseQuery into an existing Query that is not in use. After an error, AppendFailure may be called if Name is
// not empty.
func (q *Query) Parse(b []byte) error {
	if err := q.parseMessage(b, isForwardedOption); err != nil || q.options == nil {
		return err
	}
	f, err := q.WithForwardedOptions()
	if err == nil {
		*q = *f
	}
	return err
}

// parseMessage parses a query and keeps the EDNS options for which pass returns true. If it fails before the question
// was read, Name is empty.
func (q *Query) parseMessage(b []byte, pass func(uint16) bool) error {
	q.Name = "" // until the question has been read
	if len(b) < HeaderLen {
		return errShort
	}
	bits := binary.BigEndian.Uint16(b[2:])
	if bits&flagQR != 0 {
		return errors.New("dnshedge: message is a response, not a query")
	}
	if n := binary.BigEndian.Uint16(b[4:]); n != 1 {
		return fmt.Errorf("dnshedge: message with %d questions; want 1", n)
	}
	end, err := skipName(b, HeaderLen)
	if err != nil || end+4 > len(b) || end-HeaderLen > MaxName || !isUncompressed(b[HeaderLen:end]) {
		return errors.New("dnshedge: malformed question")
	}
	*q = Query{
		Name: string(b[HeaderLen:end]), Type: binary.BigEndian.Uint16(b[end:]), Class: binary.BigEndian.Uint16(b[end+2:]),
		ID: binary.BigEndian.Uint16(b), Size: dns.MinMsgSize,
		rd: bits&flagRD != 0, ad: bits&flagAD != 0, cd: bits&flagCD != 0,
	}
	if bits>>11&15 != dns.OpcodeQuery {
		q.raw = append([]byte(nil), b...)
	}
	opts, version, misplaced := 0, byte(0), false
	signed, records := false, false
	err = walkRecords(b, func(r messageRecord) {
		if r.typ != dns.TypeOPT {
			signed = signed || r.isSignature()
			records = true
			return
		}
		q.opt, q.do = true, b[r.ttl+2]&0x80 != 0
		q.Size = max(int(r.class), dns.MinMsgSize)
		opts++
		misplaced = misplaced || r.section != additional
		version = max(version, b[r.ttl+1])
		for code, o := range eachOption(r.data) {
			if pass(code) {
				q.options = append(q.options, o...)
			}
		}
	})
	switch {
	case err != nil:
	case opts > 1 || misplaced:
		err = errOPT // RFC 6891 §6.1.1
	case version > 0:
		err = ErrVersion
	case signed:
		err = ErrSigned
	case records && q.IsStandard() && Askable(q.Type):
		err = errRecords
	}
	return err
}

// isSignature reports whether the record is a signature of the whole message: TSIG or SIG(0). A SIG record with a
// covered type, for example in an UPDATE, is not.
func (r *messageRecord) isSignature() bool {
	return r.typ == dns.TypeTSIG || r.typ == dns.TypeSIG && r.section == additional && (len(r.data) < 2 || r.data[0]|r.data[1] == 0)
}

// Askable reports whether t may be the type of a question: a data type, or ANY. OPT and the types from 128 to 255 are
// not (RFC 6895 §3.1), for example zone transfers and TSIG.
func Askable(t uint16) bool { return t == dns.TypeANY || t != dns.TypeOPT && (t < 128 || t > 255) }

// IsStandard reports whether the query is a standard query: its opcode is QUERY (RFC 1035 §4.1.1). Messages with another
// opcode, for example UPDATE and NOTIFY, are sent unchanged and only once, because they may not be safe to repeat.
func (q *Query) IsStandard() bool { return q.raw == nil }

// Text returns the name in presentation format.
func (q *Query) Text() string {
	name, _, _ := dns.UnpackDomainName([]byte(q.Name), 0) // was packed or parsed before
	return name
}

// Zone returns the last two labels of the name, in lower case and wire format. Most zones are registered there.
func (q *Query) Zone() string {
	last, next := 0, 0
	for off := 0; off < len(q.Name)-1; off += 1 + int(q.Name[off]) {
		last, next = next, off
	}
	zone := q.Name[last:]
	for i := range len(zone) {
		if c := zone[i]; 'A' <= c && c <= 'Z' {
			var buf [MaxName]byte
			return string(AppendLower(buf[:0], zone))
		}
	}
	return zone
}

// Recursive reports whether RD is set.
func (q *Query) Recursive() bool { return q.rd }

// HasOptions reports whether the query carries EDNS options of the caller.
func (q *Query) HasOptions() bool { return q.options != nil }

// Cacheable reports whether a cache may store and serve answers to the query. The answer must only depend on the key.
// Queries without RD are excluded, because a server answers them from the data that it happens to have.
func (q *Query) Cacheable() bool {
	return q.rd && q.raw == nil && q.options == nil && q.Class == dns.ClassINET && q.Type != dns.TypeANY
}

// KeyLen is the number of bytes in a key besides the name. MaxKey is the maximum length of a key.
const (
	KeyLen = 5
	MaxKey = MaxName + KeyLen
)

// The bits of the last byte of a key.
const (
	KeyDO        = 1 << iota // the caller set DO
	KeyCD                    // the caller set CD
	KeyNameError             // the entry is a name error, which holds for all types; see ToNameErrorKey
)

// Key returns the cache key of the query. Keys are equal if the name, ignoring case, type, class, DO and CD are equal.
func (q *Query) Key() string {
	var buf [MaxKey]byte
	return string(q.AppendKey(buf[:0]))
}

// AppendKey appends the result of Key to b.
func (q *Query) AppendKey(b []byte) []byte {
	var bits byte
	if q.do {
		bits |= KeyDO
	}
	if q.cd {
		bits |= KeyCD
	}
	return append(AppendLower(b, q.Name), byte(q.Type>>8), byte(q.Type), byte(q.Class>>8), byte(q.Class), bits)
}

// AppendExchangeKey appends a key that is equal for two queries if one exchange can serve both. It consists of Key, RD and the
// EDNS options.
func (q *Query) AppendExchangeKey(b []byte) []byte {
	b = q.AppendKey(b)
	var rd byte
	if q.rd {
		rd = 1
	}
	return append(append(b, rd), q.options...)
}

// ToNameErrorKey changes a key in place into that of a name error, which holds for all types but DS. The key of type DS stays
// separate, because DS records belong to the parent zone (RFC 4035 §3.1.4.1), whose servers may not know the name.
func ToNameErrorKey(key []byte) {
	n := len(key)
	if binary.BigEndian.Uint16(key[n-KeyLen:]) != dns.TypeDS {
		ToNonDSKey(key)
	}
	key[n-1] |= KeyNameError
}

// ToNonDSKey changes a key from ToNameErrorKey in place into that of all types but DS.
func ToNonDSKey(key []byte) { binary.BigEndian.PutUint16(key[len(key)-KeyLen:], dns.TypeNone) }

// A PackOptions holds the parts of a query message that depend on the transport and not on the question.
type PackOptions struct {
	Size      int    // maximum size of a UDP response, in bytes
	Keepalive bool   // send a keepalive option (RFC 7828)
	Pad       bool   // pad to a multiple of 128 bytes (RFC 7830, RFC 8467)
	Cookie    []byte // data of a COOKIE option (RFC 7873); nil: none
}

// WantsDNSSEC reports whether DO is set.
func (q *Query) WantsDNSSEC() bool { return q.do }

// WithoutEDNS returns the query for a server that does not support EDNS: without an OPT record, AD and CD. For older servers
// the bits of AD and CD must be zero (RFC 1035 §4.1.1).
func (q *Query) WithoutEDNS() *Query {
	p := *q
	p.withoutEDNS = true
	return &p
}

// OmitsEDNS reports whether the query is sent without EDNS.
func (q *Query) OmitsEDNS() bool { return q.withoutEDNS }

// WithRandomCase returns the query with a random case of each letter of the name (draft-vixie-dnsext-dns0x20). Check then
// demands the same case in the response.
func (q *Query) WithRandomCase() *Query {
	p := *q
	name := []byte(q.Name)
	var bits [MaxName/8 + 1]byte
	_, _ = rand.Read(bits[:len(name)/8+1]) // never fails
	for i, c := range name {
		if c |= 0x20; 'a' <= c && c <= 'z' {
			name[i] = c &^ (bits[i/8] >> (i % 8) & 1 << 5)
		}
	}
	p.Name, p.hasRandomCase = string(name), true
	return &p
}

// Append appends the message to send, with the given ID.
func (q *Query) Append(b []byte, id uint16, s PackOptions) []byte {
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
	}{
		{q.rd, flagRD}, {q.cd && !q.withoutEDNS, flagCD},
		{!q.direct && !q.withoutEDNS, flagAD}, // the answer may be kept for others, who ask whether it was validated (RFC 6840 §5.7)
	} {
		if f.on {
			bits |= f.bit
		}
	}
	b = binary.BigEndian.AppendUint16(b, id)
	b = binary.BigEndian.AppendUint16(b, bits)
	b = append(b, 0, 1, 0, 0, 0, 0, 0, 0)
	b = append(b, q.Name...)
	b = binary.BigEndian.AppendUint16(b, q.Type)
	b = binary.BigEndian.AppendUint16(b, q.Class)
	if q.withoutEDNS {
		return b
	}
	b[start+11] = 1 // additional records
	b = q.appendOPTHead(b, uint16(s.Size))
	options := len(b)
	b = append(b, q.options...)
	if s.Cookie != nil {
		b = append(b, 0, optCookie, 0, byte(len(s.Cookie)))
		b = append(b, s.Cookie...)
	}
	if s.Keepalive {
		b = append(b, 0, optKeepalive, 0, 0)
	}
	if s.Pad {
		b = appendPadding(b, paddingLen(len(b)-start, queryBlock))
	}
	binary.BigEndian.PutUint16(b[options-2:], uint16(len(b)-options))
	return b
}

// appendOPTHead appends an OPT record without options (RFC 6891 §6.1). Its last two bytes are the length of the
// options, which the caller sets.
func (q *Query) appendOPTHead(b []byte, size uint16) []byte {
	b = append(b, 0, 0, byte(dns.TypeOPT))
	b = binary.BigEndian.AppendUint16(b, size)
	var do byte
	if q.do {
		do = 0x80
	}
	return append(b, 0, 0, do, 0, 0, 0)
}

// Check returns nil if b is the response to q, sent with the given ID. Otherwise it returns the reason why it is not.
func (q *Query) Check(b []byte, id uint16) error {
	if len(b) < HeaderLen {
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
	cut := bits&flagTC != 0
	switch binary.BigEndian.Uint16(b[4:]) {
	case 1:
	case 0:
		// A server that could not read the question cannot repeat it, and one that answers an update need not (RFC 2136 §3.8). Of a
		// response that was cut nothing is used.
		if cut || q.raw != nil || mayOmitQuestion(int(bits&15)) {
			return nil
		}
		return errQuestion
	default:
		return errQuestion
	}
	if cut && q.isQuestionPrefix(b[HeaderLen:]) {
		return nil
	}
	end := HeaderLen + len(q.Name)
	if len(b) < end+4 || !equalFold(b[HeaderLen:end], q.Name) ||
		binary.BigEndian.Uint16(b[end:]) != q.Type || binary.BigEndian.Uint16(b[end+2:]) != q.Class {
		return errQuestion
	}
	if q.hasRandomCase && string(b[HeaderLen:end]) != q.Name {
		return ErrSpelling
	}
	return nil
}

// mayOmitQuestion reports whether a response with this code may lack the question, because the server may not have read it.
func mayOmitQuestion(rcode int) bool {
	switch rcode {
	case dns.RcodeFormatError, dns.RcodeServerFailure, dns.RcodeNotImplemented, dns.RcodeRefused, dns.RcodeNotAuth:
		return true
	}
	return false
}

// isQuestionPrefix reports whether b is a proper prefix of the question.
func (q *Query) isQuestionPrefix(b []byte) bool {
	if len(b) >= len(q.Name)+4 {
		return false
	}
	n := min(len(b), len(q.Name))
	rest := [...]byte{byte(q.Type >> 8), byte(q.Type), byte(q.Class >> 8), byte(q.Class)}
	return equalFold(b[:n], q.Name[:n]) && bytes.HasPrefix(rest[:], b[n:])
}

// RandomID returns a random ID from a cryptographic source.
func RandomID() uint16 {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint16(b[:])
}

// responseFlags returns the flags of a response to the query. It copies RD and CD from the query, and clears AD unless
// the query has AD or DO (RFC 6840 §5.8).
func (q *Query) responseFlags(bits uint16) uint16 {
	bits &^= flagRD | flagCD
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

// AppendFailure appends a response of at most limit bytes with the response code and no records. If the caller uses
// EDNS, it includes the upper bits of the code and the extended errors.
func (q *Query) AppendFailure(b []byte, rcode, limit int, errs ...EDE) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, q.ID)
	b = binary.BigEndian.AppendUint16(b, q.responseFlags(flagQR|flagRA|uint16(rcode&15)))
	b = append(b, 0, 1, 0, 0, 0, 0, 0, 0)
	b = append(b, q.Name...)
	b = binary.BigEndian.AppendUint16(b, q.Type)
	b = binary.BigEndian.AppendUint16(b, q.Class)
	if !q.opt {
		return b
	}
	opt := len(b)
	b = q.appendOPT(b, start, limit, nil, errs)
	b[opt+5] = byte(rcode >> 4) // RFC 6891 §6.1.3
	return b
}
