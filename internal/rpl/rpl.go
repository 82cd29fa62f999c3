// Package rpl runs test scripts (*.rpl) of unbound and of CZ.NIC's deckard against a resolver or a forwarder. A script
// defines servers with their responses, the queries of a client, and the responses that the client must get. A script
// runs in a testing/synctest bubble, because hours of fake time may pass in it.
package rpl

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// A Script is a parsed test script. Its methods that change it must be called before it is played.
type Script struct {
	// Settings is the configuration of the server under test, from the beginning of the script.
	Settings []Setting

	ranges []*serverRange
	steps  []*step
}

// A Setting is an option of the server under test. Value is empty if Key begins a section, such as "stub-zone".
type Setting struct{ Key, Value string }

// A serverRange defines the responses of servers during the steps with the numbers first to last, inclusive.
type serverRange struct {
	first, last int
	addrs       []netip.Addr // addresses of the servers; empty: the responses apply to all addresses
	entries     []*entry     // responses; the first that matches a query is sent
}

// A step is one step of a script. The steps are executed in the order in which the script lists them.
type step struct {
	// number of the step in the script
	number int
	// kind of the step, such as QUERY or CHECK_ANSWER
	kind     string
	duration time.Duration // time to pass for TIME_PASSES; response time of a server for INFRA_RTT
	addr     netip.Addr    // server whose query the step is about; the invalid Addr stands for any server
	entry    *entry        // DNS message of the step; nil if the step has none
}

// An entry is a DNS message in a script, with rules for comparing it with other messages.
type entry struct {
	msg *dns.Msg
	raw []byte // wire format, if the script gives bytes instead of a message
	// parts of the message to compare, from the keyword MATCH
	match []string
	// the response repeats the question of the query, from ADJUST copy_query
	copyQuery bool
	silent    bool   // the server does not respond, from ADJUST do_not_answer
	mandatory bool   // a server must have sent the entry by the end of the script
	section   string // section that the parser is in; HEX for bytes, EDNS for EDNS options
}

// Files returns the names of the scripts in folders, a list of folders as in the variable PATH. It returns nil for an
// empty list. The error is not nil if a folder has no script.
func Files(folders string) ([]string, error) {
	var files []string
	for _, dir := range filepath.SplitList(folders) {
		scripts, err := filepath.Glob(filepath.Join(dir, "*.rpl"))
		if err != nil {
			return nil, err
		}
		if len(scripts) == 0 {
			return nil, fmt.Errorf("rpl: folder %s has no file *.rpl", dir)
		}
		files = append(files, scripts...)
	}
	return files, nil
}

// Get returns the last value of the setting with the given key. It returns "" if there is no such setting.
func (s *Script) Get(key string) (value string) {
	for _, c := range s.Settings {
		if c.Key == key {
			value = c.Value
		}
	}
	return value
}

// A Zone is a forward-zone or a stub-zone in the settings of a script.
type Zone struct {
	Name  string   // fully qualified name of the zone
	Addrs []string // addresses of the zone's servers
	Stub  bool     // Addrs are authoritative servers; otherwise they are forwarders
}

// Zones returns the zones in the settings. Addresses outside a zone, which scripts of deckard have, belong to the root
// zone.
func (s *Script) Zones() (zones []*Zone) {
	z := &Zone{Name: ".", Stub: true}
	for _, c := range s.Settings {
		switch c.Key {
		case "forward-zone", "stub-zone":
			z = &Zone{Stub: c.Key == "stub-zone"}
			zones = append(zones, z)
		case "name":
			z.Name = dns.Fqdn(c.Value)
		case "forward-addr", "stub-addr":
			if z.Addrs = append(z.Addrs, c.Value); len(zones) == 0 {
				zones = append(zones, z)
			}
		}
	}
	return zones
}

// Servers returns the addresses of all servers for which the script defines responses. It may contain duplicates.
func (s *Script) Servers() (addrs []netip.Addr) {
	for _, r := range s.ranges {
		addrs = append(addrs, r.addrs...)
	}
	return addrs
}

