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

// A Query is a question of a client, with the flags and the EDNS options of the client's message. It may be shared, and
// must not be changed, once it has been passed to another function.
type Query struct {
	Name  string // wire format, with the letter case that the client has used
	Type  uint16
	Class uint16
	ID    uint16 // ID of the client's message; messages to servers have other IDs
	Size  int    // maximum length in bytes of a UDP response to the client

	rd  bool // the client has set RD: the server must resolve the name recursively
	ad  bool // the client has set AD: it wants to know whether the answer was validated
	cd  bool // the client has set CD: the server must not validate
	opt bool // the client's message has an OPT record
	do  bool // the client has set DO: it asks for DNSSEC records

	options       []byte // EDNS options of the client that servers get, in wire format; nil: none
	withoutEDNS   bool   // the message to the server has no OPT record
	direct        bool   // the query is for authoritative servers
	hasRandomCase bool   // letters of Name have random case, which the response must copy
	ownConnection bool   // the query must not share a connection with other queries

	raw []byte // the client's message if its opcode is not QUERY, or else nil; never modified
}

// WithOwnConnection returns a copy of the query that must be sent over a connection without other queries. It is for a
// query after which a server may close the connection, because other queries on this connection would be lost.
func (q *Query) WithOwnConnection() *Query {
	r := *q
	r.ownConnection = true
	return &r
}

// NeedsOwnConnection reports whether the query must be sent over a connection of its own, because WithOwnConnection has
// returned it.
func (q *Query) NeedsOwnConnection() bool { return q.ownConnection }

// RootServers is the question for the NS records of the root. Probes use it, because every resolver can answer it from
// its cache or its root hints. It must not be changed.
var RootServers = &Query{Name: "\x00", Type: dns.TypeNS, Class: dns.ClassINET, Size: dns.MinMsgSize, rd: true}

// NewQuery returns a Query for m, without EDNS options that concern only one connection. m must have one question, at
// most one OPT record of version 0, and, with opcode QUERY, no other records. Zone transfers and signed messages are
// errors. m is not retained.
func NewQuery(m *dns.Msg) (*Query, error) {
	q := new(Query)
	if err := q.SetMessage(m); err != nil {
		return nil, err
	}
	return q, nil
}

