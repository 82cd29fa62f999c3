package limiter_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge"
)

func TestUnlimitedRequestUsesNoSlotAndIsNotCounted(t *testing.T) {
	for _, c := range []struct {
		pattern, request string
		grpc             bool // it says that it is one
		passes           bool
	}{
		{pattern: "/healthz", request: "GET /healthz", passes: true},
		{pattern: "/healthz", request: "POST /healthz", passes: true},
		{pattern: "/healthz", request: "GET /healthz/"},
		{pattern: "/healthz", request: "GET //healthz"},
		{pattern: "/healthz", request: "GET /x/../healthz"},
		{pattern: "/healthz", request: "GET /other"},
		{pattern: "GET /healthz", request: "POST /healthz"},
		{pattern: "GET /healthz", request: "HEAD /healthz", passes: true},
		{pattern: "/debug/", request: "GET /debug/pprof/heap", passes: true},
		{pattern: "/debug/", request: "GET /debug"},
		{pattern: "/debug/", request: "CONNECT /debug"},
		{pattern: "/{x}/", request: "CONNECT /x"},
		{pattern: "/{x}/", request: "CONNECT /x/y", passes: true},
		{pattern: "/{x}/", request: "CONNECT shop.test:80"},
		{pattern: "/items/{id}/events", request: "GET /items/7/events", passes: true},
		{pattern: "admin.test/{$}", request: "GET http://ADMIN.test:8080/", passes: true},
		{pattern: "admin.test/{$}", request: "GET http://shop.test/"},
		{pattern: "/", request: "GET /any/thing", passes: true},
		{pattern: "/", request: "POST /a.B/C", grpc: true, passes: true},
		{pattern: "/a.B/", request: "POST /a.B/C", grpc: true, passes: true},
		{pattern: "/a.B/C", request: "POST /a.B/C", grpc: true, passes: true},
		{pattern: "/a.B/C", request: "GET /a.B/C", passes: true},
		{pattern: "POST /a.B/C", request: "GET /a.B/C", grpc: true},
		{pattern: "/a.B/*", request: "POST /a.B/C", grpc: true, passes: true},
		{pattern: "/a.B/*", request: "POST /a.B/C"},
		{pattern: "/a.B/*", request: "POST /a.Bc/C", grpc: true},
		{pattern: "/*", request: "POST /a.B/C", grpc: true, passes: true},
		{pattern: "/*", request: "POST /a.B/C"},
		{pattern: "/*", request: "GET /a.B/C", grpc: true},
		{pattern: "/a.B/*", request: "POST /a.B/%43", grpc: true},
		{pattern: "/*", request: "POST /a.B/../search", grpc: true},
		{pattern: "/*", request: "POST //a.B/C", grpc: true},
		{pattern: "/*", request: "POST /a.B/", grpc: true},
		{pattern: "/healthz", request: "OPTIONS *"},
		{pattern: "/healthz", request: "get /healthz/../healthz"},
		{pattern: "GET /healthz", request: "get /healthz"},
		{pattern: "/debug/", request: "GET /debug/%2e%2e/search"},
		{pattern: "/debug/", request: "GET /debug/./../search"},
		{pattern: "/debug/", request: "GET /debug/x%2f..%2f..%2fsearch"},
		{pattern: "/never/", request: "POST /grpc.health.v1.Health/Check", grpc: true, passes: true},
		{pattern: "/never/", request: "POST /grpc.reflection.v1.ServerReflection/ServerReflectionInfo", grpc: true, passes: true},
		{pattern: "/never/", request: "POST /grpc.health.v1.Health/Check"},
		{pattern: "/never/", request: "GET /grpc.health.v1.Health/Check", grpc: true},
		{pattern: "/never/", request: "post /grpc.health.v1.Health/Check", grpc: true},
		{pattern: "/never/", request: "POST /grpc.health.v1.Health/../search", grpc: true},
		{pattern: "/never/", request: "POST /grpc.health.v1.Health/Che%63k", grpc: true},
		{pattern: "/never/", request: "POST /grpc.health.v1.Health%2FCheck", grpc: true},
		{pattern: "/never/", request: "POST /grpc.health.v1.Health/Check/", grpc: true},
		{pattern: "/never/", request: "POST //grpc.health.v1.Health/Check", grpc: true},
		{pattern: "/never/", request: "POST /grpc.channelz.v1.Channelz/GetServers", grpc: true},
	} {
		name := c.pattern + " and " + c.request
		l := hedge.NewLimiter(1, hedge.WithUnlimited("/never"), hedge.WithUnlimited(c.pattern, "/{never}/{again}/too"))
		passed := false
		h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = l.Snapshot().Worked == 0 }))
		method, target, _ := strings.Cut(c.request, " ")
		r := httptest.NewRequest(method, target, nil)
		if c.grpc {
			r.ProtoMajor = 2
			r.Header.Set("Content-Type", "application/grpc+proto")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		assert.Equal(t, c.passes, passed, name)
		assert.Equal(t, c.passes, w.Header().Get("Hedge-Limit") == "", name)
	}
}

