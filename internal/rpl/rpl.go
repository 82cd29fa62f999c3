// Package rpl plays the test scripts of unbound and of CZ.NIC's deckard against a resolver or
// a forwarder. A script has servers, which answer as it says, questions, and the answers
// that those must have. It is played in a synctest bubble, because hours pass in it.
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
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// Script is a script that was read.
type Script struct {
	// Settings come first in a script. They are the options of the server that it tests.
	Settings []Setting

	ranges []*servers
	steps  []*step
}

// Setting is an option. The value is empty if it begins a section.
type Setting struct{ Key, Value string }

// servers answer queries at some addresses, or at all if there are none, during the
// steps from first to last.
type servers struct {
	first, last int
	addrs       []netip.Addr
	entries     []*entry
}

type step struct {
	n      int
	do     string
	elapse time.Duration // or what a server takes
	addr   netip.Addr    // of the server that a query is for; invalid: any
	entry  *entry        // nil if there is none
}

// entry is a message, and says how a message must be like it.
type entry struct {
	msg       *dns.Msg
	raw       []byte // the message, if it is none that can be parsed
	match     []string
	copyQuery bool
	silent    bool   // nothing is sent
	mandatory bool   // a server must have answered with it when the script ends
	section   string // of the lines that follow; HEX if they are bytes, EDNS if they are options
}

// Get returns the last value of a setting, or "".
func (s *Script) Get(key string) (value string) {
	for _, c := range s.Settings {
		if c.Key == key {
			value = c.Value
		}
	}
	return value
}

// Zone is a zone whose servers the settings name.
type Zone struct {
	Name  string
	Addrs []string
	Stub  bool // the servers have the zone; otherwise they are forwarded to
}

// Zones returns the zones of the settings. Servers that have no zone, as in deckard's
// scripts, are those of the root.
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

// Servers returns the addresses that have a server at some time.
func (s *Script) Servers() (addrs []netip.Addr) {
	for _, r := range s.ranges {
		addrs = append(addrs, r.addrs...)
	}
	return addrs
}

// DropAD takes AD from the answers that are checked, and returns how many have it: it is a
// validator's.
func (s *Script) DropAD() (n int) {
	for _, t := range s.steps {
		if t.do == "CHECK_ANSWER" && t.entry.msg.AuthenticatedData {
			t.entry.msg.AuthenticatedData = false
			n++
		}
	}
	return n
}

// AskRecursion sets RD in the questions of clients, and in what they expect: unbound answers without it from its cache, and a
// Client answers REFUSED. Where a question without RD expects a referral, which no Client sends, it stays as it is, and REFUSED is
// expected.
func (s *Script) AskRecursion() {
	var asked *entry
	for _, t := range s.steps {
		switch {
		case t.entry == nil:
		case t.do == "QUERY":
			asked = t.entry
			asked.msg.RecursionDesired = true
		case t.do == "CHECK_ANSWER" && asked != nil && !t.entry.msg.RecursionDesired && t.entry.referral():
			asked.msg.RecursionDesired = false
			m := t.entry.msg
			m.Rcode, m.AuthenticatedData, m.Ns, m.Extra = dns.RcodeRefused, false, nil, nil
		case t.do == "CHECK_ANSWER":
			t.entry.msg.RecursionDesired = true
		}
	}
}

// AskOverTCP takes TC from the answers that are checked, for those who ask over TCP.
func (s *Script) AskOverTCP() {
	for _, t := range s.steps {
		if t.do == "CHECK_ANSWER" {
			t.entry.msg.Truncated = false
		}
	}
}

// ReplaceTTL puts a TTL in the place of another in the answers that are checked: servers
// differ in the one that they give to stale answers.
func (s *Script) ReplaceTTL(from, to uint32) {
	for _, t := range s.steps {
		if t.do == "CHECK_ANSWER" {
			for _, rr := range slices.Concat(t.entry.msg.Answer, t.entry.msg.Ns) {
				if h := rr.Header(); h.Ttl == from {
					h.Ttl = to
				}
			}
		}
	}
}