// ClearExpectedAD clears the flag AD in all responses that the script expects. It is for servers under test that do not
// validate DNSSEC. It returns the number of changed responses.
func (s *Script) ClearExpectedAD() (n int) {
	for _, t := range s.steps {
		if t.kind == "CHECK_ANSWER" && t.entry.msg.AuthenticatedData {
			t.entry.msg.AuthenticatedData = false
			n++
		}
	}
	return n
}

// SetRecursionDesired sets the flag RD in all queries of clients and in the responses that the script expects. Without
// RD, unbound responds from its cache, whereas a Client of this module responds with REFUSED.
//
// If a referral is expected for a query without RD, the query is not changed. The expected response becomes REFUSED,
// because a Client sends no referrals.
func (s *Script) SetRecursionDesired() {
	var asked *entry
	for _, t := range s.steps {
		switch {
		case t.entry == nil:
		case t.kind == "QUERY":
			asked = t.entry
			asked.msg.RecursionDesired = true
		case t.kind == "CHECK_ANSWER" && asked != nil && !t.entry.msg.RecursionDesired && t.entry.isReferral():
			asked.msg.RecursionDesired = false
			m := t.entry.msg
			m.Rcode, m.AuthenticatedData, m.Ns, m.Extra = dns.RcodeRefused, false, nil, nil
		case t.kind == "CHECK_ANSWER":
			t.entry.msg.RecursionDesired = true
		}
	}
}

// ClearExpectedTC clears the flag TC in all responses that the script expects. It is for clients that use TCP, over
// which no response is truncated.
func (s *Script) ClearExpectedTC() {
	for _, t := range s.steps {
		if t.kind == "CHECK_ANSWER" {
			t.entry.msg.Truncated = false
		}
	}
}

// ReplaceExpectedTTL replaces the TTL from by the TTL to, in seconds, in all responses that the script expects. It is
// needed because servers use different TTLs for expired records.
func (s *Script) ReplaceExpectedTTL(from, to uint32) {
	for _, t := range s.steps {
		if t.kind == "CHECK_ANSWER" {
			for _, rr := range slices.Concat(t.entry.msg.Answer, t.entry.msg.Ns) {
				if h := rr.Header(); h.Ttl == from {
					h.Ttl = to
				}
			}
		}
	}
}

// RaiseZeroTTL replaces a TTL of 0 by 1 second in the answer section of all responses of servers. It is for servers
// under test that do not raise a TTL of 0.
func (s *Script) RaiseZeroTTL() {
	for _, r := range s.ranges {
		for _, e := range r.entries {
			for _, rr := range e.msg.Answer {
				h := rr.Header()
				h.Ttl = max(h.Ttl, 1)
			}
		}
	}
}

