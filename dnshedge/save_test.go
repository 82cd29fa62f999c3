package dnshedge_test

import (
	"bytes"
	"errors"
	"fmt"
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

func TestSaveAndLoadSurviveARestart(t *testing.T) {
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
		require.NoError(t, c.Save(&file))
		before := c.Stats().Upstreams[0]
		c.Close()

		time.Sleep(100 * time.Second)
		again := off()
		again.Cache = new(dnshedge.Cache)
		l.client(again, l.up("udp", "a"))
		require.NoError(t, again.Load(bytes.NewReader(file.Bytes())))
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

func TestWhatIsNotASavedCacheIsAnError(t *testing.T) {
	var c dnshedge.Cache
	require.True(t, c.Set(dnstest.Answer(dnstest.Query{Msg: question("x.example.", dns.TypeA)}, "A 192.0.2.1")))
	var file bytes.Buffer
	require.NoError(t, c.Save(&file))
	for name, bad := range map[string]io.Reader{
		"empty":     strings.NewReader(""),
		"other":     strings.NewReader("something else that is long enough"),
		"cut":       bytes.NewReader(file.Bytes()[:file.Len()-9]),
		"cut early": bytes.NewReader(file.Bytes()[:25]),
	} {
		require.ErrorContains(t, new(dnshedge.Cache).Load(bad), "load cache", name)
	}
	for i := range file.Len() {
		b := bytes.Clone(file.Bytes())
		b[i] ^= 0xff
		_ = new(dnshedge.Cache).Load(bytes.NewReader(b)) // must not panic
	}
	require.Error(t, c.Save(failing{}))
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }
