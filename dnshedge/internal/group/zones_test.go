package group_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/internal/group"
)

// missed records a miss for each of the names, one after another.
func missed(z *group.Zones, names ...string) {
	for _, n := range names {
		z.Miss(n, time.Now())
	}
}

// below returns n different names in the given domain.
func below(domain string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("x%d.%s", i, domain))
	}
	return names
}

// Questions about names of one zone have no response. The number of labels of the zone's name varies.
func TestSilentZonesFindZoneByUnansweredQuestions(t *testing.T) {
	reverse := strings.Repeat("0.", 15) + "8.b.d.0.1.0.0.2.ip6.arpa."
	for name, tc := range map[string]struct {
		missed        []string
		silent, sound []string
	}{
		"two labels":          {below("example.com.", 3), []string{"y.example.com.", "example.com.", "z.y.EXAMPLE.com."}, []string{"y.example.org.", "com."}},
		"three":               {below("a.co.example.", 3), []string{"y.a.co.example."}, []string{"y.b.co.example.", "co.example."}},
		"hosts of hosts":      {[]string{"a.x.dead.example.", "a.y.dead.example.", "a.z.dead.example."}, []string{"b.u.dead.example."}, []string{"live.example."}},
		"the zone's own name": {[]string{"dead.example.", "www.dead.example.", "mail.dead.example."}, []string{"ns.dead.example."}, nil},
		"zones side by side":  {[]string{"a.co.example.", "b.co.example.", "c.co.example."}, []string{"d.co.example."}, []string{"co.org."}},
		"a reverse zone":      {below(reverse, 3), []string{"f.0." + reverse}, []string{"1.0.0.2.ip6.arpa."}},
		"one name, by chance": {[]string{"a.example.com.", "A.example.com.", "a.Example.com."}, nil, []string{"a.example.com."}},
		"two names":           {below("example.com.", 2), nil, []string{"x0.example.com."}},
		"single labels":       {[]string{"a.", "b.", "c.", "."}, nil, []string{"a.", "d.", "."}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var z group.Zones
			missed(&z, tc.missed...)
			for _, n := range tc.silent {
				assert.True(t, z.Silent(n), "%s: %s", name, n)
			}
			for _, n := range tc.sound {
				assert.False(t, z.Silent(n), "%s: %s", name, n)
			}
		})
	}
}

// Answers for names next to an unanswered zone show where that zone begins.
func TestSilentZonesAnswerResetsEnclosingDomains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var z group.Zones
		missed(&z, below("dead.co.example.", 3)...)
		missed(&z, "b.co.example.", "c.co.example.")
		assert.True(t, z.Silent("d.co.example."))
		time.Sleep(time.Second)
		z.Answer("www.d.co.example.")
		assert.False(t, z.Silent("d.co.example."))
		assert.True(t, z.Silent("y.dead.co.example."))
		missed(&z, below("dead.co.example.", 3)...)
		assert.False(t, z.Silent("d.co.example."), "that is one child")
		z.Answer("w.dead.co.example.")
		assert.False(t, z.Silent("y.dead.co.example."))
		z.Miss("u1.dead.co.example.", time.Now().Add(-time.Millisecond))
		z.Miss("u2.dead.co.example.", time.Now().Add(-time.Millisecond))
		z.Miss("u3.dead.co.example.", time.Now().Add(-time.Millisecond))
		assert.False(t, z.Silent("y.dead.co.example."), "they were sent before the answer")
		time.Sleep(time.Minute)
		z.Answer("v.dead.co.example.")
		z.Answer("v.dead.co.example.")
		z.Answer("v.c.co.example.")
		time.Sleep(time.Minute)
		z.Answer("v.dead.co.example.")
		n, _ := z.Known()
		assert.Zero(t, n, "what is answered again is forgotten")
	})
}

// The silence about a domain expires. A single further miss then restores it.
func TestSilentZonesForgetSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var z group.Zones
		missed(&z, below("dead.example.", 3)...)
		time.Sleep(10*time.Second - 1)
		assert.True(t, z.Silent("y.dead.example."))
		time.Sleep(time.Nanosecond)
		assert.False(t, z.Silent("y.dead.example."))
		z.Miss("y.dead.example.", time.Now())
		assert.True(t, z.Silent("z.dead.example."))
	})
}

// A crawler asks for names in many zones that have no response.
func TestSilentZonesKeepManyZones(t *testing.T) {
	for _, tc := range []struct {
		zones       int
		domain      string
		least, most int // bounds for the number of these zones that are recorded
	}{
		{1000, "dead%d.example.", 1000, 1000},
		{500, "dead%[1]d.co%[1]d.example.", 500, 500},
		{1500, "dead%d.example.", 100, 1500},
	} {
		synctest.Test(t, func(t *testing.T) {
			var z group.Zones
			for i := range 10 {
				for j := range tc.zones {
					z.Miss(fmt.Sprintf("x%d."+fmt.Sprintf(tc.domain, j), i), time.Now())
				}
				z.Answer("www.example.")
			}
			known := 0
			for j := range tc.zones {
				if z.Silent("y." + fmt.Sprintf(tc.domain, j)) {
					known++
				}
			}
			assert.GreaterOrEqual(t, known, tc.least, tc.domain)
			assert.LessOrEqual(t, known, tc.most)
			n, most := z.Known()
			assert.LessOrEqual(t, n, most)
		})
	}
}

// An attacker asks for random names. Their number in memory is limited, and they do not displace a silent zone.
func TestSilentZonesKeepZoneDuringFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var z group.Zones
		missed(&z, below("dead.example.", 3)...)
		for i := range 20_000 {
			z.Miss(fmt.Sprintf("a.b.c.d.e.f.x%d.zone%d.example.", i, i), time.Now())
			z.Miss(fmt.Sprintf("a.b.c.x%d.flood.example.", i), time.Now())
			z.Answer("live.flood.example.")
		}
		assert.True(t, z.Silent("y.dead.example."))
		n, most := z.Known()
		assert.LessOrEqual(t, n, most)
	})
}
