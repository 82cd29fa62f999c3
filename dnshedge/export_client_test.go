package dnshedge_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

func TestExportSurvivesRestart(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
			switch q.Question[0].Name {
			case "nx.example.":
				return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 600, 600)}
			case "fail.example.":
				return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeServerFailure)}
			case "old.example.":
				return dnstest.Reply{Msg: dnstest.Answer(q, "5 A 192.0.2.5")}
			}
			return dnstest.Reply{Msg: dnstest.Answer(q, "600 A 192.0.2.1")}
		})
		for _, n := range []string{"x.example.", "nx.example.", "fail.example.", "old.example."} {
			for range 3 {
				l.must(c, n)
			}
		}
		for i := range 30 {
			l.must(c, fmt.Sprintf("n%d.example.", i))
		}
		var file bytes.Buffer
		require.NoError(t, c.Export(&file))
		before := c.Stats().Upstreams[0]
		c.Close()

		time.Sleep(100 * time.Second)
		again := off()
		again.Cache = new(dnshedge.Cache)
		l.client(again, l.up("udp", "a"))
		require.NoError(t, again.Import(bytes.NewReader(file.Bytes())))
		n := s.Queries.Load()
		r, _ := l.must(again, "x.example.")
		assert.EqualValues(t, 499, ttl(r), "time goes on meanwhile")
		r, _ = l.must(again, "nx.example.")
		assert.Equal(t, dns.RcodeNameError, r.Rcode)
		assert.Equal(t, n, s.Queries.Load())
		l.must(again, "fail.example.")
		assert.Equal(t, n+1, s.Queries.Load(), "failures are not saved")
		after := again.Stats().Upstreams[0]
		assert.Equal(t, before.LossDelay, after.LossDelay)
		assert.InDelta(t, before.SRTT, after.SRTT, float64(ms))
		assert.NotZero(t, after.SlowDelay)
		s.Close()
		r, _ = l.must(again, "old.example.")
		assert.Equal(t, "192.0.2.5", addr(r), "stale answers survive as well")
	})
}

func TestExportWithOldLatenciesCanBeImported(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", with("A 192.0.2.1"))
		c := l.client(off(), l.up("udp", "a"))
		l.must(c, "x.example.")
		time.Sleep(1_001 * time.Hour)
		var file bytes.Buffer
		require.NoError(t, c.Export(&file))
		require.NoError(t, c.Import(&file))
	})
}

// An answer that the importing Client would not cache must not be served, even if the servers fail (MaxStale).
func TestImportSkipsAnswersThatCacheDoesNotStore(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), func(q dnstest.Query) dnstest.Reply {
			if q.Question[0].Name == "no.example." {
				return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 600, 600)}
			}
			return dnstest.Reply{Msg: dnstest.Answer(q, "600 A 192.0.2.1")}
		})
		l.must(c, "no.example.")
		l.must(c, "yes.example.")
		var file bytes.Buffer
		require.NoError(t, c.Export(&file))
		again := off()
		again.Cache = &dnshedge.Cache{MaxNegativeTTL: -1}
		l.client(again, l.up("udp", "a"))
		require.NoError(t, again.Import(&file))
		s.Close()
		r, _ := l.must(again, "yes.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		_, _, err := l.ask(again, "no.example.")
		require.Error(t, err)
	})
}

func TestImportShowsRemainingTTLDespiteMinTTL(t *testing.T) {
	bubble(t, func(l *lab) {
		c, s := cached(l, new(dnshedge.Cache), with("60 A 192.0.2.1"))
		l.must(c, "x.example.")
		var file bytes.Buffer
		require.NoError(t, c.Export(&file))
		time.Sleep(10 * time.Second)
		again := off()
		again.Cache = &dnshedge.Cache{MinTTL: 5 * time.Minute}
		l.client(again, l.up("udp", "a"))
		require.NoError(t, again.Import(&file))
		r, _ := l.must(again, "x.example.")
		assert.LessOrEqual(t, ttl(r), uint32(50))
		assert.EqualValues(t, 1, s.Queries.Load())
		time.Sleep(50 * time.Second)
		r, _ = l.must(again, "x.example.")
		assert.EqualValues(t, 300, ttl(r), "a new answer")
		assert.EqualValues(t, 2, s.Queries.Load())
	})
}

