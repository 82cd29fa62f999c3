package http_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/steering"
)

// stallAfter is how long a Read of these tests waits before the rest is asked for: bodies that never
// pause teach the least.
const stallAfter = 50 * ms

// object is 100 kB that no other offset looks like.
var object = func() []byte {
	var b bytes.Buffer
	for b.Len() < 100_000 {
		_, _ = fmt.Fprintf(&b, "%d\n", b.Len())
	}
	return b.Bytes()[:100_000]
}()

// A gap is how long a body waits before the next bytes.
type gap struct {
	at    int // bytes given before
	lasts time.Duration
	err   error // instead of more bytes; nil: it goes on
}

// forever is longer than any test.
const forever = time.Hour

// pausing is a body that pauses. Its Read returns, as that of net/http does, when it is closed
// and when its context ends.
type pausing struct {
	ctx    context.Context
	data   []byte
	given  int
	chunk  int // bytes per Read at most
	gaps   []gap
	once   sync.Once
	closed chan struct{}
	inner  io.Closer
	err    error // that it has failed with

	last      int  // bytes that it gives as well when it fails, or is closed
	lastAlone bool // without an error
}

var errClosed = errors.New("read of a closed body")

func (b *pausing) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if len(b.gaps) > 0 && b.given >= b.gaps[0].at {
		t := time.NewTimer(b.gaps[0].lasts)
		defer t.Stop()
		select {
		case <-t.C:
			b.err = b.gaps[0].err
			b.gaps = b.gaps[1:]
		case <-b.closed:
			b.err = errClosed
		case <-b.ctx.Done():
			b.err = context.Cause(b.ctx)
		}
		if b.err != nil {
			n := copy(p[:min(len(p), b.last)], b.data[b.given:])
			b.given += n
			if b.lastAlone && n > 0 {
				return n, nil
			}
			return n, b.err
		}
	}
	n := min(len(p), b.chunk)
	if len(b.gaps) > 0 {
		n = min(n, b.gaps[0].at-b.given)
	}
	n = copy(p[:n], b.data[b.given:])
	b.given += n
	if b.given == len(b.data) {
		return n, io.EOF
	}
	return n, nil
}

func (b *pausing) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.inner.Close()
}

// serveObject returns an answer with the object from where the request asks for it, whose body pauses.
func serveObject(rt *doubles.RoundTripper, req *http.Request, gaps ...gap) *http.Response {
	off, end, status := 0, len(object), 200
	if r, ok := strings.CutPrefix(req.Header.Get("Range"), "bytes="); ok {
		first, last, _ := strings.Cut(r, "-")
		off, _ = strconv.Atoi(first)
		if n, err := strconv.Atoi(last); err == nil {
			end = min(n+1, len(object))
		}
		status = 206
	}
	resp := rt.Response(req, status, "")
	for k, v := range map[string]string{"Etag": `"1"`, "Accept-Ranges": "bytes", "Content-Type": "text/plain"} {
		resp.Header.Set(k, v)
	}
	if status == 206 {
		resp.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", off, end-1, len(object)))
	}
	resp.ContentLength = int64(end - off)
	resp.Body = &pausing{ctx: req.Context(), data: object[off:end], chunk: 4096, gaps: gaps, closed: make(chan struct{}), inner: resp.Body}
	return resp
}

// gaps answers request n with the nth list of pauses, and later requests without pauses.
func gaps(rt *doubles.RoundTripper, all ...[]gap) func(*http.Request, int) (*http.Response, error) {
	return func(req *http.Request, n int) (*http.Response, error) {
		if err := doubles.Sleep(req.Context(), usual); err != nil {
			return nil, err
		}
		if n < len(all) {
			return serveObject(rt, req, all[n]...), nil
		}
		return serveObject(rt, req), nil
	}
}

func stalls(at int, lasts time.Duration) []gap { return []gap{{at: at, lasts: lasts}} }

// resuming returns a Transport that has learned the usual time of the site, and that its bodies do not pause.
func resuming(t *testing.T, rt *doubles.RoundTripper, opts ...hedge.HTTPOption) *hedge.Transport {
	t.Helper()
	script := rt.Answer
	rt.Answer = gaps(rt)
	tr := hedge.New(rt, append([]hedge.HTTPOption{hedge.WithResume()}, opts...)...)
	for range 20 {
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		require.Equal(t, string(object), text(t, resp))
	}
	rt.Answer = script
	rt.Forget()
	return tr
}

func TestResumeContinuesStalledBody(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = gaps(rt, stalls(40_960, forever))
		tr := resuming(t, rt, hedge.WithAttemptHeader(hedge.AttemptHeader))
		start := time.Now()
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, string(object), text(t, resp))
		assert.Equal(t, 2*usual+stallAfter, time.Since(start))

		sent := rt.Sent()
		require.Len(t, sent, 2)
		assert.Equal(t, "bytes=40960-", sent[1].Header.Get("Range"))
		assert.Equal(t, `"1"`, sent[1].Header.Get("If-Range"))
		assert.Equal(t, "1", sent[1].Header.Get(hedge.AttemptHeader))
		assert.Empty(t, sent[0].Header, "the caller's request is not changed")
		assert.ErrorIs(t, context.Cause(sent[0].Context()), hedge.ErrLost)
		a, ok := hedge.AttemptFromContext(sent[1].Context())
		assert.True(t, ok)
		assert.Equal(t, 1, a.Number)

		s := tr.Snapshot()
		assert.EqualValues(t, 1, s.Stats.Resumes)
		assert.EqualValues(t, 1, s.Stats.ResumeWins)
		assert.EqualValues(t, 1, s.Stats.HedgesSent)
		assert.EqualValues(t, 0, s.Stats.HedgedRequests)
		assert.EqualValues(t, 21, s.Stats.TotalRequests)
		assert.EqualValues(t, 1, s.Keys[0].Hedges)
		assert.EqualValues(t, 1, s.Keys[0].Wins)
		assert.EqualValues(t, 21, s.Keys[0].Requests)
	})
}

func TestBodyIsNotResumedWithoutOption(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = gaps(rt, stalls(4096, time.Second))
		tr := warm(t, rt)
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, string(object), text(t, resp))
		assert.Len(t, rt.Sent(), 1)
	})
}

func TestResumeKeepsOriginalThatContinuesFirst(t *testing.T) {
	for _, meanwhile := range []time.Duration{stallAfter + 1, stallAfter + usual - 1} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = gaps(rt, stalls(4096, meanwhile))
			tr := resuming(t, rt)
			start := time.Now()
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			assert.Equal(t, string(object), text(t, resp))
			assert.Equal(t, usual+meanwhile, time.Since(start))
			require.Len(t, rt.Sent(), 2)
			synctest.Wait()
			assert.ErrorIs(t, context.Cause(rt.Sent()[1].Context()), hedge.ErrLost)
			s := tr.Snapshot().Stats
			assert.EqualValues(t, 1, s.Resumes)
			assert.EqualValues(t, 0, s.ResumeWins)
		})
	}
}