// Parse parses a script. An error names the number and the text of the invalid line.
func Parse(r io.Reader) (*Script, error) {
	s := new(Script)
	config, inRange, e := true, false, (*entry)(nil)
	origin := "." // of names without a dot at their end, to the end of the script
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), ";") // a semicolon begins a comment; no record in the scripts contains a semicolon
		if config {
			line, _, _ = strings.Cut(line, "#")
		}
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		var err error
		switch {
		case f[0] == "CONFIG_END":
			config = false
		case config:
			s.parseSettings(f)
		case f[0] == "SCENARIO_BEGIN", f[0] == "SCENARIO_END":
		case f[0] == "$ORIGIN" && len(f) == 2:
			origin = dns.Fqdn(f[1])
		case f[0] == "RANGE_BEGIN" && len(f) >= 3:
			r := new(serverRange)
			_, err = fmt.Sscan(f[1]+" "+f[2], &r.first, &r.last)
			for _, text := range f[3:] { // without addresses here, ADDRESS lines follow
				var a netip.Addr
				if a, err = netip.ParseAddr(text); err != nil {
					break
				}
				r.addrs = append(r.addrs, a)
			}
			s.ranges, inRange = append(s.ranges, r), true
		case f[0] == "RANGE_END":
			inRange = false
		case f[0] == "ADDRESS" && len(f) == 2:
			var a netip.Addr
			if a, err = netip.ParseAddr(f[1]); inRange {
				r := s.ranges[len(s.ranges)-1]
				r.addrs = append(r.addrs, a)
			} else if len(s.steps) > 0 {
				s.steps[len(s.steps)-1].addr = a
			}
		case f[0] == "STEP" && len(f) >= 3:
			t := &step{kind: f[2]}
			t.number, err = strconv.Atoi(f[1])
			switch last := f[len(f)-1]; {
			case err != nil:
			case t.kind == "TIME_PASSES":
				t.duration, err = time.ParseDuration(last + "s") // the word after ELAPSE
			case t.kind == "INFRA_RTT" && len(f) == 6: // a server, its zone, milliseconds
				if t.duration, err = time.ParseDuration(last + "ms"); err == nil {
					t.addr, err = netip.ParseAddr(f[3])
				}
			case f[len(f)-2] == "ADDRESS":
				t.addr, err = netip.ParseAddr(last)
			}
			s.steps = append(s.steps, t)
		case f[0] == "ENTRY_BEGIN":
			e = &entry{msg: new(dns.Msg)}
			if inRange {
				r := s.ranges[len(s.ranges)-1]
				r.entries = append(r.entries, e)
			} else if len(s.steps) > 0 {
				s.steps[len(s.steps)-1].entry = e
			}
		case f[0] == "ENTRY_END":
			e = nil
		case e != nil:
			err = e.parseLine(f, origin)
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return nil, fmt.Errorf("rpl: line %d: %q: %w", n, lines.Text(), err)
		}
	}
	return s, lines.Err()
}

// parseSettings parses one line of the configuration, which is split into words. A word that ends in a colon is a key.
// Other words belong to the value of the last key.
func (s *Script) parseSettings(words []string) {
	for _, word := range words {
		if key, ok := strings.CutSuffix(word, ":"); ok {
			s.Settings = append(s.Settings, Setting{Key: key})
		} else if last := len(s.Settings) - 1; last >= 0 {
			s.Settings[last].Value = strings.TrimSpace(s.Settings[last].Value + " " + strings.Trim(word, `"`))
		}
	}
}

