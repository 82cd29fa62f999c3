package endpoints_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// nearIsEjected returns a Transport whose calls go to far, because near has failed six times in a row.
func nearIsEjected(t *testing.T, rt *doubles.RoundTripper, away func(*http.Request, int) (*http.Response, error), opts ...hedge.HTTPOption) *hedge.Transport {
	t.Helper()
	rt.Answer = inEndpoints(rt, fails, away)
	tr := hedge.New(rt, opts...)
	for range 6 {
		_, err := get(t, tr, site)
		require.Equal(t, errDown, err)
	}
	rt.Forget()
	return tr
}

// answers returns a function that answers at once with a status and a header.
func answers(rt *doubles.RoundTripper, status int, header http.Header) func(*http.Request, int) (*http.Response, error) {
	return func(r *http.Request, _ int) (*http.Response, error) {
		resp := rt.Response(r, status, "answer")
		resp.Header = header
		return resp, nil
	}
}

func TestEndpointsMapOnlyRedirects(t *testing.T) {
	for _, status := range []int{200, 202, 404} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				tr := nearIsEjected(t, rt, answers(rt, status, http.Header{"Location": {"https://jobs.test/7"}}), toFar(hedge.Endpoint{}))
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				text(t, resp)
				assert.Equal(t, "https://jobs.test/7", resp.Header.Get("Location"), "no client follows it by itself")
			})
		})
	}
}

func TestRedirectToUnknownHostIsFailure(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := nearIsEjected(t, rt, func(r *http.Request, _ int) (*http.Response, error) {
			return &http.Response{StatusCode: 302, Header: http.Header{"Location": {"https://evil.test/"}}, Request: r}, nil
		}, toFar(hedge.Endpoint{}))
		_, err := get(t, tr, site)
		assert.ErrorContains(t, err, "redirects to a host that is not among the endpoints")
	})
}

// TestMappedRedirectContainsNoSecret has an endpoint that signs the URLs to which it redirects.
func TestMappedRedirectContainsNoSecret(t *testing.T) {
	for _, location := range []string{far + "/b?sig=s3cret", far + "/b?X-Amz-Signature=s3cret", "b?token=s3cret", far + "/b;jsessionid=s3cret"} {
		t.Run(location, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				tr := nearIsEjected(t, rt, answers(rt, 307, http.Header{"Location": {location}}), toFar(hedge.Endpoint{}))
				rt.Answer = inEndpoints(rt, quick(rt), rt.Answer)
				client := &http.Client{Transport: tr}
				resp, err := client.Get(site)
				if err == nil {
					text(t, resp)
				}
				for _, sent := range rt.Sent() {
					if sent.URL.Host == "catalog.test" {
						assert.NotContains(t, sent.URL.String(), "s3cret")
					}
				}
				assert.Error(t, err)
			})
		})
	}
}

// TestPathParametersStayAtFirstEndpoint has URLs with a session in the path, such as ;jsessionid=1.
func TestPathParametersStayAtFirstEndpoint(t *testing.T) {
	for _, path := range []string{"/item;jsessionid=s3cret", "/item;JSESSIONID=s3cret/b", "/item%3bjsessionid=s3cret", "/item;x=1;sid=s3cret"} {
		t.Run(path, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = after(rt, time.Second, 80*ms)
				tr := warm(t, rt, toFar(hedge.Endpoint{Prepare: func(*http.Request) error { return nil }}), hedge.WithMaxHedges(1))
				resp, err := get(t, tr, near+path)
				require.NoError(t, err)
				text(t, resp)
				assert.Equal(t, map[string]int{"catalog.test": 2}, hosts(rt.Sent()))
			})
		})
	}
}

