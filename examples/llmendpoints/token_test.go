package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

const (
	role  = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	token = `data: {"choices":[{"index":0,"delta":{"content":"Take"}}]}` + "\n\n"
	end   = "data: [DONE]\n\n"
)

// parts is a body of parts, each of which comes after its time.
type parts struct {
	ctx    context.Context
	left   []part
	closed func()
}

type part struct {
	after time.Duration
	text  string
}

func (b *parts) Read(p []byte) (int, error) {
	if len(b.left) == 0 {
		return 0, io.EOF
	}
	next := &b.left[0]
	select {
	case <-time.After(next.after):
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
	next.after = 0
	n := copy(p, next.text)
	if next.text = next.text[n:]; next.text == "" {
		b.left = b.left[1:]
	}
	return n, nil
}

func (b *parts) Close() error {
	if b.closed != nil {
		b.closed()
	}
	return nil
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// streams answers a request with an event stream.
func streams(r *http.Request, body io.ReadCloser) (*http.Response, error) {
	return &http.Response{StatusCode: 200, ProtoMajor: 1, Header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}, Body: body, Request: r}, nil
}

// after says when the first byte of a stream of such parts comes, and what the reader gets in all.
func after(t *testing.T, all ...part) (first time.Duration, text string, err error) {
	synctest.Test(t, func(t *testing.T) {
		rt := byToken{roundTrip(func(r *http.Request) (*http.Response, error) {
			return streams(r, &parts{ctx: r.Context(), left: all})
		})}
		start := time.Now()
		resp, failed := rt.RoundTrip(&http.Request{Header: http.Header{}})
		require.NoError(t, failed)
		require.Zero(t, time.Since(start), "the header does not wait")
		b := make([]byte, 1)
		var n int
		n, err = resp.Body.Read(b)
		first, text = time.Since(start), string(b[:n])
		if err == nil {
			var rest []byte
			rest, err = io.ReadAll(resp.Body)
			text += string(rest)
		}
	})
	return first, text, err
}

func TestTheFirstByteComesWithTheFirstToken(t *testing.T) {
	const s = time.Second
	for name, before := range map[string]string{
		"the role":           role,
		"no content":         `data: {"choices":[{"delta":{"content":null}}]}` + "\n\n",
		"no choice":          `data: {"choices":[]}` + "\n\n",
		"a comment":          ": PROCESSING\n\n",
		"a ping":             "event: ping\ndata: {\"type\":\"ping\"}\n\n",
		"empty lines":        "\n\r\n\n",
		"what is no JSON":    "data: working\n\n",
		"no error":           `data: {"error":null,"choices":[]}` + "\n\n",
		"a part of a token":  token[:len(token)-6],
		"all of these":       role + ": a\n\nevent: b\ndata: {}\n\nretry: 10\n\n",
		"nothing whatsoever": "",
	} {
		t.Run(name, func(t *testing.T) {
			rest := token
			if strings.HasPrefix(token, before) {
				rest = token[len(before):]
			}
			first, text, err := after(t, part{0, before}, part{s, rest}, part{s, end})
			require.NoError(t, err)
			assert.Equal(t, s, first)
			assert.Equal(t, before+rest+end, text, "nothing is lost")
		})
	}
	for name, begins := range map[string]string{
		"content":           token,
		"without a space":   strings.Replace(token, "data: ", "data:", 1),
		"with CR":           strings.ReplaceAll(token, "\n", "\r\n"),
		"a tool":            `data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}` + "\n\n",
		"a refusal":         `data: {"choices":[{"delta":{"refusal":"No"}}]}` + "\n\n",
		"an end without it": `data: {"choices":[{"delta":{},"finish_reason":"length"}]}` + "\n\n",
		"the end":           end,
		"too much":          ":" + strings.Repeat("a", maxHeld) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			first, text, err := after(t, part{0, role}, part{s, begins}, part{s, end})
			require.NoError(t, err)
			assert.Equal(t, s, first)
			assert.Equal(t, role+begins+end, text)
		})
	}
}

// A stream that fails before its first token must not win.
func TestAStreamWithoutATokenIsAFailure(t *testing.T) {
	_, text, err := after(t, part{0, role}, part{time.Second, `data: {"error":{"message":"overloaded"}}` + "\n\n"})
	assert.ErrorContains(t, err, "overloaded")
	assert.Empty(t, text)
	_, text, err = after(t, part{0, role})
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Empty(t, text)
	_, _, err = after(t, part{0, role}, part{0, token}, part{0, `data: {"error":{"message":"overloaded"}}` + "\n\n"})
	assert.NoError(t, err, "what comes later is the reader's affair")
}

func TestAStreamMayComeInAnyPieces(t *testing.T) {
	text := role + ": a\n\n" + token + token + end
	body := &stream{ReadCloser: io.NopCloser(iotest.OneByteReader(strings.NewReader(text)))}
	assert.NoError(t, iotest.TestReader(body, []byte(text)))
}

func TestAnErrorOfTheConnectionIsTheBodys(t *testing.T) {
	cut := errors.New("cut")
	for _, text := range []string{"", role, role + token} {
		body := &stream{ReadCloser: io.NopCloser(io.MultiReader(strings.NewReader(text), iotest.ErrReader(cut)))}
		got, err := io.ReadAll(body)
		assert.Same(t, cut, err)
		assert.Equal(t, text, string(got))
	}
}

// TestTheFirstTokenDecidesAndTheLoserIsClosed: the first provider has sent its header, its role and keep-alives long before the other one has
// anything.
func TestTheFirstTokenDecidesAndTheLoserIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		start, ended := time.Now(), time.Duration(0)
		rt := hedge.New(byToken{roundTrip(func(r *http.Request) (*http.Response, error) {
			body := &parts{ctx: r.Context(), left: []part{{0, role}, {50 * ms, ": wait\n\n"}, {700 * ms, token}, {0, end}}}
			if r.URL.Host == "second.test" {
				body.left = []part{{60 * ms, role + token}, {10 * ms, token}, {0, end}}
			} else {
				body.closed = func() { ended = time.Since(start) }
			}
			return streams(r, body)
		})},
			hedge.WithEndpoints(hedge.Endpoint{URL: "http://first.test"}, hedge.Endpoint{URL: "http://second.test"}),
			hedge.WithFirstByte(), hedge.WithHedgeable(func(*http.Request) bool { return true }))
		req, err := http.NewRequestWithContext(hedge.WithDelay(t.Context(), 100*ms), "POST", "http://first.test/v1/chat/completions", nil)
		require.NoError(t, err)
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, 160*ms, time.Since(start))
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, role+token+token+end, string(b), "the answer is the second provider's alone")
		synctest.Wait()
		assert.Equal(t, 160*ms, ended)
	})
}