// RaiseTTL gives the records of servers that have a TTL of 0 one of a second, for those who
// raise no TTL of 0.
func (s *Script) RaiseTTL() {
	for _, r := range s.ranges {
		for _, e := range r.entries {
			for _, rr := range e.msg.Answer {
				h := rr.Header()
				h.Ttl = max(h.Ttl, 1)
			}
		}
	}
}

// Parse reads a script.
func Parse(r io.Reader) (*Script, error) {
	s := new(Script)
	config, inRange, e := true, false, (*entry)(nil)
	origin := "." // of names without a dot at their end, to the end of the script
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), ";") // a comment; no record of the scripts has one in it
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
			s.settings(f)
		case f[0] == "SCENARIO_BEGIN", f[0] == "SCENARIO_END":
		case f[0] == "$ORIGIN" && len(f) == 2:
			origin = dns.Fqdn(f[1])
		case f[0] == "RANGE_BEGIN" && len(f) >= 3:
			r := new(servers)
			_, err = fmt.Sscan(f[1]+" "+f[2], &r.first, &r.last)
			for _, text := range f[3:] { // or ADDRESS follows
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
			t := &step{do: f[2]}
			t.n, err = strconv.Atoi(f[1])
			switch last := f[len(f)-1]; {
			case err != nil:
			case t.do == "TIME_PASSES":
				t.elapse, err = time.ParseDuration(last + "s") // behind ELAPSE
			case t.do == "INFRA_RTT" && len(f) == 6: // a server, its zone, milliseconds
				if t.elapse, err = time.ParseDuration(last + "ms"); err == nil {
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
			err = e.line(f, origin)
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return nil, fmt.Errorf("rpl: line %d: %q: %w", n, lines.Text(), err)
		}
	}
	return s, lines.Err()
}

func (s *Script) settings(words []string) {
	for _, word := range words {
		if key, ok := strings.CutSuffix(word, ":"); ok {
			s.Settings = append(s.Settings, Setting{Key: key})
		} else if last := len(s.Settings) - 1; last >= 0 {
			s.Settings[last].Value = strings.TrimSpace(s.Settings[last].Value + " " + strings.Trim(word, `"`))
		}
	}
}

// line reads one line of an entry.
func (e *entry) line(f []string, origin string) error {
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
	case f[0] == "HEX_ANSWER_END", f[0] == "HEX_EDNSDATA_END":
		e.section = ""
	case f[0] == "MANDATORY":
		e.mandatory = true
	case e.section == "EDNS": // options are nobody's concern
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
		t, ok := typeOf(f[len(f)-1])
		if !ok {
			return errors.New("unknown type")
		}
		e.msg.Question = []dns.Question{{Name: absolute(f[0], origin), Qtype: t, Qclass: dns.ClassINET}}
	default:
		to := map[string]*[]dns.RR{"ANSWER": &e.msg.Answer, "AUTHORITY": &e.msg.Ns, "ADDITIONAL": &e.msg.Extra}[e.section]
		rr, err := dns.NewRR("$ORIGIN " + origin + "\n" + strings.Join(f, " "))
		if odd := unknown(f); odd != nil && (err != nil || dns.Len(rr) != dns.Len(odd)) {
			rr, err = odd, nil
		}
		if err != nil || to == nil || rr == nil {
			return fmt.Errorf("record in section %q: %w", e.section, err)
		}
		switch rr := rr.(type) { // package dns packs bitmaps in order only, and base64 that is padded right
		case *dns.NSEC:
			slices.Sort(rr.TypeBitMap)
		case *dns.NSEC3:
			slices.Sort(rr.TypeBitMap)
		case *dns.DNSKEY:
			rr.PublicKey = padded(rr.PublicKey)
		case *dns.RRSIG:
			rr.Signature = padded(rr.Signature)
		}
		*to = append(*to, rr)
	}
	return nil
}

