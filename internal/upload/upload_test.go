package upload_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/upload"
)

func request(length int64, body io.Reader) *http.Request {
	r := httptest.NewRequest("POST", "/", body)
	r.ContentLength = length
	return r
}

func TestShouldReadAheadOnlySmallBodies(t *testing.T) {
	for length, small := range map[int64]bool{-1: false, 0: false, 1: true, 65536: true, 65537: false} {
		assert.Equal(t, small, upload.ShouldReadAhead(request(length, strings.NewReader("x"))), "%d", length)
	}
	expects := request(1, strings.NewReader("x"))
	expects.Header.Set("Expect", "100-continue")
	assert.False(t, upload.ShouldReadAhead(expects))
	assert.False(t, upload.ShouldReadAhead(&http.Request{ContentLength: 1}))
	twice := request(1, strings.NewReader("x"))
	twice.Body = upload.NewBody(twice, new(upload.MemoryPool))
	assert.False(t, upload.ShouldReadAhead(twice), "the body was read ahead already")
}

// A part is a number of bytes of a body, and the error that Read returns with the last of them.
type part struct {
	bytes string
	err   error
}

// script is a body that returns its parts one by one. After Close, it returns nothing.
type script struct {
	parts  []part
	closed bool
}

func (s *script) Read(p []byte) (int, error) {
	switch {
	case s.closed:
		return 0, http.ErrBodyReadAfterClose
	case len(s.parts) == 0:
		return 0, io.EOF
	}
	now := &s.parts[0]
	n := copy(p, now.bytes)
	if now.bytes = now.bytes[n:]; now.bytes != "" {
		return n, nil
	}
	s.parts = s.parts[1:]
	return n, now.err
}

func (s *script) Close() error {
	s.closed = true
	return errors.New("of Close")
}

// transcript returns the results of reading a body in steps, and of closing it after a number of bytes or at its end.
func transcript(body io.ReadCloser, step, shut int) (said []string) {
	var bytes strings.Builder
	say := func(err error) {
		if what := fmt.Sprintf("after %q: %v", bytes.String(), err); len(said) == 0 || said[len(said)-1] != what {
			said = append(said, what)
		}
	}
	for bytes.Len() < shut {
		p := make([]byte, min(step, shut-bytes.Len()))
		n, err := body.Read(p)
		bytes.Write(p[:n])
		if err != nil {
			say(err)
		}
		if err == io.EOF {
			break
		}
	}
	say(body.Close())
	for range 40 {
		n, err := body.Read(make([]byte, step))
		said = append(said, fmt.Sprint(n))
		say(err)
	}
	return said
}

// TestBufferedBodyReadsLikeItsSource compares the transcripts of bodies of all kinds with and without ReadAhead.
func TestBufferedBodyReadsLikeItsSource(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	parts := []part{{"a", nil}, {"bcd", nil}, {"efghijkl", nil}, {"mnopqrstuv", nil}, {"", errors.New("one")}, {"xyz", errors.New("two")}}
	for range 3000 {
		var all []part
		for range random.IntN(6) {
			all = append(all, parts[random.IntN(len(parts))])
		}
		length, step, shut := 1+random.IntN(30), 1+random.IntN(12), random.IntN(40)
		plain := &script{parts: slices.Clone(all)}
		ahead := &script{parts: slices.Clone(all)}
		r := request(int64(length), nil)
		r.Body = ahead
		var memory upload.MemoryPool
		b := upload.NewBody(r, &memory)
		b.ReadAhead()
		what := fmt.Sprintf("%v, Content-Length %d, in steps of %d, closed after %d bytes", all, length, step, shut)
		want := transcript(plain, step, shut)
		require.Equal(t, want, transcript(b, step, shut), what)
		b.ReleaseMemory()
		require.Zero(t, memory.UsedBytes(), what)
	}
}

func TestBufferedBodyReturnsEOFWithDataLikeItsSource(t *testing.T) {
	for _, together := range []bool{true, false} {
		var source io.Reader = strings.NewReader("all")
		if together {
			source = iotest.DataErrReader(source)
		}
		b := upload.NewBody(request(3, source), new(upload.MemoryPool))
		b.ReadAhead()
		n, err := b.Read(make([]byte, 3))
		assert.Equal(t, 3, n)
		assert.Equal(t, together, err == io.EOF)
		n, err = b.Read(make([]byte, 3))
		assert.Zero(t, n)
		assert.Equal(t, io.EOF, err)
	}
}

func TestBufferedBodyReservesMemoryWhileBytesAreUnread(t *testing.T) {
	var memory upload.MemoryPool
	slow, feed := io.Pipe()
	b := upload.NewBody(request(65536, slow), &memory)
	done := make(chan struct{})
	go func() { b.ReadAhead(); close(done) }()
	_, _ = feed.Write(make([]byte, 100))
	assert.EqualValues(t, 4096, memory.UsedBytes(), "a client that has sent little uses little memory")
	_, _ = feed.Write(make([]byte, 65436))
	feed.Close()
	<-done
	assert.EqualValues(t, 65537, memory.UsedBytes())
	got, err := io.ReadAll(b)
	require.NoError(t, err)
	assert.Len(t, got, 65536)
	assert.Zero(t, memory.UsedBytes(), "before its handler has returned")
	b.ReleaseMemory()
	assert.Zero(t, memory.UsedBytes())
}

func TestReadAheadStopsAtMemoryLimit(t *testing.T) {
	var memory upload.MemoryPool
	content := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	var all []*upload.BufferedBody
	for range 1025 {
		b := upload.NewBody(request(65536, bytes.NewReader(content)), &memory)
		b.ReadAhead()
		all = append(all, b)
	}
	assert.LessOrEqual(t, memory.UsedBytes(), int64(64<<20))
	assert.Greater(t, memory.UsedBytes(), int64(64<<20-65537), "the memory is used up")
	source := bytes.NewReader(content)
	late := upload.NewBody(request(65536, source), &memory)
	late.ReadAhead()
	assert.Positive(t, source.Len(), "the bytes that were not read ahead")
	for _, b := range append(all, late) {
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, got))
	}
	assert.Zero(t, memory.UsedBytes())
}

func TestCallerContextOutlivesReadTimeout(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for err, stays := range map[error]bool{os.ErrDeadlineExceeded: true, io.ErrUnexpectedEOF: false} {
		b := upload.NewBody(request(9, iotest.ErrReader(fmt.Errorf("read: %w", err))), new(upload.MemoryPool))
		b.ReadAhead()
		assert.Equal(t, stays, b.CallerContext(ctx).Err() == nil, err)
		_, got := b.Read(make([]byte, 1))
		assert.ErrorIs(t, got, err)
	}
}
