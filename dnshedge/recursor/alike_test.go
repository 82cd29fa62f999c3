package recursor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// serverExchanger sends questions to one server of a testNetwork, as the upstream of a Validator.
type serverExchanger struct{ *server }

func (e serverExchanger) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	q := query{Msg: m, name: dns.CanonicalName(m.Question[0].Name), qtype: m.Question[0].Qtype}
	r := answer(e.zones, q)
	if e.change != nil {
		r = e.change(q, r)
	}
	r.RecursionAvailable = true
	return r, ms, nil
}

// describeAnswer returns the RCODE, the security status and the answer records of a response, with TTLs and without
// signatures.
func describeAnswer(m *dns.Msg) string {
	parts := []string{dns.RcodeToString[m.Rcode]}
	if m.AuthenticatedData {
		parts = append(parts, "secure")
	}
	for _, rr := range m.Answer {
		if rr.Header().Rrtype != dns.TypeRRSIG {
			parts = append(parts, strings.Join(strings.Fields(strings.ReplaceAll(rr.String(), "\tIN\t", " ")), " "))
		}
	}
	return strings.Join(parts, " | ")
}

// aliasZone is a root zone whose names have several records where one is allowed. Servers hide names below a DNAME
// record, so a case has to name the records of these names.
const aliasZone = `
. served 198.41.0.4
  www.to. A 192.0.2.80
  x.to. A 192.0.2.81
  x.near.to. A 192.0.2.82
  x.far.to. A 192.0.2.83
  d. DNAME to.
  near.d. DNAME far.to.
  x.near.d. CNAME www.to.
  x.d. CNAME www.to.
  two. CNAME www.to.
  two. CNAME x.to.
  pair. DNAME to.
  pair. DNAME far.to.
  alias. CNAME www.to.
  *.w. A 192.0.2.84
  *.c. CNAME www.to.
  long. DNAME aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb.cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc.dddddddddddddddddddddddddddddddddddddddddddddddddddddddddd.
`