// TestSignedRequestStaysAtFirstEndpoint has endpoints on one host. A signature covers the path, so it is not valid at
// another endpoint.
func TestSignedRequestStaysAtFirstEndpoint(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = after(rt, time.Second, 80*ms)
			copyOf, want := hedge.Endpoint{URL: near + "/v2"}, "/v1/item"
			if prepared {
				copyOf.Prepare, want = func(*http.Request) error { return nil }, "/v2/item"
			}
			tr := warm(t, rt, hedge.WithEndpoints(hedge.Endpoint{URL: near + "/v1"}, copyOf), hedge.WithMaxHedges(1))
			req := request(t, t.Context(), "GET", near+"/v1/item", nil)
			req.Header["authorization"] = []string{"aws4-hmac-sha256 Credential=…"}
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			text(t, resp)
			require.Len(t, rt.Sent(), 2)
			assert.Equal(t, want, rt.Sent()[1].URL.Path)
		})
	}
}

func TestEndpointsHedgeHasAttemptHeader(t *testing.T) {
	for _, prepare := range []func(*http.Request) error{nil, func(*http.Request) error { return nil }} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = after(rt, time.Second, 80*ms)
			tr := warm(t, rt, toFar(hedge.Endpoint{Prepare: prepare}), hedge.WithMaxHedges(1), hedge.WithAttemptHeader("X-Shop-Attempt"))
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			text(t, resp)
			require.Equal(t, "catalog.far.test", rt.Sent()[1].URL.Host)
			assert.Equal(t, []string{"1"}, rt.Sent()[1].Header["X-Shop-Attempt"])
		})
	}
}

// TestPathWithoutLeadingSlashStaysBelowBasePath has request paths that would leave the base path if they were appended
// without a slash.
func TestPathWithoutLeadingSlashStaysBelowBasePath(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second, 80*ms)
		tr := warm(t, rt, toFar(hedge.Endpoint{}), hedge.WithMaxHedges(1))
		req := request(t, t.Context(), "GET", site, nil)
		req.URL = &url.URL{Scheme: "http", Host: "catalog.test", Path: "s/private"}
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		text(t, resp)
		assert.Equal(t, map[string]int{"catalog.test": 2}, hosts(rt.Sent()))
	})
}

func TestPrepareDoesNotChangeCallersForms(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := nearIsEjected(t, rt, quick(rt), toFar(hedge.Endpoint{Prepare: func(r *http.Request) error {
			r.Form.Set("a", "of far")
			return nil
		}}))
		req := request(t, t.Context(), "GET", site, nil)
		req.Form = url.Values{"a": {"mine"}}
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		text(t, resp)
		assert.Equal(t, "mine", req.Form.Get("a"))
	})
}

// A closeCounter is a body that counts calls of Close.
type closeCounter struct {
	io.Reader
	closed atomic.Int64
}

func (c *closeCounter) Close() error { c.closed.Add(1); return nil }

func TestBodySetByFailingPrepareIsClosed(t *testing.T) {
	for name, end := range map[string]func(*http.Request) error{
		"error": func(*http.Request) error { return errors.New("no key") },
		"URL":   func(r *http.Request) error { r.URL = nil; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				set := &closeCounter{Reader: strings.NewReader("frage")}
				tr := nearIsEjected(t, rt, quick(rt), toFar(hedge.Endpoint{Prepare: func(r *http.Request) error {
					r.Body, r.ContentLength = set, 5
					return end(r)
				}}))
				_, err := tr.RoundTrip(request(t, t.Context(), "QUERY", site, strings.NewReader("question")))
				require.Error(t, err)
				assert.EqualValues(t, 1, set.closed.Load())
			})
		})
	}
}

// TestEndpointWhosePreparePanicsIsEjected expects that near is restored without probes, because no other endpoint can
// answer.
func TestEndpointWhosePreparePanicsIsEjected(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var nearby atomic.Bool
		rt.Answer = inEndpoints(rt, func(r *http.Request, n int) (*http.Response, error) {
			if nearby.Load() {
				return quick(rt)(r, n)
			}
			return fails(r, n)
		}, quick(rt))
		tr := hedge.New(rt, toFar(hedge.Endpoint{Prepare: func(*http.Request) error { panic("no key") }}))
		for range 6 {
			_, _ = get(t, tr, site)
		}
		nearby.Store(true)
		panicked := 0
		for range 50 {
			func() {
				defer func() {
					if recover() != nil {
						panicked++
					}
				}()
				if resp, err := get(t, tr, site); err == nil {
					text(t, resp)
				}
			}()
		}
		assert.LessOrEqual(t, panicked, 6)
	})
}

