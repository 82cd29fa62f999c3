package recursor_test

import (
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/doubles"
)

// long is a name with nearly the largest number of labels.
var long = strings.Repeat("a.", 120) + "example."

// full packs an authoritative response for A records. f appends records by number until it has size bytes.
func full(size int, name string, f func(m *dns.Msg, i int)) []byte {
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.Response, m.Authoritative, m.Compress = true, true, true
	for i := 0; ; {
		for range max(1, size/400) { // Pack takes a while
			f(m, i)
			i++
		}
		b, err := m.Pack()
		if err != nil || len(b) > size {
			break
		}
	}
	for {
		b, err := m.Pack()
		if err == nil && len(b) <= size {
			return b
		}
		for _, rrs := range [...]*[]dns.RR{&m.Answer, &m.Ns, &m.Extra} {
			*rrs = (*rrs)[:len(*rrs)-len(*rrs)/50-min(1, len(*rrs))]
		}
	}
}

func rr(format string, args ...any) dns.RR {
	r, err := dns.NewRR(fmt.Sprintf(format, args...))
	if err != nil {
		panic(err)
	}
	return r
}

// worst has the responses that are known to take longest to read.
var worst = map[string]func(size int) []byte{
	"ordinary": func(size int) []byte {
		return full(size, "x.example.", func(m *dns.Msg, i int) {
			m.Answer = append(m.Answer, rr("x.example. 60 A 10.0.%d.%d", i/256, i%256))
		})
	},
	"addresses of a long name": func(size int) []byte {
		return full(size, long, func(m *dns.Msg, i int) {
			m.Answer = append(m.Answer, rr("%s 60 A 10.0.%d.%d", long, i/256, i%256))
		})
	},
	"one address again and again": func(size int) []byte {
		return full(size, long, func(m *dns.Msg, i int) { m.Answer = append(m.Answer, rr("%s 60 A 10.0.0.1", long)) })
	},
	"signatures": func(size int) []byte {
		return full(size, "x.example.", func(m *dns.Msg, i int) {
			m.Answer = append(m.Answer, rr("x.example. 60 A 10.0.0.1"), rr("x.example. 60 RRSIG A 8 2 60 20300101000000 20200101000000 %d example. AAAA", i))
		})
	},
	"proofs": func(size int) []byte {
		return full(size, "x.example.", func(m *dns.Msg, i int) {
			m.Ns = append(m.Ns, rr("%032x.example. 60 NSEC3 1 0 0 - %032x A", i, i+1))
		})
	},
	"denials of many zones": func(size int) []byte {
		return full(size, long, func(m *dns.Msg, i int) {
			m.Ns = append(m.Ns, rr("%s 60 SOA . . 1 1 1 1 1", long[2*(i%100):]))
		})
	},
	"name servers": func(size int) []byte {
		return full(size, "x.example.", func(m *dns.Msg, i int) {
			m.Authoritative = false
			m.Ns = append(m.Ns, rr("x.example. 60 NS n%d.x.example.", i))
			m.Extra = append(m.Extra, rr("n%d.x.example. 60 A 10.0.%d.%d", i, i/256, i%256))
		})
	},
	"one name server of many addresses": func(size int) []byte {
		return full(size, "x.example.", func(m *dns.Msg, i int) {
			m.Authoritative = false
			if i == 0 {
				m.Ns = append(m.Ns, rr("x.example. 60 NS n.x.example."))
			}
			m.Extra = append(m.Extra, rr("n.x.example. 60 A 10.0.%d.%d", i/256, i%256))
		})
	},
	"subtrees": func(size int) []byte {
		return full(size, "x."+long, func(m *dns.Msg, i int) {
			m.Answer = append(m.Answer, rr("b.%s 60 DNAME .", long))
		})
	},
}

func readWorst(b []byte) { recursor.CountReadRecords(b, "example.", name(b), dns.TypeA) }

// name returns the name of the question.
func name(b []byte) string {
	s, _, err := dns.UnpackDomainName(b, 12)
	if err != nil {
		panic(err)
	}
	return s
}

// BenchmarkWorst reads the responses that are known to take longest. A response of 64 KiB takes less than 10 ms, and
// a datagram of 512 bytes less than 100 µs.
func BenchmarkWorst(b *testing.B) {
	for _, size := range []int{512, 1<<16 - 1} {
		for _, odd := range slices.Sorted(maps.Keys(worst)) {
			resp := worst[odd](size)
			b.Run(fmt.Sprintf("%d/%s", size, strings.ReplaceAll(odd, " ", "-")), func(b *testing.B) {
				for b.Loop() {
					readWorst(resp)
				}
			})
		}
	}
}

// TestReadResponseTakesTimeBoundedByLength compares times with that of an ordinary response of the same length, and
// of a response of a quarter of the length. So other work of the machine affects all of them.
func TestReadResponseTakesTimeBoundedByLength(t *testing.T) {
	const size = 16 << 10
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(512 << 20))
	most := time.Duration(8) // four times the length takes 4 times as long if each byte costs the same, and 16 times if each costs its length
	if doubles.RaceEnabled {
		most = 12 // the race detector's own memory grows as well
	}
	ordinary := worst["ordinary"](size)
	for _, odd := range slices.Sorted(maps.Keys(worst)) {
		runtime.GC()
		took := func(least *time.Duration, b []byte) {
			start := time.Now()
			readWorst(b)
			if d := time.Since(start); *least == 0 || d < *least {
				*least = d
			}
		}
		whole, part := worst[odd](size), worst[odd](size/4)
		require.Positive(t, recursor.CountReadRecords(ordinary, "example.", "x.example.", dns.TypeA))
		var all, quarter, usual time.Duration
		ok := false
		for tries := 0; tries < 40 && (tries < 3 || !ok); tries++ {
			took(&all, whole)
			took(&quarter, part)
			took(&usual, ordinary)
			ok = all < most*quarter+200*time.Microsecond && all < most*usual
		}
		assert.True(t, ok, "%s: %v for 16 KiB, %v for 4 KiB, %v for 16 KiB of addresses", odd, all, quarter, usual)
	}
}

func TestRemoveDuplicatesKeepsEachRecordOnce(t *testing.T) {
	for _, n := range []int{3, 100} {
		var rrs []dns.RR
		for i := range n {
			rrs = append(rrs, rr("X.example. 60 A 10.0.0.%d", i), rr("x.example. %d A 10.0.0.%d", 30+i%50, i), rr("x.example. 60 NS a.example."))
		}
		rrs = recursor.RemoveDuplicates(rrs)
		require.Len(t, rrs, n+1, n)
		assert.EqualValues(t, 30, rrs[0].Header().Ttl)
	}
	assert.Empty(t, recursor.RemoveDuplicates(nil))
}
