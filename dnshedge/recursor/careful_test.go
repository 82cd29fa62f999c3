package recursor_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
)

// compare resolves names of the hostile zone, each with a new Resolver, and compares the answers with those of a
// careful.
func (h *hostility) compare(t *testing.T, w *testNetwork) {
	raw := h.raw()
	w.updateServers("203.0.113.66 203.0.113.67", func(s *server) { s.raw = raw })
	for _, question := range hostileQuestions {
		m := parseQuestion(question)
		want, ok := (&careful{raw: raw}).answer(m.Question[0].Name, m.Question[0].Qtype)
		if !ok {
			continue
		}
		r := w.resolver(h.settings)
		require.Equal(t, want, removeRepeatedRecords(formatResponse(w.ask(r, question))), question)
		require.NoError(t, r.Close())
	}
}

// careful is a reference resolver for the hostile zone evil., whose servers always send the same response to the
// same question. It has no cache, no clock and no limits. It gives no answer if the RFCs can be read in two ways.
type careful struct {
	raw     func(query) [][]byte
	records []string        // records of the answer
	seen    map[string]bool // names already looked up
}

// answer returns the answer in the form of formatResponse, and false if careful gives no answer.
func (c *careful) answer(name string, qtype uint16) (string, bool) {
	c.seen = make(map[string]bool)
	rcode, ok := c.look(name, qtype)
	switch {
	case !ok:
		return "", false
	case rcode == dns.RcodeServerFailure:
		return "SERVFAIL", true
	}
	slices.Sort(c.records)
	return strings.TrimSpace(dns.RcodeToString[rcode] + " " + strings.Join(slices.Compact(c.records), ", ")), true
}

// look adds the records of a name to the answer.
func (c *careful) look(name string, qtype uint16) (rcode int, sure bool) {
	if !dns.IsSubDomain("evil.", name) {
		return c.lookElsewhere(name, qtype)
	}
	// A deeper name may be in another zone. The DS records of evil. are in its parent zone.
	if c.seen[name] || dns.CountLabel(name) > 2 || qtype == dns.TypeDS {
		return 0, false
	}
	c.seen[name] = true
	m := new(dns.Msg)
	q := new(dns.Msg).SetQuestion(name, qtype)
	q.SetEdns0(1232, false)
	switch b := c.raw(query{q, name, qtype, false}); {
	case len(b) == 0:
		return dns.RcodeServerFailure, true // no response
	case m.Unpack(b[0]) != nil || m.Truncated:
		return 0, false
	}
	return c.read(m, name, qtype)
}

// read adds the records of name in a response to the answer.
func (c *careful) read(m *dns.Msg, name string, qtype uint16) (rcode int, sure bool) {
	var own, aliases []dns.RR
	for _, rr := range m.Answer {
		h := rr.Header()
		switch {
		case h.Class != dns.ClassINET:
		case h.Rrtype == dns.TypeDNAME && dns.IsSubDomain(h.Name, name):
			return 0, false
		case h.Name != name:
		case h.Rrtype == qtype:
			own = append(own, rr)
		case h.Rrtype == dns.TypeCNAME:
			aliases = append(aliases, rr)
		}
	}
	switch {
	case m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError && m.Authoritative:
	case slices.Contains([]int{dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeNotAuth, dns.RcodeFormatError, dns.RcodeNotImplemented}, m.Rcode):
		return dns.RcodeServerFailure, true
	default:
		return 0, false
	}
	switch {
	case len(aliases) > 1 || len(m.Answer) > 0 && m.Rcode != dns.RcodeSuccess:
		return 0, false
	case len(aliases) == 1:
		c.add(aliases)
		target := aliases[0].(*dns.CNAME).Target
		rcode, sure = c.look(target, qtype)
		// The response's records of the target may be used if no server answers for the target.
		told := slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return rr.Header().Name == target })
		return rcode, sure && !(told && rcode == dns.RcodeServerFailure)
	case len(own) > 0:
		c.add(own)
		return dns.RcodeSuccess, true
	}
	return m.Rcode, m.Authoritative && denies(m, name)
}

// denies reports whether a response is a denial with the zone's SOA record, and no other SOA record.
func denies(m *dns.Msg, name string) bool {
	soas := 0
	for _, rr := range m.Ns {
		h := rr.Header()
		switch {
		case h.Rrtype == dns.TypeNS:
			return false // a referral, perhaps
		case h.Rrtype != dns.TypeSOA || h.Class != dns.ClassINET:
		case !dns.IsSubDomain("evil.", h.Name) || !dns.IsSubDomain(h.Name, name):
			return false
		default:
			soas++
		}
	}
	return soas > 0
}

// lookElsewhere adds the records of a name in another zone, as listed in truth.
func (c *careful) lookElsewhere(name string, qtype uint16) (rcode int, sure bool) {
	for _, known := range truth {
		if known.question == name+" "+dns.TypeToString[qtype] {
			code, rest, _ := strings.Cut(known.want, " ")
			if rest != "" {
				c.records = append(c.records, strings.Split(rest, ", ")...)
			}
			return dns.StringToRcode[code], true
		}
	}
	return 0, false
}

func (c *careful) add(rrs []dns.RR) {
	code := dns.RcodeToString[dns.RcodeSuccess]
	for _, rr := range rrs {
		one := formatResponse(&dns.Msg{Answer: []dns.RR{rr}})
		c.records = append(c.records, strings.TrimPrefix(one, code+" "))
	}
}

// removeRepeatedRecords removes repeated records from the result of formatResponse.
func removeRepeatedRecords(text string) string {
	code, rest, _ := strings.Cut(text, " ")
	return strings.TrimSpace(code + " " + strings.Join(slices.Compact(strings.Split(rest, ", ")), ", "))
}
