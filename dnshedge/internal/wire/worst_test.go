package wire_test

import (
	"bytes"
	"encoding/binary"
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

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/doubles"
)

// builder writes a response record by record, with names as the caller spells and
// compresses them.
type builder struct {
	b   []byte
	end int // maximum length of the message
}

// newBuilder begins the response to q.
func newBuilder(q *dns.Msg, rcode, size int) *builder {
	r := new(dns.Msg).SetRcode(q, rcode)
	r.RecursionAvailable = true
	b, err := r.Pack()
	if err != nil {
		panic(err)
	}
	return &builder{b, size}
}

// name writes a name in wire format, without compression.
func name(s string) []byte {
	b := make([]byte, wire.MaxName)
	n, err := dns.PackDomainName(s, b, 0, nil, false)
	if err != nil {
		panic(err)
	}
	return b[:n]
}

// pointer returns a compression pointer to the name at the offset off.
func pointer(off int) []byte { return []byte{0xc0 | byte(off>>8), byte(off)} }

// add appends a record to a section and returns the offsets of its owner and its data. ok is false if the message has
// no room for it.
func (b *builder) add(section int, owner []byte, typ uint16, data []byte) (at, in int, ok bool) {
	if len(b.b)+len(owner)+10+len(data) > b.end {
		return 0, 0, false
	}
	at = len(b.b)
	b.b = append(b.b, owner...)
	b.b = binary.BigEndian.AppendUint16(b.b, typ)
	b.b = append(b.b, 0, dns.ClassINET, 0, 0, 1, 44)
	b.b = binary.BigEndian.AppendUint16(b.b, uint16(len(data)))
	in = len(b.b)
	b.b = append(b.b, data...)
	n := b.b[6+2*section:]
	binary.BigEndian.PutUint16(n, binary.BigEndian.Uint16(n)+1)
	return at, in, true
}

// fill appends records until there is no more room.
func (b *builder) fill(section int, typ uint16, record func(i int) (owner, data []byte)) {
	for i := 0; ; i++ {
		owner, data := record(i)
		if _, _, ok := b.add(section, owner, typ, data); !ok {
			return
		}
	}
}

// labels is of how many labels long names are: as many as leave room for records.
func (b *builder) labels() int {
	switch {
	case b.end < 1000:
		return 8
	case b.end < 60_000:
		return 20
	}
	return 110
}

// chain appends a chain of aliases with names of as many labels as fit, which differ at
// their end, and returns where the last name is.
func (b *builder) chain(backwards bool) int {
	labels := b.labels()
	alias := func(i int) []byte {
		if i == 0 {
			return pointer(wire.HeaderLen)
		}
		return name(strings.Repeat("a.", labels) + string(rune('a'+i)) + ".example.")
	}
	last := wire.HeaderLen
	for i := range 16 {
		if backwards {
			i = 15 - i
		}
		_, in, ok := b.add(0, alias(i), dns.TypeCNAME, alias(i+1))
		if ok && (i == 15 || last == wire.HeaderLen) {
			last = in
		}
	}
	return last
}

var soaData = slices.Concat(pointer(wire.HeaderLen), pointer(wire.HeaderLen), make([]byte, 20))