// SetMessage overwrites q with the query for m, without EDNS options that concern only one connection. It returns an
// error for invalid messages, zone transfers and signed messages. After an error, q may be changed. Other goroutines
// must not use q. m is not retained.
func (q *Query) SetMessage(m *dns.Msg) error {
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
	n, err := packName(buf[:], ask.Name)
	if err != nil {
		return err
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

// checkRecords returns an error if the query m has records that a Query would not send: any records other than OPT
// records. The error is ErrSigned if one of them is a TSIG or SIG record, or else errRecords.
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

// NewAuthoritativeQuery returns a query for authoritative servers: its class is IN, and RD and AD are cleared. name
// must be absolute, in presentation format. do and cd set the flags DO and CD. It returns an error if name is invalid.
func NewAuthoritativeQuery(name string, typ uint16, do, cd bool) (*Query, error) {
	var buf [MaxName]byte
	n, err := packName(buf[:], name)
	if err != nil {
		return nil, err
	}
	return &Query{
		Name: string(buf[:n]), Type: typ, Class: dns.ClassINET, Size: DefaultUDPSize,
		do: do, cd: cd, direct: true,
	}, nil
}

// packName writes the absolute name, which is in presentation format, to b in wire format. It returns the length in
// bytes. The root, names with escapes and invalid names are left to dns.PackDomainName, which is three times as slow
// for other names.
func packName(b []byte, name string) (n int, err error) {
	start, isCommon := 0, len(name) >= 2 && len(name)+1 <= len(b) && name[len(name)-1] == '.'
	for i := 0; isCommon && i < len(name); i++ {
		switch c := name[i]; c {
		case '.':
			isCommon = i > start && i-start <= 63
			b[start] = byte(i - start)
			start = i + 1
		case '\\':
			isCommon = false
		default:
			b[i+1] = c
		}
	}
	if isCommon {
		b[start] = 0
		return start + 1, nil
	}
	if n, err = dns.PackDomainName(name, b, 0, nil, false); err != nil {
		err = fmt.Errorf("dnshedge: name %q: %w", name, err)
	}
	return n, err
}

// WithForwardedOptions returns a query with only the EDNS option that a forwarder passes on: the client subnet (RFC
// 7871). It returns q itself if q has no options, and an error if the client subnet is malformed or occurs twice.
func (q *Query) WithForwardedOptions() (*Query, error) {
	if q.options == nil {
		return q, nil
	}
	f := *q
	f.options = nil
	for code, o := range forEachOption(q.options) {
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

// WithoutOptions returns the query without the EDNS options of the client that are passed on to servers. It returns q
// itself if there are none.
func (q *Query) WithoutOptions() *Query {
	if q.options == nil {
		return q
	}
	f := *q
	f.options = nil
	return &f
}

// isEndToEnd reports whether the EDNS option with the given code is passed on between client and server. Cookies,
// keepalive, padding and extended errors are hop-by-hop instead: they concern only one connection.
func isEndToEnd(code uint16) bool {
	return code != optCookie && code != optKeepalive && code != optPadding && code != dns.EDNS0EDE
}

// isForwardedOption reports whether a forwarder passes the EDNS option with the given code on to servers. This is true
// only for the client subnet.
func isForwardedOption(code uint16) bool { return code == optECS }

// isClientSubnet reports whether o, an EDNS option in wire format, is a valid client subnet option of a query (RFC 7871
// §6). The length must fit the prefix, and the bits after the prefix must be zero.
func isClientSubnet(o []byte) bool {
	data := o[4:]
	if len(data) < 4 {
		return false
	}
	family, prefix, scope, address := binary.BigEndian.Uint16(data), int(data[2]), data[3], data[4:]
	most := [...]int{0, 32, 128} // bits of an address by family; family 0 has no address
	if int(family) >= len(most) || prefix > most[family] || scope != 0 || len(address) != (prefix+7)/8 {
		return false
	}
	// Options for equal subnets are thus equal byte by byte, and their data has at most 20 bytes.
	return prefix%8 == 0 || address[len(address)-1]<<(prefix%8) == 0
}

// forEachOption yields each EDNS option in data, which is the data of an OPT record. It yields the option code, and the
// whole option in wire format. It stops at a malformed option.
func forEachOption(data []byte) iter.Seq2[uint16, []byte] {
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

// unpackOptions parses b, EDNS options in wire format. It returns nil if they are malformed.
func unpackOptions(b []byte) []dns.EDNS0 {
	h := dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT, Rdlength: uint16(len(b))}
	rr, _, err := dns.UnpackRRWithHeader(h, b, 0)
	if opt, ok := rr.(*dns.OPT); ok && err == nil {
		return opt.Option
	}
	return nil
}

// ParseQuery parses b, the message of a client to a forwarder. Of the EDNS options, it keeps only the client subnet.
// The error is ErrVersion if the EDNS version is not 0, and ErrSigned for a TSIG or SIG(0) record. b is not retained.
func ParseQuery(b []byte) (*Query, error) {
	q := new(Query)
	if err := q.Parse(b); err != nil {
		return nil, err
	}
	return q, nil
}

// Parse parses b, the message of a client to a forwarder, into q. Of the EDNS options, it keeps only the client subnet.
// After an error, q.AppendFailure may be called if q.Name is not empty. Other goroutines must not use q. b is not
// retained.
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

// parseMessage parses the message b of a client into q. It keeps the EDNS options for whose code keepsOption returns
// true, and drops the others. After an error, q.Name is empty if the question could not be read.
func (q *Query) parseMessage(b []byte, keepsOption func(uint16) bool) error {
	q.Name = "" // set again when the question has been read
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
		for code, o := range forEachOption(r.data) {
			if keepsOption(code) {
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
	case records && q.IsStandard() && IsQuestionType(q.Type):
		err = errRecords
	}
	return err
}

// isSignature reports whether r is a signature of the whole message: a TSIG or SIG(0) record. It returns false for a
// SIG record that signs other records.
func (r *messageRecord) isSignature() bool {
	return r.typ == dns.TypeTSIG || r.typ == dns.TypeSIG && r.section == additional && (len(r.data) < 2 || r.data[0]|r.data[1] == 0)
}

// IsQuestionType reports whether t may be the type of a question. It returns true for data types and ANY. It returns
// false for OPT and the other types from 128 to 255 (RFC 6895 §3.1), for example zone transfers and TSIG.
func IsQuestionType(t uint16) bool {
	return t == dns.TypeANY || t != dns.TypeOPT && (t < 128 || t > 255)
}

// IsStandard reports whether the opcode of the query is QUERY (RFC 1035 §4.1.1). Messages with another opcode, for
// example UPDATE and NOTIFY, must be sent unchanged and only once, because they may not be safe to repeat.
func (q *Query) IsStandard() bool { return q.raw == nil }

// PresentationName returns the name of the question in presentation format.
func (q *Query) PresentationName() string {
	name, _, _ := dns.UnpackDomainName([]byte(q.Name), 0) // was packed or parsed before
	return name
}

// ApproximateZone returns an estimate of the zone that contains the name: its last two labels, in lower case and wire
// format. The estimate is right for most names, and costs no query.
func (q *Query) ApproximateZone() string {
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

// WantsRecursion reports whether the flag RD is set, by which the client asks the server to resolve the name.
func (q *Query) WantsRecursion() bool { return q.rd }

// HasOptions reports whether the client's message has EDNS options that are passed on to servers, for example a client
// subnet. The response may depend on them.
func (q *Query) HasOptions() bool { return q.options != nil }

// IsCacheable reports whether the response to the query may be cached. The query must have the opcode QUERY, the class
// IN, a type other than ANY, the flag RD, and no EDNS options that are passed on to servers.
func (q *Query) IsCacheable() bool {
	// Without RD, the response depends on the data that the server happens to have. The opcode and the EDNS options are
	// not part of the cache key.
	return q.rd && q.raw == nil && q.options == nil && q.Class == dns.ClassINET && q.Type != dns.TypeANY
}

// KeyLen is the number of bytes of a cache key in addition to the name. MaxKey is the maximum length in bytes of a
// cache key.
const (
	KeyLen = 5
	MaxKey = MaxName + KeyLen
)

// The bits of the last byte of a cache key.
const (
	KeyDO        = 1 << iota // the client has set DO
	KeyCD                    // the client has set CD
	KeyNameError             // the key of a response without an existing name, which holds for all types; see SetNameErrorType
)

// Key returns the cache key of the query. Two queries have the same key if their names, ignoring case, types, classes,
// and the flags DO and CD are equal.
func (q *Query) Key() string {
	var buf [MaxKey]byte
	return string(q.AppendKey(buf[:0]))
}

// AppendKey appends the query's cache key (see Key) to b, and returns the extended slice. Unlike Key, it does not
// allocate if b has room.
func (q *Query) AppendKey(b []byte) []byte {
	bits := selectFlag(q.do, KeyDO) | selectFlag(q.cd, KeyCD)
	return append(AppendLower(b, q.Name), byte(q.Type>>8), byte(q.Type), byte(q.Class>>8), byte(q.Class), byte(bits))
}

// AppendExchangeKey appends to b a key of the name in lower case, type, class, flags DO, CD and RD, and EDNS options.
// It returns the extended slice. Queries with equal keys get the same response from a server. The opcode of q must be
// QUERY.
func (q *Query) AppendExchangeKey(b []byte) []byte {
	return append(append(q.AppendKey(b), byte(selectFlag(q.rd, 1))), q.options...)
}

// SetNameErrorType changes a cache key in place to the key under which the response "no such name" is stored. That
// response holds for all types, so all types except DS share one key.
func SetNameErrorType(key []byte) {
	n := len(key)
	// DS records belong to the parent zone (RFC 4035 §3.1.4.1), whose servers may not know a name in the child zone.
	if binary.BigEndian.Uint16(key[n-KeyLen:]) != dns.TypeDS {
		ToNonDSKey(key)
	}
	key[n-1] |= KeyNameError
}

// ToNonDSKey replaces the type in a cache key of the response "no such name". The new type is a placeholder, TypeNone,
// that stands for all types except DS. The key is changed in place. Its name, class and flags do not change.
func ToNonDSKey(key []byte) { binary.BigEndian.PutUint16(key[len(key)-KeyLen:], dns.TypeNone) }

// A PackOptions holds the parts of a message that depend on the transport and not on the question.
type PackOptions struct {
	Size      int    // maximum length in bytes of a UDP response
	Keepalive bool   // add a keepalive option (RFC 7828)
	Pad       bool   // pad to a multiple of 128 bytes (RFC 7830, RFC 8467)
	Cookie    []byte // data of a COOKIE option (RFC 7873); nil: none
}

// WantsDNSSEC reports whether the flag DO is set, by which the client asks for DNSSEC records.
func (q *Query) WantsDNSSEC() bool { return q.do }

// WithoutEDNS returns a copy of the query for a server that does not support EDNS. The message has no OPT record, and
// AD and CD are cleared, because older servers require these bits to be zero (RFC 1035 §4.1.1).
func (q *Query) WithoutEDNS() *Query {
	p := *q
	p.withoutEDNS = true
	return &p
}

// OmitsEDNS reports whether the query is sent without an OPT record, because WithoutEDNS has returned it.
func (q *Query) OmitsEDNS() bool { return q.withoutEDNS }

// WithRandomCase returns a copy of the query in which each letter of the name has a random case
// (draft-vixie-dnsext-dns0x20). CheckResponse then only accepts responses that repeat this case. An attacker who forges
// responses can hardly guess it.
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

// Append writes the query as a message to a server: it appends the message to b and returns the extended slice. id is
// the ID of the message. s holds the settings of the message that depend on the transport, for example padding.
func (q *Query) Append(b []byte, id uint16, s PackOptions) []byte {
	start := len(b)
	if q.raw != nil {
		b = append(b, q.raw...)
		binary.BigEndian.PutUint16(b[start:], id)
		return b
	}
	bits := selectFlag(q.rd, flagRD) | selectFlag(q.cd && !q.withoutEDNS, flagCD)
	bits |= selectFlag(!q.direct && !q.withoutEDNS, flagAD) // a cached response may serve clients that want to know whether it was validated (RFC 6840 §5.7)
	b = q.appendHeaderAndQuestion(b, id, bits)
	if q.withoutEDNS {
		return b
	}
	b[start+11] = 1 // number of additional records
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

// appendOPTHead appends an OPT record without options to b (RFC 6891 §6.1), and returns the extended slice. size is the
// maximum length in bytes of a UDP response. A caller that appends options must set the field RDLENGTH, the last two
// bytes, to their length.
func (q *Query) appendOPTHead(b []byte, size uint16) []byte {
	b = append(b, 0, 0, byte(dns.TypeOPT))
	b = binary.BigEndian.AppendUint16(b, size)
	return append(b, 0, 0, byte(selectFlag(q.do, 0x80)), 0, 0, 0)
}

// appendHeaderAndQuestion writes the beginning of a message: it appends a header and the question to b, and returns the
// extended slice. The header announces one question and no records. flags is the second field of the header: the flags,
// the opcode and the response code.
func (q *Query) appendHeaderAndQuestion(b []byte, id, flags uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, id)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = append(b, 0, 1, 0, 0, 0, 0, 0, 0)
	b = append(b, q.Name...)
	b = binary.BigEndian.AppendUint16(b, q.Type)
	return binary.BigEndian.AppendUint16(b, q.Class)
}

// CheckResponse returns nil if the message b is the response to q, which was sent with the given ID, and otherwise an
// error that names the difference. It does not parse the records.
func (q *Query) CheckResponse(b []byte, id uint16) error {
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
		// A server that could not read the question cannot repeat it. A response to an UPDATE need not
		// have it (RFC 2136 §3.8). Of a truncated response, no records are used.
		switch rcode := bits & 15; {
		case cut, q.raw != nil, rcode == dns.RcodeFormatError, rcode == dns.RcodeServerFailure, rcode == dns.RcodeNotImplemented, rcode == dns.RcodeRefused, rcode == dns.RcodeNotAuth:
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

// isQuestionPrefix reports whether b could be the beginning of the question of q in wire format, but is not the whole
// question. That is the case in a message that was truncated within the question.
func (q *Query) isQuestionPrefix(b []byte) bool {
	if len(b) >= len(q.Name)+4 {
		return false
	}
	n := min(len(b), len(q.Name))
	rest := [...]byte{byte(q.Type >> 8), byte(q.Type), byte(q.Class >> 8), byte(q.Class)}
	return equalFold(b[:n], q.Name[:n]) && bytes.HasPrefix(rest[:], b[n:])
}

// RandomID returns a message ID from a cryptographic random number generator, so that attackers cannot guess it.
func RandomID() uint16 {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint16(b[:])
}

// responseFlags returns the header flags of the response to the client that sent q. bits are the flags of the stored
// response. RD and CD are copied from q. AD is cleared if q has neither AD nor DO (RFC 6840 §5.8).
func (q *Query) responseFlags(bits uint16) uint16 {
	bits &^= flagRD | flagCD | selectFlag(!q.ad && !q.do, flagAD)
	return bits | selectFlag(q.rd, flagRD) | selectFlag(q.cd, flagCD)
}

// selectFlag returns flag if on is true, and otherwise 0.
func selectFlag(on bool, flag uint16) uint16 {
	if on {
		return flag
	}
	return 0
}

// AppendFailure appends to b a response to q that reports a failure, and returns the extended slice. The response has
// the response code rcode and at most limit bytes. If the client uses EDNS, it has the extended errors errs as far as
// they fit.
func (q *Query) AppendFailure(b []byte, rcode, limit int, errs ...EDE) []byte {
	start := len(b)
	b = q.appendHeaderAndQuestion(b, q.ID, q.responseFlags(flagQR|flagRA|uint16(rcode&15)))
	if !q.opt {
		return b
	}
	opt := len(b)
	b = q.appendOPT(b, start, limit, nil, errs)
	b[opt+5] = byte(rcode >> 4) // RFC 6891 §6.1.3
	return b
}
