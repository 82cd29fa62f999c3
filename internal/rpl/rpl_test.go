package rpl_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/rpl"
)

const script = `
server: serve-expired: yes # a comment
	key: "two words"
forward-zone: name: "." forward-addr: 192.0.2.1
CONFIG_END
SCENARIO_BEGIN An example
RANGE_BEGIN 0 20
	ADDRESS 192.0.2.1
ENTRY_BEGIN
MATCH opcode qtype qname
ADJUST copy_id
REPLY QR RD RA NOERROR
SECTION QUESTION
a.example. IN A
SECTION ANSWER
a.example. 60 IN A 198.51.100.1
ENTRY_END
RANGE_END
STEP 1 QUERY
ENTRY_BEGIN
REPLY RD
SECTION QUESTION
a.example. IN A
ENTRY_END
STEP 2 CHECK_ANSWER
ENTRY_BEGIN
MATCH all ttl
REPLY QR RD RA NOERROR
SECTION QUESTION
A.example. IN A
SECTION ANSWER
a.example. 60 IN A 198.51.100.1 ; nothing answers otherwise
ENTRY_END
STEP 10 TIME_PASSES ELAPSE 3600.5
STEP 30 QUERY
ENTRY_BEGIN
REPLY RD
SECTION QUESTION
b.example. IN A
ENTRY_END
STEP 31 CHECK_OUT_QUERY
ENTRY_BEGIN
MATCH qname
SECTION QUESTION
b.example. IN A
ENTRY_END
STEP 32 REPLY
ENTRY_BEGIN
MATCH qname
REPLY QR RA NXDOMAIN
SECTION QUESTION
b.example. IN A
ENTRY_END
STEP 33 CHECK_ANSWER
ENTRY_BEGIN
MATCH all
REPLY QR RA NXDOMAIN
SECTION QUESTION
b.example. IN A
ENTRY_END
SCENARIO_END
`

// play runs a script with a client that sends each query once.
func play(t *testing.T, text string) (took time.Duration, err error) {
	t.Helper()
	s, err := rpl.Parse(strings.NewReader(text))
	require.NoError(t, err)
	assert.Equal(t, "two words", s.Get("key"))
	assert.Equal(t, []*rpl.Zone{{Name: ".", Addrs: []string{"192.0.2.1"}}}, s.Zones())
	synctest.Test(t, func(t *testing.T) {
		n, start := s.Network(), time.Now()
		err = n.Play(func(m *dns.Msg) *dns.Msg {
			k, err := n.DialContext(t.Context(), "tcp", "192.0.2.1:53")
			require.NoError(t, err)
			defer k.Close()
			require.NoError(t, k.SetDeadline(time.Now().Add(5*time.Second)))
			c := &dns.Conn{Conn: k}
			require.NoError(t, c.WriteMsg(m))
			r, err := c.ReadMsg()
			if err != nil {
				r = new(dns.Msg).SetRcode(m, dns.RcodeServerFailure)
			}
			return r
		})
		took = time.Since(start)
		time.Sleep(10 * time.Second) // until the client has given up
	})
	return took, err
}

func TestPlayRunsForwarderScript(t *testing.T) {
	took, err := play(t, script)
	require.NoError(t, err)
	assert.Equal(t, 3600500*time.Millisecond, took)
}

func TestReplyStepMatchesServerAddress(t *testing.T) {
	const at = "STEP 32 REPLY\n"
	require.Contains(t, script, at)
	_, err := play(t, strings.Replace(script, at, at+"ADDRESS 192.0.2.1\n", 1))
	require.NoError(t, err)
	_, err = play(t, strings.Replace(script, at, at+"ADDRESS 192.0.2.2\n", 1))
	assert.ErrorContains(t, err, "step 32 REPLY: no such query")
	assert.Equal(t, []int{32, 33}, rpl.FailedSteps(err)) // there is another answer
}

