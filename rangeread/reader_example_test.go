package rangeread_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gohedge/hedge/rangeread"
)

// fetchHTTP returns a Fetch of the file that a server of files has at an address.
func fetchHTTP(client *http.Client, address string) rangeread.Fetch {
	return func(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return nil, rangeread.Info{}, errors.New("the URL is invalid") // err shows it, with its password
		}
		if r.Length < 0 {
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-", r.Offset))
		} else {
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1))
		}
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
		case http.StatusOK: // from byte 0 on
		case http.StatusPartialContent:
			told, last := resp.Header.Get("Content-Range"), int64(0)
			info.Size = -1 // the server need not say it: bytes 0-9/*
			if n, _ := fmt.Sscanf(told, "bytes %d-%d/%d", &info.Offset, &last, &info.Size); n < 2 || last < max(info.Offset, r.Offset) {
				err = fmt.Errorf("%s: Content-Range %q", resp.Status, told) // Sscanf's own error may be io.EOF, which says that the object ends
			}
			info.Length = last - info.Offset + 1
		case http.StatusRequestedRangeNotSatisfiable:
			told := resp.Header.Get("Content-Range")
			size, _ := strconv.ParseInt(told[strings.LastIndex(told, "/")+1:], 10, 64)
			if err = io.EOF; size > r.Offset { // bytes */100: the server refuses ranges that are not wholly inside the object
				err = fmt.Errorf("%s: Content-Range %q", resp.Status, told)
			}
		case http.StatusPreconditionFailed:
			err = rangeread.ErrChanged
		default:
			err = errors.New(resp.Status)
		}
		return resp.Body, info, err // with an error, the body is closed as well
	}
}

// A complete Fetch for HTTP, and reads through it.
func ExampleNew() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader([]byte("PAR1 columns and a footer PAR1")))
	}))
	defer server.Close()

	object := rangeread.New(fetchHTTP(server.Client(), server.URL), rangeread.Options{})
	size, err := object.Size(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	footer := make([]byte, 11)
	if _, err := object.ReadAt(footer, size-int64(len(footer))); err != nil {
		log.Fatal(err)
	}
	columns, err := io.ReadAll(object.NewReader(context.Background(), 5, 7))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes, %q, %q\n", size, footer, columns)
	// Output: 30 bytes, "footer PAR1", "columns"
}

// One Store for all objects of a bucket, which share latencies and the budget.
func ExampleStore() {
	store := rangeread.NewStore(rangeread.Options{BudgetPercent: 5, MaxBytes: 64 << 20})
	for _, key := range []string{"a.parquet", "b.parquet"} {
		object := store.Open(fetchHTTP(http.DefaultClient, "https://bucket.example/"+key))
		_ = object // an io.ReaderAt
	}
	fmt.Println(store.Stats().Requests)
	// Output: 0
}