// TestResumeHandlesSeveralStalls as long as hedges are left: by a hedge that stalls as well, and after a hedge that has lost.
func TestResumeHandlesSeveralStalls(t *testing.T) {
	for name, script := range map[string][][]gap{
		"the rest stalls":           {stalls(4096, forever), stalls(8192, forever)},
		"the original stalls twice": {{{at: 4096, lasts: stallAfter + ms}, {at: 8192, lasts: forever}}, stalls(0, forever)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = gaps(rt, script...)
				tr := resuming(t, rt)
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				assert.Equal(t, string(object), text(t, resp))
				assert.Len(t, rt.Sent(), 3)
			})
		})
	}
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) { // and no more than MaxHedges
		rt.Answer = gaps(rt, stalls(4096, forever), stalls(4096, 10*time.Second))
		tr := resuming(t, rt, hedge.WithMaxHedges(1))
		start := time.Now()
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, string(object), text(t, resp))
		assert.Len(t, rt.Sent(), 2)
		assert.Equal(t, 2*usual+stallAfter+10*time.Second, time.Since(start))
	})
}

func TestResumeCountsHedgesOfHeader(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := resuming(t, rt, hedge.WithMaxHedges(1))
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n == 0 {
				return nil, doubles.Sleep(req.Context(), forever)
			}
			return serveObject(rt, req, stalls(4096, time.Second)...), nil
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, string(object), text(t, resp))
		assert.Len(t, rt.Sent(), 2)
		assert.Equal(t, map[string]int64{"spent": 1}, tr.Snapshot().Keys[0].Unresumed)
	})
}

func TestResumeLearnsLengthOfStalls(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := hedge.New(rt, hedge.WithResume())
		fetch := func(lasts time.Duration) (sent int) {
			rt.Forget()
			rt.Answer = gaps(rt, stalls(4096, lasts))
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			require.Equal(t, string(object), text(t, resp))
			return len(rt.Sent())
		}
		for range 10 {
			require.Equal(t, 1, fetch(forever/100), "nothing is known")
		}
		tr.Reset("", "")
		for range 40 {
			require.Equal(t, 1, fetch(100*ms), "so they always are")
		}
		assert.InEpsilon(t, 200*ms, tr.Snapshot().Keys[0].Stall, 0.2, "twice as long")
		assert.Equal(t, 1, fetch(190*ms))
		assert.Equal(t, 2, fetch(230*ms), "more than twice as long")
		for range 10 {
			fetch(230 * ms) // now they often are
		}
		assert.Equal(t, 1, fetch(230*ms))
		tr.Reset("", "")
		for range 20 {
			require.Equal(t, 1, fetch(forever/100), "all is forgotten")
		}
	})
}

// TestResumeIgnoresTimeBetweenReads waits before every Read.
func TestResumeIgnoresTimeBetweenReads(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = gaps(rt)
		tr := resuming(t, rt)
		for range 5 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			var got bytes.Buffer
			buf := make([]byte, 10_000)
			for err == nil {
				time.Sleep(time.Second)
				var n int
				n, err = resp.Body.Read(buf)
				got.Write(buf[:n])
			}
			require.Equal(t, io.EOF, err)
			assert.True(t, bytes.Equal(object, got.Bytes()))
			require.NoError(t, resp.Body.Close())
		}
		assert.Len(t, rt.Sent(), 5)
		rt.Forget()
		rt.Answer = gaps(rt, stalls(4096, forever))
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, string(object), text(t, resp))
		assert.Len(t, rt.Sent(), 2, "a stall is as short as before")
	})
}

// TestResumeSkipsIneligibleBodies changes one property of a request or a response that could otherwise be resumed.
func TestResumeSkipsIneligibleBodies(t *testing.T) {
	header := func(name string, values ...string) func(*http.Request, *http.Response) {
		return func(_ *http.Request, resp *http.Response) { resp.Header[name] = values }
	}
	dated := func(modified, date string) func(*http.Request, *http.Response) {
		return func(_ *http.Request, resp *http.Response) {
			delete(resp.Header, "Etag")
			resp.Header["Last-Modified"], resp.Header["Date"] = []string{modified}, []string{date}
		}
	}
	const noon, aMinuteLater, secondsLater = "Sat, 21 Nov 2026 12:00:00 GMT", "Sat, 21 Nov 2026 12:01:00 GMT", "Sat, 21 Nov 2026 12:00:59 GMT"
	for name, c := range map[string]struct {
		change  func(*http.Request, *http.Response)
		resumed bool
	}{
		"nothing":                  {func(*http.Request, *http.Response) {}, true},
		"a date":                   {dated(noon, aMinuteLater), true},
		"an unnamed method":        {func(req *http.Request, _ *http.Response) { req.Method = "" }, true},
		"units":                    {header("Accept-Ranges", "seconds, Bytes"), true},
		"an encoding":              {header("Content-Encoding", "br"), true},
		"a date that is too young": {dated(noon, secondsLater), false},
		"no Date":                  {dated(noon, ""), false},
		"no date":                  {dated("yesterday", aMinuteLater), false},
		"a range, in lower case":   {func(req *http.Request, _ *http.Response) { req.Header["range"] = []string{"bytes=0-"} }, false},
		"no validator":             {func(_ *http.Request, resp *http.Response) { delete(resp.Header, "Etag") }, false},
		"a weak tag and a date": {func(req *http.Request, resp *http.Response) {
			dated(noon, aMinuteLater)(req, resp)
			resp.Header["Etag"] = []string{`W/"1"`}
		}, false},
		"an encoding and a date": {func(req *http.Request, resp *http.Response) {
			dated(noon, aMinuteLater)(req, resp)
			resp.Header["Content-Encoding"] = []string{"gzip"}
		}, false},
		"a weak tag":        {header("Etag", `W/"1"`), false},
		"a bare tag":        {header("Etag", `1`), false},
		"an open tag":       {header("Etag", `"`), false},
		"a tag of two":      {header("Etag", `"1" "2"`), false},
		"two tags":          {header("Etag", `"1"`, `"2"`), false},
		"no ranges":         {header("Accept-Ranges", "none"), false},
		"nothing of ranges": {header("Accept-Ranges"), false},
		"a range":           {header("Content-Range", "bytes 0-1/2"), false},
		"trailers":          {func(_ *http.Request, resp *http.Response) { resp.Trailer = http.Header{"Sum": nil} }, false},
		"uncompressed":      {func(_ *http.Request, resp *http.Response) { resp.Uncompressed = true }, false},
		"unknown length":    {func(_ *http.Request, resp *http.Response) { resp.ContentLength = -1 }, false},
		"a small body":      {func(_ *http.Request, resp *http.Response) { resp.ContentLength = 64<<10 - 1 }, false},
		"another status":    {func(_ *http.Request, resp *http.Response) { resp.StatusCode = 203 }, false},
		"HEAD":              {func(req *http.Request, _ *http.Response) { req.Method = "HEAD" }, false},
		"QUERY":             {func(req *http.Request, _ *http.Response) { req.Method = "QUERY" }, false},
		"POST":              {func(req *http.Request, _ *http.Response) { req.Method = "POST" }, false},
		"a body": {func(req *http.Request, _ *http.Response) {
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader("q")), 1
		}, false},
		"the caller's own range": {func(req *http.Request, resp *http.Response) {
			req.Header.Set("Range", "bytes=0-")
			resp.StatusCode = 206
		}, false},
		"a range that was not heeded": {func(req *http.Request, resp *http.Response) {
			req.Header.Set("Range", "bytes=0-")
		}, true},
		"the caller's own condition": {func(req *http.Request, _ *http.Response) { req.Header.Set("If-Range", `"1"`) }, false},
		"a call without hedging": {func(req *http.Request, _ *http.Response) {
			*req = *req.WithContext(hedge.WithoutHedging(req.Context()))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				tr := resuming(t, rt)
				req := request(t, t.Context(), "GET", site, nil)
				rt.Answer = func(sent *http.Request, n int) (*http.Response, error) {
					plain := sent.WithContext(sent.Context())
					plain.Header = http.Header{}
					if c.resumed && n > 0 {
						plain.Header.Set("Range", sent.Header.Get("Range"))
					}
					resp := serveObject(rt, plain, stalls(4096, time.Second)...)
					c.change(&http.Request{Header: http.Header{}}, resp)
					if n > 0 {
						resp.Body.(*pausing).gaps = nil
					}
					return resp, nil
				}
				c.change(req, &http.Response{Header: http.Header{}})
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				assert.Equal(t, string(object), text(t, resp))
				if c.resumed {
					require.Len(t, rt.Sent(), 2)
				} else {
					require.Len(t, rt.Sent(), 1)
				}
			})
		})
	}
}