func TestPlayReportsWrongAnswers(t *testing.T) {
	for old, wrong := range map[string]string{
		"A 198.51.100.1 ;": "A 198.51.100.2 ;", "60 IN A 198.51.100.1 ;": "61 IN A 198.51.100.1 ;", "RD RA NOERROR\nSECTION QUESTION\nA": "RA AD NOERROR\nSECTION QUESTION\nA",
		"MATCH qname\nSECTION QUESTION\nb.": "MATCH qname\nSECTION QUESTION\nc.", "MATCH all ttl": "MATCH ede=any",
	} {
		require.Contains(t, script, old)
		_, err := play(t, strings.Replace(script, old, wrong, 1))
		assert.ErrorContains(t, err, "step ", wrong)
	}
}

const recursion = `
server: features: min_ttl = 300 features: max_ttl = 600
stub-addr: 192.0.2.1
stub-zone: name: "corp" stub-addr: 192.0.2.2
CONFIG_END
RANGE_BEGIN 0 20
	ADDRESS 2001:DB8::0:1
ENTRY_BEGIN
MATCH opcode question noedns
REPLY QR NOERROR
SECTION QUESTION
a.example. IN A
SECTION ANSWER
a.example. 60 IN A \# 3 010203
ENTRY_END
ENTRY_BEGIN
MATCH opcode question
REPLY QR REFUSED
SECTION QUESTION
a.example. IN A
ENTRY_END
RANGE_END
RANGE_BEGIN 12 20
ENTRY_BEGIN
MATCH subdomain
SECTION QUESTION
example. IN A
HEX_ANSWER_BEGIN
0000 8400 0001 0000
00000000 ; and the question
016207 6578616d706c65 00 0001 0001
HEX_ANSWER_END
ENTRY_END
RANGE_END
STEP 1 QUERY
ENTRY_BEGIN
RAW
0000
ENTRY_END
STEP 2 QUERY
ENTRY_BEGIN
REPLY RD
SECTION QUESTION
a.example. IN A
ENTRY_END
STEP 3 CHECK_OUT_QUERY
ENTRY_BEGIN
MATCH question
SECTION QUESTION
a.example. IN A
ENTRY_END
STEP 4 CHECK_ANSWER
ENTRY_BEGIN
MATCH all
REPLY QR AD NOERROR
SECTION QUESTION
a.example. IN A
SECTION ANSWER
a.example. 60 IN A \# 3 010203
ENTRY_END
STEP 10 QUERY
ENTRY_BEGIN
RAW
0007 0100 0001 0000 0000 0000 0162 076578616d706c65 00 0001 0001
ENTRY_END
STEP 11 TRAFFIC
STEP 12 NOTHING
STEP 13 CHECK_OUT_QUERY ADDRESS 2001:db8::1
ENTRY_BEGIN
MATCH subdomain UDP
SECTION QUESTION
example. IN A
SECTION ADDITIONAL
HEX_EDNSDATA_BEGIN
	000a
HEX_EDNSDATA_END
ENTRY_END
STEP 14 CHECK_ANSWER
ENTRY_BEGIN
MATCH rcode question flags answer
REPLY QR AA NOERROR
SECTION QUESTION
b.example. IN A
ENTRY_END
`

func TestPlayRunsResolverScript(t *testing.T) {
	s, err := rpl.Parse(strings.NewReader(recursion))
	require.NoError(t, err)
	assert.Equal(t, []rpl.Setting{
		{Key: "server"}, {Key: "features", Value: "min_ttl = 300"}, {Key: "features", Value: "max_ttl = 600"}, {Key: "stub-addr", Value: "192.0.2.1"},
		{Key: "stub-zone"}, {Key: "name", Value: "corp"}, {Key: "stub-addr", Value: "192.0.2.2"},
	}, s.Settings)
	assert.Equal(t, []*rpl.Zone{{Name: ".", Addrs: []string{"192.0.2.1"}, Stub: true}, {Name: "corp.", Addrs: []string{"192.0.2.2"}, Stub: true}}, s.Zones())
	assert.Equal(t, []netip.Addr{netip.MustParseAddr("2001:db8::1")}, s.Servers())
	assert.Equal(t, 1, s.ClearExpectedAD())
	synctest.Test(t, func(t *testing.T) {
		n := s.Network()
		assert.NoError(t, n.Play(func(m *dns.Msg) *dns.Msg {
			k, err := n.DialContext(t.Context(), "udp", "[2001:db8::1]:53")
			if !assert.NoError(t, err) {
				return nil
			}
			defer k.Close()
			b, err := m.Pack()
			if !assert.NoError(t, err) {
				return nil
			}
			_, _ = k.Write(b)
			b = make([]byte, 512)
			size, _ := k.Read(b)
			r := new(dns.Msg)
			if r.Unpack(b[:size]) != nil { // an address of three bytes
				r = m.SetReply(m)
				r.Answer = []dns.RR{&dns.RFC3597{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeA, Class: dns.ClassINET, Rdlength: 3}, Rdata: "010203"}}
			}
			return r
		}))
	})
}