// parseLine parses one line of an entry, which is split into words. Names without a dot at the end are relative to
// origin.
func (e *entry) parseLine(f []string, origin string) error {
	switch {
	case f[0] == "MATCH":
		e.match = append(e.match, f[1:]...)
	case f[0] == "ADJUST":
		e.copyQuery = e.copyQuery || slices.Contains(f, "copy_query")
		e.silent = e.silent || slices.Contains(f, "do_not_answer")
	case f[0] == "SECTION" && len(f) == 2:
		e.section = f[1]
	case f[0] == "RAW", f[0] == "HEX_ANSWER_BEGIN":
		e.section = "HEX"
	case f[0] == "HEX_EDNSDATA_BEGIN":
		e.section = "EDNS"
	case f[0] == "HEX_ANSWER_END":
		e.section = ""
	case f[0] == "HEX_EDNSDATA_END":
		e.section = "ADDITIONAL"
	case f[0] == "MANDATORY":
		e.mandatory = true
	case e.section == "EDNS": // EDNS options are ignored
	case e.section == "HEX":
		b, err := hex.DecodeString(strings.Join(f, ""))
		e.raw = append(e.raw, b...)
		return err
	case f[0] == "REPLY", f[0] == "FLAGS":
		m := e.msg
		flags := map[string]*bool{
			"QR": &m.Response, "AA": &m.Authoritative, "TC": &m.Truncated, "RD": &m.RecursionDesired,
			"RA": &m.RecursionAvailable, "AD": &m.AuthenticatedData, "CD": &m.CheckingDisabled,
		}
		for _, word := range f[1:] {
			if flag := flags[word]; flag != nil {
				*flag = true
			} else if word == "DO" {
				m.SetEdns0(4096, true)
			} else if word == "BADVERS" {
				m.SetEdns0(4096, false)
				m.Rcode = dns.RcodeBadVers
			} else if code, ok := dns.StringToRcode[word]; ok {
				m.Rcode = code
			} else {
				return errors.New("unknown flag " + word)
			}
		}
	case e.section == "QUESTION":
		t, ok := parseType(f[len(f)-1])
		if !ok {
			return errors.New("unknown type")
		}
		e.msg.Question = []dns.Question{{Name: absoluteName(f[0], origin), Qtype: t, Qclass: dns.ClassINET}}
	default:
		to := map[string]*[]dns.RR{"ANSWER": &e.msg.Answer, "AUTHORITY": &e.msg.Ns, "ADDITIONAL": &e.msg.Extra}[e.section]
		rr, err := dns.NewRR("$ORIGIN " + origin + "\n" + strings.Join(f, " "))
		if odd := parseUnknownRecord(f); odd != nil && (err != nil || dns.Len(rr) != dns.Len(odd)) {
			rr, err = odd, nil
		}
		if err != nil || to == nil || rr == nil {
			return fmt.Errorf("record in section %q: %v", e.section, err)
		}
		switch rr := rr.(type) { // package dns packs bitmaps in order only, and base64 that is padded right
		case *dns.NSEC:
			slices.Sort(rr.TypeBitMap)
		case *dns.NSEC3:
			slices.Sort(rr.TypeBitMap)
		case *dns.DNSKEY:
			rr.PublicKey = padBase64(rr.PublicKey)
		case *dns.RRSIG:
			rr.Signature = padBase64(rr.Signature)
		}
		*to = append(*to, rr)
	}
	return nil
}

// padBase64 returns a base64 text with the correct number of padding characters.
func padBase64(text string) string {
	text = strings.TrimRight(text, "=")
	return text + strings.Repeat("=", -len(text)&3)
}

// parseType returns the number of a DNS record type. The word is the name of the type, or has the form TYPE65534 (RFC
// 3597, section 5). The second result is false if the word is neither.
func parseType(word string) (uint16, bool) {
	if t, ok := dns.StringToType[word]; ok {
		return t, true
	}
	number, ok := strings.CutPrefix(word, "TYPE")
	n, err := strconv.ParseUint(number, 10, 16)
	return uint16(n), ok && err == nil
}

// absoluteName returns a fully qualified name. If name does not end in a dot, it is relative to origin.
func absoluteName(name, origin string) string {
	switch {
	case dns.IsFqdn(name):
		return name
	case origin == ".":
		return name + "."
	}
	return name + "." + origin
}

// parseUnknownRecord parses a record whose data has the form \# LENGTH HEX (RFC 3597, section 5), even if its type is
// known. It returns nil if the record has another form.
func parseUnknownRecord(f []string) dns.RR {
	i := slices.Index(f, `\#`)
	if i < 2 || len(f) < i+2 {
		return nil
	}
	rr, err := dns.NewRR(strings.Join(f[:i-1], " ") + ` TYPE65280 ` + strings.Join(f[i:], " "))
	if odd, ok := rr.(*dns.RFC3597); ok && err == nil {
		odd.Hdr.Rrtype, ok = parseType(f[i-1])
		if ok {
			return odd
		}
	}
	return nil
}

// matchesQuery reports whether q matches the entry in all parts that MATCH names. The network over which q arrived is
// "udp" or "tcp". If anyType is true, the query type is not compared.
func (e *entry) matchesQuery(q *dns.Msg, network string, anyType bool) bool {
	var want dns.Question
	if len(e.msg.Question) > 0 {
		want = e.msg.Question[0]
	}
	got := q.Question[0]
	return !slices.ContainsFunc(e.match, func(word string) bool {
		name := word == "qname" || word == "question"
		typ := (word == "qtype" || word == "question") && !anyType
		return name && !strings.EqualFold(got.Name, want.Name) || typ && got.Qtype != want.Qtype ||
			word == "subdomain" && !dns.IsSubDomain(want.Name, got.Name) || (word == "TCP" || word == "UDP") && !strings.EqualFold(network, word) ||
			word == "noedns" && q.IsEdns0() != nil
	})
}