// TestResumeContinuesRanges requests a range whose connection stalls after 4096 bytes.
func TestResumeContinuesRanges(t *testing.T) {
	const aws = "AWS4-HMAC-SHA256 Credential=AK/20261123/eu/s3/aws4_request, SignedHeaders=host;x-amz-date%s, Signature=00"
	for name, c := range map[string]struct {
		header map[string]string
		query  string
		change func(*http.Response)
		rest   string // the Range that is asked for after the stall; "": none is
		why    string
	}{
		"from one byte to another":    {map[string]string{"Range": "bytes=100-89999"}, "", nil, "bytes=4196-89999", ""},
		"to the end":                  {map[string]string{"Range": "bytes=100-"}, "", nil, "bytes=4196-", ""},
		"the unit in capitals":        {map[string]string{"Range": "BYTES=100-89999"}, "", nil, "bytes=4196-89999", ""},
		"of a version":                {map[string]string{"Range": "bytes=100-", "If-Range": `"1"`}, "", nil, "bytes=4196-", ""},
		"signed, but for the range":   {map[string]string{"Range": "bytes=100-", "Authorization": fmt.Sprintf(aws, "")}, "", nil, "bytes=4196-", ""},
		"signed in the URL":           {map[string]string{"Range": "bytes=100-"}, "?X-Amz-SignedHeaders=host", nil, "bytes=4196-", ""},
		"a token":                     {map[string]string{"Range": "bytes=100-", "Authorization": "Bearer range"}, "", nil, "bytes=4196-", ""},
		"more than there is":          {map[string]string{"Range": "bytes=100-8999999"}, "", contentRange("bytes 100-%d/%d", len(object)-1, len(object)), "bytes=4196-", ""},
		"less than was asked for":     {map[string]string{"Range": "bytes=100-"}, "", shorter(80000), "bytes=4196-80099", ""},
		"two ranges":                  {map[string]string{"Range": "bytes=100-200,300-89999"}, "", contentRange("bytes 100-%d/%d", 89999, len(object)), "", "request"},
		"the last bytes":              {map[string]string{"Range": "bytes=-89999"}, "", contentRange("bytes 0-%d/%d", 89999, len(object)), "", "request"},
		"another unit":                {map[string]string{"Range": "rows=100-89999"}, "", contentRange("bytes 100-%d/%d", 89999, len(object)), "", "request"},
		"a version of nothing":        {map[string]string{"If-Range": `"1"`}, "", nil, "", "request"},
		"a signature of the range":    {map[string]string{"Range": "bytes=100-", "Authorization": fmt.Sprintf(aws, ";range")}, "", nil, "", "signed"},
		"the range signed in the URL": {map[string]string{"Range": "bytes=100-"}, "?X-Amz-SignedHeaders=host%3BRange", nil, "", "signed"},
		"Azure's key":                 {map[string]string{"Range": "bytes=100-", "Authorization": "SharedKey account:00"}, "", nil, "", "signed"},
		"Azure's key, without range":  {map[string]string{"Authorization": "SharedKey account:00"}, "", nil, "", "signed"},
		"a message signature":         {map[string]string{"Range": "bytes=100-", "Signature-Input": `sig=("range")`}, "", nil, "", "signed"},
		"another part":                {map[string]string{"Range": "bytes=100-89999"}, "", contentRange("bytes 101-%d/%d", 90000, len(object)), "", "status"},
		"a longer part":               {map[string]string{"Range": "bytes=100-89999"}, "", contentRange("bytes 100-%d/%d", 90000, len(object)), "", "status"},
		"a whole of unknown length":   {map[string]string{"Range": "bytes=100-"}, "", func(r *http.Response) { r.Header.Set("Content-Range", fmt.Sprintf("bytes 100-%d/*", len(object)-1)) }, "", "status"},
		"no part is told":             {map[string]string{"Range": "bytes=100-"}, "", func(r *http.Response) { r.Header.Del("Content-Range") }, "", "status"},
		"a part of another length":    {map[string]string{"Range": "bytes=100-"}, "", contentRange("bytes 100-%d/%d", len(object)-2, len(object)), "", "status"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				tr := resuming(t, rt)
				want := ""
				rt.Answer = func(sent *http.Request, n int) (*http.Response, error) {
					if n > 0 {
						return serveObject(rt, sent), nil
					}
					plain := sent.WithContext(sent.Context())
					plain.Header = http.Header{"Range": {strings.ToLower(sent.Header.Get("Range"))}}
					resp := serveObject(rt, plain, stalls(4096, time.Second)...)
					if c.change != nil {
						c.change(resp)
					}
					want = string(resp.Body.(*pausing).data)
					return resp, nil
				}
				req := request(t, t.Context(), "GET", site+c.query, nil)
				for k, v := range c.header {
					req.Header.Set(k, v)
				}
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				assert.Equal(t, want, text(t, resp))
				synctest.Wait()
				if c.rest == "" {
					require.Len(t, rt.Sent(), 1)
					assert.EqualValues(t, 1, tr.Snapshot().Keys[0].Unresumed[c.why], tr.Snapshot().Keys[0].Unresumed)
					return
				}
				require.Len(t, rt.Sent(), 2, tr.Snapshot().Keys[0].Unresumed)
				asked := rt.Sent()[1].Header
				assert.Equal(t, []string{c.rest}, asked["Range"])
				assert.Equal(t, []string{`"1"`}, asked["If-Range"])
				assert.EqualValues(t, 1, tr.Snapshot().Stats.ResumeWins)
			})
		})
	}
}

// contentRange changes the Content-Range of a response.
func contentRange(format string, args ...any) func(*http.Response) {
	return func(r *http.Response) { r.Header.Set("Content-Range", fmt.Sprintf(format, args...)) }
}

// shorter has a response end after n bytes, and say so.
func shorter(n int) func(*http.Response) {
	return func(r *http.Response) {
		contentRange("bytes 100-%d/%d", 100+n-1, len(object))(r)
		body := r.Body.(*pausing)
		body.data, r.ContentLength = body.data[:n], int64(n)
	}
}

