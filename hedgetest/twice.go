package hedgetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"testing"

	"github.com/gohedge/hedge/hedgetest/internal/twin"
	"github.com/gohedge/hedge/internal/redact"
)

// Twice returns a RoundTripper that proves whether calls are safe to hedge. It sends each request through rt twice at once
// and, when both are answered, once more; and returns the first one's answer. The test fails if
//
//   - answers differ: in status, body, Content-Type, ETag or Location, or because one is an error;
//   - the last one changes the state, which state returns, of a server that the test has in hand.
//
// Requests whose effect comes twice, such as a counter that grows, an entry that is taken, a second entry that is made, or a
// token that may be used once, differ in one of these. What two at once do to the state that one alone would not do, and that no
// answer tells, Twice cannot see; the test's own checks of the state can, since they run after calls that were sent twice.
//
// What state returns is written down at once, and may change later. That includes the content of a sync.Map and of the types of sync/atomic, and how many
// elements a channel has. The test fails if state returns what cannot be read: a function, the elements of a channel, an unsafe.Pointer, a timer, an open
// file or connection. With a nil state only answers are compared. A nil
// rt is http.DefaultTransport. Put Twice where the hedging is to be, instead of it: below, hedges would be sent of
// what is sent more often anyway. Where answers say what differs each time, such as the time, let rt leave that out.
//
// The RoundTripper reads bodies of requests and answers whole, into memory. It may be used by several goroutines at once; calls then wait
// for each other, so none may be made in the course of another.
func Twice(t testing.TB, rt http.RoundTripper, state func() any) http.RoundTripper {
	if rt == nil {
		rt = http.DefaultTransport
	}
	return &twiceTransport{rt, twin.NewJudge(t, state)}
}

type twiceTransport struct {
	rt    http.RoundTripper
	judge *twin.Judge
}

// answer is a response with the body that was read, up to err.
type answer struct {
	resp *http.Response
	body []byte
	err  error
}

func (w *twiceTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	w.judge.T.Helper()
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	a := twin.CompareCalls(w.judge, req.Method+" "+redact.URL(req.URL.Redacted()), func(int) answer { return w.send(req, body) }, nil, describeDifference)
	if a.resp == nil {
		return nil, a.err
	}
	a.resp.Request = req
	if a.resp.Body != nil {
		a.resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(a.body), bodyEnd{a.err}))
	}
	return a.resp, nil
}

// bodyEnd is a reader that returns the end of a body that was read, or its error.
type bodyEnd struct{ err error }

func (f bodyEnd) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// send sends a copy of the request, and reads the answer.
func (w *twiceTransport) send(req *http.Request, body []byte) (a answer) {
	one := req.Clone(req.Context())
	if req.Body != nil && req.Body != http.NoBody {
		one.Body = io.NopCloser(bytes.NewReader(body))
	}
	a.resp, a.err = w.rt.RoundTrip(one)
	switch {
	case a.err != nil:
		a.resp = nil
	case a.resp == nil:
		a.err = fmt.Errorf("hedgetest: RoundTripper %T returned a nil *Response with a nil error", w.rt)
	case a.resp.Body != nil: // which http.Client does not ask for
		a.body, a.err = io.ReadAll(a.resp.Body)
		a.resp.Body.Close()
	}
	return a
}

// describeDifference returns the difference between two answers as text; "": there is none.
func describeDifference(a, b answer) string {
	if how, decided := twin.CompareErrors(a.err, b.err); decided {
		return how
	}
	if a.resp.StatusCode != b.resp.StatusCode {
		return fmt.Sprintf("status %d and %d", a.resp.StatusCode, b.resp.StatusCode)
	}
	for _, name := range []string{"Content-Type", "Etag", "Location"} {
		if x, y := a.resp.Header.Get(name), b.resp.Header.Get(name); x != y {
			return fmt.Sprintf("%s %q and %q", name, x, y)
		}
	}
	if !bytes.Equal(a.body, b.body) {
		return fmt.Sprintf("body %s and %s", excerpt(a.body), excerpt(b.body))
	}
	return ""
}

// excerpt returns the beginning of a body.
func excerpt(body []byte) string {
	const most = 200 // bytes
	if len(body) > most {
		return fmt.Sprintf("%q…", body[:most])
	}
	return fmt.Sprintf("%q", body)
}

// TwiceFunc is [Twice] for a function that is to be hedged by hedge.Do. Each call of the returned function calls f twice at once and, when both
// calls have returned, once more. It returns the first result. The test t fails if another result differs, or if the last call changes the state.
//
// The function state returns the state of the program that f may change, such as the rows of a table; nil: only results are compared. It is called
// before and after the last call of f, and its value is read as [Twice] describes.
//
// Results are compared by their content when the call has ended, also behind pointers, and errors only by whether there is one. Content that is
// still to be read from a result, such as the rows of a query, is neither compared nor closed: let f read it.
func TwiceFunc[T any](t testing.TB, f func(context.Context) (T, error), state func() any) func(context.Context) (T, error) {
	type result struct {
		value  T
		err    error
		text   string // of value
		unread error  // a part of value that text does not have
	}
	judge := twin.NewJudge(t, state)
	return func(ctx context.Context) (T, error) {
		t.Helper()
		call := func(int) (r result) {
			r.value, r.err = f(ctx)
			return r
		}
		record := func(r *result) { r.text, r.unread = twin.FormatValue(r.value) }
		r := twin.CompareCalls(judge, "the function", call, record, func(a, b result) string {
			if how, decided := twin.CompareErrors(a.err, b.err); decided {
				return how
			}
			if a.text != b.text || (a.unread != nil || b.unread != nil) && !reflect.DeepEqual(a.value, b.value) {
				return a.text + " and " + b.text
			}
			return ""
		})
		return r.value, r.err
	}
}
