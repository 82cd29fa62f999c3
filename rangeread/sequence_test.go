package rangeread_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/rangeread"
)

const part = 64 << 10

// TestReaderSplitsLongRead: so many parts are read at the same time. How large the object is, its first answer says.
func TestReaderSplitsLongRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(10 * part)
		f.plan = func(int, rangeread.Range) answer { return answer{first: 10 * ms} }
		r := rangeread.New(f.fetch, rangeread.Options{PartSize: part, Parallel: 3})
		p := make([]byte, 20*part)
		began := time.Now()
		n, err := r.ReadAt(p, 0)
		assert.Equal(t, io.EOF, err)
		assert.Equal(t, 10*part, n)
		isOf(t, 0, 0, p[:n])
		assert.Equal(t, 40*ms, time.Since(began), "the first part says how long the object is, then three at a time")
		asked, _ := f.requests()
		assert.Len(t, asked, 10)
		began = time.Now()
		n, err = r.ReadAt(p[:9*part], part)
		require.NoError(t, err)
		assert.Equal(t, 9*part, n)
		isOf(t, 0, part, p[:n])
		assert.Equal(t, 30*ms, time.Since(began), "how long the object is is known, so three at a time from the beginning on")
		synctest.Wait()
		f.allClosed(t)
	})
}

// TestFailedPartEndsRead checks that the bytes before the failed part are returned with its error, without waiting for
// later parts.
func TestFailedPartEndsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("part 2")
		f := newFake(10 * part)
		f.plan = func(_ int, r rangeread.Range) answer {
			switch r.Offset / part {
			case 1:
				return answer{first: 50 * ms}
			case 2:
				return answer{first: 10 * ms, cut: 77, err: bad}
			case 3:
				return answer{first: time.Hour}
			case 0:
				return answer{}
			}
			return answer{first: 20 * ms}
		}
		r := rangeread.New(f.fetch, rangeread.Options{PartSize: part, Parallel: 4, BudgetPercent: rangeread.NoBudget})
		p := make([]byte, 10*part)
		began := time.Now()
		n, err := r.ReadAt(p, 0)
		assert.Equal(t, bad, err)
		assert.Equal(t, 2*part+77, n)
		isOf(t, 0, 0, p[:n])
		assert.Equal(t, 50*ms, time.Since(began))
		asked, _ := f.requests()
		assert.Len(t, asked, 5, "once a part has failed none begins")
		synctest.Wait()
		f.allClosed(t)
	})
}

// TestSequentialReaderRequestsLittleForShortRead checks that one more part is read ahead for each complete part, and
// none while the caller does not read.
func TestSequentialReaderRequestsLittleForShortRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(100 * part)
		store := rangeread.NewStore(rangeread.Options{PartSize: part, Parallel: 4})
		s := store.Open(f.fetch).NewReader(t.Context(), 5, -1)
		p := make([]byte, part)
		var asked []int
		for range 6 {
			_, err := io.ReadFull(s, p)
			require.NoError(t, err)
			_, err = s.Read(p[:0])
			require.NoError(t, err)
			time.Sleep(time.Hour)
			all, _ := f.requests()
			asked = append(asked, len(all))
		}
		assert.Equal(t, []int{1, 3, 5, 7, 8, 9}, asked)
		assert.EqualValues(t, 4*part, store.Stats().BytesHeld, "one is being read")
		require.NoError(t, s.Close())
		assert.Zero(t, store.Stats().BytesHeld)
		synctest.Wait()
		f.allClosed(t)
	})
}

// TestMaxBytesLimitsReadAhead: readers that get no memory read all the same.
func TestMaxBytesLimitsReadAhead(t *testing.T) {
	for name, most := range map[string]int64{"two parts": 2 * part, "none": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(20 * part)
				store := rangeread.NewStore(rangeread.Options{PartSize: part, Parallel: 4, MaxBytes: most})
				var all []io.ReadCloser
				var bodies [5]bytes.Buffer
				for range bodies {
					all = append(all, store.Open(f.fetch).NewReader(t.Context(), 0, -1))
				}
				for range 20 { // in turns
					for i, s := range all {
						_, err := io.CopyN(&bodies[i], s, part)
						require.NoError(t, err)
						assert.LessOrEqual(t, store.Stats().BytesHeld, max(most, 0))
					}
				}
				for i, s := range all {
					isOf(t, 0, 0, bodies[i].Bytes())
					_, err := s.Read(make([]byte, 1))
					assert.Equal(t, io.EOF, err)
				}
				assert.Zero(t, store.Stats().BytesHeld, "at the end nothing is held, also without Close")
				synctest.Wait()
				f.allClosed(t)
			})
		})
	}
}