// worst returns the responses to a question for A records that take longest to parse, by a description. Each has about
// size bytes.
var worst = map[string]func(q *dns.Msg, size int) []byte{
	"ordinary": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.fill(0, dns.TypeA, func(i int) (owner, data []byte) { return pointer(12), []byte{10, 0, byte(i >> 8), byte(i)} })
		return b.b
	},
	"aliases of long names": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		last := b.chain(false)
		b.fill(0, dns.TypeA, func(i int) (owner, data []byte) { return pointer(last), []byte{10, 0, byte(i >> 8), byte(i)} })
		return b.b
	},
	"aliases backwards": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		last := b.chain(true)
		b.fill(0, dns.TypeA, func(i int) (owner, data []byte) { return pointer(last), []byte{10, 0, byte(i >> 8), byte(i)} })
		return b.b
	},
	"aliases backwards and other subtrees": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.chain(true)
		at, _, _ := b.add(0, name(strings.Repeat("a.", b.labels())+"zz.other."), dns.TypeDNAME, pointer(12))
		b.fill(0, dns.TypeDNAME, func(int) (owner, data []byte) { return pointer(at), pointer(12) })
		return b.b
	},
	"subtrees at each label": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		_, in, _ := b.add(0, pointer(12), dns.TypeCNAME, name(strings.Repeat("a.", b.labels())))
		b.fill(0, dns.TypeDNAME, func(i int) (owner, data []byte) {
			at := in + 2*(1+i/16%(b.labels()-2))
			return pointer(at), slices.Concat([]byte{1, byte('b' + i%16)}, pointer(at+2))
		})
		return b.b
	},
	"aliases without end": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.fill(0, dns.TypeCNAME, func(i int) (owner, data []byte) {
			if i%2 == 0 {
				return slices.Concat([]byte{4}, fmt.Appendf(nil, "%04d", 5000-i/2), pointer(14)), slices.Concat([]byte{4}, fmt.Appendf(nil, "%04d", 5001-i/2), pointer(14))
			}
			return pointer(14), pointer(12)
		})
		return b.b
	},
	"names of all labels": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.add(0, pointer(12), dns.TypeCNAME, name(strings.Repeat("a.", b.labels())))
		in := len(b.b) - b.labels()*2 - 1
		b.fill(0, dns.TypeA, func(i int) (owner, data []byte) {
			return pointer(in + i%b.labels()*2), []byte{10, 0, byte(i >> 8), byte(i)}
		})
		return b.b
	},
	"names that are too long": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		at := 12
		b.fill(0, dns.TypeA, func(i int) (owner, data []byte) {
			owner = slices.Concat([]byte{1, 'a'}, pointer(at))
			if len(b.b) < 1<<14 {
				at = len(b.b)
			}
			return owner, nil
		})
		return b.b
	},
	"a name server for each label": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.add(0, pointer(12), dns.TypeCNAME, name(strings.Repeat("a.", b.labels())))
		in := len(b.b) - b.labels()*2 - 1
		b.fill(1, dns.TypeNS, func(i int) (owner, data []byte) { return pointer(in + i%10*2), pointer(in + i%7*2) })
		return b.b
	},
	"a denial with aliases backwards": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, dns.RcodeNameError, size)
		last := b.chain(true)
		b.fill(1, dns.TypeSOA, func(int) (owner, data []byte) { return pointer(last), soaData })
		return b.b
	},
	"a denial with aliases in front of many": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, dns.RcodeNameError, size)
		last := b.chain(false)
		b.fill(0, dns.TypeNS, func(int) (owner, data []byte) { return pointer(last), pointer(last) })
		return b.b
	},
	"services of compressed names": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.fill(0, dns.TypeSRV, func(i int) (owner, data []byte) {
			return pointer(12), slices.Concat(make([]byte, 5), []byte{byte(i)}, pointer(12))
		})
		return b.b
	},
	"names that are written out": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.fill(0, dns.TypeA, func(i int) (owner, data []byte) {
			return name(fmt.Sprintf("n%d.", i) + strings.Repeat("a.", b.labels())), []byte{10, 0, byte(i >> 8), byte(i)}
		})
		return b.b
	},
	"records of no data": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.fill(0, dns.TypeTXT, func(int) (owner, data []byte) { return pointer(12), nil })
		return b.b
	},
	"texts of empty strings": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.add(0, pointer(12), dns.TypeTXT, make([]byte, size-len(b.b)-12))
		return b.b
	},
	"texts of a rare type": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.add(0, pointer(12), dns.TypeNINFO, make([]byte, size-len(b.b)-12))
		return b.b
	},
	"a list of prefixes": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.add(0, pointer(12), dns.TypeAPL, slices.Repeat([]byte{0, 1, 8, 0}, (size-len(b.b)-12)/4))
		return b.b
	},
	"denials of many types": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, dns.RcodeNameError, size)
		b.fill(1, dns.TypeNSEC, func(i int) (owner, data []byte) {
			return pointer(14), slices.Concat([]byte{0, 0, 32}, slices.Repeat([]byte{0xff}, 32))
		})
		return b.b
	},
	"services with keys that are not sorted": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.fill(0, dns.TypeHTTPS, func(int) (owner, data []byte) {
			return pointer(12), []byte{0, 1, 0, 0, 0, 0, 4, 0, 3, 0, 1}
		})
		return b.b
	},
	"a service of many protocols": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		n := (size - len(b.b) - 19) &^ 1
		b.add(0, pointer(12), dns.TypeHTTPS, slices.Concat([]byte{0, 1, 0, 0, 1, byte(n >> 8), byte(n)}, slices.Repeat([]byte{1, 'a'}, n/2)))
		return b.b
	},
	"meeting points of compressed names": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		_, in, _ := b.add(0, pointer(12), dns.TypeCNAME, name(strings.Repeat("a.", b.labels())))
		b.add(0, pointer(12), dns.TypeHIP, slices.Concat([]byte{0, 2, 0, 0}, slices.Repeat(pointer(in), (size-len(b.b)-16)/2)))
		return b.b
	},
	"extended errors": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, dns.RcodeServerFailure, size)
		b.add(2, []byte{0}, dns.TypeOPT, slices.Repeat([]byte{0, 15, 0, 2, 0, 0}, (size-len(b.b)-11)/6))
		return b.b
	},
	"cookies": func(q *dns.Msg, size int) []byte {
		b := newBuilder(q, 0, size)
		b.add(2, []byte{0}, dns.TypeOPT, slices.Repeat([]byte{0, 10, 0, 1, 0}, (size-len(b.b)-11)/5))
		return b.b
	},
}

