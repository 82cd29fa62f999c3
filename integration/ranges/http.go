package ranges

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/gohedge/hedge/rangeread"
)

// HTTP reads what is at a URL.
func HTTP(client *http.Client, url string) rangeread.Fetch {
	return func(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, rangeread.Info{}, err
		}
		req.Header.Set("Range", header(r))
		if r.Match != "" {
			req.Header.Set("If-Match", r.Match)
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, rangeread.Info{}, err
		}
		contentRange := resp.Header.Get("Content-Range")
		if whole := resp.StatusCode == http.StatusOK; !whole && (resp.StatusCode != http.StatusPartialContent || contentRange == "") {
			resp.Body.Close()
			return refused(resp.StatusCode, fmt.Errorf("GET %s: %s", url, resp.Status))
		} else if whole {
			contentRange = ""
		}
		return answer(resp.Body, contentRange, resp.ContentLength, resp.Header.Get("ETag"))
	}
}