const rareWords = `
CONFIG_END
RANGE_BEGIN 0 20 192.0.2.1 192.0.2.2; of both
$ORIGIN example.
ENTRY_BEGIN
MATCH question
ADJUST copy_id do_not_answer
REPLY QR NOERROR
SECTION QUESTION
silent IN A
ENTRY_END
ENTRY_BEGIN
MATCH question
REPLY QR NOERROR
SECTION QUESTION
a IN A
SECTION ANSWER
a 60 IN CNAME b.c
ENTRY_END
RANGE_END
STEP 1 INFRA_RTT 192.0.2.2 example. 900
STEP 2 QUERY
ENTRY_BEGIN
FLAGS RD
SECTION QUESTION
a IN A
ENTRY_END
STEP 3 CHECK_ANSWER
ENTRY_BEGIN
MATCH all
REPLY QR RD NOERROR
SECTION QUESTION
a.example. IN A
SECTION ANSWER
a.example. IN CNAME b.c.example.
ENTRY_END
STEP 4 QUERY
ENTRY_BEGIN
FLAGS RD
SECTION QUESTION
silent IN A
ENTRY_END
STEP 5 CHECK_ANSWER
ENTRY_BEGIN
MATCH ; nothing
SECTION QUESTION
other IN A
ENTRY_END
`

func TestParseAcceptsRareKeywords(t *testing.T) {
	s, err := rpl.Parse(strings.NewReader(rareWords))
	require.NoError(t, err)
	assert.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}, s.Servers())
	took := map[string]time.Duration{}
	synctest.Test(t, func(t *testing.T) {
		n := s.Network()
		assert.NoError(t, n.Play(func(m *dns.Msg) *dns.Msg {
			assert.True(t, m.RecursionDesired)
			r := new(dns.Msg).SetRcode(m, dns.RcodeServerFailure)
			for _, server := range []string{"192.0.2.1:53", "192.0.2.2:53"} {
				k, err := n.DialContext(t.Context(), "tcp", server)
				require.NoError(t, err)
				defer k.Close()
				require.NoError(t, k.SetDeadline(time.Now().Add(5*time.Second)))
				c, start := &dns.Conn{Conn: k}, time.Now()
				require.NoError(t, c.WriteMsg(m))
				if answer, err := c.ReadMsg(); err == nil {
					r = answer
					r.RecursionDesired = true
				}
				took[m.Question[0].Name+server] = time.Since(start)
			}
			return r
		}))
	})
	assert.Equal(t, map[string]time.Duration{
		"a.example.192.0.2.1:53": 0, "a.example.192.0.2.2:53": 900 * time.Millisecond,
		"silent.example.192.0.2.1:53": 5 * time.Second, "silent.example.192.0.2.2:53": 5 * time.Second,
	}, took)
}

func TestParseRejectsInvalidScripts(t *testing.T) {
	for text, want := range map[string]string{
		"CONFIG_END\nNONSENSE":                              `rpl: line 2: "NONSENSE": unknown`,
		"CONFIG_END\nSTEP x QUERY":                          "line 2",
		"CONFIG_END\nSTEP 1 INFRA_RTT 192.0.2.1 a. x":       "line 2",
		"CONFIG_END\nSTEP 1 INFRA_RTT a. 192.0.2.1 1":       "line 2",
		"CONFIG_END\nRANGE_BEGIN 1 2 root":                  "line 2",
		"CONFIG_END\nSTEP 1 TIME_PASSES ELAPSE x":           "line 2",
		"CONFIG_END\nSTEP 1 QUERY\nENTRY_BEGIN\nREPLY ODD":  "unknown flag ODD",
		"CONFIG_END\nSTEP 1 QUERY\nENTRY_BEGIN\na.example.": "section",
	} {
		_, err := rpl.Parse(strings.NewReader(text))
		assert.ErrorContains(t, err, want, text)
	}
}

