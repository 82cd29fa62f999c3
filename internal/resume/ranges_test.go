package resume_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/resume"
)

// FuzzContentRange uses any range headers in requests and responses. A range that is accepted is within the representation and as long as the body.
// Its remainder is requested to the byte, and no other response is accepted.
func FuzzContentRange(f *testing.F) {
	f.Add("bytes=0-", "bytes 0-99999/100000", int64(100000), uint32(17), "bytes 17-99999/100000")
	f.Add("bytes=5-99999", "bytes 5-80004/100000", int64(80000), uint32(79999), "bytes 80004-80004/100000")
	f.Add("bytes=-5", "bytes 1-2/3", int64(2), uint32(1), "bytes 2-2/3")
	f.Add("", "", int64(1<<40), uint32(1<<31), "bytes 2147483648-1099511627775/1099511627776")
	f.Add("bytes=9223372036854775806-", "bytes 9223372036854775806-9223372036854775806/9223372036854775807", int64(1), uint32(0), "")
	f.Fuzz(func(t *testing.T, asked, told string, length int64, n uint32, rest string) {
		req := &http.Request{Header: http.Header{}}
		resp := &http.Response{
			StatusCode: http.StatusOK, ContentLength: length, Body: io.NopCloser(strings.NewReader("")),
			Header: http.Header{"Etag": {`"1"`}, "Accept-Ranges": {"bytes"}},
		}
		if asked != "" {
			req.Header.Set("Range", asked)
			resp.StatusCode = http.StatusPartialContent
		}
		if told != "" {
			resp.Header.Set("Content-Range", told)
		}
		p, why := resume.ByteRangeOf(req, resp)
		if why != "" {
			return
		}
		first, last, whole := p.Bounds()
		require.True(t, 0 <= first && first <= last && last < whole, "%d-%d/%d", first, last, whole)
		require.Equal(t, length, last-first+1)
		read := int64(n) % length
		one := &http.Request{Header: http.Header{"Range": {p.RangeAfter(read)}}}
		answer := &http.Response{
			StatusCode: http.StatusPartialContent, ContentLength: -1, Body: resp.Body,
			Header: http.Header{"Etag": {`"1"`}, "Content-Range": {rest}},
		}
		want := resume.ContentRange(first+read, last, whole)
		assert.Equal(t, strings.EqualFold(rest, want), p.IsContinuedBy(resp.Header, answer, read), "%q after %d of %q", rest, read, told)
		answer.Header.Set("Content-Range", want)
		require.True(t, p.IsContinuedBy(resp.Header, answer, read))
		if length-read >= 64<<10 {
			answer.ContentLength = length - read
			again, why := resume.ByteRangeOf(one, answer)
			require.Empty(t, why, "the rest of a part is a part")
			first2, last2, whole2 := again.Bounds()
			assert.Equal(t, []int64{first + read, last, whole}, []int64{first2, last2, whole2})
		}
	})
}
