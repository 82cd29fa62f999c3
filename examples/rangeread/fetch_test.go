package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
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
	for _, contentRange = range []string{"bytes 2-5/*", "bytes 2-", "bytes 5-2/9", "bytes 0-1/*", ""} {
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

// TestFetchErrorsHaveNoSecrets: no error shows a password or the signature of a URL.
func TestFetchErrorsHaveNoSecrets(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/part":
			w.WriteHeader(http.StatusPartialContent)
		case "/strict":
			w.Header().Set("Content-Range", "bytes */10")
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer s.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	for _, address := range []string{
		"http://reader:hunter2@" + host + "/part?signature=hunter2", "http://reader:hunter2@" + host + "/strict?signature=hunter2",
		"http://reader:hunter2@" + host + "/?signature=hunter2", strings.Replace(closed.URL, "//", "//hunter2@", 1) + "/?signature=hunter2",
		"http://reader:hunter2/x@" + host + "/", "http://" + host + "/%zz?signature=hunter2",
	} {
		_, _, err := fetch(s.Client(), address)(t.Context(), rangeread.Range{Length: 4})
		if assert.Error(t, err, address) {
			assert.NotErrorIs(t, err, io.EOF, address)
			assert.NotContains(t, err.Error(), "hunter2", address)
		}
	}
}
