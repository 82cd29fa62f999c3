package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gohedge/hedge/rangeread"
)

// fetch returns a Fetch of the file that a server of files has at an address.
func fetch(client *http.Client, address string) rangeread.Fetch {
	return func(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return nil, rangeread.Info{}, errors.New("the URL is invalid") // err shows it, with its password
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
		if failed := (*url.Error)(nil); errors.As(err, &failed) {
			err = fmt.Errorf("%s: %w", failed.Op, failed.Err) // without the URL, which may be signed; io.EOF itself would be the object's end
		}
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
			if n, _ := fmt.Sscanf(told, "bytes %d-%d/%d", &info.Offset, &end, &info.Size); n < 2 || end < max(info.Offset, r.Offset) {
				err = fmt.Errorf("%s: Content-Range %q", resp.Status, told) // Sscanf's own error may be io.EOF, which says that the object ends
			}
			info.Length = end - info.Offset + 1
		case http.StatusPreconditionFailed:
			err = rangeread.ErrChanged
		case http.StatusRequestedRangeNotSatisfiable:
			told := resp.Header.Get("Content-Range")
			size, _ := strconv.ParseInt(told[strings.LastIndex(told, "/")+1:], 10, 64)
			if err = io.EOF; size > r.Offset { // bytes */100: the server refuses ranges that are not wholly inside the object
				err = fmt.Errorf("%s: Content-Range %q", resp.Status, told)
			}
		default:
			err = errors.New(resp.Status)
		}
		return resp.Body, info, err
	}
}
