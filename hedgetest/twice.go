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

// Twice returns a RoundTripper that checks whether requests are safe to hedge. It sends each request through rt twice
// at the same time and, after both responses, a third time. It returns the first response. The test fails if
//
//   - responses differ in status, body, Content-Type, ETag or Location, or only some of them are errors;
//   - the third request changes the result of the function state, which returns the state of the server under test.
//
// This detects effects that happen twice: a counter that grows, an entry that is removed, a duplicate entry, a token
// that may be used once. It does not detect a change of state that only concurrent requests cause. Check that state in
// the test, after the calls.
//
// The value that state returns is formatted as text immediately. The text includes the contents of sync.Map and of
// types of sync/atomic, and the number of elements in a channel.
//
// The test fails if a part of the value cannot be read: a function, the elements of a channel, an unsafe.Pointer, a
// timer, an open file or connection. With a nil state only responses are compared.
//
// A nil rt is http.DefaultTransport. Use Twice in place of hedging, not together with it. If responses contain values
// that change each time, such as the time, rt must remove them.
//
// The RoundTripper reads the bodies of requests and responses into memory. Concurrent calls wait for each other, so a
// goroutine must not make a call while another call of the same goroutine is in progress.
func Twice(t testing.TB, rt http.RoundTripper, state func() any) http.RoundTripper {
	if rt == nil {
		rt = http.DefaultTransport
	}
	return &repeatingTransport{rt, twin.NewCallComparer(t, state)}
}

// A repeatingTransport is the RoundTripper that Twice returns.
type repeatingTransport struct {
	rt       http.RoundTripper
	comparer *twin.CallComparer
}

// A callResult is the result of sending a request once: the response, its body as far as it could be read, and the
// error.
type callResult struct {
	resp *http.Response
	body []byte
	err  error
}

func (w *repeatingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	w.comparer.T.Helper()
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	a := twin.CompareCalls(w.comparer, req.Method+" "+redact.URL(req.URL.Redacted()), func(int) callResult { return w.send(req, body) }, nil, describeDifference)
	if a.resp == nil {
		return nil, a.err
	}
	a.resp.Request = req
	if a.resp.Body != nil {
		a.resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(a.body), errorReader{a.err}))
	}
	return a.resp, nil
}

// An errorReader is an empty reader: Read returns err, or io.EOF if err is nil.
type errorReader struct{ err error }

func (f errorReader) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// send sends a copy of the request with the given body, and reads the response body into memory.
func (w *repeatingTransport) send(req *http.Request, body []byte) (a callResult) {
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

// describeDifference returns the first difference between two answers as text, such as "status 200 and 404". It returns
// "" if the answers are equal.
func describeDifference(a, b callResult) string {
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

// excerpt returns the first 200 bytes of a body as quoted text, for error messages.
func excerpt(body []byte) string {
	const most = 200 // bytes
	if len(body) > most {
		return fmt.Sprintf("%q…", body[:most])
	}
	return fmt.Sprintf("%q", body)
}

// TwiceFunc is [Twice] for a function f that will be hedged by hedge.Do. Each call of the returned function calls f
// twice at the same time and, after both have returned, a third time. It returns the first result. The test t fails if
// another result differs, or if the third call changes the state.
//
// The function state returns the state of the program that f may change, such as the rows of a table. It is called
// before and after the third call of f, and its value is read as [Twice] describes. With a nil state only results are
// compared.
//
// Results are compared by their content, including values behind pointers. Errors are not compared with each other:
// either all calls or none must return an error. If a result has content that must still be read, such as the rows of a
// query, that content is neither compared nor closed; read it in f.
func TwiceFunc[T any](t testing.TB, f func(context.Context) (T, error), state func() any) func(context.Context) (T, error) {
	type result struct {
		value  T
		err    error
		text   string // of value
		unread error  // a part of value that text does not have
	}
	judge := twin.NewCallComparer(t, state)
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