func TestParseReadsUnknownTypes(t *testing.T) {
	const at = "a.example. IN A\nSECTION ANSWER\na.example. 60 IN A 198.51.100.1\n"
	const asked, answered = "b.example. IN A\nENTRY_END\nSTEP 31", "REPLY QR RA NXDOMAIN\nSECTION QUESTION\nb.example. IN A\nENTRY_END\nSTEP 33"
	require.Contains(t, script, at)
	text := strings.Replace(script, at, "a.example. IN A\nSECTION ANSWER\na.example. 60 IN A 198.51.100.1\na.example. 60 IN TYPE65534 \\# 2 abcd\n", 1)
	_, err := play(t, text)
	assert.ErrorContains(t, err, "type65534\t\\# 2 abcd")
	require.Contains(t, script, asked)
	require.Contains(t, script, answered)
	text = strings.ReplaceAll(script, "b.example. IN A\n", "b.example. IN TYPE65534\n")
	_, err = play(t, text)
	assert.NoError(t, err)
	_, err = rpl.Parse(strings.NewReader(strings.ReplaceAll(script, "b.example. IN A\n", "b.example. IN TYPE65536\n")))
	assert.ErrorContains(t, err, "unknown type")
}

func TestPlayReportsUnusedMandatoryEntries(t *testing.T) {
	const at = "ENTRY_BEGIN\nMATCH opcode qtype qname\n"
	require.Contains(t, script, at)
	_, err := play(t, strings.Replace(script, at, at+"MANDATORY\n", 1))
	require.NoError(t, err)
	unused := at + "MANDATORY\nREPLY QR RA NXDOMAIN\nSECTION QUESTION\nnobody.example. IN A\nENTRY_END\n"
	_, err = play(t, strings.Replace(script, at, unused+at, 1))
	assert.ErrorContains(t, err, "step 33 end: no server has answered [{nobody.example.")
}

func TestValidatorSettingsAreParsed(t *testing.T) {
	read := func(settings string) (rpl.ValidatorSettings, error) {
		s, err := rpl.Parse(strings.NewReader("server:\n" + settings + "\nCONFIG_END\n"))
		require.NoError(t, err)
		return s.ValidatorSettings()
	}
	trust, err := read(`trust-anchor: "example. 3600 IN DS 2854 3 1 46e4ffc6e9a4793b488954bd3f0cc6af0dfb201b" ; one
trust-anchor: "example. DNSKEY 257 3 7 AwEAAcUlFV1vhmqx6NSOUOq2R/dsR7Xm3upJ ( j7IommWSpJABVfW8Q0rOvXdM6kzt+TAu92L9 )"
domain-insecure: "under.example"
val-override-date: "20070916134226"
fake-sha1: yes`)
	require.NoError(t, err)
	require.Len(t, trust.Anchors, 2)
	assert.Equal(t, dns.TypeDS, trust.Anchors[0].Header().Rrtype)
	assert.Equal(t, dns.TypeDNSKEY, trust.Anchors[1].Header().Rrtype)
	assert.Equal(t, []string{"under.example."}, trust.Insecure)
	assert.True(t, trust.FakeSHA1)
	synctest.Test(t, func(t *testing.T) {
		trust.SleepUntilDate()
		assert.Equal(t, "2007-09-16T13:42:26Z", time.Now().UTC().Format(time.RFC3339))
	})

	trust, err = read("val-override-timestamp: 1442323400")
	require.NoError(t, err)
	assert.Equal(t, "2015-09-15T13:23:20Z", trust.Date.Format(time.RFC3339))
	trust, err = read(`val-override-date: "-1"`)
	require.NoError(t, err)
	assert.True(t, trust.AnyDate)
	assert.True(t, trust.Date.IsZero())

	_, err = read(`trust-anchor: "example. IN DS x"`)
	assert.ErrorContains(t, err, "trust-anchor")
	_, err = read("val-override-date: tomorrow")
	assert.ErrorContains(t, err, "val-override-date")
}

