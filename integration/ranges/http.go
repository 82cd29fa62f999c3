package ranges

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/gohedge/hedge/rangeread"
)

// HTTP reads the object at a URL. Its errors have no more of the URL than the host and the path, as the rest may be secret.
func HTTP(client *http.Client, address string) rangeread.Fetch {
	return func(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return nil, rangeread.Info{}, errors.New("the URL of the object is invalid")
		}
		req.Header.Set("Range", header(r))
		if r.Match != "" {
			req.Header.Set("If-Match", r.Match)
		}
		public := (&url.URL{Scheme: req.URL.Scheme, Host: req.URL.Host, Path: req.URL.Path}).String()
		resp, err := client.Do(req)
		if failed := (*url.Error)(nil); errors.As(err, &failed) {
			return nil, rangeread.Info{}, fmt.Errorf("GET %s: %w", public, failed.Err) // failed has the whole query
		} else if err != nil {
			return nil, rangeread.Info{}, err
		}
		contentRange, whole := resp.Header.Get("Content-Range"), resp.StatusCode == http.StatusOK
		if !whole && resp.StatusCode != http.StatusPartialContent {
			resp.Body.Close()
			return refused(r, resp.StatusCode, contentRange, fmt.Errorf("GET %s: %s", public, resp.Status))
		}
		return answer(r, resp.Body, whole, contentRange, resp.ContentLength, resp.Header.Get("ETag"))
	}
}
