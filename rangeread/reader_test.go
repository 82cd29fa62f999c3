package rangeread_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/rangeread"
)

const (
	ms  = time.Millisecond
	kib = int64(1) << 10
	mib = int64(1) << 20

	chunk = 64 << 10 // A chunk holds the next bytes of a response. The bytes are valid until the next chunk is received, because their memory is reused.
)

// TestReadAtImplementsReaderAt reads every range of a small object, in parts and at once, as io.ReaderAt says.
func TestReadAtImplementsReaderAt(t *testing.T) {
	const size = 10 << 10
	for name, plan := range map[string]answer{
		"ranges":                         {},
		"the whole object":               {whole: true},
		"nothing is told":                {blunt: true},
		"the whole, and nothing is told": {whole: true, blunt: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(size)
				f.plan = func(int, rangeread.Range) answer { return plan }
				store := rangeread.NewStore(rangeread.Options{PartSize: 4 << 10, Parallel: 2})
				for _, off := range []int64{0, 1, 4095, 4096, 4097, 8192, size - 1, size, size + 1, 1 << 40, math.MaxInt64 - 1, math.MaxInt64} {
					for _, length := range []int{0, 1, 2, 4095, 4096, 4097, 8191, 8192, 8193, size - 1, size, size + 1, 20 << 10} {
						p := make([]byte, length)
						n, err := store.Open(f.fetch).ReadAt(p, off)
						require.EqualValues(t, max(min(int64(length), size-off), 0), n, "%d bytes at %d", length, off)
						isOf(t, 0, off, p[:n])
						if n < length {
							require.Equal(t, io.EOF, err, "%d bytes at %d", length, off)
						} else {
							require.NoError(t, err)
						}
					}
				}
				synctest.Wait()
				f.allClosed(t)
			})
		})
	}
}

func TestSequentialReaderPassesIotest(t *testing.T) {
	want := make([]byte, 50<<10)
	fill(0, 0, want)
	f := newFake(int64(len(want)))
	store := rangeread.NewStore(rangeread.Options{PartSize: 4 << 10})
	r := store.Open(f.fetch).NewReader(t.Context(), 0, -1)
	require.NoError(t, iotest.TestReader(r, want))
	require.NoError(t, r.Close())
	assert.Zero(t, store.Stats().BytesHeld)
}

func TestInvalidReadsSendNoRequest(t *testing.T) {
	f := newFake(100)
	r := rangeread.New(f.fetch, rangeread.Options{})
	n, err := r.ReadAt(make([]byte, 10), -1)
	assert.Zero(t, n)
	assert.ErrorContains(t, err, "negative offset")
	n, err = r.ReadAt(nil, 5)
	assert.Zero(t, n)
	assert.NoError(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	n, err = r.ReadAtContext(gone, make([]byte, 10), 0)
	assert.Zero(t, n)
	assert.Equal(t, context.Canceled, err)
	require.NoError(t, r.Close())
	n, err = r.ReadAt(make([]byte, 10), 0)
	assert.Zero(t, n)
	assert.ErrorIs(t, err, fs.ErrClosed)
	_, err = r.Size(t.Context())
	assert.ErrorIs(t, err, fs.ErrClosed)
	_, err = r.NewReader(t.Context(), 0, -1).Read(make([]byte, 1))
	assert.ErrorIs(t, err, fs.ErrClosed)
	_, err = rangeread.New(f.fetch, rangeread.Options{}).NewReader(t.Context(), -1, 5).Read(make([]byte, 1))
	assert.ErrorContains(t, err, "negative offset")
	asked, _ := f.requests()
	assert.Empty(t, asked)
}

func TestSize(t *testing.T) {
	for name, test := range map[string]struct {
		size int64
		plan answer
		want string // an error
	}{
		"told":          {size: 12345},
		"one byte":      {size: 1},
		"empty":         {size: 0},
		"empty, whole":  {size: 0, plan: answer{whole: true}},
		"not told":      {size: 12345, plan: answer{blunt: true}, want: "does not say how large"},
		"Fetch failed":  {size: 1, plan: answer{err: errors.New("no such bucket")}, want: "no such bucket"},
		"whole is sent": {size: 12345, plan: answer{whole: true}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(test.size)
			f.plan = func(int, rangeread.Range) answer { return test.plan }
			size, err := rangeread.New(f.fetch, rangeread.Options{}).Size(t.Context())
			if test.want != "" {
				require.ErrorContains(t, err, test.want)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.size, size)
		})
	}
}

// TestReaderHedgesLateFirstByte: the learned delay is that of a first byte that usually takes 10 ms.
func TestReaderHedgesLateFirstByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := rangeread.NewStore(rangeread.Options{})
		warm(t, store, mib)
		f := newFake(mib)
		f.plan = func(n int, _ rangeread.Range) answer {
			if n == 0 {
				return answer{first: time.Minute}
			}
			return answer{first: 7 * ms}
		}
		p := make([]byte, mib)
		began := time.Now()
		n, err := store.Open(f.fetch).ReadAt(p, 0)
		require.NoError(t, err)
		require.EqualValues(t, mib, n)
		isOf(t, 0, 0, p)
		class := store.Stats().Classes[0]
		require.Positive(t, class.Delay)
		assert.Equal(t, class.Delay+7*ms, time.Since(began))
		synctest.Wait()
		s := store.Stats()
		assert.Equal(t, []int64{1, 1, 0, 0}, []int64{s.FirstByteHedges, s.FirstByteWins, s.StallHedges, s.BytesTwice})
		assert.Equal(t, mib, class.Length)
		f.allClosed(t)
	})
}

// TestReaderContinuesStalledBody checks that the missing bytes are requested once a body has paused for the learned
// stall, and not before.
func TestReaderContinuesStalledBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := rangeread.NewStore(rangeread.Options{})
		warm(t, store, mib)
		stall := store.Stats().Classes[0].Stall
		require.Equal(t, 50*ms, stall)
		f := newFake(mib)
		f.plan = func(n int, _ rangeread.Range) answer {
			if n == 0 {
				return answer{first: 5 * ms, stall: time.Minute, after: 100_000}
			}
			return answer{first: 7 * ms}
		}
		p := make([]byte, mib)
		began := time.Now()
		n, err := store.Open(f.fetch).ReadAt(p, 0)
		require.NoError(t, err)
		require.EqualValues(t, mib, n)
		isOf(t, 0, 0, p)
		assert.Equal(t, 5*ms+stall+7*ms, time.Since(began))
		asked, _ := f.requests()
		assert.Equal(t, []rangeread.Range{{Offset: 0, Length: mib}, {Offset: 100_000, Length: mib - 100_000, Match: `"0"`}}, asked)
		synctest.Wait()
		s := store.Stats()
		assert.Equal(t, []int64{1, 1, 0, 0}, []int64{s.StallHedges, s.StallWins, s.FirstByteHedges, s.BytesTwice})
		f.allClosed(t)
	})
}
