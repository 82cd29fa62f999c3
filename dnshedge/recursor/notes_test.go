package recursor_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/observe"
)

// captureLog sets the Logger of a Resolver. The returned function returns the lines logged since its last call,
// without time and level.
func captureLog(r *recursor.Resolver) func() []string {
	var b bytes.Buffer
	r.Logger = slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}}))
	return func() []string {
		defer b.Reset()
		return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	}
}

func TestStatsListLastBogusAnswers(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Empty(t, r.Stats().LastBogus)
		for i := range 21 {
			require.Equal(t, "bogus 6", w.security(r, fmt.Sprintf("n%d.broken.tld. AAAA", i)))
			time.Sleep(time.Second)
		}
		last := r.Stats().LastBogus
		require.Len(t, last, 20)
		assert.Equal(t, "n20.broken.tld.", last[0].Name, "the newest")
		assert.Equal(t, "n1.broken.tld.", last[19].Name)
		first := last[0]
		assert.Equal(t, "AAAA", first.Type)
		assert.Equal(t, "DNSSEC Bogus", first.Reason)
		assert.Equal(t, "broken.tld.", first.Zone)
		assert.Equal(t, "192.0.3.4:53", first.Server.String())
		assert.NotEmpty(t, first.Text)
		assert.Less(t, time.Since(first.Time), 2*time.Second)
	})
}

func TestStatsListReportedBogusAnswers(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Report = true })
		require.Contains(t, w.security(r, "www.broken.tld. A"), "insecure")
		last := r.Stats().LastBogus
		require.Len(t, last, 1)
		assert.Equal(t, "www.broken.tld.", last[0].Name)
	})
}

func TestTrustOffCountsNoBogusAnswers(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		r := w.resolver(func(r *recursor.Resolver) { r.Trust.Off = true })
		w.ask(r, "www.broken.tld. A")
		assert.Nil(t, r.Stats().LastBogus)
		assert.Nil(t, r.Stats().Bogus)
	})
}

func TestResolverLogsBogusZoneOncePerHour(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		r := newValidatingResolver(w)
		lines := captureLog(r)
		ask := func(name string) { require.Equal(t, "bogus 6", w.security(r, name+" A")) }
		ask("www.broken.tld.")
		all := lines()
		require.Len(t, all, 1)
		assert.Contains(t, all[0], `msg="recursor: zone is bogus" zone=broken.tld. name=www.broken.tld. type=A reason="DNSSEC Bogus" text=`)
		assert.Contains(t, all[0], "server=192.0.3.4:53")
		time.Sleep(30 * time.Minute)
		ask("other.broken.tld.")
		assert.Equal(t, []string{""}, lines())
		time.Sleep(31 * time.Minute)
		ask("other.broken.tld.")
		assert.Len(t, lines(), 1)
	})
}

func TestResolverLogsWrongClockOncePerHour(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		w.withLock(func() {
			z := w.zone(".")
			z.signer.begin, z.signer.end = time.Unix(915148800, 0), time.Unix(917827200, 0)
			z.sign()
		})
		r := newValidatingResolver(w)
		lines := captureLog(r)
		ofClock := func() (all []string) {
			for _, l := range lines() {
				if strings.Contains(l, "at another time than the clock's") {
					all = append(all, l)
				}
			}
			return all
		}
		assert.Equal(t, "bogus 7", w.security(r, "www.example.tld. A"))
		all := ofClock()
		require.Len(t, all, 1)
		assert.Contains(t, all[0], "clock=fast by=")
		require.Positive(t, r.Stats().ClockOff)
		for range 5 {
			time.Sleep(10 * time.Minute)
			w.security(r, "www.example.tld. A")
		}
		assert.Empty(t, ofClock())
		time.Sleep(11 * time.Minute)
		w.security(r, "www.example.tld. A")
		assert.Len(t, ofClock(), 1)
	})
}

// TestResolverRecoversFromWrongClock requires the recovery that docs/recursor.md describes.
func TestResolverRecoversFromWrongClock(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		w.setFault("198.41.0.4 192.0.2.1 192.0.3.1 192.0.3.2", stale)
		r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Insecure = []string{"example.tld"} })
		assert.Equal(t, "insecure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, "bogus 7", w.security(r, "www.unsigned.tld. A"))
		for range 20 {
			time.Sleep(time.Minute)
			w.security(r, "www.unsigned.tld. A")
		}
		w.setFault("198.41.0.4 192.0.2.1 192.0.3.1 192.0.3.2", nil)
		time.Sleep(5 * time.Minute)
		assert.Equal(t, "insecure", w.security(r, "www.unsigned.tld. A"))
		assert.Zero(t, r.Stats().ClockOff)
	})
}

func TestResolverLogsUnknownRootKeyOncePerDay(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		other := newSigner(".", "next").key
		w.withLock(func() {
			w.zone(".").put(other)
			w.zone(".").sign()
		})
		r := newValidatingResolver(w)
		lines := captureLog(r)
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, []string{fmt.Sprintf(`msg="recursor: the root has keys that no anchor knows" tags=[%d]`, other.KeyTag())}, lines())
		for range 23 {
			time.Sleep(time.Hour)
			w.security(r, "www.example.tld. A")
		}
		assert.Equal(t, []string{""}, lines())
		time.Sleep(time.Hour)
		w.security(r, "www.example.tld. A")
		assert.Len(t, lines(), 1)
		assert.Equal(t, []uint16{other.KeyTag()}, r.Stats().UnknownSEP)
	})
}

func TestExtendedErrorNamesMatchRegistry(t *testing.T) {
	for _, code := range []uint16{0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 27} {
		assert.Equal(t, dns.ExtendedErrorCodeToString[code], observe.ExtendedError(code))
	}
	assert.Equal(t, "EDE 99", observe.ExtendedError(99))
}
