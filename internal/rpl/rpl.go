// Package rpl plays the test scripts of the DNS servers unbound and knot-resolver against
// a resolver or a forwarder: a script has servers, which answer as it says, questions, and
// the answers that they must have. It plays them in the fake time of a synctest bubble,
// because scripts let hours pass.
package rpl

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
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
	Config []Setting // in their order

	ranges []servers
	steps  []step
}

// Setting is one of the server's settings.
type Setting struct{ Key, Value string }

// Get returns the last value of a setting, or "".
func (s *Script) Get(key string) (value string) {
	for _, c := range s.Config {
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

// Zones returns the zones of the settings.
func (s *Script) Zones() (zones []Zone) {
	for _, c := range s.Config {
		switch last := len(zones) - 1; c.Key {
		case "forward-zone", "stub-zone":
			zones = append(zones, Zone{Stub: c.Key == "stub-zone"})
		case "name":
			if last >= 0 {
				zones[last].Name = dns.Fqdn(c.Value)
			}
		case "forward-addr", "stub-addr":
			zones[last].Addrs = append(zones[last].Addrs, c.Value)
		}
	}
	return zones
}

// servers answer queries at some addresses, or at all if there are none, during the
// steps from first to last.
type servers struct {
	first, last int
	addrs       []string
	entries     []*entry
}

// entry is a message, and says what a message must have to be like it.
type entry struct {
	match, adjust []string
	msg           *dns.Msg
	section       string
}

type step struct {
	n      int
	do     string
	elapse time.Duration
	entry  *entry // nil if there is none
}

// Parse reads a script.
func Parse(r io.Reader) (*Script, error) {
	s := new(Script)
	var (
		config  = true
		inRange bool
		e       *entry
		lines   = bufio.NewScanner(r)
	)
	for n := 1; lines.Scan(); n++ {
		line := uncomment(lines.Text(), config)
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		var err error
		switch {
		case f[0] == "CONFIG_END":
			config = false
		case config:
			s.setting(f)
		case f[0] == "SCENARIO_BEGIN" || f[0] == "SCENARIO_END":
		case f[0] == "RANGE_BEGIN" && len(f) == 3:
			inRange = true
			first, err1 := strconv.Atoi(f[1])
			last, err2 := strconv.Atoi(f[2])
			err = errors.Join(err1, err2)
			s.ranges = append(s.ranges, servers{first: first, last: last})
		case f[0] == "RANGE_END":
			inRange = false
		case f[0] == "ADDRESS" && inRange:
			r := &s.ranges[len(s.ranges)-1]
			r.addrs = append(r.addrs, f[1])
		case f[0] == "STEP" && len(f) >= 3:
			err = s.step(f)
		case f[0] == "ENTRY_BEGIN":
			e = &entry{msg: new(dns.Msg)}
			if inRange {
				r := &s.ranges[len(s.ranges)-1]
				r.entries = append(r.entries, e)
			} else if len(s.steps) > 0 {
				s.steps[len(s.steps)-1].entry = e
			}
		case f[0] == "ENTRY_END":
			e = nil
		case e != nil:
			err = e.line(f, line)
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return nil, fmt.Errorf("rpl: line %d: %q: %w", n, line, err)
		}
	}
	return s, lines.Err()
}

// uncomment cuts off a comment, which is not inside quotes.
func uncomment(line string, config bool) string {
	quoted := false
	for i, c := range line {
		switch {
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ';' || c == '#' && config):
			return line[:i]
		}
	}
	return line
}

func (s *Script) setting(f []string) {
	for _, word := range f {
		if key, ok := strings.CutSuffix(word, ":"); ok {
			s.Config = append(s.Config, Setting{Key: key})
		} else if last := len(s.Config) - 1; last >= 0 {
			s.Config[last].Value = strings.TrimSpace(s.Config[last].Value + " " + strings.Trim(word, `"`))
		}
	}
}

func (s *Script) step(f []string) (err error) {
	t := step{do: f[2]}
	if t.n, err = strconv.Atoi(f[1]); err != nil {
		return err
	}
	if t.do == "TIME_PASSES" {
		if len(f) != 5 || f[3] != "ELAPSE" {
			return errors.New("want TIME_PASSES ELAPSE and seconds")
		}
		seconds, err := strconv.ParseFloat(f[4], 64)
		if err != nil {
			return err
		}
		t.elapse = time.Duration(seconds * float64(time.Second))
	}
	s.steps = append(s.steps, t)
	return nil
}

// line reads one line of an entry.
func (e *entry) line(f []string, line string) error {
	switch f[0] {
	case "MATCH":
		e.match = append(e.match, f[1:]...)
	case "ADJUST":
		e.adjust = append(e.adjust, f[1:]...)
	case "SECTION":
		e.section = f[1]
	case "REPLY":
		return e.flags(f[1:])
	default:
		if e.section == "QUESTION" {
			t, ok := dns.StringToType[f[len(f)-1]]
			if !ok {
				return errors.New("unknown type")
			}
			e.msg.Question = []dns.Question{{Name: dns.Fqdn(f[0]), Qtype: t, Qclass: dns.ClassINET}}
			return nil
		}
		rr, err := dns.NewRR(strings.TrimSpace(line))
		if err != nil {
			return err
		}
		to := map[string]*[]dns.RR{"ANSWER": &e.msg.Answer, "AUTHORITY": &e.msg.Ns, "ADDITIONAL": &e.msg.Extra}[e.section]
		if to == nil || rr == nil {
			return errors.New("record outside of a section")
		}
		*to = append(*to, rr)
	}
	return nil
}

func (e *entry) flags(words []string) error {
	for _, w := range words {
		switch w {
		case "QR":
			e.msg.Response = true
		case "AA":
			e.msg.Authoritative = true
		case "TC":
			e.msg.Truncated = true
		case "RD":
			e.msg.RecursionDesired = true
		case "RA":
			e.msg.RecursionAvailable = true
		case "AD":
			e.msg.AuthenticatedData = true
		case "CD":
			e.msg.CheckingDisabled = true
		case "DO":
			e.msg.SetEdns0(4096, true)
		default:
			code, ok := dns.StringToRcode[w]
			if !ok {
				return fmt.Errorf("unknown flag %s", w)
			}
			e.msg.Rcode = code
		}
	}
	return nil
}

func (e *entry) has(word string) bool { return slices.Contains(e.match, word) }

// answers reports whether the entry answers a query that came over a network.
func (e *entry) answers(q *dns.Msg, network string) bool {
	a, b := q.Question[0], dns.Question{}
	if len(e.msg.Question) > 0 {
		b = e.msg.Question[0]
	}
	switch {
	case e.has("qname") && !strings.EqualFold(a.Name, b.Name), e.has("qtype") && a.Qtype != b.Qtype,
		e.has("subdomain") && !dns.IsSubDomain(b.Name, a.Name), e.has("TCP") && network != "tcp", e.has("UDP") && network != "udp":
		return false
	}
	return true
}

// reply returns the entry as the response to a query.
func (e *entry) reply(q *dns.Msg) *dns.Msg {
	m := e.msg.Copy()
	m.Id = q.Id
	if slices.Contains(e.adjust, "copy_query") || len(m.Question) == 0 {
		m.Question = q.Question
	}
	return m
}

// accepts returns why an answer is not what the entry says. A forwarder is free to leave
// out authority and additional records, except for the SOA of what does not exist.
func (e *entry) accepts(m *dns.Msg) error {
	want := e.msg
	all := e.has("all")
	differ := func(what string, got, want any) error { return fmt.Errorf("%s is %v; want %v", what, got, want) }
	switch a, b := m.MsgHdr, want.MsgHdr; {
	case len(want.Question) > 0 && !(strings.EqualFold(m.Question[0].Name, want.Question[0].Name) && m.Question[0].Qtype == want.Question[0].Qtype):
		return differ("question", m.Question[0], want.Question[0])
	case all && a.Rcode != b.Rcode:
		return differ("rcode", dns.RcodeToString[a.Rcode], dns.RcodeToString[b.Rcode])
	case all && (a.Authoritative != b.Authoritative || a.Truncated != b.Truncated || a.RecursionAvailable != b.RecursionAvailable ||
		a.AuthenticatedData != b.AuthenticatedData || a.CheckingDisabled != b.CheckingDisabled):
		return differ("header", a, b)
	}
	ttl := e.has("ttl")
	if got, want := texts(m.Answer, ttl), texts(want.Answer, ttl); (all || len(want) > 0) && !slices.Equal(got, want) {
		return differ("answer", got, want)
	}
	if got, want := texts(soas(m.Ns), ttl), texts(soas(want.Ns), ttl); all && len(want) > 0 && !slices.Equal(got, want) {
		return differ("authority", got, want)
	}
	for _, w := range e.match {
		if code, ok := strings.CutPrefix(w, "ede="); ok && !slices.Contains(edes(m), code) {
			return differ("extended error", edes(m), code)
		}
	}
	return nil
}

func soas(rrs []dns.RR) (out []dns.RR) {
	for _, rr := range rrs {
		if rr.Header().Rrtype == dns.TypeSOA {
			out = append(out, rr)
		}
	}
	return out
}

// texts returns records in lower case and in an order of their own.
func texts(rrs []dns.RR, ttl bool) (out []string) {
	for _, rr := range rrs {
		rr = dns.Copy(rr)
		if !ttl {
			rr.Header().Ttl = 0
		}
		out = append(out, strings.ToLower(rr.String()))
	}
	slices.Sort(out)
	return out
}

func edes(m *dns.Msg) (codes []string) {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				codes = append(codes, strconv.Itoa(int(e.InfoCode)))
			}
		}
	}
	return codes
}