// TestResumeIgnoresResponseThatIsNotRemainder changes one property of a response that would be the remainder.
func TestResumeIgnoresResponseThatIsNotRemainder(t *testing.T) {
	header := func(name string, values ...string) func(*http.Response) {
		return func(resp *http.Response) { resp.Header[name] = values }
	}
	short := []byte("not the rest")
	for name, change := range map[string]func(*http.Response){
		"all of it":        func(resp *http.Response) { resp.StatusCode, resp.ContentLength = 200, int64(len(object)) },
		"304":              func(resp *http.Response) { resp.StatusCode = 304 },
		"412":              func(resp *http.Response) { resp.StatusCode = 412 },
		"416":              func(resp *http.Response) { resp.StatusCode = 416 },
		"503":              func(resp *http.Response) { resp.StatusCode = 503 },
		"an earlier part":  header("Content-Range", "bytes 0-99999/100000"),
		"a later part":     header("Content-Range", "bytes 4097-99999/100000"),
		"a shorter part":   header("Content-Range", "bytes 4096-99998/100000"),
		"another length":   header("Content-Range", "bytes 4096-99999/100001"),
		"no whole length":  header("Content-Range", "bytes 4096-99999/*"),
		"other units":      header("Content-Range", "lines 4096-99999/100000"),
		"two parts":        header("Content-Range", "bytes 4096-99999/100000", "bytes 4096-99999/100000"),
		"several parts":    header("Content-Range"),
		"another type":     header("Content-Type", "multipart/byteranges; boundary=x"),
		"another tag":      header("Etag", `"2"`),
		"a weak tag":       header("Etag", `W/"1"`),
		"no tag":           header("Etag"),
		"two tags":         header("Etag", `"1"`, `"1"`),
		"another date":     header("Last-Modified", "Sat, 21 Nov 2026 12:00:00 GMT"),
		"an encoding":      header("Content-Encoding", "gzip"),
		"decompressed":     func(resp *http.Response) { resp.Uncompressed = true },
		"a shorter body":   func(resp *http.Response) { resp.ContentLength-- },
		"a longer body":    func(resp *http.Response) { resp.ContentLength++ },
		"an error":         func(resp *http.Response) { resp.Body.(*pausing).gaps = []gap{{err: errDown}} },
		"nothing":          func(resp *http.Response) { resp.ContentLength, resp.Body.(*pausing).data = -1, nil },
		"a few bytes":      func(resp *http.Response) { resp.ContentLength = -1 },
		"an error at once": nil,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				tr := resuming(t, rt)
				rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
					if n == 0 {
						return serveObject(rt, req, gap{at: 4096, lasts: time.Second}, gap{at: 8192, lasts: time.Second}), nil
					}
					if change == nil {
						return nil, errDown
					}
					resp := serveObject(rt, req)
					if name != "an error" {
						resp.Body.(*pausing).data = short
					}
					change(resp)
					return resp, nil
				}
				start := time.Now()
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				assert.Equal(t, string(object), text(t, resp))
				assert.Equal(t, 2*time.Second, time.Since(start), "the original goes on")
				assert.Len(t, rt.Sent(), 2, "and is not resumed again")
				assert.EqualValues(t, 0, tr.Snapshot().Stats.ResumeWins)
			})
		})
	}
}

// TestResumeReadsNothingBeyondEnd by a server that says the right length and sends another.
func TestResumeReadsNothingBeyondEnd(t *testing.T) {
	for name, c := range map[string]struct {
		data func(rest []byte) []byte
		want error
	}{
		"endless": {func(rest []byte) []byte { return append(bytes.Clone(rest), make([]byte, 1<<20)...) }, nil},
		"short":   {func(rest []byte) []byte { return rest[:5000] }, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				tr := resuming(t, rt)
				rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
					if n == 0 {
						return serveObject(rt, req, stalls(4096, forever)...), nil
					}
					resp := serveObject(rt, req)
					resp.ContentLength = -1
					body := resp.Body.(*pausing)
					body.data = c.data(body.data)
					return resp, nil
				}
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				got, err := io.ReadAll(resp.Body)
				assert.Equal(t, c.want, err)
				if c.want == nil {
					assert.True(t, bytes.Equal(object, got))
				} else {
					assert.Len(t, rt.Sent(), 4)
					assert.True(t, bytes.Equal(object[:4096+3*5000], got), "of each rest")
				}
				require.NoError(t, resp.Body.Close())
			})
		})
	}
}

// TestResumeHandlesErrorsOfOriginal are the caller's only if the rest does not come.
func TestResumeHandlesErrorsOfOriginal(t *testing.T) {
	cut := errors.New("connection reset")
	fails := []gap{{at: 4096, lasts: stallAfter + ms, err: cut}}
	for name, c := range map[string]struct {
		rest []gap
		err  error // of the request for the rest
		want error
		took time.Duration
	}{
		"the rest comes": {nil, nil, nil, usual + stallAfter + usual/2},
		"the rest fails": {[]gap{{lasts: ms, err: errDown}}, nil, cut, usual + stallAfter + usual/2 + ms},
		"no rest at all": {nil, errDown, cut, usual + stallAfter + usual/2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				tr := resuming(t, rt)
				rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
					if err := doubles.Sleep(req.Context(), usual/time.Duration(1+n)); err != nil {
						return nil, err
					}
					if n == 0 {
						return serveObject(rt, req, fails...), nil
					}
					if c.err != nil {
						return nil, c.err
					}
					return serveObject(rt, req, c.rest...), nil
				}
				start := time.Now()
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				got, err := io.ReadAll(resp.Body)
				assert.Equal(t, c.took, time.Since(start))
				if c.want != nil {
					assert.Same(t, c.want, err)
					assert.True(t, bytes.Equal(object[:4096], got))
					_, err = resp.Body.Read(make([]byte, 1))
					assert.Same(t, cut, err, "it says so again")
				} else {
					require.NoError(t, err)
					assert.True(t, bytes.Equal(object, got))
				}
				require.NoError(t, resp.Body.Close())
			})
		})
	}
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) { // while nothing is asked for, it comes at once
		rt.Answer = gaps(rt, []gap{{at: 4096, lasts: ms, err: cut}})
		resp, err := get(t, resuming(t, rt), site)
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		assert.Same(t, cut, err)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 1)
	})
}

// TestResumeKeepsBytesReadDuringSwitch are read once: they are the original's, and the rest has them as well.
func TestResumeKeepsBytesReadDuringSwitch(t *testing.T) {
	for _, alone := range []bool{true, false} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if n > 0 {
					return serveObject(rt, req), nil
				}
				resp := serveObject(rt, req, stalls(4096, forever)...)
				body := resp.Body.(*pausing)
				body.last, body.lastAlone = 3000, alone
				return resp, nil
			}
			resp, err := get(t, resuming(t, rt), site)
			require.NoError(t, err)
			assert.Equal(t, string(object), text(t, resp))
			assert.Len(t, rt.Sent(), 2)
		})
	}
}

