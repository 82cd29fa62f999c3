package rpl_test

import (
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

// play plays a script with a client that asks each question once.
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

func TestScriptIsPlayed(t *testing.T) {
	took, err := play(t, script)
	require.NoError(t, err)
	assert.Equal(t, 3600500*time.Millisecond, took)
}

func TestWrongAnswersAreFound(t *testing.T) {
	for old, wrong := range map[string]string{
		"A 198.51.100.1 ;": "A 198.51.100.2 ;", "60 IN A 198.51.100.1 ;": "61 IN A 198.51.100.1 ;", "RD RA NOERROR\nSECTION QUESTION\nA": "RA AD NOERROR\nSECTION QUESTION\nA",
		"MATCH qname\nSECTION QUESTION\nb.": "MATCH qname\nSECTION QUESTION\nc.",
	} {
		require.Contains(t, script, old)
		_, err := play(t, strings.Replace(script, old, wrong, 1))
		assert.ErrorContains(t, err, "step ", wrong)
	}
}

func TestWhatIsNoScriptIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"CONFIG_END\nNONSENSE":                              `rpl: line 2: "NONSENSE": unknown`,
		"CONFIG_END\nSTEP x QUERY":                          "line 2",
		"CONFIG_END\nSTEP 1 TIME_PASSES ELAPSE x":           "line 2",
		"CONFIG_END\nSTEP 1 QUERY\nENTRY_BEGIN\nREPLY ODD":  "unknown flag ODD",
		"CONFIG_END\nSTEP 1 QUERY\nENTRY_BEGIN\na.example.": "section",
	} {
		_, err := rpl.Parse(strings.NewReader(text))
		assert.ErrorContains(t, err, want, text)
	}
}
