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

// Warm opens up to n connections to the host of each URL, as the documentation of hedge.Transport.Warm says.
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

// callConcurrently calls f for all i below n at once, each in a goroutine of its own. If some panic, so does
// callConcurrently, with what one of them has panicked with.
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

// maxWarmWait is how long connections that count towards a limit are kept from others, beside the time
// that it takes to open one.
const maxWarmWait = 100 * time.Millisecond

// redactURL returns the scheme and the host of a URL for an error text, because the rest may be secret. It returns the index of a URL that cannot be parsed.
func redactURL(text string, index int) string {
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Sprintf("URL %d of the list", index+1)
	}
	return u.Scheme + "://" + u.Host
}

// warmHost opens up to n connections to the host of a URL. It sends one request. If others cannot share its connection, it sends n requests at once,
// and finishes none before each has its connection or has failed: net/http would use a connection that becomes idle for the next request.
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

// sendHead sends a HEAD request, calls connected once it has a connection, and says whether others have
// used that. It reports whether others could have shared it.
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

var errUnparsableURL = errors.New("cannot be parsed")