// TestResumeReplacesFailedHedge has hedges whose bodies break off after 4096 bytes. Without hedging, the primary would have
// delivered the whole body.
func TestResumeReplacesFailedHedge(t *testing.T) {
	late, cut, stalled := []gap{{lasts: forever}}, []gap{{at: 4096, err: errDown}}, stalls(4096, forever)
	for name, c := range map[string]struct {
		opts   []hedge.HTTPOption
		bodies [][]gap // of the attempts; a primary that is late sends no header
		ranges []string
		want   error
	}{
		"the winner":                      {nil, [][]gap{late, cut}, []string{"", "", "4096-"}, nil},
		"the winner, without hedges left": {[]hedge.HTTPOption{hedge.WithMaxHedges(1)}, [][]gap{late, cut}, []string{"", "", "4096-"}, nil},
		"the rest":                        {nil, [][]gap{stalled, cut}, []string{"", "4096-", "8192-"}, nil},
		"the rest of the winner":          {nil, [][]gap{late, stalled, cut}, []string{"", "", "4096-", "8192-"}, nil},
		"each of them":                    {nil, [][]gap{late, cut, cut, cut, cut}, []string{"", "", "4096-", "8192-"}, errDown},
		"as many as there may be": {
			[]hedge.HTTPOption{hedge.WithMaxHedges(4)},
			[][]gap{stalled, cut, cut, cut, cut, cut},
			[]string{"", "4096-", "8192-", "12288-", "16384-"}, errDown,
		},
		"the primary": {nil, [][]gap{cut}, []string{""}, errDown},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				tr := resuming(t, rt, c.opts...)
				answer := gaps(rt, c.bodies...)
				rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
					if n == 0 && c.bodies[0][0].at == 0 {
						return nil, doubles.Sleep(req.Context(), forever)
					}
					return answer(req, n)
				}
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				got, err := io.ReadAll(resp.Body)
				assert.Equal(t, c.want, err)
				if err == nil {
					assert.True(t, bytes.Equal(object, got))
				} else {
					_, err = resp.Body.Read(make([]byte, 1))
					assert.Same(t, errDown, err, "it says so again")
				}
				require.NoError(t, resp.Body.Close())
				var ranges []string
				for _, req := range rt.Sent() {
					ranges = append(ranges, strings.TrimPrefix(req.Header.Get("Range"), "bytes="))
				}
				assert.Equal(t, c.ranges, ranges)
				synctest.Wait()
				assert.Zero(t, rt.OpenBodies())
			})
		})
	}
}

// TestResumeReturnsErrorOfHedgeThatIsNotReplaced returns the error of a hedge's body if no replacement is admitted or comes
// in time.
func TestResumeReturnsErrorOfHedgeThatIsNotReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		when func(tr *hedge.Transport, cancel func())
		sent int
		held time.Duration
	}{
		"hedging is off":        {func(tr *hedge.Transport, _ func()) { tr.SetEnabled(false) }, 2, 0},
		"the caller has gone":   {func(_ *hedge.Transport, cancel func()) { cancel() }, 2, 0},
		"the replacement fails": {func(*hedge.Transport, func()) {}, 3, usual},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				tr := resuming(t, rt)
				var failed time.Time
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
					if n != 1 {
						return nil, doubles.Sleep(req.Context(), forever)
					}
					resp := serveObject(rt, req)
					resp.Body = brokenOff{resp.Body, func() {
						c.when(tr, cancel)
						failed = time.Now()
					}}
					return resp, nil
				}
				resp, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
				require.NoError(t, err)
				_, err = io.ReadAll(resp.Body)
				assert.Same(t, errDown, err)
				assert.InDelta(t, c.held, time.Since(failed), float64(ms))
				require.NoError(t, resp.Body.Close())
				assert.Len(t, rt.Sent(), c.sent)
			})
		})
	}
}

// TestResumeWaitsOneSecondWithoutUsualLatency has a fixed delay and no learned latencies. The body of the hedge breaks off after an
// hour, and its replacement is silent.
func TestResumeWaitsOneSecondWithoutUsualLatency(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := hedge.New(rt, hedge.WithResume(), hedge.WithRoute("/", hedge.Policy{Delay: 20 * ms}))
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n != 1 {
				return nil, doubles.Sleep(req.Context(), forever)
			}
			resp := serveObject(rt, req)
			resp.Body = brokenOff{resp.Body, func() {}}
			return resp, nil
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		failed := time.Now()
		_, err = io.ReadAll(resp.Body)
		assert.Same(t, errDown, err)
		assert.Equal(t, time.Second, time.Since(failed))
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 3)
	})
}

// brokenOff is a body that calls f and fails.
type brokenOff struct {
	io.ReadCloser
	f func()
}

func (b brokenOff) Read([]byte) (int, error) {
	b.f()
	return 0, errDown
}

func TestResumeClosesBodyInEveryState(t *testing.T) {
	read := func(resp *http.Response) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, resp.Body)
			done <- err
		}()
		return done
	}
	for name, after := range map[string]time.Duration{
		"while it stalls": stallAfter - ms, "while the rest is asked for": stallAfter + ms,
		"while the rest is awaited after a failure": stallAfter + 3*ms, "while the rest is read": stallAfter + usual + ms,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				original := stalls(4096, forever)
				if strings.HasSuffix(name, "failure") {
					original = []gap{{at: 4096, lasts: stallAfter + 2*ms, err: errDown}}
				}
				rt.Answer = gaps(rt, original, stalls(8192, forever))
				tr := resuming(t, rt)
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				done := read(resp)
				time.Sleep(after)
				require.NoError(t, resp.Body.Close())
				select {
				case err := <-done:
					assert.Error(t, err)
				case <-time.After(ms):
					t.Error("Read has not returned")
				}
				require.NoError(t, resp.Body.Close(), "again")
				n, err := resp.Body.Read(make([]byte, 1))
				assert.Zero(t, n)
				assert.Error(t, err)
				synctest.Wait()
				assert.Zero(t, rt.OpenBodies(), "at once")
			})
		})
	}
	t.Run("unread", func(t *testing.T) {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = gaps(rt, stalls(4096, forever))
			resp, err := get(t, resuming(t, rt), site)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Len(t, rt.Sent(), 1)
		})
	})
}

// TestResumeClosesBodyWhileOriginalBlocks, though it has lost.
func TestResumeClosesBodyWhileOriginalBlocks(t *testing.T) {
	for _, last := range []int{0, 100} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			tr := resuming(t, rt)
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if n > 0 {
					return serveObject(rt, req), nil
				}
				resp := serveObject(rt, req, stalls(4096, forever)...)
				resp.Body.(*pausing).last = last
				resp.Body = stubborn{resp.Body}
				return resp, nil
			}
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			time.AfterFunc(stallAfter+usual, func() { assert.NoError(t, resp.Body.Close()) })
			got, err := io.ReadAll(resp.Body)
			assert.Equal(t, http.ErrBodyReadAfterClose, err)
			assert.True(t, bytes.Equal(object[:4096+last], got))
			assert.Len(t, rt.Sent(), 2)
			synctest.Wait()
			assert.Zero(t, rt.OpenBodies(), "at once")
		})
	}
}

// stubborn is a body whose Read returns an error only after a second.
type stubborn struct{ io.ReadCloser }

func (s stubborn) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if err != nil {
		time.Sleep(time.Second)
	}
	return n, err
}

// TestResumeRequestsNothingForCompleteBody but the news that it is all.
func TestResumeRequestsNothingForCompleteBody(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			resp := serveObject(rt, req, stalls(len(object), time.Second)...)
			body := resp.Body.(*pausing)
			body.data = append(bytes.Clone(object), 0) // or the end would come with the last byte
			resp.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(body, int64(len(object)+1)), body}
			return resp, nil
		}
		tr := resuming(t, rt)
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		_, err = io.ReadFull(resp.Body, make([]byte, len(object)+1))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 1)
	})
}

func TestResumeReturnsAtOnceWhenCallerGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				time.Sleep(time.Second) // whatever its context says
				return serveObject(rt, req), nil
			}
			return serveObject(rt, req, stalls(4096, forever)...), nil
		}
		tr := resuming(t, rt)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		time.AfterFunc(100*ms, func() { cancel(gone) })
		start := time.Now()
		resp, err := tr.RoundTrip(request(t, ctx, "GET", site, nil))
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		assert.Same(t, gone, err)
		assert.Equal(t, 100*ms, time.Since(start))
		require.NoError(t, resp.Body.Close())
		assert.Len(t, rt.Sent(), 2)
	})
}

func TestResumeStaysWithinBudget(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := resuming(t, rt)
		const calls = 300
		for range calls {
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if req.Header.Get("Range") == "" {
					return serveObject(rt, req, stalls(4096, 120*ms)...), nil
				}
				return serveObject(rt, req), nil
			}
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			require.Equal(t, string(object), text(t, resp))
		}
		s := tr.Snapshot()
		assert.Positive(t, s.Stats.Resumes)
		assert.LessOrEqual(t, float64(s.Stats.Resumes), 0.10*(calls+20)+20, "share × requests + burst")
		assert.Less(t, s.Keys[0].Hedges, int64(calls/4))
	})
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) { // none of it
		rt.Answer = gaps(rt, stalls(4096, time.Second))
		told := new(heard)
		tr := resuming(t, rt, hedge.WithBudgetPercent(0.001), hedge.WithBurst(0), hedge.WithObserver(told))
		for spent := false; !spent; spent = tr.Snapshot().Keys[0].Budget < 1 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			require.Equal(t, string(object), text(t, resp))
			rt.Forget()
		}
		told.denied = nil
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		require.Equal(t, string(object), text(t, resp))
		assert.Len(t, rt.Sent(), 1)
		assert.Equal(t, []hedge.Reason{"budget", "budget", "budget", "budget", "budget"}, told.denied, "after 50, 100, 200, 400 and 800 ms")
	})
}

// heard records the events of attempts and denied hedges.
type heard struct {
	hedge.NopObserver
	mu     sync.Mutex
	denied []hedge.Reason
	events []string
}

func (o *heard) Denied(_ context.Context, _ hedge.KeyInfo, reason hedge.Reason) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.denied = append(o.denied, reason)
}

func (o *heard) AttemptStart(_ context.Context, _ hedge.KeyInfo, a hedge.AttemptInfo) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, fmt.Sprint("start ", a.Number))
}

func (o *heard) AttemptDone(_ context.Context, _ hedge.KeyInfo, a hedge.AttemptResult) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, fmt.Sprint(a.Outcome, " ", a.Number, " ", a.Latency))
}

func TestObserverReceivesResumes(t *testing.T) {
	for name, c := range map[string]struct {
		original, rest []gap
		want           string
	}{
		"won":         {stalls(4096, forever), nil, "won 1 10ms"},
		"lost":        {stalls(4096, stallAfter+ms), nil, "lost 1 1ms"},
		"failed":      {stalls(4096, time.Second), []gap{{err: errDown}}, "failed 1 10ms"},
		"turned away": {stalls(4096, time.Second), nil, "lost 1 10ms"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = gaps(rt, c.original, c.rest)
				if answer := rt.Answer; name == "turned away" {
					rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
						resp, err := answer(req, n)
						if n > 0 && err == nil {
							resp.StatusCode = 503
							resp.Header.Set("Hedge-Refused", "1")
						}
						return resp, err
					}
				}
				o := new(heard)
				tr := resuming(t, rt, hedge.WithObserver(o))
				o.events = nil
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				require.Equal(t, string(object), text(t, resp))
				synctest.Wait()
				assert.Equal(t, []string{"start 0", "won 0 10ms", "start 1", c.want}, o.events)
			})
		})
	}
}

func TestResumeSendsNothingWhileHedgingIsDisabled(t *testing.T) {
	for name, f := range map[string]func(tr *hedge.Transport) error{
		"switched off": func(tr *hedge.Transport) error { tr.SetEnabled(false); return nil },
		"no hedges":    func(tr *hedge.Transport) error { return tr.Update(func(c *hedge.Config) { c.MaxHedges = 0 }) },
		"no budget":    func(tr *hedge.Transport) error { return tr.Update(func(c *hedge.Config) { c.BudgetPercent = 0 }) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = gaps(rt, stalls(4096, time.Second))
				tr := resuming(t, rt)
				require.NoError(t, f(tr))
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				assert.Equal(t, string(object), text(t, resp))
				assert.Len(t, rt.Sent(), 1)
			})
		})
	}
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = gaps(rt, stalls(4096, time.Second))
		tr := resuming(t, rt)
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		tr.SetEnabled(false) // while the body is read
		assert.Equal(t, string(object), text(t, resp))
		assert.Len(t, rt.Sent(), 1)
	})
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = gaps(rt, stalls(4096, time.Second))
		tr := resuming(t, rt, hedge.WithShadow())
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, string(object), text(t, resp))
		assert.Len(t, rt.Sent(), 1)
		assert.EqualValues(t, 1, tr.Snapshot().Keys[0].Denied[hedge.DeniedShadow])
	})
}

func TestResumePanicDoesNotReachReader(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := resuming(t, rt)
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				panic("below")
			}
			return serveObject(rt, req, stalls(4096, time.Second)...), nil
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, string(object), text(t, resp))
		assert.EqualValues(t, 1, tr.Snapshot().Stats.HedgePanics)
	})
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) { // of the Close that interrupts
		tr := resuming(t, rt)
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			resp := serveObject(rt, req)
			if n == 0 {
				resp.Body.(*pausing).gaps = stalls(4096, forever)
				resp.Body = panicsOnClose{resp.Body}
			}
			return resp, nil
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, string(object), text(t, resp))
		synctest.Wait()
		assert.EqualValues(t, 1, tr.Snapshot().Stats.HedgePanics)
	})
}

type panicsOnClose struct{ io.ReadCloser }

func (p panicsOnClose) Close() error {
	p.ReadCloser.Close()
	panic("below")
}

// TestCallerMayChangeRequestAfterResumedBodyClose is for the race detector.
func TestCallerMayChangeRequestAfterResumedBodyClose(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			return serveObject(rt, req, stalls(4096, forever)...), nil
		}
		tr := resuming(t, rt)
		for range 50 {
			req := request(t, t.Context(), "GET", site, nil)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			done := make(chan struct{})
			go func() {
				_, _ = io.Copy(io.Discard, resp.Body)
				close(done)
			}()
			time.Sleep(stallAfter)
			require.NoError(t, resp.Body.Close())
			req.Header.Set("Changed", "1")
			req.URL.Path = "/changed"
			<-done
		}
	})
}

