package dnssec_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// A chain of trust takes one round trip, however long it is, and none when its keys are known.
func TestValidatorQueriesKeysInOneRoundTrip(t *testing.T) {
	for _, question := range []string{
		"www.example. A", "no.example. A", "a.b.c.example. A", "x.w.example. A", "alias.example. A", "far.example. A", "out.example. A", "gone.example. A",
		"www.deep.other. A", "no.deep.other. A", "deep.other. DS", "x.w.other. TXT", "no.d.other. A",
		"www.plain. A", "www.sub.plain. A", "in.plain. A", "www.child.optout. A", "www.signed.plain. A", "nothing. A", "plain. DS",
	} {
		t.Run(question, func(t *testing.T) {
			bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
				took := func() time.Duration {
					start := time.Now()
					security(t, v, question)
					return time.Since(start)
				}
				assert.Equal(t, 2*rtt, took(), "%v", u.asked())
				synctest.Wait()
				u.asked()
				for range 3 {
					assert.Equal(t, rtt, took())
					synctest.Wait()
					assert.Equal(t, []string{question}, u.asked())
				}
				time.Sleep(48 * time.Hour)
				assert.Equal(t, 2*rtt, took(), "what was known has expired")
			})
		})
	}
}

// Names of which those above are known, and the keys of these, need no more than their own zone's.
func TestValidatorQueriesKeysOnce(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		assert.Equal(t, "secure", security(t, v, "x.e.other. A"))
		synctest.Wait()
		assert.ElementsMatch(t, []string{"x.e.other. A", ". DNSKEY", "other. DS", "other. DNSKEY"}, u.asked())
		assert.Equal(t, "secure", security(t, v, "www.deep.other. A"))
		synctest.Wait()
		assert.ElementsMatch(t, []string{"www.deep.other. A", "deep.other. DS", "deep.other. DNSKEY"}, u.asked())
		assert.Equal(t, "insecure", security(t, v, "www.plain. A"))
		synctest.Wait()
		assert.ElementsMatch(t, []string{"www.plain. A", "plain. DS", "plain. DNSKEY", "www.plain. DS"}, u.asked())
		for range 3 {
			assert.Equal(t, "insecure", security(t, v, "no.plain. A")[:8])
		}
		synctest.Wait()
		assert.Len(t, u.asked(), 3)
		s := v.Stats()
		assert.Equal(t, int64(6), s.Questions)
		assert.Equal(t, int64(2), s.Secure)
		assert.Equal(t, int64(4), s.Insecure)
		assert.Positive(t, s.Verifications)
		assert.Positive(t, s.Zones)
		assert.Positive(t, s.Bytes)
	})
}

// Many who ask at once share what is asked for keys.
func TestValidatorSharesKeysOfConcurrentQuestions(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		var wait sync.WaitGroup
		start := time.Now()
		for i := range 60 {
			wait.Go(func() {
				question := []string{"www.example. A", "x.w.other. TXT", "www.plain. A", "no.example. A", "www.expired. A", "far.example. A"}[i%6]
				want := []string{"secure", "secure", "insecure", "secure NXDOMAIN", "bogus 7", "secure"}[i%6]
				assert.Equal(t, want, security(t, v, question), question)
				if want != "bogus 7" { // which is asked for again
					assert.Equal(t, 2*rtt, time.Since(start), question)
				}
			})
		}
		wait.Wait()
		assert.LessOrEqual(t, time.Since(start), 5*rtt, "keys, an insecure zone that there is not, and the answer without CD")
		synctest.Wait()
		keys := 0
		for _, q := range u.asked() {
			if strings.HasSuffix(q, "DNSKEY") {
				keys++
			}
		}
		assert.LessOrEqual(t, keys, 6, "of ., example., other., plain., expired., d.other.")
	})
}

func TestValidatorEndsQuestionWithContext(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.set(func(q, r *dns.Msg) *dns.Msg {
			if q.Question[0].Qtype == dns.TypeDNSKEY {
				time.Sleep(time.Minute)
			}
			return r
		})
		m := new(dns.Msg).SetQuestion("www.example.", dns.TypeA)
		m.SetEdns0(1232, true)
		start := time.Now()
		ctx, stop := context.WithCancel(context.Background())
		time.AfterFunc(2*rtt, stop)
		_, _, err := v.ExchangeContext(ctx, m, "")
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 2*rtt, time.Since(start))

		start = time.Now()
		ctx, stop = context.WithTimeout(context.Background(), time.Second)
		defer stop()
		r, _, err := v.ExchangeContext(ctx, m, "")
		require.NoError(t, err)
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		assert.Equal(t, 900*time.Millisecond, time.Since(start), "a caller with a deadline has an answer before it")

		closed := make(chan error)
		go func() {
			_, _, err := v.ExchangeContext(context.Background(), m, "")
			closed <- err
		}()
		time.Sleep(2 * rtt)
		go v.Close()
		assert.ErrorContains(t, <-closed, "closed")
		_, _, err = v.ExchangeContext(context.Background(), m, "")
		assert.ErrorContains(t, err, "closed")
	})
}