// TestLateReadDoesNotWriteToReturnedBytes reads a part ahead into memory to which a stalled, abandoned body still
// writes.
func TestLateReadDoesNotWriteToReturnedBytes(t *testing.T) {
	for name, late := range map[string]answer{
		"the rest wins":            {first: 5 * ms, stall: 10 * time.Second, after: 1000, deaf: true, spoils: true},
		"the rest wins at once":    {first: 5 * ms, stall: 10 * time.Second, deaf: true, spoils: true},
		"it wins against the rest": {first: 5 * ms, stall: 55 * ms, after: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := rangeread.NewStore(rangeread.Options{PartSize: part, Parallel: 3, BudgetPercent: 300})
				warm(t, store, part)
				f := newFake(20 * part)
				stalled := make(map[int64]bool)
				f.plan = func(_ int, r rangeread.Range) answer {
					if i := r.Offset / part; i > 0 && i%3 == 0 && !stalled[i] {
						stalled[i] = true
						return late
					}
					return answer{first: 10 * ms}
				}
				s := store.Open(f.fetch).NewReader(t.Context(), 0, -1)
				p := make([]byte, part)
				for i := range int64(20) {
					_, err := io.ReadFull(s, p)
					require.NoError(t, err)
					isOf(t, 0, i*part, p)
					assert.LessOrEqual(t, store.Stats().BytesHeld, int64(3*part))
					time.Sleep([]time.Duration{0, 100 * ms, 11 * time.Second}[i%3]) // before the stall, in it, after it
				}
				assert.Len(t, stalled, 6)
				assert.NotZero(t, store.Stats().StallHedges+store.Stats().FirstByteHedges)
				_, err := s.Read(p)
				assert.Equal(t, io.EOF, err)
				assert.Zero(t, store.Stats().BytesHeld)
				time.Sleep(time.Minute)
				f.allClosed(t)
			})
		})
	}
}

// TestNewReaderReadsOnlySection: of n bytes, or up to the end of the object.
func TestNewReaderReadsOnlySection(t *testing.T) {
	for name, plan := range map[string]answer{"told": {}, "nothing is told": {blunt: true}, "ranges are ignored": {whole: true, blunt: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(10_000)
				f.plan = func(int, rangeread.Range) answer { return plan }
				for _, section := range [][2]int64{{0, 0}, {0, 1}, {0, -1}, {5, 9_995}, {5, 9_996}, {4096, 4096}, {9_999, 5}, {10_000, 5}, {10_000, -1}, {20_000, -1}, {20_000, 1}} {
					r := rangeread.New(f.fetch, rangeread.Options{PartSize: 4 << 10, Parallel: 2})
					s := r.NewReader(t.Context(), section[0], section[1])
					var b bytes.Buffer
					n, err := s.(io.WriterTo).WriteTo(&b)
					require.NoError(t, err)
					want := max(10_000-section[0], 0)
					if section[1] >= 0 {
						want = min(want, section[1])
					}
					require.Equal(t, want, n, "%v", section)
					isOf(t, 0, section[0], b.Bytes())
					require.NoError(t, s.Close())
				}
				synctest.Wait()
				f.allClosed(t)
			})
		})
	}
}

// TestSequentialReaderCloseEndsRead, from another goroutine and from the Write that it feeds.
func TestSequentialReaderCloseEndsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(10 * part)
		f.plan = func(n int, _ rangeread.Range) answer { return answer{stall: time.Hour, after: 100} }
		r := rangeread.New(f.fetch, rangeread.Options{PartSize: part, BudgetPercent: rangeread.NoBudget})
		s := r.NewReader(t.Context(), 0, -1)
		time.AfterFunc(time.Second, func() { assert.NoError(t, s.Close()) })
		began := time.Now()
		b, err := io.ReadAll(s)
		assert.Len(t, b, 100)
		assert.ErrorContains(t, err, "closed")
		assert.Equal(t, time.Second, time.Since(began))

		s = r.NewReader(t.Context(), 0, -1)
		n, err := io.Copy(writer(func(p []byte) (int, error) { return len(p), s.Close() }), s)
		assert.EqualValues(t, 100, n)
		assert.Error(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		s = r.NewReader(ctx, 0, -1)
		time.AfterFunc(time.Second, cancel)
		b, err = io.ReadAll(s)
		assert.Len(t, b, 100)
		assert.Equal(t, context.Canceled, err)
		require.NoError(t, s.Close())
		synctest.Wait()
		f.allClosed(t)
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