func TestUnlimitedRequestNeitherWaitsNorIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := new(desk), hedge.NewLimiter(1, hedge.WithUnlimited("GET /healthz"))
		h := l.Handler(d)
		for range 6 {
			visit(t.Context(), h, "work")
		}
		start := time.Now()
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/healthz", nil)
		r.Header.Set(hedge.AttemptHeader, "1")
		h.ServeHTTP(w, r)
		assert.Equal(t, 100*ms, time.Since(start), "the time that the handler takes")
		assert.Equal(t, 200, w.Code)
		time.Sleep(time.Minute)
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 6}, l.Snapshot())
	})
}

// TestUnlimitedRequestHoldsNoSlotOfOtherRequest begins an unlimited request within a request that holds a slot.
func TestUnlimitedRequestHoldsNoSlotOfOtherRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := hedge.NewLimiter(1, hedge.WithUnlimited("/events"))
		events := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(time.Hour) }))
		h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			go events.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(context.WithoutCancel(r.Context()), "GET", "/events", nil))
			time.Sleep(ms)
		}))
		for range 2 {
			start := time.Now()
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
			assert.Equal(t, ms, time.Since(start))
		}
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 2}, l.Snapshot())
		time.Sleep(2 * time.Hour)
	})
}

// TestUnlimitedPatternsDoNotConflict uses two patterns that conflict in a ServeMux. A request that matches either of them is unlimited.
func TestUnlimitedPatternsDoNotConflict(t *testing.T) {
	l := hedge.NewLimiter(1, hedge.WithUnlimited("/a/{x}", "/{x}/b", "/a/{x}", "GET /a/{x}", "/{x...}"), hedge.WithUnlimited("/a/{x}"))
	l.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/z/b", nil))
	assert.Zero(t, l.Snapshot().Worked)
}

func TestInvalidUnlimitedPatternPanics(t *testing.T) {
	const star = `a segment "*" is for gRPC methods, as in /pkg.Service/* and /*; a path may end with "/" or {rest...}`
	for pattern, why := range map[string]string{
		"":           "invalid pattern",
		"healthz":    "host/path missing /",
		"get /a":     `method "get" is not in upper case, and methods are case-sensitive`,
		"shop:80/a":  `host "shop:80" has a port, and a pattern is for all ports of a host`,
		"GET /a/*":   star,
		"/a/*/b":     star,
		"shop/a.B/*": star,
	} {
		func() {
			defer func() {
				said := fmt.Sprint(recover())
				assert.True(t, strings.HasPrefix(said, fmt.Sprintf("hedge: WithUnlimited(%q): ", pattern)), said)
				assert.Contains(t, said, why)
			}()
			hedge.WithUnlimited("/fine", pattern)
		}()
	}
	assert.NotPanics(t, func() { hedge.NewLimiter(1, hedge.WithUnlimited()) })
}