// FuzzResume reads an object through sources that pause, fail and lie at random, and checks that the reader
// gets the bytes of the object, or of the part that it asks for, in their order, up to the end or an error.
func FuzzResume(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			for range 5 {
				synctest.Wait() // a request for the remainder of the last body may still be with rt
				tr := resuming(t, rt, hedge.WithMaxHedges(3), hedge.WithBudgetPercent(300))
				r := rand.New(rand.NewPCG(seed, 1))
				seed = r.Uint64() // of the next body
				script := make([]*rand.Rand, 8)
				for i := range script {
					script[i] = rand.New(rand.NewPCG(seed, uint64(i)))
				}
				rt.Forget()
				cut := errors.New("connection reset")
				var mu sync.Mutex
				broken := make(map[string]bool) // bodies of the rest that fail or end early
				rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
					r := script[n]
					if err := doubles.Sleep(req.Context(), time.Duration(r.IntN(20))*ms); err != nil {
						return nil, err
					}
					lie := r.IntN(10)
					if lie == 0 {
						return nil, errDown
					}
					resp := serveObject(rt, req)
					body := resp.Body.(*pausing)
					body.chunk = 1 + r.IntN(9000)
					if r.IntN(2) == 0 {
						body.last, body.lastAlone = r.IntN(9000), r.IntN(2) == 0
					}
					for at := 0; at < len(body.data) && len(body.gaps) < 6; at += r.IntN(60_000) {
						body.gaps = append(body.gaps, gap{at: at, lasts: time.Duration(r.IntN(120)) * ms})
					}
					if r.IntN(3) == 0 {
						i := r.IntN(len(body.gaps))
						body.gaps[i].err = cut
						if r.IntN(2) == 0 {
							body.gaps[i].err = nil
							body.gaps[i].lasts = forever / 60
						}
					}
					if req.Header.Get("If-Range") == "" {
						return resp, nil
					}
					switch lie {
					case 1:
						body.data = bytes.Repeat([]byte("x"), len(body.data))
						resp.Header.Set("Etag", `"2"`)
					case 2:
						resp.StatusCode = 200
						body.data, resp.ContentLength = object, int64(len(object))
					case 3:
						body.data = append(bytes.Clone(body.data), "and more"...)
						resp.ContentLength = -1
					case 4:
						body.data = body.data[:r.IntN(len(body.data)+1)]
						resp.ContentLength = -1
						mu.Lock()
						broken["short"] = true
						mu.Unlock()
					}
					return resp, nil
				}
				first, end := 0, len(object)
				req := request(t, t.Context(), "GET", site, nil)
				if r.IntN(2) == 0 {
					first = r.IntN(len(object))
					end = first + 1 + r.IntN(len(object)-first)
					req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, end-1))
				}
				want := object[first:end]
				resp, err := tr.RoundTrip(req)
				if err != nil {
					continue
				}
				var got []byte
				closeAt := r.IntN(3 * len(want))
				for err == nil && len(got) < closeAt {
					buf := make([]byte, 1+r.IntN(20_000))
					var n int
					n, err = resp.Body.Read(buf)
					got = append(got, buf[:n]...)
					if r.IntN(20) == 0 {
						time.Sleep(time.Duration(r.IntN(100)) * ms)
					}
				}
				require.NoError(t, resp.Body.Close())
				require.LessOrEqual(t, len(got), len(want))
				require.True(t, bytes.Equal(want[:len(got)], got), "seed %d", seed)
				switch {
				case err == nil:
				case errors.Is(err, io.EOF):
					require.Equal(t, len(want), len(got), "seed %d", seed)
				case errors.Is(err, io.ErrUnexpectedEOF):
					require.True(t, broken["short"])
				default:
					require.Same(t, cut, err, "seed %d", seed)
				}
			}
		})
	})
}

// BenchmarkRead reads a body that never pauses, byte by byte.
func BenchmarkRead(b *testing.B) {
	for name, opts := range map[string][]hedge.HTTPOption{"without": nil, "WithResume": {hedge.WithResume()}} {
		b.Run(name, func(b *testing.B) {
			rt := doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, ContentLength: 1 << 50, Body: endless{}, Header: http.Header{"Etag": {`"1"`}, "Accept-Ranges": {"bytes"}}}, nil
			})
			tr := hedge.New(rt, opts...)
			req, err := http.NewRequest("GET", site, nil)
			require.NoError(b, err)
			for range 20 {
				resp, err := tr.RoundTrip(req)
				require.NoError(b, err)
				resp.Body.Close()
			}
			resp, err := tr.RoundTrip(req)
			require.NoError(b, err)
			buf := make([]byte, 1)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = resp.Body.Read(buf)
			}
			resp.Body.Close()
		})
	}
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }

// TestCallerMayChangeHeaderWhileReading is for the race detector. The rest arrives when it has lost.
func TestCallerMayChangeHeaderWhileReading(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := resuming(t, rt)
		returned := make(chan struct{})
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				time.Sleep(stallAfter) // whatever its context says
				defer close(returned)
				return serveObject(rt, req), nil
			}
			return serveObject(rt, req, stalls(4096, stallAfter+ms)...), nil
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		_, err = io.ReadFull(resp.Body, make([]byte, 5000))
		require.NoError(t, err)
		for done := false; !done; {
			resp.Header.Set("Etag", `"changed"`)
			select {
			case <-returned:
				done = true
			default:
				time.Sleep(ms)
			}
		}
		text(t, resp)
		assert.Len(t, rt.Sent(), 2)
	})
}

// TestResumeSendsHeadersOfOriginalRequest, whatever the RoundTripper below has made of it in place.
func TestResumeSendsHeadersOfOriginalRequest(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := resuming(t, rt)
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			assert.Equal(t, "/item", req.URL.Path)
			assert.Empty(t, req.Header["Signed"])
			resp := serveObject(rt, req)
			if n == 0 {
				resp.Body.(*pausing).gaps = stalls(4096, time.Second)
			}
			req.URL.Path = "/v1" + req.URL.Path
			req.Header.Add("Signed", "yes")
			return resp, nil
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, string(object), text(t, resp))
		assert.Len(t, rt.Sent(), 2)
	})
}

// TestResumeCancelsLosingRemainderAtOnceOverHTTP2 also covers servers behind a Limiter: no other request is affected.
func TestResumeCancelsLosingRemainderAtOnceOverHTTP2(t *testing.T) {
	for _, limited := range []bool{false, true} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			tr := resuming(t, rt)
			var took time.Duration
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if n > 0 {
					start := time.Now()
					httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{Reused: true})
					err := doubles.Sleep(req.Context(), forever)
					took = time.Since(start)
					return nil, err
				}
				resp := serveObject(rt, req, stalls(4096, stallAfter+ms)...)
				if limited {
					resp.Header.Set("Hedge-Limit", "1")
				}
				return resp, nil
			}
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			assert.Equal(t, string(object), text(t, resp))
			time.Sleep(time.Second)
			synctest.Wait()
			assert.Len(t, rt.Sent(), 2)
			assert.Equal(t, ms, took)
		})
	}
}

// TestResumeCountsRefusedRemainderAsLost, as other hedges have.
func TestResumeCountsRefusedRemainderAsLost(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		o := new(heard)
		tr := resuming(t, rt, hedge.WithObserver(o))
		o.events = nil
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				resp := rt.Response(req, http.StatusServiceUnavailable, "")
				resp.Header.Set("Hedge-Refused", "1")
				return resp, nil
			}
			return serveObject(rt, req, stalls(4096, time.Second)...), nil
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, string(object), text(t, resp))
		synctest.Wait()
		assert.Equal(t, []string{"start 0", "won 0 0s", "start 1", "lost 1 0s"}, o.events)
		assert.Zero(t, rt.OpenBodies())
	})
}

