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

func TestAnExportSurvivesARestart(t *testing.T) {
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

// exported is a Client with one kept answer, and what it exports.
func exported(t *testing.T) (*dnshedge.Client, []byte) {
	c := &dnshedge.Client{Cache: new(dnshedge.Cache), Upstreams: []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}}
	require.True(t, c.Cache.Set(dnstest.Answer(dnstest.Query{Msg: question("x.example.", dns.TypeA)}, "A 192.0.2.1")))
	var file bytes.Buffer
	require.NoError(t, c.Export(&file))
	return c, file.Bytes()
}

func TestImportOfWhatIsWrongChangesNothing(t *testing.T) {
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

func TestAnExportIsBelievedForADay(t *testing.T) {
	bubbleOnly(t, func(t *testing.T) {
		_, file := exported(t)
		time.Sleep(24 * time.Hour)
		require.NoError(t, new(dnshedge.Client).Import(bytes.NewReader(file)))
		time.Sleep(2 * time.Second)
		require.ErrorContains(t, new(dnshedge.Client).Import(bytes.NewReader(file)), "24h0m2s old, more than 24h")
	})
}

// What is well-formed is not necessarily true: the checksum of these is right.
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