func worstQuestion() *dns.Msg {
	q := question("q.example.", dns.TypeA)
	q.SetEdns0(1232, true)
	return q
}

// readings lists the operations on a response, from parsing to the response for a client.
var readings = map[string]func(b []byte, m *dns.Msg, q *wire.Query){
	"answer": func(b []byte, m *dns.Msg, q *wire.Query) {
		a, err := wire.ParseAnswer(b, q)
		if err != nil {
			return
		}
		a.SubtractTTL(time.Second)
		a.LimitTTLs(&wire.TTLLimits{Max: time.Hour, MaxNegative: time.Hour})
		a.Append(nil, q, wire.ResponseOptions{Age: time.Second}, 0)
	},
	"message": func(b []byte, m *dns.Msg, q *wire.Query) {
		if a, err := wire.ParseAnswer(b, q); err == nil {
			a.Message(m, q, wire.ResponseOptions{})
		}
	},
	"msg":     func(b []byte, m *dns.Msg, q *wire.Query) { _, _ = wire.ParseMsg(b) },
	"max-age": func(b []byte, m *dns.Msg, q *wire.Query) { wire.HTTPMaxAge(b) },
}

// BenchmarkWorst parses the responses that take longest. A response of 64 KiB takes less than 10 ms, and a UDP message
// of 512 bytes less than 100 µs.
func BenchmarkWorst(b *testing.B) {
	m := worstQuestion()
	q, err := wire.NewQuery(m)
	require.NoError(b, err)
	for _, size := range []int{512, wire.MaxMsg} {
		for _, odd := range slices.Sorted(maps.Keys(worst)) {
			resp := worst[odd](m, size)
			for _, reading := range slices.Sorted(maps.Keys(readings)) {
				b.Run(fmt.Sprintf("%d/%s/%s", size, reading, strings.ReplaceAll(odd, " ", "-")), func(b *testing.B) {
					for b.Loop() {
						readings[reading](resp, m, q)
					}
				})
			}
		}
	}
}