// TestResumeSendsEveryPaidRemainder, though the stall ends while the request starts.
func TestResumeSendsEveryPaidRemainder(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		asked := make(chan struct{})
		tr := resuming(t, rt, hedge.WithObserver(startingHedge{f: func() {
			close(asked)
			for range 1000 {
				runtime.Gosched() // so that Read may return
			}
		}}))
		rt.Answer = func(req *http.Request, _ int) (*http.Response, error) {
			resp := serveObject(rt, req)
			resp.Body = waiting{resp.Body, asked}
			return resp, nil
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		require.Equal(t, string(object), text(t, resp))
		synctest.Wait()
		s := tr.Snapshot()
		assert.EqualValues(t, 1, s.Keys[0].Hedges)
		assert.EqualValues(t, 1, s.Stats.HedgesSent)
	})
}

// waiting is a body that waits.
type waiting struct {
	io.ReadCloser
	until chan struct{}
}

func (w waiting) Read(p []byte) (int, error) {
	<-w.until
	return w.ReadCloser.Read(p)
}

// startingHedge calls f at the start of a hedge.
type startingHedge struct {
	hedge.NopObserver
	f func()
}

func (o startingHedge) AttemptStart(_ context.Context, _ hedge.KeyInfo, a hedge.AttemptInfo) {
	if a.Hedge() {
		o.f()
	}
}

func TestR2FailedBodyIsHeldForUsualTimeOfRemainder(t *testing.T) {
	cut := errors.New("connection reset")
	for _, rest := range []time.Duration{usual / 2, time.Hour} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			tr := resuming(t, rt)
			rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
				if n > 0 {
					if err := doubles.Sleep(req.Context(), rest); err != nil {
						return nil, err
					}
					return serveObject(rt, req), nil
				}
				return serveObject(rt, req, gap{at: 4096, lasts: stallAfter + ms, err: cut}), nil
			}
			start := time.Now()
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			_, err = io.ReadAll(resp.Body)
			if rest < usual {
				assert.NoError(t, err)
			} else {
				assert.Same(t, cut, err)
				assert.InDelta(t, stallAfter+usual, time.Since(start), float64(ms))
			}
			require.NoError(t, resp.Body.Close())
		})
	}
}

// exclusive is a body whose Close must not run beside a Read, as that of a decoder which goes back to a pool.
type exclusive struct {
	io.ReadCloser
	reading, overlapped *atomic.Int32
}

func (b exclusive) Read(p []byte) (int, error) {
	b.reading.Add(1)
	defer b.reading.Add(-1)
	return b.ReadCloser.Read(p)
}

func (b exclusive) Close() error {
	b.overlapped.Add(b.reading.Load())
	return b.ReadCloser.Close()
}

func TestLosingBodyIsNotClosedDuringRead(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := resuming(t, rt)
		var reading, overlapped atomic.Int32
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n > 0 {
				return serveObject(rt, req), nil
			}
			resp := serveObject(rt, req, stalls(4096, forever)...)
			resp.Body = exclusive{resp.Body, &reading, &overlapped}
			return resp, nil
		}
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		_, err = io.ReadFull(resp.Body, make([]byte, 8192))
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, 1, rt.OpenBodies(), "the first response is closed at once")
		assert.Equal(t, string(object[8192:]), text(t, resp))
		assert.Zero(t, overlapped.Load())
	})
}

// TestUnresumedCountsReasons uses, for each reason, responses without any other obstacle.
func TestUnresumedCountsReasons(t *testing.T) {
	with := func(rt *doubles.RoundTripper, change func(*http.Response)) func(*http.Request, int) (*http.Response, error) {
		return func(req *http.Request, _ int) (*http.Response, error) {
			resp := serveObject(rt, req, stalls(4096, 200*ms)...)
			change(resp)
			return resp, nil
		}
	}
	for why, answer := range map[string]func(rt *doubles.RoundTripper) func(*http.Request, int) (*http.Response, error){
		"status": func(rt *doubles.RoundTripper) func(*http.Request, int) (*http.Response, error) {
			return with(rt, func(r *http.Response) { r.StatusCode = 203 })
		},
		"small": func(rt *doubles.RoundTripper) func(*http.Request, int) (*http.Response, error) {
			return with(rt, func(r *http.Response) { r.ContentLength = -1 })
		},
		"encoded": func(rt *doubles.RoundTripper) func(*http.Request, int) (*http.Response, error) {
			return with(rt, func(r *http.Response) { r.Uncompressed = true })
		},
		"no_ranges": func(rt *doubles.RoundTripper) func(*http.Request, int) (*http.Response, error) {
			return with(rt, func(r *http.Response) { r.Header.Del("Accept-Ranges") })
		},
		"no_validator": func(rt *doubles.RoundTripper) func(*http.Request, int) (*http.Response, error) {
			return with(rt, func(r *http.Response) { r.Header.Set("Etag", `W/"1"`) })
		},
		"no_rest": func(rt *doubles.RoundTripper) func(*http.Request, int) (*http.Response, error) {
			return func(req *http.Request, n int) (*http.Response, error) {
				resp := serveObject(rt, req, stalls(4096, 200*ms)...)
				if n > 0 {
					resp.Header.Set("Etag", `"2"`)
				}
				return resp, nil
			}
		},
		"": func(rt *doubles.RoundTripper) func(*http.Request, int) (*http.Response, error) {
			return gaps(rt, stalls(4096, 200*ms)) // which is resumed
		},
	} {
		t.Run(why, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rt.Answer = answer(rt)
				tr := resuming(t, rt)
				resp, err := get(t, tr, site)
				require.NoError(t, err)
				assert.Equal(t, string(object), text(t, resp))
				synctest.Wait()
				want := map[string]int64{why: 1}
				if why == "" {
					want = nil
				}
				assert.Equal(t, want, tr.Snapshot().Keys[0].Unresumed)
			})
		})
	}
	t.Run("request", func(t *testing.T) {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			tr := resuming(t, rt)
			rt.Answer = gaps(rt, nil)
			resp, err := tr.RoundTrip(request(t, t.Context(), "OPTIONS", site, nil))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, map[string]int64{"request": 1}, tr.Snapshot().Keys[0].Unresumed)
		})
	})
}

// TestUnresumedCountsFrequentStalls has stalls in one of ten bodies. More than one of twenty is a usual pause, not a
// stall.
func TestUnresumedCountsFrequentStalls(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := hedge.New(rt, hedge.WithResume())
		var script [][]gap
		for n := range 100 {
			script = append(script, nil)
			if n%10 == 4 {
				script[n] = stalls(4096, time.Second)
			}
		}
		rt.Answer = gaps(rt, script...)
		for range 100 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			require.Equal(t, string(object), text(t, resp))
		}
		s := tr.Snapshot()
		assert.Zero(t, s.Stats.Resumes)
		assert.Equal(t, map[string]int64{"learning": 1, "usual": 9}, s.Keys[0].Unresumed)
		assert.Greater(t, s.Keys[0].Stall, time.Second)
	})
}

// TestBodyIsNotResumedIfCallBeganInShadowMode ends shadow mode while a body stalls.
func TestBodyIsNotResumedIfCallBeganInShadowMode(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = gaps(rt, stalls(40_960, time.Second))
		tr := resuming(t, rt, hedge.WithShadow())
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		require.NoError(t, steering.File{Mode: "on"}.Apply(tr))
		assert.Equal(t, string(object), text(t, resp))
		assert.Len(t, rt.Sent(), 1)

		rt.Answer = gaps(rt, nil, stalls(40_960, time.Second))
		resp, err = get(t, tr, site)
		require.NoError(t, err)
		assert.Equal(t, string(object), text(t, resp))
		assert.Len(t, rt.Sent(), 3, "the next body is resumed")
	})
}
