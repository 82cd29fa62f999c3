package main

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/gohedge/hedge/rangeread"
)

// fetch returns what asks a server of files for ranges of what it has at url.
func fetch(client *http.Client, url string) rangeread.Fetch {
	return func(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, rangeread.Info{}, err
		}
		last := ""
		if r.Length > 0 {
			last = fmt.Sprint(r.Offset + r.Length - 1)
		}
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%s", r.Offset, last))
		if r.Match != "" {
			req.Header.Set("If-Match", r.Match)
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, rangeread.Info{}, err
		}
		info := rangeread.Info{Length: resp.ContentLength, Size: resp.ContentLength, Tag: resp.Header.Get("ETag")}
		switch resp.StatusCode {
		case http.StatusOK: // the whole file
		case http.StatusPartialContent:
			_, err = fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &info.Offset, new(int64), &info.Size)
		case http.StatusPreconditionFailed:
			err = rangeread.ErrChanged
		case http.StatusRequestedRangeNotSatisfiable:
			err = io.EOF
		default:
			err = fmt.Errorf("%s: %s", url, resp.Status)
		}
		return resp.Body, info, err
	}
}
