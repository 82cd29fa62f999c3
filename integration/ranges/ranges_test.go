package ranges

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/rangeread"
)

// TestAnswersOfRanges: what the headers say is read as it is meant, and what cannot be is an error, which is not the end of the object.
func TestAnswersOfRanges(t *testing.T) {
	asked := rangeread.Range{Offset: 2, Length: 4}
	for contentRange, want := range map[string]rangeread.Info{
		"bytes 2-5/9": {Offset: 2, Length: 4, Size: 9, Tag: `"1"`},
		"bytes 2-5/*": {Offset: 2, Length: 4, Size: -1, Tag: `"1"`},
		"bytes 2-3/9": {Offset: 2, Length: 2, Size: 9, Tag: `"1"`}, // and what the body has besides is not read
	} {
		_, info, err := answer(asked, http.NoBody, false, contentRange, 4, `"1"`)
		require.NoError(t, err, contentRange)
		assert.Equal(t, want, info, contentRange)
	}
	_, info, err := answer(asked, http.NoBody, true, "bytes 2-5/9", 4, `"1"`) // of status 200
	require.NoError(t, err)
	assert.Equal(t, rangeread.Info{Length: 4, Size: 4, Tag: `"1"`}, info)
	for _, contentRange := range []string{"", "bytes ", "bytes 2-", "bytes */9", "bytes 5-2/9", "bytes 0-1/9", "bytes 0-1/*", "items 2-5/9"} {
		_, _, err := answer(asked, http.NoBody, false, contentRange, 4, `"1"`)
		assert.ErrorContains(t, err, fmt.Sprintf("%q", contentRange))
		assert.NotErrorIs(t, err, io.EOF)
	}
}

// TestAWeakTagIsNoVersion, as what a proxy has compressed has one: no If-Match holds for it.
func TestAWeakTagIsNoVersion(t *testing.T) {
	for _, tag := range []string{`W/"1"`, `W/"1`} { // as it is, and as minio-go tells it
		_, info, err := answer(rangeread.Range{Offset: 2, Length: 4}, http.NoBody, false, "bytes 2-5/9", 4, tag)
		require.NoError(t, err)
		assert.Empty(t, info.Tag, tag)
	}
}

// TestAnAnswerWithoutItsRangeIsNotRead: one of several ranges, and one that does not say which it has.
func TestAnAnswerWithoutItsRangeIsNotRead(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "multipart/byteranges; boundary=x")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.WriteString(w, "--x\r\nContent-Range: bytes 2-5/10\r\n\r\n2345\r\n--x--\r\n")
	}))
	defer s.Close()
	n, err := rangeread.New(HTTP(s.Client(), s.URL), rangeread.Options{}).ReadAt(make([]byte, 4), 2)
	assert.Zero(t, n)
	assert.True(t, err != nil && strings.Contains(err.Error(), "206"), "%v", err)
}
