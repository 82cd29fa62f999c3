// Package routers has a hedge.Limiter and hedge.Middleware around the routers of other libraries.
package routers

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/labstack/echo/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// search is the work of a handler. Its context is that of the request.
type search func(context.Context)

func chiRouter(search search, use ...func(http.Handler) http.Handler) http.Handler {
	router := chi.NewRouter()
	router.Use(use...)
	router.Get("/search", func(_ http.ResponseWriter, r *http.Request) { search(r.Context()) })
	return router
}

func echoRouter(search search, use ...func(http.Handler) http.Handler) http.Handler {
	router := echo.New()
	for _, middleware := range use {
		router.Use(echo.WrapMiddleware(middleware))
	}
	router.GET("/search", func(c *echo.Context) error {
		search(c.Request().Context())
		return nil
	})
	return router
}

func ginRouter(search search, _ ...func(http.Handler) http.Handler) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.GET("/search", func(c *gin.Context) { search(c.Request.Context()) })
	return router
}

// server returns a server of a router, with a Limiter.
func server(router http.Handler, limit *hedge.Limiter) *http.Server {
	mark := hedge.Middleware(hedge.AttemptHeader)
	server := &http.Server{Handler: limit.Handler(mark(router))}
	return server
}

// handlers returns the handler of each router: with the Limiter and the Middleware around the router, and in it.
func handlers(limit *hedge.Limiter, search search) map[string]http.Handler {
	use := []func(http.Handler) http.Handler{limit.Handler, hedge.Middleware(hedge.AttemptHeader)}
	return map[string]http.Handler{
		"chi":      server(chiRouter(search), limit).Handler,
		"chi Use":  chiRouter(search, use...),
		"echo":     server(echoRouter(search), limit).Handler,
		"echo Use": echoRouter(search, use...),
		"gin":      server(ginRouter(search), limit).Handler,
	}
}

// names are the keys of the map that handlers returns.
var names = []string{"chi", "chi Use", "echo", "echo Use", "gin"}

// TestRoutersHandleOneRequestAtATime has two requests that wait for a third one. The caller of one goes, and its handler never runs.
func TestRoutersHandleOneRequestAtATime(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limit := hedge.NewLimiter(1)
				handled := 0
				handler := handlers(limit, func(context.Context) {
					handled++
					time.Sleep(time.Second)
				})[name]
				ctx, leave := context.WithCancel(t.Context())
				for _, ctx := range []context.Context{t.Context(), ctx, t.Context()} {
					go handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/search", nil))
					synctest.Wait()
				}
				s := limit.Snapshot()
				assert.EqualValues(t, 1, s.Working)
				assert.EqualValues(t, 2, s.Waiting)
				leave()
				time.Sleep(3 * time.Second)
				assert.Equal(t, 2, handled)
				assert.EqualValues(t, 1, limit.Snapshot().Left)
			})
		})
	}
}

// delayed is a transport that answers after a second.
type delayed struct{ requests atomic.Int64 }

func (d *delayed) RoundTrip(req *http.Request) (*http.Response, error) {
	d.requests.Add(1)
	select {
	case <-time.After(time.Second):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Request: req, Body: io.NopCloser(strings.NewReader(""))}, nil
}

// get makes a call that is hedged after 10 ms.
func get(ctx context.Context, client *http.Client) {
	req, _ := http.NewRequestWithContext(hedge.WithDelay(ctx, 10*time.Millisecond), http.MethodGet, "http://shop.test/", nil)
	if resp, err := client.Do(req); err == nil {
		resp.Body.Close()
	}
}

// TestRoutersDoNotHedgeWorkOfHedges sends a request that is a hedge, and one that is none, to a handler that makes a call.
func TestRoutersDoNotHedgeWorkOfHedges(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var base delayed
				client := &http.Client{Transport: hedge.New(&base, hedge.WithMaxHedges(1))}
				handler := handlers(hedge.NewLimiter(1), func(ctx context.Context) { get(ctx, client) })[name]
				for mark, want := range map[string]int64{"": 2, "1": 1} {
					base.requests.Store(0)
					r := httptest.NewRequest(http.MethodGet, "/search", nil)
					if mark != "" {
						r.Header.Set(hedge.AttemptHeader, mark)
					}
					handler.ServeHTTP(httptest.NewRecorder(), r)
					assert.Equal(t, want, base.requests.Load(), "requests of a handler, for %q", mark)
				}
			})
		})
	}
}

// TestGinContextHasNoMark: a *gin.Context, used as a context, does not have the values of its request's context.
func TestGinContextHasNoMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var base delayed
		client := &http.Client{Transport: hedge.New(&base, hedge.WithMaxHedges(1))}
		gin.SetMode(gin.ReleaseMode)
		router := gin.New()
		router.GET("/search", func(c *gin.Context) { get(c, client) })
		r := httptest.NewRequest(http.MethodGet, "/search", nil)
		r.Header.Set(hedge.AttemptHeader, "1")
		server(router, hedge.NewLimiter(1)).Handler.ServeHTTP(httptest.NewRecorder(), r)
		assert.EqualValues(t, 2, base.requests.Load())
	})
}

// TestFiberBehindNetHTTP: within a server of net/http, a request has a slot while its handler runs. Handlers read the mark themselves.
func TestFiberBehindNetHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var base delayed
		client := &http.Client{Transport: hedge.New(&base, hedge.WithMaxHedges(1))}
		limit := hedge.NewLimiter(1)
		var working int64
		app := fiber.New()
		app.Get("/search", func(c fiber.Ctx) error {
			working = limit.Snapshot().Working
			ctx := c.Context()
			if c.Get(hedge.AttemptHeader) != "" {
				ctx = hedge.WithoutHedging(ctx)
			}
			get(ctx, client)
			return nil
		})

		server := &http.Server{Handler: limit.Handler(adaptor.FiberApp(app))}

		for mark, want := range map[string]int64{"": 2, "1": 1} {
			base.requests.Store(0)
			r := httptest.NewRequest(http.MethodGet, "/search", nil)
			if mark != "" {
				r.Header.Set(hedge.AttemptHeader, mark)
			}
			server.Handler.ServeHTTP(httptest.NewRecorder(), r)
			assert.Equal(t, want, base.requests.Load(), "requests of a handler, for %q", mark)
			assert.EqualValues(t, 1, working)
		}
	})
}

// TestFiberMiddlewareHoldsNoSlot: within an app, the adaptor leaves the Limiter before the handler runs.
func TestFiberMiddlewareHoldsNoSlot(t *testing.T) {
	limit := hedge.NewLimiter(1)
	working := int64(-1)
	app := fiber.New()
	app.Use(adaptor.HTTPMiddleware(limit.Handler))
	app.Get("/search", func(fiber.Ctx) error {
		working = limit.Snapshot().Working
		return nil
	})
	resp, err := app.Test(httptest.NewRequest(http.MethodGet, "/search", nil))
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.EqualValues(t, 1, limit.Snapshot().Worked)
	assert.Zero(t, working)
}
