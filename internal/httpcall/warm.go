package httpcall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// Warm opens up to n connections to the host of each URL. The documentation of hedge.Transport.Warm describes the
// behaviour.
func (t *Client) Warm(ctx context.Context, n int, urls ...string) error {
	if n < 1 {
		return fmt.Errorf("hedge: Warm: n %d is not at least 1", n)
	}
	if base, ok := t.pools.Primary().(*http.Transport); ok && base.MaxConnsPerHost > 0 {
		n = min(n, base.MaxConnsPerHost)
	}
	return errors.Join(callConcurrently(len(urls), func(i int) error {
		if err := t.warmHost(ctx, n, urls[i]); err != nil {
			return fmt.Errorf("hedge: Warm %s: %w", redactURL(urls[i], i), err)
		}
		return nil
	})...)
}

// callConcurrently calls f with 0 to n-1, each in a goroutine of its own, and returns the errors in order. If calls
// panic, it panics with the value of one of them.
func callConcurrently(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		errs[i] = new(race.Panic) // unless f returns
		wg.Go(func() { errs[i] = race.RecoverPanic(func() error { return f(i) }) })
	}
	wg.Wait()
	for _, err := range errs {
		if p, ok := err.(*race.Panic); ok {
			p.Rethrow()
		}
	}
	return errs
}

// maxWarmWait limits the time for which warmed connections are kept busy until the others are open. The time that the
// first connection took is added.
const maxWarmWait = 100 * time.Millisecond

// redactURL returns the scheme and host of a URL for error texts, because the rest may be secret. If the URL is
// invalid, it returns its position in the list.
func redactURL(text string, index int) string {
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Sprintf("URL %d of the list", index+1)
	}
	return u.Scheme + "://" + u.Host
}

// warmHost opens up to n connections to the host of a URL. It sends one request. If requests cannot share its
// connection, it sends n more at once.
//
// It keeps each of them unfinished until all have a connection or have failed: net/http would otherwise reuse a
// connection that becomes idle.
func (t *Client) warmHost(ctx context.Context, n int, url string) error {
	begun := time.Now()
	var opening atomic.Int64 // ns that a connection takes
	shared, err := t.sendHead(ctx, url, func(reused bool) {
		if !reused { // one that others had used was waited for, and not opened
			opening.Store(int64(min(time.Since(begun), time.Second)))
		}
	})
	if err != nil || shared || n == 1 {
		return err
	}
	held, cancel := context.WithTimeout(ctx, maxWarmWait+time.Duration(opening.Load()))
	defer cancel()
	var without atomic.Int64 // requests without a connection
	without.Store(int64(n))
	return cmp.Or(callConcurrently(n, func(int) error {
		ready := sync.OnceFunc(func() {
			if without.Add(-1) == 0 {
				cancel()
			}
		})
		defer ready() // a request that fails must not hold up the others
		_, err := t.sendHead(ctx, url, func(bool) { ready(); <-held.Done() })
		return err
	})...)
}

// sendHead sends a HEAD request to the URL in text. It calls connected once the request has a connection, and reports
// whether that connection was reused. The result shared reports whether other requests could share the connection, as
// over HTTP/2.
func (t *Client) sendHead(ctx context.Context, text string, connected func(reused bool)) (shared bool, err error) {
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { connected(info.Reused) }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodHead, text, nil)
	if err != nil {
		return false, errUnparsableURL // url's own error quotes the URL, and what may be its password
	}
	resp, err := sendRequest(t.pools.Primary(), req)
	if err == nil && resp.Body != nil {
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
	}
	return resp != nil && resp.ProtoMajor >= http2, err
}

// errUnparsableURL replaces the error of package url, which quotes the URL and so might show a password.
var errUnparsableURL = errors.New("cannot be parsed")