func TestSetRecursionDesiredExpectsRefusedForReferral(t *testing.T) {
	const questions = `
CONFIG_END
RANGE_BEGIN 0 20
	ADDRESS 192.0.2.1
ENTRY_BEGIN
MATCH question
REPLY QR RA REFUSED
SECTION QUESTION
a.example. IN A
ENTRY_END
ENTRY_BEGIN
MATCH question
REPLY QR RD RA NOERROR
SECTION QUESTION
example. IN DS
SECTION ANSWER
example. IN DS 1 8 2 E06D44B80B8F1D39A95C0B0D7C65D08458E880409BBC683457104237C7F8EC8D
example. IN RRSIG DS 8 1 60 20300101000000 20200101000000 1 . AAAAAA
ENTRY_END
RANGE_END
STEP 1 QUERY
ENTRY_BEGIN
SECTION QUESTION
a.example. IN A
ENTRY_END
STEP 2 CHECK_ANSWER
ENTRY_BEGIN
MATCH all
REPLY QR RA AD NOERROR
SECTION QUESTION
a.example. IN A
SECTION AUTHORITY
example. IN NS ns.example.
ENTRY_END
STEP 3 QUERY
ENTRY_BEGIN
SECTION QUESTION
example. IN DS
ENTRY_END
STEP 4 CHECK_ANSWER
ENTRY_BEGIN
MATCH rcode flags
REPLY QR TC RA NOERROR
SECTION QUESTION
example. IN DS
ENTRY_END
SCENARIO_END
`
	s, err := rpl.Parse(strings.NewReader("stub-zone: name: \".\" stub-addr: 192.0.2.1 key: \"two words\"" + questions))
	require.NoError(t, err)
	s.SetRecursionDesired()
	s.ClearExpectedTC()
	require.Len(t, s.DSRecords("EXAMPLE."), 1)
	synctest.Test(t, func(t *testing.T) {
		n := s.Network()
		n.AwaitAnswers = true
		var asked []bool
		err := n.Play(func(m *dns.Msg) *dns.Msg {
			asked = append(asked, m.RecursionDesired)
			r := new(dns.Msg).SetRcode(m, dns.RcodeRefused)
			if r.RecursionAvailable = true; m.RecursionDesired {
				r.Rcode = dns.RcodeSuccess
			}
			return r
		})
		assert.NoError(t, err)
		assert.Equal(t, []bool{false, true}, asked)
	})
}

func TestLongUDPResponseIsTruncated(t *testing.T) {
	text := "CONFIG_END\nRANGE_BEGIN 0 20\nENTRY_BEGIN\nMATCH question\nREPLY QR NOERROR\nSECTION QUESTION\na.example. IN TXT\nSECTION ANSWER\n" +
		strings.Repeat("a.example. IN TXT \""+strings.Repeat("x", 200)+"\"\n", 3) + "ENTRY_END\nRANGE_END\n"
	s, err := rpl.Parse(strings.NewReader(text))
	require.NoError(t, err)
	ask := func(network string) *dns.Msg {
		k, err := s.Network().DialContext(t.Context(), network, "192.0.2.1:53")
		require.NoError(t, err)
		defer k.Close()
		b, err := new(dns.Msg).SetQuestion("a.example.", dns.TypeTXT).Pack()
		require.NoError(t, err)
		if network == "tcp" {
			b = append([]byte{0, byte(len(b))}, b...)
		}
		_, err = k.Write(b)
		require.NoError(t, err)
		b = make([]byte, 1<<16)
		n, err := k.Read(b)
		require.NoError(t, err)
		if b = b[:n]; network == "tcp" {
			b = b[2:]
		}
		r := new(dns.Msg)
		require.NoError(t, r.Unpack(b))
		return r
	}
	assert.Len(t, ask("tcp").Answer, 3)
	r := ask("udp")
	assert.True(t, r.Truncated)
	assert.Empty(t, r.Answer)
}