// exported returns a Client with one cached answer, and the export of that Client.
func exported(t *testing.T) (*dnshedge.Client, []byte) {
	c := &dnshedge.Client{Cache: new(dnshedge.Cache), Upstreams: []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}}
	require.True(t, c.Cache.Set(dnstest.Answer(dnstest.Query{Msg: question("x.example.", dns.TypeA)}, "A 192.0.2.1")))
	var file bytes.Buffer
	require.NoError(t, c.Export(&file))
	return c, file.Bytes()
}

func TestImportOfDamagedDataChangesNothing(t *testing.T) {
	c, good := exported(t)
	empty := func() *dnshedge.Client { return &dnshedge.Client{Cache: new(dnshedge.Cache)} }
	version := bytes.Replace(good, []byte("dns 1\n"), []byte("dns 2\n"), 1)
	for want, bad := range map[string]io.Reader{
		"no export of a Client":     strings.NewReader(""),
		"no export":                 strings.NewReader("something else that is long enough"),
		"damaged or cut off":        bytes.NewReader(good[:len(good)-9]),
		"the export is damaged":     bytes.NewReader(good[:25]),
		`version "2", and only "1"`: bytes.NewReader(version),
		"larger than 64 MiB":        io.MultiReader(bytes.NewReader(good), io.LimitReader(zeros{}, 64<<20)),
		"disk full":                 failing{},
	} {
		d := empty()
		require.ErrorContains(t, d.Import(bad), want)
		assert.Zero(t, d.Cache.Len(), want)
	}
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 0xff
		d := empty()
		require.Error(t, d.Import(bytes.NewReader(b)), i)
		assert.Zero(t, d.Cache.Len())
	}
	require.ErrorContains(t, c.Export(failing{}), "dnshedge: Export: disk full")
	d := empty()
	require.NoError(t, d.Import(bytes.NewReader(good)))
	assert.Equal(t, 1, d.Cache.Len())
}

func TestImportAcceptsExportForADay(t *testing.T) {
	bubbleOnly(t, func(t *testing.T) {
		_, file := exported(t)
		time.Sleep(24 * time.Hour)
		require.NoError(t, new(dnshedge.Client).Import(bytes.NewReader(file)))
		time.Sleep(2 * time.Second)
		require.ErrorContains(t, new(dnshedge.Client).Import(bytes.NewReader(file)), "24h0m2s old, more than 24h")
	})
}