// Network has the servers of a script. It is the Dialer of what is tested.
type Network struct {
	// Recursive makes any address a resolver: it has what all servers of the script
	// answer, but referrals. It is for forwarders.
	Recursive bool

	script    *Script
	unchecked []*dns.Msg // answers that no step has checked

	mu      sync.Mutex // guards the fields below
	step    int
	waiting []*query // without an answer, the oldest first
}

// query waits for its answer.
type query struct {
	msg  *dns.Msg
	send func(*dns.Msg) // nil closes the connection
}

// Network returns the network of the script.
func (s *Script) Network() *Network { return &Network{script: s} }

// DialContext connects to a server. Every address has one, though it may be silent.
func (n *Network) DialContext(_ context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	network = strings.TrimRight(network, "46")
	go func() {
		defer far.Close()
		for {
			b := make([]byte, 1<<16)
			size, err := 0, error(nil)
			if network == "udp" {
				size, err = far.Read(b)
			} else if _, err = io.ReadFull(far, b[:2]); err == nil {
				size, err = io.ReadFull(far, b[:binary.BigEndian.Uint16(b)])
			}
			m := new(dns.Msg)
			if err != nil || m.Unpack(b[:size]) != nil || len(m.Question) != 1 {
				return
			}
			n.ask(&query{m, func(r *dns.Msg) {
				if r == nil {
					_ = far.Close()
					return
				}
				b, _ := r.Pack() // what was parsed can be packed
				if network != "udp" {
					b = append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
				}
				_, _ = far.Write(b)
			}}, network, host)
		}
	}()
	return near, nil
}

// ask answers a query at once, or lets it wait.
func (n *Network) ask(q *query, network, host string) {
	n.mu.Lock()
	var found *entry
	for _, r := range n.script.ranges {
		if n.step < r.first || n.step > r.last || !n.Recursive && len(r.addrs) > 0 && !slices.Contains(r.addrs, host) {
			continue
		}
		for _, e := range r.entries {
			referral := len(e.msg.Answer) == 0 && e.msg.Rcode == dns.RcodeSuccess && len(e.msg.Ns) > 0 && len(soas(e.msg.Ns)) == 0
			if found == nil && e.answers(q.msg, network) && !(n.Recursive && referral) {
				found = e
			}
		}
	}
	if found == nil {
		n.waiting = append(n.waiting, q)
	}
	n.mu.Unlock()
	if found != nil {
		m := found.reply(q.msg)
		m.RecursionAvailable = m.RecursionAvailable || n.Recursive
		q.send(m)
	}
}

// Play plays the script inside a synctest bubble. It returns what went wrong first. What
// is tested answers questions by ask, and reaches its servers by n.
func (n *Network) Play(ask func(*dns.Msg) (*dns.Msg, error)) error {
	answers := make(chan *dns.Msg, len(n.script.steps))
	for _, s := range n.script.steps {
		n.mu.Lock()
		n.step = s.n
		n.mu.Unlock()
		if err := n.do(s, ask, answers); err != nil {
			return fmt.Errorf("step %d %s: %w", s.n, s.do, err)
		}
		synctest.Wait()
	}
	return nil
}

func (n *Network) do(s step, ask func(*dns.Msg) (*dns.Msg, error), answers chan *dns.Msg) error {
	switch s.do {
	case "QUERY":
		m := s.entry.msg.Copy()
		m.Id = dns.Id()
		go func() {
			r, err := ask(m)
			if err != nil {
				r = new(dns.Msg)
				r.SetRcode(m, dns.RcodeServerFailure)
				r.RecursionAvailable = true
			}
			answers <- r
		}()
	case "CHECK_ANSWER":
		why, late := errors.New("no answer"), time.After(time.Minute)
		for i := 0; ; i++ { // answers to several questions may come in any order
			if i == len(n.unchecked) {
				select {
				case m := <-answers:
					n.unchecked = append(n.unchecked, m)
				case <-late:
					return why
				}
			}
			if why = s.entry.accepts(n.unchecked[i]); why == nil {
				n.unchecked = slices.Delete(n.unchecked, i, i+1)
				return nil
			}
		}
	case "CHECK_OUT_QUERY", "REPLY", "TIMEOUT", "ERROR":
		q := n.take(s)
		if q == nil {
			return errors.New("no such query")
		}
		switch s.do {
		case "REPLY":
			q.send(s.entry.reply(q.msg))
		case "ERROR":
			q.send(nil)
		case "TIMEOUT":
			time.Sleep(time.Second)
		}
	case "TIME_PASSES":
		time.Sleep(s.elapse)
	case "TRAFFIC", "NOTHING":
	default:
		return errors.New("unknown step")
	}
	return nil
}

// take returns the query that a step is about. CHECK_OUT_QUERY leaves it waiting.
func (n *Network) take(s step) *query {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.waiting, func(q *query) bool { return s.entry == nil || s.entry.answers(q.msg, "") })
	if i < 0 {
		return nil
	}
	q := n.waiting[i]
	if s.do != "CHECK_OUT_QUERY" {
		n.waiting = slices.Delete(n.waiting, i, i+1)
	}
	return q
}
