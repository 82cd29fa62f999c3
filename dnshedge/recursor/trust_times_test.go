package recursor_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// TestResolverValidatesBeyond2106 has signature times of 32 bits, which overflow on 2106-02-07 at 06:28:15 (RFC 4034
// §3.1.5).
func TestResolverValidatesBeyond2106(t *testing.T) {
	wrap := time.Date(2106, 2, 7, 6, 28, 16, 0, time.UTC)
	for name, c := range map[string]struct {
		begin, end time.Duration // since then
		at         time.Duration
		want       string
	}{
		"over the end":               {-3 * time.Hour, 3 * time.Hour, -time.Hour, "secure"},
		"over the end, behind it":    {-3 * time.Hour, 3 * time.Hour, time.Hour, "secure"},
		"all behind it":              {time.Hour, 720 * time.Hour, 2 * time.Hour, "secure"},
		"expired behind it":          {-3 * time.Hour, time.Hour, 5 * time.Hour, "bogus 7"},
		"expired before it":          {-9 * time.Hour, -4 * time.Hour, time.Hour, "bogus 7"},
		"not yet valid, on one side": {9 * time.Hour, 720 * time.Hour, -200 * time.Hour, "bogus 8"},
		"not yet valid, behind it":   {99 * time.Hour, 110 * time.Hour, time.Hour, "bogus 8"},
	} {
		bubble(t, pairs, func(t *testing.T, w *testNetwork) {
			time.Sleep(time.Until(wrap.Add(c.at)))
			w.sign("unsigned.tld.")
			w.withLock(func() {
				z := w.zone("example.tld.")
				z.signer.begin, z.signer.end = wrap.Add(c.begin), wrap.Add(c.end)
				z.sign()
			})
			r := newValidatingResolver(w)
			assert.Equal(t, c.want, w.security(r, "www.example.tld. A"), name)
			m, _, err := r.ExchangeContext(t.Context(), parseQuestion("mail.example.tld. A +do"), "")
			require.NoError(t, err)
			left := max(1, (c.end-c.at)/time.Second)
			for _, rr := range m.Answer {
				assert.LessOrEqual(t, time.Duration(rr.Header().Ttl), left, "%s: %v", name, rr)
			}
			if c.want != "secure" {
				return
			}
			require.Len(t, m.Answer, 2, name)
			time.Sleep(c.end - c.at + 25*time.Hour) // longer than the tolerated clock skew
			assert.Equal(t, "bogus 7", w.security(r, "www.example.tld. A"), name)
		})
	}
}

// TestResolverUsesNoExpiredDataAfterSuspension suspends the machine. Afterwards, data that has expired meanwhile is
// not used and is queried again.
func TestResolverUsesNoExpiredDataAfterSuspension(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		for _, slept := range []time.Duration{time.Minute, 2 * time.Hour, 26 * time.Hour, 20 * 24 * time.Hour} {
			time.Sleep(slept)
			assert.Equal(t, "secure", w.security(r, "www.example.tld. A"), "%v", slept)
			assert.Equal(t, "secure", w.security(r, "no.example.tld. A"), "%v", slept)
			assert.Equal(t, "insecure", w.security(r, "www.unsigned.tld. A"), "%v", slept)
		}
		assert.Empty(t, r.Stats().Bogus)
		for _, at := range recursor.ExpiryTimes(r) {
			assert.Equal(t, at.Round(0), at, "the monotonic clock stops while the machine sleeps")
		}
	})
}

// TestResolverIgnoresDataFromFuture sets the clock back by a year. Data with a lifetime of an hour must not be used
// for a year.
func TestResolverIgnoresDataFromFuture(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		now := time.Now()
		assert.True(t, recursor.HasDelegation(r, "example.tld.", now))
		assert.True(t, recursor.HasDelegation(r, "example.tld.", now.Add(-time.Second)), "another question may have read the clock a little earlier")
		for _, at := range []time.Duration{-time.Minute, -24 * time.Hour, -365 * 24 * time.Hour, 2 * time.Hour, 365 * 24 * time.Hour} {
			assert.False(t, recursor.HasDelegation(r, "example.tld.", now.Add(at)), "%v", at)
		}
	})
}
