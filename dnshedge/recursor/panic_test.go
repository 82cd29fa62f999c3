package recursor_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// A dialer is a Dialer that calls the function.
type dialer func() (net.Conn, error)

func (d dialer) DialContext(context.Context, string, string) (net.Conn, error) { return d() }

func TestResolverRecoversPanicOfDialerAndTrace(t *testing.T) {
	for name, dial := range map[string]dialer{
		"panic":   func() (net.Conn, error) { panic("in a Dialer") },
		"nothing": func() (net.Conn, error) { return nil, nil },
		"exit": func() (net.Conn, error) {
			runtime.Goexit()
			return nil, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := &recursor.Resolver{
				Hints: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Dialer: dial, Logger: slog.New(slog.DiscardHandler),
				Trace: &recursor.Trace{
					Attempt: func(context.Context, recursor.AttemptInfo) { panic("in Attempt") },
					Done:    func(context.Context, recursor.AttemptInfo, time.Duration, error) { panic("in Done") },
					Answer:  func(context.Context, recursor.AnswerInfo) { panic("in Answer") },
				},
			}
			m := new(dns.Msg)
			m.SetQuestion("x.example.", dns.TypeA)
			resp, took, err := r.ExchangeContext(t.Context(), m, "")
			assert.Zero(t, took, name)
			assert.True(t, err != nil || resp.Rcode == dns.RcodeServerFailure, name)
			require.NoError(t, r.Close())
		})
	}
}

func TestResolverFailsAfterPanicInSetup(t *testing.T) {
	r := &recursor.Resolver{Dialer: dialer(func() (net.Conn, error) { return nil, net.ErrClosed })}
	recursor.PanicInSetup(r)
	m := new(dns.Msg)
	m.SetQuestion("x.example.", dns.TypeA)
	for range 2 {
		_, _, err := r.ExchangeContext(t.Context(), m, "")
		require.ErrorContains(t, err, "panicked")
	}
	assert.ErrorContains(t, r.Validate(), "panicked")
	assert.NoError(t, r.Close())
}