func TestPanicOfPrepareInHedgeDoesNotEndCall(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second)
		tr := warm(t, rt, toFar(hedge.Endpoint{Prepare: func(*http.Request) error { panic("no key") }}), hedge.WithMaxHedges(1))
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
	})
}

func TestBudgetIsNotOverspentOnExpensiveEndpoints(t *testing.T) {
	for _, cost := range []int{1, 3, 7} {
		for name, nearby := range map[string]func(*doubles.RoundTripper) func(*http.Request, int) (*http.Response, error){
			"down": func(*doubles.RoundTripper) func(*http.Request, int) (*http.Response, error) { return fails },
			"slow": func(rt *doubles.RoundTripper) func(*http.Request, int) (*http.Response, error) {
				return after(rt, time.Second)
			},
			"well": quick,
			"flapping": func(rt *doubles.RoundTripper) func(*http.Request, int) (*http.Response, error) {
				var n atomic.Int64
				return func(r *http.Request, k int) (*http.Response, error) {
					if n.Add(1)/40%2 == 0 {
						return fails(r, k)
					}
					return quick(rt)(r, k)
				}
			},
		} {
			t.Run(fmt.Sprint(name, cost), func(t *testing.T) {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					rt.Answer = inEndpoints(rt, nearby(rt), after(rt, 40*ms))
					var spent atomic.Int64
					tr := hedge.New(rt, hedge.WithEndpoints(hedge.Endpoint{URL: near}, hedge.Endpoint{URL: far, Cost: cost}), hedge.WithBudgetPercent(10), hedge.WithBurst(0))
					script := rt.Answer
					rt.Answer = func(r *http.Request, k int) (*http.Response, error) {
						if a, ok := hedge.AttemptFromContext(r.Context()); ok && a.Number > 0 {
							if r.URL.Host == "catalog.test" {
								spent.Add(1)
							} else {
								spent.Add(int64(cost))
							}
						}
						return script(r, k)
					}
					const calls = 3000
					for range calls {
						if resp, err := get(t, tr, site); err == nil {
							text(t, resp)
						}
					}
					// Two keys, each with a bucket that holds twice the largest cost, or its least.
					assert.LessOrEqual(t, float64(spent.Load()), 0.1*calls+2*max(20, 2*float64(cost)))
				})
			})
		}
	}
}

func TestConcurrentCallsToEndpoints(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var n atomic.Int64
		rt.Answer = inEndpoints(rt, func(r *http.Request, k int) (*http.Response, error) {
			switch i := n.Add(1); {
			case i%7 == 0:
				return fails(r, k)
			case i%5 == 0:
				return after(rt, 300*ms)(r, k)
			}
			return quick(rt)(r, k)
		}, after(rt, 30*ms))
		shared := http.Header{"X-Of-Far": {"1"}}
		tr := hedge.New(rt, toFar(hedge.Endpoint{Cost: 2, Prepare: func(r *http.Request) error {
			for name, v := range shared {
				r.Header[name] = v
			}
			if r.Body != nil {
				b, err := io.ReadAll(r.Body)
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
				return err
			}
			return nil
		}}), hedge.WithHedgeable(func(*http.Request) bool { return true }))
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for j := range 200 {
					ctx, cancel := context.WithTimeout(t.Context(), 200*ms)
					var body io.Reader
					if j%2 == 0 {
						body = strings.NewReader("question")
					}
					req := request(t, ctx, "POST", site, body)
					req.Header.Set("Authorization", "of near")
					resp, err := tr.RoundTrip(req)
					if err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
					req.Header.Set("X-Reused", "1")
					cancel()
					if i == 0 && j%50 == 0 {
						assert.NoError(t, tr.Update(func(c *hedge.Config) { c.MaxHedges = j / 50 }))
					}
				}
			})
		}
		wg.Wait()
	})
}