// TestResolverAndValidatorAnswerAlike gives a Resolver and a Validator the same response of a server.
func TestResolverAndValidatorAnswerAlike(t *testing.T) {
	const www, x, near, far = " | www.to. 3600 A 192.0.2.80", " | x.to. 3600 A 192.0.2.81", " | x.near.to. 3600 A 192.0.2.82", " | x.far.to. 3600 A 192.0.2.83"
	const secure, d = "NOERROR | secure", " | d. 3600 DNAME to."
	for _, c := range []struct {
		name, question string
		sets           string // of the answer section: "owner TYPE", with signatures unless "!" is in front; "-" reverses the records. Empty: as the server has it
		optOut         bool
		stripProof     bool
		want           string
	}{
		{name: "one CNAME", question: "alias. A", want: secure + " | alias. 3600 CNAME www.to." + www},
		{name: "one DNAME", question: "x.d. A", want: secure + d + " | x.d. 3600 CNAME x.to." + x},
		{name: "nearest DNAME last", question: "x.near.d. A", sets: "d. DNAME, near.d. DNAME",
			want: secure + " | near.d. 3600 DNAME far.to. | x.near.d. 3600 CNAME x.far.to." + far},
		{name: "nearest DNAME first", question: "x.near.d. A", sets: "near.d. DNAME, d. DNAME",
			want: secure + " | near.d. 3600 DNAME far.to. | x.near.d. 3600 CNAME x.far.to." + far},
		{name: "nearest DNAME without signature", question: "x.near.d. A", sets: "d. DNAME, !near.d. DNAME", want: "SERVFAIL"},
		{name: "signed CNAME below DNAME", question: "x.near.d. A", sets: "d. DNAME, x.near.d. CNAME",
			want: secure + d + " | x.near.d. 3600 CNAME x.near.to." + near},
		{name: "signed CNAME above DNAME in the message", question: "x.near.d. A", sets: "x.near.d. CNAME, d. DNAME",
			want: secure + d + " | x.near.d. 3600 CNAME x.near.to." + near},
		{name: "signed CNAME below unsigned DNAME", question: "x.near.d. A", sets: "!d. DNAME, x.near.d. CNAME", want: "SERVFAIL"},
		{name: "CNAME that the DNAME does not make", question: "x.d. A", sets: "d. DNAME, !x.d. CNAME", want: secure + d + " | x.d. 3600 CNAME x.to." + x},
		{name: "DNAME asked for CNAME", question: "x.d. CNAME", sets: "d. DNAME, !x.d. CNAME", want: secure + d + " | x.d. 3600 CNAME x.to."},
		{name: "DNAME asked for DNAME", question: "d. DNAME", want: secure + d},
		{name: "two CNAMEs", question: "two. A", sets: "two. CNAME", want: "SERVFAIL"},
		{name: "two CNAMEs reversed", question: "two. A", sets: "-two. CNAME", want: "SERVFAIL"},
		{name: "two CNAMEs asked for CNAME", question: "two. CNAME", want: "SERVFAIL"},
		{name: "two CNAMEs without signature", question: "two. A", sets: "!two. CNAME", want: "SERVFAIL"},
		{name: "two DNAMEs of one name", question: "x.pair. A", sets: "pair. DNAME", want: "SERVFAIL"},
		{name: "alias asked for KEY", question: "alias. KEY", sets: "alias. CNAME", want: secure + " | alias. 3600 CNAME www.to."},
		{name: "alias asked for ANY", question: "alias. ANY", sets: "alias. CNAME", want: secure + " | alias. 3600 CNAME www.to."},
		{name: "target that is too long", question: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.long. A", sets: "long. DNAME", want: "YXDOMAIN | long. 3600 DNAME " + strings.Fields(aliasZone[strings.Index(aliasZone, "DNAME aaa"):])[1]},
		{name: "wildcard", question: "a.w. A", want: secure + " | a.w. 300 A 192.0.2.84"},
		{name: "wildcard without proof", question: "a.w. A", stripProof: true, want: "SERVFAIL"},
		{name: "wildcard with opt-out", question: "a.w. A", optOut: true, want: "NOERROR | a.w. 300 A 192.0.2.84"},
		{name: "wildcard with opt-out without proof", question: "a.w. A", optOut: true, stripProof: true, want: "SERVFAIL"},
		{name: "alias of a wildcard with opt-out without proof", question: "a.c. A", optOut: true, stripProof: true, want: "SERVFAIL"},
		{name: "NXDOMAIN with opt-out without proof", question: "no.to. A", optOut: true, stripProof: true, want: "SERVFAIL"},
		{name: "NODATA with opt-out without proof", question: "www.to. TXT", optOut: true, stripProof: true, want: "SERVFAIL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, aliasZone, func(t *testing.T, w *testNetwork) {
				w.sign()
				if c.optOut {
					optOut(w, ".", "198.41.0.4")
				}
				server, root := w.server("198.41.0.4"), w.zone(".")
				before := server.change
				w.setFault("198.41.0.4", func(q query, r *dns.Msg) *dns.Msg {
					if before != nil {
						r = before(q, r)
					}
					if fmt.Sprint(q.name, " ", dns.Type(q.qtype)) != c.question {
						return r
					}
					if c.sets != "" {
						r.Rcode, r.Answer, r.Ns = dns.RcodeSuccess, nil, nil
						for set := range strings.SplitSeq(c.sets, ", ") {
							r.Answer = append(r.Answer, signedSet(root, set)...)
						}
					}
					if c.stripProof {
						r = withoutRecords(dns.TypeNSEC, dns.TypeNSEC3)(q, r)
					}
					return r
				})
				v := &dnssec.Validator{Exchanger: serverExchanger{server}, Trust: dnssec.Trust{Anchors: []dns.RR{root.signer.ds()}}}
				defer v.Close()
				ask := parseQuestion(c.question + " +do")
				got, _, err := newValidatingResolver(w).ExchangeContext(t.Context(), ask.Copy(), "")
				require.NoError(t, err)
				assert.Equal(t, c.want, describeAnswer(got), "Resolver")
				got, _, err = v.ExchangeContext(t.Context(), ask.Copy(), "")
				require.NoError(t, err)
				assert.Equal(t, c.want, describeAnswer(got), "Validator")
			})
		})
	}
}

// TestResolverFollowsOneOfSeveralUnsignedAliases has two unsigned CNAME records of one name. Only the record that is
// followed is in the answer, because other resolvers reject a name with two aliases. Several DNAME records of one name are a
// failure, as with unbound and BIND.
func TestResolverFollowsOneOfSeveralUnsignedAliases(t *testing.T) {
	bubble(t, aliasZone, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		answer := w.ask(r, "two. A").Answer
		require.Len(t, answer, 2)
		assert.Equal(t, answer[0].(*dns.CNAME).Target, answer[1].Header().Name)
		assert.Len(t, w.ask(r, "two. CNAME").Answer, 2)
		assert.Equal(t, dns.RcodeServerFailure, w.ask(r, "x.pair. A").Rcode)
	})
}

// signedSet returns copies of a zone's records of "owner TYPE", with signatures. "!" in front omits the signatures.
// "-" in front reverses the records.
func signedSet(z *zone, text string) []dns.RR {
	f := strings.Fields(strings.TrimLeft(text, "!-"))
	set := slices.Clone(z.sets[f[0]][dns.StringToType[f[1]]])
	if text[0] == '-' {
		slices.Reverse(set)
	}
	for i, rr := range set {
		set[i] = dns.Copy(rr)
	}
	if text[0] == '!' {
		return set
	}
	return append(set, z.signer.sign(set))
}
