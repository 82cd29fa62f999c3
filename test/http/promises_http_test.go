package http_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// The rules for HTTP alone, each as a property.

// spellings returns how HTTP lets s be written.
func spellings(s string) []string {
	var mixed strings.Builder
	for i, c := range strings.ToLower(s) {
		if i%2 > 0 {
			mixed.WriteString(strings.ToUpper(string(c)))
		} else {
			mixed.WriteRune(c)
		}
	}
	return []string{s, strings.ToLower(s), strings.ToUpper(s), mixed.String()}
}

func TestR4UnknownRequestsAreSentOnce(t *testing.T) {
	type change func(*http.Request)
	header := func(name, value string) (all []change) {
		for _, name := range spellings(name) {
			for _, value := range spellings(value) {
				all = append(all, func(r *http.Request) { r.Header[name] = []string{value} })
			}
		}
		return all
	}
	query := func(query string) (all []change) {
		for _, query := range spellings(query) {
			all = append(all, func(r *http.Request) { r.URL.RawQuery = query })
		}
		return all
	}
	body := func(length int64, encoding ...string) []change {
		return []change{func(r *http.Request) {
			r.Method, r.Body, r.ContentLength, r.TransferEncoding = "QUERY", io.NopCloser(strings.NewReader("body")), length, encoding
		}}
	}
	for name, c := range map[string]struct {
		divisible bool
		changes   []change
	}{
		"nothing":                     {true, []change{func(*http.Request) {}}},
		"a known length":              {true, body(4)},
		"an unknown length":           {false, body(-1)},
		"a length of 0":               {false, body(0)},
		"chunks":                      {false, body(4, "chunked")},
		"no body and chunks":          {false, []change{func(r *http.Request) { r.TransferEncoding = []string{"chunked"} }}},
		"too long":                    {false, body(64<<10 + 1)},
		"trailers":                    {false, []change{func(r *http.Request) { r.Trailer = http.Header{} }}},
		"CONNECT":                     {false, []change{func(r *http.Request) { r.Method = "CONNECT" }}},
		"Expect":                      {false, header("Expect", "100-continue")},
		"another Expect":              {false, header("Expect", "anything")},
		"Upgrade":                     {false, header("Upgrade", "websocket")},
		"Connection: upgrade":         {false, header("Connection", "keep-alive, Upgrade")},
		"Connection: another header":  {false, header("Connection", "X-Session")},
		"Connection: close":           {true, header("Connection", "close")},
		"Connection: keep-alive":      {true, header("Connection", "Keep-Alive , close")},
		"NTLM":                        {false, header("Authorization", "NTLM TlRMTVNTUAAB")},
		"Negotiate":                   {false, header("Authorization", " Negotiate YII=")},
		"NTLM of a proxy":             {false, header("Proxy-Authorization", "NTLM")},
		"Digest":                      {false, header("Authorization", `Digest username="u", nonce="n", nc=00000001, cnonce="c"`)},
		"OAuth 1.0":                   {false, header("Authorization", `OAuth oauth_nonce="n"`)},
		"OAuth 1.0 in the URL":        {false, query("a=b&oauth_nonce=n&oauth_signature=s")},
		"a nonce of one's own scheme": {false, header("Authorization", `Hawk id="i", ts="1", nonce="n", mac="m"`)},
		"a nonce in a header":         {false, header("X-Acs-Signature-Nonce", "n")},
		"a nonce in a signature":      {false, header("Signature-Input", `sig=("@method");nonce="n"`)},
		"a nonce in the URL":          {false, query("Action=Describe&SignatureNonce=n")},
		"a nonce in its value":        {true, query("q=nonce")},
		"DPoP":                        {false, header("DPoP", "proof")},
		"a token that is spent":       {false, header("Authorization", "PrivateToken token=x")},
		"a scheme of one's own":       {true, header("Authorization", "Tenant secret")},
		"Bearer":                      {true, header("Authorization", "Bearer negotiate")},
		"Basic":                       {true, header("Proxy-Authorization", "Basic bnRsbTpudGxt")},
		"event stream":                {false, header("Accept", "text/event-stream")},
		"event stream, among others":  {false, header("Accept", "application/json;q=0.5,text/event-stream;charset=utf-8")},
		"another type":                {true, header("Accept", "text/html")},
		"a hedge":                     {false, header("Hedge-Attempt", "1")},
		"a hedge, by the user's name": {false, header("X-Try", "2")},
		"a primary":                   {true, header("X-Try", "0")},
	} {
		t.Run(name, func(t *testing.T) {
			for _, change := range c.changes {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					rt.Answer = after(rt, time.Second, 5*ms)
					tr := warm(t, rt, hedge.WithMaxHedges(1), hedge.WithAttemptHeader("x-try"))
					req := request(t, hedge.AllowHedging(t.Context()), "GET", site, nil)
					change(req)
					resp, err := tr.RoundTrip(req)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					assert.Equal(t, c.divisible, len(rt.Sent()) == 2, "%v", req.Header)
				})
			}
		})
	}
}

