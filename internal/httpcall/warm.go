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

// Warm opens up to n connections to the host of each URL, so that later calls need not connect. The documentation of
// hedge.Transport.Warm describes the behaviour. The error joins the errors for the URLs.
func (t *Client) Warm(ctx context.Context, n int, urls ...string) error {
	if n < 1 {
		return fmt.Errorf("hedge: Warm: n %d is not at least 1", n)
	}
	if base, ok := t.pools.PrimaryTransport().(*http.Transport); ok && base.MaxConnsPerHost > 0 {
		n = min(n, base.MaxConnsPerHost)
	}
	return errors.Join(callConcurrently(len(urls), func(i int) error {
		if err := t.warmHost(ctx, n, urls[i]); err != nil {
			return fmt.Errorf("hedge: Warm %s: %w", redactURL(urls[i], i), err)
		}
		return nil
	})...)
}

// callConcurrently calls f with each number from 0 to n-1, on a goroutine each. It returns the n results in order. If
// calls of f panic, it panics with the value of one of these panics.
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

// maxWarmWait limits the time for which an open connection is kept busy until the other connections are open as well.
// The time that the first connection took to open is added.
const maxWarmWait = 100 * time.Millisecond

// redactURL returns the scheme and host of a URL for use in error texts, because the rest may be secret. If the URL is
// invalid, redactURL returns a text with its position in the list of URLs. The argument index counts from 0.
func redactURL(text string, index int) string {
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Sprintf("URL %d of the list", index+1)
	}
	return u.Scheme + "://" + u.Host
}

// warmHost opens up to n connections to the host of a URL by HEAD requests. It sends one request first. If the
// connection of this request cannot be shared, it sends n more requests concurrently.
//
// It delays the end of these requests until each of them has a connection or has failed. Otherwise net/http would reuse
// a connection that becomes idle, instead of opening another.
func (t *Client) warmHost(ctx context.Context, n int, url string) error {
	begun := time.Now()
	var opening atomic.Int64 // ns that a connection takes
	shared, err := t.sendHeadRequest(ctx, url, func(reused bool) {
		if !reused { // the time to wait for a reused connection says nothing about opening one
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
		defer ready() // a request that fails must not delay the others
		_, err := t.sendHeadRequest(ctx, url, func(bool) { ready(); <-held.Done() })
		return err
	})...)
}

// sendHeadRequest sends a HEAD request to the URL in text, in order to open a connection. It calls connected when the request
// has got a connection; reused says that the connection was open before. The result shared says that several requests
// can use the connection at the same time, as over HTTP/2.
func (t *Client) sendHeadRequest(ctx context.Context, text string, connected func(reused bool)) (shared bool, err error) {
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { connected(info.Reused) }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodHead, text, nil)
	if err != nil {
		return false, errUnparsableURL // the error of package url quotes the URL, which may contain a password
	}
	resp, err := sendRequest(t.pools.PrimaryTransport(), req)
	if err == nil && resp.Body != nil {
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
	}
	return resp != nil && resp.ProtoMajor >= http2, err
}

// errUnparsableURL is the error for an invalid URL. It replaces the error of package url, which quotes the URL and so
// might reveal a password.
var errUnparsableURL = errors.New("cannot be parsed")
