package httpattempt_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/race"
)

// A speaking is a TLS connection with a negotiated protocol.
type speaking struct {
	net.Conn
	protocol string
}

func (c speaking) ConnectionState() tls.ConnectionState {
	return tls.ConnectionState{NegotiatedProtocol: c.protocol}
}

// TestCallerHooksMuteWaitsForRunningHook has a hook that sleeps. Hooks run without a lock, so that later hooks do not
// wait.
func TestCallerHooksMuteWaitsForRunningHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const works = 50 * time.Millisecond
		calls := 0
		own := httpattempt.CallerHooksFrom(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GetConn:          func(string) { calls++; time.Sleep(works); calls++ },
			ConnectStart:     func(string, string) { calls++ },
			WroteHeaderField: func(string, []string) { panic("hook") },
		}))
		trace := httptrace.ContextClientTrace(new(httpattempt.ConnTrace).Context(race.NewAttempt(t.Context(), 0), false, false, own, nil))
		assert.Panics(t, func() { trace.WroteHeaderField("a", nil) })
		start := time.Now()
		go trace.GetConn("host:80")
		synctest.Wait()
		go func() {
			synctest.Wait()
			trace.ConnectStart("tcp", "host:80")
			assert.Zero(t, time.Since(start))
		}()
		own.Disable()
		assert.Equal(t, works, time.Since(start))
		assert.Equal(t, 2, calls, "of the hook that ran, and of none that came later")
		trace.GetConn("host:80")
		assert.Equal(t, 2, calls)
	})
}

func TestCallerHooksMuteDoesNotWaitForBlockedHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := httpattempt.CallerHooksFrom(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GetConn: func(string) { time.Sleep(time.Second) }}))
		go httptrace.ContextClientTrace(own.Context(race.NewAttempt(t.Context(), 0))).GetConn("host:80")
		synctest.Wait()
		start := time.Now()
		own.Disable()
		assert.Equal(t, 100*time.Millisecond, time.Since(start))
		time.Sleep(time.Second)
	})
}

// TestConnTraceWaitsOnlyIfCancellationHarms has cancelled attempts that get a connection of an earlier request.
func TestConnTraceWaitsOnlyIfCancellationHarms(t *testing.T) {
	const idle, settled = 30 * time.Millisecond, 70 * time.Millisecond
	for name, c := range map[string]struct {
		conn    net.Conn
		guarded bool
		want    time.Duration
	}{
		"HTTP/1.1":                               {nil, true, settled},
		"HTTP/1.1 over TLS":                      {speaking{}, true, settled},
		"HTTP/1.1 by ALPN":                       {speaking{protocol: "http/1.1"}, true, settled},
		"HTTP/2, which is not known of the host": {speaking{protocol: "h2"}, true, 0},
		"HTTP/2, which is known":                 {nil, false, 0},
		"HTTP/2 over TLS, which is known":        {speaking{protocol: "h2"}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over, cancel := context.WithCancel(t.Context())
				cancel()
				ctx := new(httpattempt.ConnTrace).Context(race.NewAttempt(over, 0), false, c.guarded, nil, nil)
				start, trace := time.Now(), httptrace.ContextClientTrace(ctx)
				trace.GetConn("host:443")
				trace.GotConn(httptrace.GotConnInfo{Conn: c.conn, Reused: true, WasIdle: true, IdleTime: idle})
				assert.Equal(t, c.want, time.Since(start))
			})
		})
	}
}