func TestImportAcceptsAnswersOfSameSources(t *testing.T) {
	bubble(t, func(l *lab) {
		a := l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if strings.HasPrefix(q.Question[0].Name, "no") {
				return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 3600, 3600)}
			}
			return with("3600 A 192.0.2.1")(q)
		})
		b := l.serve("b", with("A 192.0.2.2"))
		old := &exchanger{addr: "10.0.0.1"}
		export := func(c *dnshedge.Client) *bytes.Reader {
			for _, name := range []string{"yes.example.", "no.example.", "no.corp.example.", "x.old.example."} {
				l.must(c, name)
			}
			var file bytes.Buffer
			require.NoError(t, c.Export(&file))
			return bytes.NewReader(file.Bytes())
		}
		file := export(l.client(&dnshedge.Client{Cache: new(dnshedge.Cache), Routes: map[string]dnshedge.Exchanger{"old.example": old}}, l.up("udp", "a")))
		c := l.client(&dnshedge.Client{
			Cache:  &dnshedge.Cache{MaxTTL: time.Minute, MaxNegativeTTL: 5 * time.Second},
			Routes: map[string]dnshedge.Exchanger{"corp.example": &exchanger{addr: "10.0.0.5"}},
		}, l.up("udp", "a"))
		require.NoError(t, c.Import(file))
		for name, want := range map[string]string{"yes.example.": "192.0.2.1", "no.example.": "", "no.corp.example.": "10.0.0.5", "x.old.example.": "192.0.2.1"} {
			before := a.Queries.Load()
			r, _ := l.must(c, name)
			assert.Equal(t, want, addr(r), name)
			assert.Equal(t, name == "x.old.example.", a.Queries.Load() > before, name)
			if name == "yes.example." {
				assert.LessOrEqual(t, ttl(r), uint32(60), "MaxTTL")
			}
		}
		time.Sleep(6 * time.Second)
		before := a.Queries.Load()
		l.must(c, "no.example.")
		assert.Greater(t, a.Queries.Load(), before, "MaxNegativeTTL")

		// Answers of the system's servers are accepted if the servers are the same.
		conf := l.resolvConf("", "a")
		system := func(conf string) *dnshedge.Client {
			return l.client(&dnshedge.Client{Cache: new(dnshedge.Cache), ResolvConf: conf})
		}
		file = export(system(conf))
		for host, want := range map[string]string{"a": "", "b": "192.0.2.2"} {
			_, err := file.Seek(0, io.SeekStart)
			require.NoError(t, err)
			c := system(l.resolvConf("", host))
			require.NoError(t, c.Import(file))
			asked := b.Queries.Load()
			r, _ := l.must(c, "no.corp.example.")
			assert.Equal(t, want, addr(r), host)
			assert.Equal(t, host == "b", b.Queries.Load() > asked)
		}
	})
}

func TestImportRejectsImpossiblyOldAnswer(t *testing.T) {
	msg, err := dnstest.Answer(dnstest.Query{Msg: question("x.example.", dns.TypeA)}, "3600 A 203.0.113.66").Pack()
	require.NoError(t, err)
	b := binary.AppendVarint([]byte("hedge dns 1\n"), time.Now().UnixNano())
	b = append(b, 0, 0, 1, 0, 0, 0)       // no servers, no system servers, one answer without a route
	b = binary.AppendUvarint(b, 1<<63-1)  // age of the answer
	b = binary.AppendUvarint(b, 3600*1e9) // lifetime of the answer
	b = append(b, 0)                      // no extended errors
	b = binary.AppendUvarint(b, uint64(len(msg)))
	b = append(b, msg...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	c := &dnshedge.Client{Cache: new(dnshedge.Cache), Upstreams: []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}}
	require.ErrorContains(t, c.Import(bytes.NewReader(b)), "damaged")
	assert.Zero(t, c.Cache.Len())
}

// The exports have a correct checksum and arbitrary content.
func FuzzImport(f *testing.F) {
	c := &dnshedge.Client{Cache: new(dnshedge.Cache), Upstreams: []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}}
	c.Cache.Set(dnstest.Answer(dnstest.Query{Msg: question("x.example.", dns.TypeA)}, "A 192.0.2.1"))
	c.Cache.Set(dnstest.Negative(dnstest.Query{Msg: question("y.example.", dns.TypeA)}, dns.RcodeNameError, 60, 60))
	var file bytes.Buffer
	require.NoError(f, c.Export(&file))
	const head = len("hedge dns 1\n")
	f.Add(file.Bytes()[head : file.Len()-4])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		b = append([]byte("hedge dns 1\n"), b...)
		b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
		d := &dnshedge.Client{Cache: new(dnshedge.Cache)}
		if err := d.Import(bytes.NewReader(b)); err != nil {
			require.Zero(t, d.Cache.Len())
		}
		for _, name := range []string{"x.example.", "y.example.", "a.y.example."} {
			d.Cache.Get(question(name, dns.TypeA))
		}
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

type failing struct{}

func (failing) Read([]byte) (int, error)  { return 0, errors.New("disk full") }
func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }
