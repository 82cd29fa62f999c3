package hedge

import (
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
)

// Warm opens up to n connections to the host of each URL (name lookup, TCP, TLS)
// before there is traffic, and returns when they are ready. Over HTTP/2 it opens
// one. It sends HEAD requests to the URLs through the base transport; they are not
// hedged, no latency is learned from them, and any status will do.
//
// The base decides how many connections stay: MaxIdleConnsPerHost is 2 by default,
// and MaxConnsPerHost bounds n; where that is set, Warm keeps connections from other
// requests for a tenth of a second at most, and opens fewer if some are busy. TLS
// sessions are resumed if its TLSClientConfig has a ClientSessionCache.
//
// Warm returns when ctx ends. Its error joins those of all URLs that could not be
// reached, and names their scheme and host only. It is an error if n is below 1.
func (t *Transport) Warm(ctx context.Context, n int, urls ...string) error {
	t.mustBeMade()
	if n < 1 {
		return fmt.Errorf("hedge: Warm: n %d is not at least 1", n)
	}
	hold := time.Hour
	if base, ok := t.pools.Primary().(*http.Transport); ok && base.MaxConnsPerHost > 0 {
		n, hold = min(n, base.MaxConnsPerHost), maxHold
	}
	errs := make([]error, len(urls))
	var wg sync.WaitGroup
	for i, url := range urls {
		wg.Go(func() {
			if err := t.warm(ctx, n, hold, url); err != nil {
				errs[i] = fmt.Errorf("hedge: Warm %s: %w", origin(url, i), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// maxHold is how long a connection that counts towards a limit is kept from others.
const maxHold = 100 * time.Millisecond

// origin returns what an error may say of the URL with the given index: the rest may be secret.
func origin(text string, index int) string {
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Sprintf("URL %d of the list", index+1)
	}
	return u.Scheme + "://" + u.Host
}

// warm sends one request, and unless all can share its connection, n at once. None of
// these is sent before each has a connection, or hold has passed: a request that ended
// early would give its connection to the next.
func (t *Transport) warm(ctx context.Context, n int, hold time.Duration, url string) error {
	shared, err := t.head(ctx, url, func() {})
	if err != nil || shared || n == 1 {
		return err
	}
	held, cancel := context.WithTimeout(ctx, hold)
	defer cancel()
	var without atomic.Int64 // requests without a connection
	without.Store(int64(n))
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			ready := sync.OnceFunc(func() {
				if without.Add(-1) == 0 {
					cancel()
				}
			})
			defer ready() // a request that fails must not hold up the others
			_, errs[i] = t.head(ctx, url, func() { ready(); <-held.Done() })
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// head sends a HEAD request, calls connected once it has a connection, and
// reports whether others could have shared it.
func (t *Transport) head(ctx context.Context, text string, connected func()) (shared bool, err error) {
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected() }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodHead, text, nil)
	if err != nil {
		return false, errUnreadable // url's own error quotes the URL, and what may be its password
	}
	resp, err := send(t.pools.Primary(), req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.ProtoMajor >= http2, err
}

var errUnreadable = errors.New("cannot be parsed")