// Each response is compared with an ordinary response of the same length, and with one of a quarter of the length. So
// other load on the machine slows down all of them. The operations are short, so that some are not interrupted.
func TestR9AnAnswerIsReadInATimeBoundedByItsLength(t *testing.T) {
	m := worstQuestion()
	q, err := wire.NewQuery(m)
	require.NoError(t, err)
	const size = 16 << 10
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(512 << 20))
	grows := time.Duration(8) // a message of 4 times the length takes 4 times as long if the time is linear, and 16 times if it is quadratic
	if doubles.RaceEnabled {
		grows = 12 // the memory of the race detector grows too
	}
	for _, reading := range slices.Sorted(maps.Keys(readings)) {
		ordinary := worst["ordinary"](m, size)
		for _, odd := range slices.Sorted(maps.Keys(worst)) {
			runtime.GC()
			took := func(least *time.Duration, b []byte) {
				start := time.Now()
				readings[reading](b, m, q)
				if d := time.Since(start); *least == 0 || d < *least {
					*least = d
				}
			}
			long, short := worst[odd](m, size), worst[odd](m, size/4)
			var whole, quarter, usual time.Duration
			ok := false
			for tries := 1; tries <= 300 && (tries <= 3 || !ok); tries++ {
				if tries%20 == 0 {
					runtime.GC() // fresh memory is slow
				}
				took(&whole, long)
				took(&quarter, short)
				took(&usual, ordinary)
				ok = whole < grows*quarter+200*time.Microsecond && whole < 30*usual
			}
			assert.True(t, ok, "%s, %s: %v for 16 KiB, %v for 4 KiB, %v for 16 KiB of addresses", reading, odd, whole, quarter, usual)
		}
	}
}

func TestLongMessageIsParsedLikePackageDNS(t *testing.T) {
	m := worstQuestion()
	read := 0
	asBytes := []string{"records of no data", "services with keys that are not sorted", "meeting points of compressed names", "a list of prefixes"}
	for odd, f := range worst {
		b := f(m, 5000)
		want := new(dns.Msg)
		if want.Unpack(b) != nil || slices.Contains(asBytes, odd) {
			continue
		}
		got, err := wire.ParseMsg(b)
		require.NoError(t, err, odd)
		assert.Equal(t, want.String(), got.String(), odd)
		read++
	}
	assert.Greater(t, read, 10)
}

func TestLongListOfPrefixesIsParsedAsBytes(t *testing.T) {
	b := worst["a list of prefixes"](worstQuestion(), wire.MaxMsg)
	assert.LessOrEqual(t, testing.AllocsPerRun(10, func() { _, _ = wire.ParseMsg(b) }), 20.0)
}

// A query over a stream may have 64 KiB of options, and any client may send it.
func TestQueryWithManyOptionsIsParsedCheaply(t *testing.T) {
	ordinary := worstQuestion()
	ordinary.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{192, 0, 2, 0}}}
	b := pack(t, ordinary)
	q, err := wire.ParseQuery(b)
	require.NoError(t, err)
	usual := len(q.Append(nil, 0, wire.PackOptions{}))
	for name, options := range map[string][]byte{
		"unknown":       bytes.Repeat([]byte{0xfd, 0xe9, 0, 0}, 16000),
		"NSID":          bytes.Repeat([]byte{0, 3, 0, 1, 0}, 12800),
		"cookies":       bytes.Repeat([]byte{0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8}, 5300),
		"padding":       append([]byte{0, 12, 0xf9, 0xfc}, make([]byte, 63996)...),
		"subnets":       bytes.Repeat([]byte{0, 8, 0, 7, 0, 1, 24, 0, 192, 0, 2}, 5800),
		"longer subnet": append([]byte{0, 8, 0xf9, 0xfc, 0, 1, 24, 0}, make([]byte, 63992)...),
	} {
		m := pack(t, worstQuestion())
		binary.BigEndian.PutUint16(m[len(m)-2:], uint16(len(options)))
		m = append(m, options...)
		q, err := wire.ParseQuery(m)
		if strings.Contains(name, "subnet") {
			assert.Error(t, err, name)
		} else if assert.NoError(t, err, name) {
			assert.LessOrEqual(t, len(q.Append(nil, 0, wire.PackOptions{})), usual, "%s: no option is passed on", name)
		}
		assert.LessOrEqual(t, testing.AllocsPerRun(10, func() { _, _ = wire.ParseQuery(m) }), 40.0, name)
		doubles.AssertMaxDuration(t, 2*time.Millisecond, func() { _, _ = wire.ParseQuery(m) })
	}
}