// padded returns base64 with as many signs at its end as it must have.
func padded(text string) string {
	text = strings.TrimRight(text, "=")
	return text + strings.Repeat("=", -len(text)&3)
}

// typeOf returns the type that a word names, which may be that of an unknown one, as TYPE65534 (RFC 3597 §5).
func typeOf(word string) (uint16, bool) {
	if t, ok := dns.StringToType[word]; ok {
		return t, true
	}
	number, ok := strings.CutPrefix(word, "TYPE")
	n, err := strconv.ParseUint(number, 10, 16)
	return uint16(n), ok && err == nil
}

// absolute returns a name with what it is relative to.
func absolute(name, origin string) string {
	switch {
	case dns.IsFqdn(name):
		return name
	case origin == ".":
		return name + "."
	}
	return name + "." + origin
}

// unknown reads a record in the format of unknown ones (RFC 3597 §5), whatever its type
// wants. It returns nil for others.
func unknown(f []string) dns.RR {
	i := slices.Index(f, `\#`)
	if i < 2 || len(f) < i+2 {
		return nil
	}
	rr, err := dns.NewRR(strings.Join(f[:i-1], " ") + ` TYPE65280 ` + strings.Join(f[i:], " "))
	if odd, ok := rr.(*dns.RFC3597); ok && err == nil {
		odd.Hdr.Rrtype, ok = typeOf(f[i-1])
		if ok {
			return odd
		}
	}
	return nil
}

