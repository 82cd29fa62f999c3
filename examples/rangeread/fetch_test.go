package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/rangeread"
)

// TestFetch: a weak tag is none, the size need not be said, and what cannot be read is an error.
func TestFetch(t *testing.T) {
	contentRange := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "bytes=2-5", r.Header.Get("Range"))
		w.Header().Set("ETag", `W/"1"`)
		w.Header().Set("Content-Range", contentRange)
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.WriteString(w, "2345")
	}))
	defer s.Close()
	for _, contentRange = range []string{"bytes 2-5/*", "bytes 2-", "bytes 5-2/9", ""} {
		body, info, err := fetch(s.Client(), s.URL)(t.Context(), rangeread.Range{Offset: 2, Length: 4})
		body.Close()
		if contentRange == "bytes 2-5/*" {
			assert.NoError(t, err)
			assert.Equal(t, rangeread.Info{Offset: 2, Length: 4, Size: -1}, info)
			continue
		}
		assert.ErrorContains(t, err, "Content-Range", contentRange)
		assert.NotErrorIs(t, err, io.EOF, contentRange)
	}
}