// isReferral reports whether the entry is a referral: a response that delegates to other servers.
func (e *entry) isReferral() bool {
	m := e.msg
	return m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 && len(m.Ns) > 0 && formatRecords(m.Ns, true, false) == ""
}

// packResponse returns the entry as the response to q, in wire format. If recursion is true, the flag RA is set. If
// anyType is true, the response repeats the question of q, which may have another type.
func (e *entry) packResponse(q *dns.Msg, recursion, anyType bool) []byte {
	if e.raw != nil {
		b := slices.Clone(e.raw)
		binary.BigEndian.PutUint16(b, q.Id)
		return b
	}
	m := e.msg.Copy()
	m.Id = q.Id
	if e.copyQuery || anyType {
		m.Question = q.Question
	}
	m.RecursionAvailable = m.RecursionAvailable || recursion
	b, _ := m.Pack() // a message that was parsed can be packed
	return b
}

// checkResponse returns an error that describes how m differs from the entry, or nil if there is no difference. In the
// authority section, it compares only the SOA of negative responses. It does not compare the additional section.
func (e *entry) checkResponse(m *dns.Msg) error {
	if len(e.match) == 0 {
		return nil // any response is accepted
	}
	want, ttl := e.msg, slices.Contains(e.match, "ttl")
	differ := func(what string, got, want any) error {
		if got == want {
			return nil
		}
		return fmt.Errorf("%s is %v; want %v", what, got, want)
	}
	var errs []error
	if len(want.Question) > 0 {
		var got dns.Question // zero for a message without a question
		if len(m.Question) > 0 {
			got = m.Question[0]
		}
		errs = append(errs, differ("question", strings.ToLower(got.String()), strings.ToLower(want.Question[0].String())))
	}
	if len(want.Answer) > 0 || slices.Contains(e.match, "all") || slices.Contains(e.match, "answer") {
		errs = append(errs, differ("answer", formatRecords(m.Answer, false, ttl), formatRecords(want.Answer, false, ttl)))
	}
	if soa := formatRecords(want.Ns, true, ttl); soa != "" {
		errs = append(errs, differ("SOA", formatRecords(m.Ns, true, ttl), soa))
	}
	if slices.Contains(e.match, "rcode") {
		errs = append(errs, differ("rcode", dns.RcodeToString[m.Rcode], dns.RcodeToString[want.Rcode]))
	}
	if all := slices.Contains(e.match, "all"); all || slices.Contains(e.match, "flags") {
		h := m.MsgHdr
		if h.Id, h.RecursionDesired = want.Id, want.RecursionDesired; !all {
			h.Rcode = want.Rcode
		}
		errs = append(errs, differ("header", h.String(), want.MsgHdr.String()))
	}
	for _, word := range e.match {
		code, ok := strings.CutPrefix(word, "ede=")
		switch text := m.String(); {
		case !ok || code == "0":
		case code == "any" && !strings.Contains(text, "EDE: "), code != "any" && !strings.Contains(text, "EDE: "+code+" "):
			errs = append(errs, fmt.Errorf("extended error %s is missing", code))
		}
	}
	return errors.Join(errs...)
}