// vandal modifies its request in ways that are forbidden for a RoundTripper, but occur in practice.
func vandal(req *http.Request) {
	req.Method, req.Host = "DELETE", "vandal.test"
	req.URL.Path, req.URL.Host = "/vandal", "vandal.test"
	for _, values := range []map[string][]string{req.Header, req.Form} {
		for name, v := range values {
			v[0], values[name+"-Vandal"] = "vandal", []string{"vandal"}
		}
	}
}

// A call is over once RoundTrip has failed or the response's body is closed. Until then its request is
// not written to; after that, neither the request nor its context is used. The race detector
// and the doubles see whoever does so.
func TestR8TransportDoesNotModifyDataOfCaller(t *testing.T) {
	const never = time.Hour
	for name, c := range map[string]struct {
		takes []time.Duration // the attempts, whatever their contexts say
		fail  bool            // all of them
		gone  time.Duration   // when the caller gives up; 0: it does not
	}{
		"the primary wins":    {[]time.Duration{30 * ms, 500 * ms, 700 * ms}, false, 0},
		"a hedge wins":        {[]time.Duration{500 * ms, 5 * ms, 700 * ms}, false, 0},
		"alone":               {[]time.Duration{usual / 2}, false, 0},
		"all fail":            {[]time.Duration{20 * ms, 25 * ms, 700 * ms}, true, 0},
		"the caller gives up": {[]time.Duration{40 * ms, 500 * ms, 700 * ms}, true, 35 * ms},
	} {
		for _, version := range []int{1, 2} {
			t.Run(fmt.Sprintf("HTTP/%d, %s", version, name), func(t *testing.T) {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					tr := speaking(t, version, rt, hedge.WithObserver(&recorder{}))
					var under sync.WaitGroup
					rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
						under.Add(1)
						defer under.Done()
						a, _ := hedge.AttemptFromContext(req.Context())
						assert.Equal(t, "tenant", req.Context().Value(tenantKey{}))
						time.Sleep(c.takes[min(a.Number, len(c.takes)-1)])
						assert.Equal(t, "GET catalog.test/item own own", fmt.Sprint(req.Method, " ", req.Host, req.URL.Path, " ", req.Header.Get("X"), " ", req.Form.Get("x")))
						assert.Equal(t, "tenant", req.Context().Value(tenantKey{}))
						_, _ = req.Context().Deadline()
						resp := rt.Response(req, 200, "answer")
						resp.ProtoMajor, resp.Request = version, req
						vandal(req)
						if c.fail {
							resp.Body.Close()
							return nil, errDown
						}
						return resp, nil
					}
					parent, cancel := context.WithTimeout(t.Context(), never)
					defer cancel()
					ctx := &borrowed{Context: parent}
					assert.Equal(t, "tenant", ctx.Value(tenantKey{}))
					req := request(t, ctx, "GET", site, nil)
					req.Header.Set("X", "own")
					req.Form = url.Values{"x": {"own"}}
					said := func() string { return fmt.Sprint(req.Method, req.URL, req.Host, req.Header, req.Form) }
					before := said()
					if c.gone > 0 {
						time.AfterFunc(c.gone, cancel)
					}
					resp, err := tr.RoundTrip(req)
					assert.Equal(t, c.fail, err != nil)
					assert.Equal(t, before, said())
					if err == nil {
						assert.Same(t, req, resp.Request)
						time.Sleep(time.Second) // losers linger, or end
						assert.Equal(t, "answer", text(t, resp), "what is returned is not closed, nor cancelled")
					}
					ctx.over.Store(true)
					vandal(req)
					req.Header, req.URL, req.Form = nil, nil, nil
					time.Sleep(time.Minute)
					under.Wait()
					assert.False(t, ctx.late.Load())
					if resp != nil {
						<-resp.Request.Context().Done()
					}
				})
			})
		}
	}
}
