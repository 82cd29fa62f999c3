package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

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
		info := rangeread.Info{Length: resp.ContentLength, Size: resp.ContentLength}
		if tag := resp.Header.Get("ETag"); !strings.HasPrefix(tag, "W/") { // If-Match never holds for a weak one
			info.Tag = tag
		}
		switch resp.StatusCode {
		case http.StatusOK: // the whole file
		case http.StatusPartialContent:
			told, end := resp.Header.Get("Content-Range"), int64(0)
			info.Size = -1 // the server need not say it: bytes 0-9/*
			if n, _ := fmt.Sscanf(told, "bytes %d-%d/%d", &info.Offset, &end, &info.Size); n < 2 || end < info.Offset {
				err = fmt.Errorf("%s: Content-Range %q", url, told) // Sscanf's own error may be io.EOF, which says that the object ends
			}
			info.Length = end - info.Offset + 1
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