// formatRecords returns a text of the records that does not depend on their order or case. If soas is true, it includes
// only SOA records. It includes the TTL if ttl is true.
func formatRecords(rrs []dns.RR, soas, ttl bool) string {
	var out []string
	for _, rr := range rrs {
		if rr = dns.Copy(rr); !ttl {
			rr.Header().Ttl = 0
		}
		if !soas || rr.Header().Rrtype == dns.TypeSOA {
			out = append(out, strings.ToLower(rr.String()))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// A Network simulates the servers of a script. The server under test must open its connections by DialContext. The
// exported fields must be set before Play is called.
type Network struct {
	// Resolver is the address of an additional server, which responds for all servers of the script, without referrals. A
	// forwarder under test uses this server instead of the root servers.
	Resolver string

	// ReferAnyType makes referrals match queries of any type. Scripts expect NS queries for parts of a name (RFC 7816),
	// while some servers under test send A queries (RFC 9156).
	ReferAnyType bool

	// AllowFewerQueries makes a REPLY step without a matching query succeed. It is for servers under test that send fewer
	// queries than the script expects.
	AllowFewerQueries bool

	// AwaitAnswers makes each QUERY step last until its response has arrived, as in deckard. Queries that the server under
	// test sends meanwhile are then answered during that step.
	AwaitAnswers bool

	script         *Script
	answers        chan *dns.Msg // responses of the server under test; nil for a query without response
	unchecked      []*dns.Msg    // responses that no CHECK_ANSWER step has accepted yet
	pendingQueries int           // number of client queries without a response

	mu              sync.Mutex                   // guards the fields below
	step            int                          // number of the current step
	responseTimes   map[netip.Addr]time.Duration // response time of each server; 0 if not contained
	sentEntries     map[*entry]bool              // entries that servers have used for a response
	storedQueries   []*query                     // queries to servers without a response, oldest first
	answeredQueries []*query                     // queries that servers have answered since the last query that a CHECK_OUT_QUERY step has matched
}

// A query is a DNS query that a simulated server has received.
type query struct {
	msg     *dns.Msg
	network string       // udp or tcp
	host    netip.Addr   // address of the server
	send    func([]byte) // sends a response in wire format; a nil response closes the connection
}

// Network returns a new Network that simulates the servers of the script.
func (s *Script) Network() *Network {
	return &Network{script: s, answers: make(chan *dns.Msg, len(s.steps)), responseTimes: make(map[netip.Addr]time.Duration), sentEntries: make(map[*entry]bool)}
}

// DialContext returns a connection to the simulated server at address, an IP address and port. If the script has no
// server there, the connection works but gets no responses.
func (n *Network) DialContext(_ context.Context, network, address string) (net.Conn, error) {
	host, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	datagrams := strings.HasPrefix(network, "udp")
	go func() {
		defer far.Close()
		for {
			b, size, m := make([]byte, 1<<16), 0, new(dns.Msg)
			var err error
			if datagrams {
				size, err = far.Read(b)
			} else if _, err = io.ReadFull(far, b[:2]); err == nil {
				size, err = io.ReadFull(far, b[:binary.BigEndian.Uint16(b)])
			}
			if err != nil || m.Unpack(b[:size]) != nil || len(m.Question) != 1 {
				return
			}
			n.handleQuery(&query{m, network[:3], host.Addr(), func(b []byte) {
				if b == nil {
					_ = far.Close()
					return
				}
				if !datagrams {
					b = append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
				}
				_, _ = far.Write(b) // an error means that the client has closed the connection
			}})
		}
	}()
	return near, nil
}

// handleQuery sends the response to q if the current step has a response. Otherwise it stores q, so that a later step
// can respond.
func (n *Network) handleQuery(q *query) {
	n.mu.Lock()
	b := n.findResponse(q)
	if b == nil {
		n.storedQueries = append(n.storedQueries, q)
	} else {
		n.answeredQueries = append(n.answeredQueries, q)
	}
	b = q.truncateForUDP(b)
	takes := n.responseTimes[q.host]
	n.mu.Unlock()
	switch {
	case b == nil:
	case takes == 0:
		q.send(b)
	default:
		time.AfterFunc(takes, func() { q.send(b) })
	}
}

// truncateForUDP returns b, the response to q in wire format. If b is longer than the UDP datagrams that q allows (RFC
// 6891, section 6.2.5), it returns an empty response with the flag TC instead.
func (q *query) truncateForUDP(b []byte) []byte {
	size := dns.MinMsgSize
	if opt := q.msg.IsEdns0(); opt != nil {
		size = max(size, int(opt.UDPSize()))
	}
	if q.network != "udp" || len(b) <= size {
		return b
	}
	m := new(dns.Msg).SetReply(q.msg)
	m.Truncated = true
	b, _ = m.Pack()
	return b
}

// findResponse returns the response to q in the current step, in wire format. It returns nil if the server does not
// respond to q in this step. The caller must hold mu.
func (n *Network) findResponse(q *query) []byte {
	all := n.Resolver != "" && q.host.String() == n.Resolver
	ranges := slices.Backward(n.script.ranges) // if several ranges contain the step, unbound uses the last
	if all {
		ranges = slices.All(n.script.ranges)
	}
	for _, r := range ranges {
		if n.step < r.first || n.step > r.last || !all && len(r.addrs) > 0 && !slices.Contains(r.addrs, q.host) {
			continue
		}
		for _, e := range r.entries {
			anyType := n.ReferAnyType && e.isReferral()
			if e.matchesQuery(q.msg, q.network, anyType) && !(all && e.isReferral()) {
				n.sentEntries[e] = true
				if e.silent {
					return nil
				}
				return e.packResponse(q.msg, all, anyType)
			}
		}
	}
	return nil
}

// beginStep makes the step with the given number the current step. It sends responses to stored queries that can be
// answered in this step.
func (n *Network) beginStep(step int) {
	n.mu.Lock()
	n.step = step
	var ready []func()
	n.storedQueries = slices.DeleteFunc(n.storedQueries, func(q *query) bool {
		b := n.findResponse(q)
		if b != nil {
			n.answeredQueries = append(n.answeredQueries, q)
			ready = append(ready, func() { q.send(b) })
		}
		return b != nil
	})
	n.mu.Unlock()
	for _, send := range ready {
		send()
	}
}

// matchesQuery reports whether q was sent to the server of the step and matches the step's entry. A step without a
// server or entry matches any.
func (s *step) matchesQuery(q *query) bool {
	return (!s.addr.IsValid() || s.addr == q.host) && (s.entry == nil || s.entry.matchesQuery(q.msg, q.network, false))
}

// findStoredQuery returns the oldest stored query that matches step s, or nil if there is none. If remove is true, it also
// removes the query from the stored queries.
func (n *Network) findStoredQuery(s *step, remove bool) *query {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, q := range n.storedQueries {
		if s.matchesQuery(q) {
			if remove {
				n.storedQueries = slices.Delete(n.storedQueries, i, i+1)
			}
			return q
		}
	}
	return nil
}

// wasQuerySent reports whether the server under test has sent a query that matches step s. Answered queries up to the
// last match are not searched again.
func (n *Network) wasQuerySent(s *step) bool {
	if n.findStoredQuery(s, false) != nil {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.answeredQueries, s.matchesQuery)
	n.answeredQueries = n.answeredQueries[i+1:]
	return i >= 0
}

// A StepError describes why one step of a script has failed.
type StepError struct {
	Step int    // number of the step
	Kind string // kind of the step, such as CHECK_ANSWER
	Err  error
}

// Error returns the number and the kind of the step, and the text of Err.
func (e *StepError) Error() string { return fmt.Sprintf("step %d %s: %v", e.Step, e.Kind, e.Err) }

// Unwrap returns e.Err, for [errors.Is] and [errors.As].
func (e *StepError) Unwrap() error { return e.Err }

// FailedSteps returns the numbers of the failed steps. The argument is an error that [Network.Play] has returned.
func FailedSteps(err error) (steps []int) {
	switch err := err.(type) {
	case *StepError:
		steps = append(steps, err.Step)
	case interface{ Unwrap() []error }:
		for _, e := range err.Unwrap() {
			steps = append(steps, FailedSteps(e)...)
		}
	}
	return steps
}

// Play runs all steps of the script. It must be called in a testing/synctest bubble. The function ask must send a query
// to the server under test and return the response, or nil if there is none. The server under test must use
// n.DialContext.
//
// The result joins a [StepError] for each failed step. It is nil if no step has failed.
func (n *Network) Play(ask func(*dns.Msg) *dns.Msg) error {
	var errs []error
	for _, s := range n.script.steps {
		if n.AwaitAnswers && s.kind == "CHECK_ANSWER" {
			n.awaitAnswer()
		}
		n.beginStep(s.number)
		var err error
		switch s.kind {
		case "QUERY":
			m := s.entry.msg.Copy()
			m.Id = dns.Id()
			if raw := s.entry.raw; raw != nil && m.Unpack(raw) != nil {
				break // the server under test cannot parse the query either
			}
			n.pendingQueries++
			go func() { n.answers <- ask(m) }()
		case "CHECK_ANSWER":
			err = n.expectAnswer(s.entry)
		case "CHECK_OUT_QUERY":
			if !n.wasQuerySent(s) {
				err = errors.New("no such query")
			}
		case "REPLY", "ERROR":
			q := n.findStoredQuery(s, true)
			if q == nil {
				if !n.AllowFewerQueries {
					err = errors.New("no such query")
				}
			} else if s.kind == "REPLY" {
				q.send(s.entry.packResponse(q.msg, false, false))
			} else {
				q.send(nil)
			}
		case "TIMEOUT":
			n.findStoredQuery(new(step), true) // there may be no stored query: servers differ in how often they repeat a query
			time.Sleep(time.Second)
		case "TIME_PASSES":
			time.Sleep(s.duration)
		case "INFRA_RTT": // delays the server's responses, because the server under test may have no cache of round-trip times that could be set
			n.mu.Lock()
			n.responseTimes[s.addr] = s.duration
			n.mu.Unlock()
		case "TRAFFIC", "NOTHING":
		default:
			err = errors.New("unknown step")
		}
		if err != nil {
			errs = append(errs, &StepError{s.number, s.kind, err})
		}
		synctest.Wait()
	}
	return errors.Join(append(errs, n.checkMandatory()...)...)
}

// checkMandatory returns a [StepError] for each entry with the keyword MANDATORY that no server has sent. The errors
// have the number of the current step, which is the last step of the script.
func (n *Network) checkMandatory() (errs []error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.script.ranges {
		for _, e := range r.entries {
			if e.mandatory && !n.sentEntries[e] {
				errs = append(errs, &StepError{n.step, "end", fmt.Errorf("no server has answered %v", e.msg.Question)})
			}
		}
	}
	return errs
}

// awaitAnswer waits up to one minute for the response to a pending client query, and stores it in unchecked. It does
// nothing if no query is pending.
func (n *Network) awaitAnswer() {
	if n.pendingQueries == 0 {
		return
	}
	select {
	case m := <-n.answers:
		if n.pendingQueries--; m != nil {
			n.unchecked = append(n.unchecked, m)
		}
	case <-time.After(time.Minute):
	}
}

// expectAnswer waits up to one minute for a response that matches the entry. Otherwise it returns an error that
// describes the difference of the last response. Responses may arrive in any order.
func (n *Network) expectAnswer(e *entry) error {
	why, late := errors.New("no answer"), time.After(time.Minute)
	for i := 0; ; i++ {
		if i == len(n.unchecked) {
			if n.pendingQueries == 0 {
				n.unchecked = nil
				return why
			}
			select {
			case m := <-n.answers:
				n.pendingQueries--
				if m == nil {
					i--
					continue
				}
				n.unchecked = append(n.unchecked, m)
			case <-late:
				return why
			}
		}
		if why = e.checkResponse(n.unchecked[i]); why == nil {
			n.unchecked = slices.Delete(n.unchecked, i, i+1)
			return nil
		}
	}
}