// answers reports whether the entry answers a query that came over a network, whatever its
// type is if anyType.
func (e *entry) answers(q *dns.Msg, network string, anyType bool) bool {
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

// referral reports whether the entry names other servers.
func (e *entry) referral() bool {
	m := e.msg
	return m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 && len(m.Ns) > 0 && texts(m.Ns, true, false) == ""
}

// reply returns the entry as the response to a query, in wire format.
func (e *entry) reply(q *dns.Msg, recursion, anyType bool) []byte {
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
	b, _ := m.Pack() // what was parsed can be packed
	return b
}

// accepts returns why an answer is not what the entry says. What else a server puts into
// authority and additional sections than the SOA of a negative answer is its business.
func (e *entry) accepts(m *dns.Msg) error {
	if len(e.match) == 0 {
		return nil // there is an answer
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
		var got dns.Question // of messages that could not be read
		if len(m.Question) > 0 {
			got = m.Question[0]
		}
		errs = append(errs, differ("question", strings.ToLower(got.String()), strings.ToLower(want.Question[0].String())))
	}
	if len(want.Answer) > 0 || slices.Contains(e.match, "all") || slices.Contains(e.match, "answer") {
		errs = append(errs, differ("answer", texts(m.Answer, false, ttl), texts(want.Answer, false, ttl)))
	}
	if soa := texts(want.Ns, true, ttl); soa != "" {
		errs = append(errs, differ("SOA", texts(m.Ns, true, ttl), soa))
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

// texts returns records, or only SOA records, in lower case and in an order of their own.
func texts(rrs []dns.RR, soas, ttl bool) string {
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

// Network has the servers of a script. It is the Dialer of what is tested.
type Network struct {
	// Resolver is an address that has what all servers of the script answer, except for
	// referrals. Forwarders ask it in place of the servers of the root.
	Resolver string

	// AnyTypeRefers is for scripts that expect questions of type NS for parts of a name
	// (RFC 7816), for those that ask with type A (RFC 9156): a referral answers any type.
	AnyTypeRefers bool

	// FewerQueries plays a REPLY for which there is no query, which is an error otherwise.
	// It is for those that ask less than the author of a script expects.
	FewerQueries bool

	// QueryWaits has a QUERY last until its answer is there, as deckard does: what servers are asked later is asked in its step.
	QueryWaits bool

	script    *Script
	answers   chan *dns.Msg
	unchecked []*dns.Msg // answers that no step has checked
	asking    int        // questions whose answers are not among them

	mu      sync.Mutex // guards the fields below
	step    int
	takes   map[netip.Addr]time.Duration // what servers take to answer; others take no time
	used    map[*entry]bool              // those that servers have answered with
	waiting []*query                     // without an answer, the oldest first
	seen    []*query                     // that servers have answered, after the last that a step has checked
}

// query is a question that a server has been asked.
type query struct {
	msg     *dns.Msg
	network string
	host    netip.Addr
	send    func([]byte) // nil closes the connection
}

// Network returns the network of the script.
func (s *Script) Network() *Network {
	return &Network{script: s, answers: make(chan *dns.Msg, len(s.steps)), takes: make(map[netip.Addr]time.Duration), used: make(map[*entry]bool)}
}

// DialContext connects to a server. Every address has one, which may be silent.
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
			n.ask(&query{m, network[:3], host.Addr(), func(b []byte) {
				if b == nil {
					_ = far.Close()
					return
				}
				if !datagrams {
					b = append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
				}
				_, _ = far.Write(b) // or nobody waits any more
			}})
		}
	}()
	return near, nil
}

// ask answers a query at once, or lets it wait.
func (n *Network) ask(q *query) {
	n.mu.Lock()
	b := n.answer(q)
	if b == nil {
		n.waiting = append(n.waiting, q)
	} else {
		n.seen = append(n.seen, q)
	}
	b = q.fit(b)
	takes := n.takes[q.host]
	n.mu.Unlock()
	switch {
	case b == nil:
	case takes == 0:
		q.send(b)
	default:
		time.AfterFunc(takes, func() { q.send(b) })
	}
}

// fit returns a response as it comes over the network of the query: one that is too long for a datagram is cut (RFC 6891 §6.2.5).
func (q *query) fit(b []byte) []byte {
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

// answer returns what a server answers to a query in this step; nil is nothing.
func (n *Network) answer(q *query) []byte {
	all := n.Resolver != "" && q.host.String() == n.Resolver
	ranges := slices.Backward(n.script.ranges) // of two that hold the step, unbound takes the last
	if all {
		ranges = slices.All(n.script.ranges)
	}
	for _, r := range ranges {
		if n.step < r.first || n.step > r.last || !all && len(r.addrs) > 0 && !slices.Contains(r.addrs, q.host) {
			continue
		}
		for _, e := range r.entries {
			anyType := n.AnyTypeRefers && e.referral()
			if e.answers(q.msg, q.network, anyType) && !(all && e.referral()) {
				n.used[e] = true
				if e.silent {
					return nil
				}
				return e.reply(q.msg, all, anyType)
			}
		}
	}
	return nil
}

// begin begins a step, in which queries that have waited may have an answer.
func (n *Network) begin(step int) {
	n.mu.Lock()
	n.step = step
	var ready []func()
	n.waiting = slices.DeleteFunc(n.waiting, func(q *query) bool {
		b := n.answer(q)
		if b != nil {
			n.seen = append(n.seen, q)
			ready = append(ready, func() { q.send(b) })
		}
		return b != nil
	})
	n.mu.Unlock()
	for _, send := range ready {
		send()
	}
}

// isAbout reports whether a query is like the step's entry, and for its server.
func (s *step) isAbout(q *query) bool {
	return (!s.addr.IsValid() || s.addr == q.host) && (s.entry == nil || s.entry.answers(q.msg, q.network, false))
}

// take returns the first query that waits and that a step is about, if there is one. If
// remove, it does not wait any more.
func (n *Network) take(s *step, remove bool) *query {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, q := range n.waiting {
		if s.isAbout(q) {
			if remove {
				n.waiting = slices.Delete(n.waiting, i, i+1)
			}
			return q
		}
	}
	return nil
}

// sent reports whether a query that a step is about was sent, after those that have been
// checked.
func (n *Network) sent(s *step) bool {
	if n.take(s, false) != nil {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.seen, s.isAbout)
	n.seen = n.seen[i+1:]
	return i >= 0
}

// StepError is why a step of a script failed.
type StepError struct {
	Step int
	Do   string // what the step does, as CHECK_ANSWER
	Err  error
}

func (e *StepError) Error() string { return fmt.Sprintf("step %d %s: %v", e.Step, e.Do, e.Err) }

// Unwrap returns e.Err.
func (e *StepError) Unwrap() error { return e.Err }

// Failed returns the steps whose errors Play returned.
func Failed(err error) (steps []int) {
	switch err := err.(type) {
	case *StepError:
		steps = append(steps, err.Step)
	case interface{ Unwrap() []error }:
		for _, e := range err.Unwrap() {
			steps = append(steps, Failed(e)...)
		}
	}
	return steps
}

// Play plays the script inside a synctest bubble, to its end, and returns a StepError for
// each step that fails, joined. What is tested answers questions by ask, and has n as the
// way to its servers. A nil answer is none.
func (n *Network) Play(ask func(*dns.Msg) *dns.Msg) error {
	var errs []error
	for _, s := range n.script.steps {
		if n.QueryWaits && s.do == "CHECK_ANSWER" {
			n.await()
		}
		n.begin(s.n)
		var err error
		switch s.do {
		case "QUERY":
			m := s.entry.msg.Copy()
			m.Id = dns.Id()
			if raw := s.entry.raw; raw != nil && m.Unpack(raw) != nil {
				break // a server cannot read it either
			}
			n.asking++
			go func() { n.answers <- ask(m) }()
		case "CHECK_ANSWER":
			err = n.expectAnswer(s.entry)
		case "CHECK_OUT_QUERY":
			if !n.sent(s) {
				err = errors.New("no such query")
			}
		case "REPLY", "ERROR":
			q := n.take(s, true)
			if q == nil {
				if !n.FewerQueries {
					err = errors.New("no such query")
				}
			} else if s.do == "REPLY" {
				q.send(s.entry.reply(q.msg, false, false))
			} else {
				q.send(nil)
			}
		case "TIMEOUT":
			n.take(new(step), true) // there may be none: servers differ in how often they ask again
			time.Sleep(time.Second)
		case "TIME_PASSES":
			time.Sleep(s.elapse)
		case "INFRA_RTT": // the server takes so long, as what is tested may have no memory that can be set
			n.mu.Lock()
			n.takes[s.addr] = s.elapse
			n.mu.Unlock()
		case "TRAFFIC", "NOTHING":
		default:
			err = errors.New("unknown step")
		}
		if err != nil {
			errs = append(errs, &StepError{s.n, s.do, err})
		}
		synctest.Wait()
	}
	return errors.Join(append(errs, n.unused()...)...)
}

// unused returns an error for each entry that servers had to answer with and did not. It is one of the last step.
func (n *Network) unused() (errs []error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.script.ranges {
		for _, e := range r.entries {
			if e.mandatory && !n.used[e] {
				errs = append(errs, &StepError{n.step, "end", fmt.Errorf("no server has answered %v", e.msg.Question)})
			}
		}
	}
	return errs
}

// await waits for an answer, but not for ever.
func (n *Network) await() {
	if n.asking == 0 {
		return
	}
	select {
	case m := <-n.answers:
		if n.asking--; m != nil {
			n.unchecked = append(n.unchecked, m)
		}
	case <-time.After(time.Minute):
	}
}

// expectAnswer waits for an answer like an entry. Answers to several questions may come in any
// order.
func (n *Network) expectAnswer(e *entry) error {
	why, late := errors.New("no answer"), time.After(time.Minute)
	for i := 0; ; i++ {
		if i == len(n.unchecked) {
			if n.asking == 0 {
				n.unchecked = nil
				return why
			}
			select {
			case m := <-n.answers:
				n.asking--
				if m == nil {
					i--
					continue
				}
				n.unchecked = append(n.unchecked, m)
			case <-late:
				return why
			}
		}
		if why = e.accepts(n.unchecked[i]); why == nil {
			n.unchecked = slices.Delete(n.unchecked, i, i+1)
			return nil
		}
	}
}
