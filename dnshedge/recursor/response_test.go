package recursor_test

import (
	"context"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

func TestAQuestionFailsBeforeItsCallerGivesUp(t *testing.T) {
	bubble(t, ". served 198.41.0.4\n", func(t *testing.T, w *world) {
		w.fault("198.41.0.4", silent)
		r := w.resolver()
		start := time.Now()
		m := w.ask(r, "www.example. A")
		assert.Equal(t, "SERVFAIL", told(m))
		assert.LessOrEqual(t, time.Since(start), 4500*ms)
		code, _ := extended(m)
		assert.Equal(t, dns.ExtendedErrorCodeNoReachableAuthority, code)

		time.Sleep(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		m, err := w.try(ctx, r, "www.example. A")
		require.NoError(t, err)
		assert.Equal(t, "SERVFAIL", told(m))
		assert.Equal(t, 900*ms, time.Since(start))

		time.Sleep(time.Hour)
		c := &dnshedge.Client{Exchanger: r, Cache: new(dnshedge.Cache)}
		defer c.Close()
		m, _, err = c.ExchangeContext(t.Context(), parseQuestion("www.example. A"), "")
		require.NoError(t, err)
		assert.Equal(t, "SERVFAIL", told(m))
		n := w.sent()
		time.Sleep(4 * time.Second)
		_, _, err = c.ExchangeContext(t.Context(), parseQuestion("www.example. A"), "")
		require.NoError(t, err)
		assert.Equal(t, n, w.sent(), "the failure is kept for 5 s")
	})
}

func TestARecordThatComesTwiceIsOnceInTheAnswer(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *world) {
		w.fault("192.0.2.1 192.0.2.2", when("www.example. A", says("www.example. A 192.0.2.80; www.example. A 192.0.2.81; WWW.example. A 192.0.2.80")))
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80, www.example. A 192.0.2.81", told(w.ask(w.resolver(), "www.example. A")))
	})
}
