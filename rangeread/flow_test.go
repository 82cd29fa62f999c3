package rangeread_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/rangeread"
)

// given returns a plan with answers for the first requests; later requests are answered after 7 ms.
func given(first ...answer) func(int, rangeread.Range) answer {
	return func(n int, _ rangeread.Range) answer {
		if n < len(first) {
			return first[n]
		}
		return answer{first: 7 * ms}
	}
}

// readWarm reads the first n bytes of f's object from a store in which such ranges take 10 ms. It returns the time that
// the read took.
func readWarm(t *testing.T, f *fake, n int64) (*rangeread.Store, []byte, time.Duration, error) {
	store := rangeread.NewStore(rangeread.Options{})
	warm(t, store, n)
	p, took, err := readFrom(t, store, f, n)
	return store, p, took, err
}

func readFrom(t *testing.T, store *rangeread.Store, f *fake, n int64) ([]byte, time.Duration, error) {
	p := make([]byte, n)
	f.began = time.Now()
	m, err := store.Open(f.fetch).ReadAt(p, 0)
	took := time.Since(f.began)
	isOf(t, int(f.version.Load()), 0, p[:m])
	return p[:m], took, err
}

// TestReaderContinuesBodyThatBreaksOff checks that the missing bytes are requested at once.
func TestReaderContinuesBodyThatBreaksOff(t *testing.T) {
	for name, broken := range map[string]answer{
		"an error":      {first: 5 * ms, cut: 300_000, err: errStore},
		"it is shorter": {first: 5 * ms, cut: 300_000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(mib)
				f.plan = given(broken)
				store, p, took, err := readWarm(t, f, mib)
				require.NoError(t, err)
				assert.Len(t, p, int(mib))
				assert.Equal(t, 12*ms, took)
				asked, _ := f.requests()
				require.Len(t, asked, 2)
				assert.Equal(t, rangeread.Range{Offset: 300_000, Length: mib - 300_000, Match: `"0"`}, asked[1])
				synctest.Wait()
				s := store.Stats()
				assert.Equal(t, []int64{1, 1, 0}, []int64{s.StallHedges, s.StallWins, s.BytesTwice})
				f.allClosed(t)

				f = newFake(mib)
				f.plan = given(broken)
				p, _, err = readFrom(t, rangeread.NewStore(rangeread.Options{BudgetPercent: rangeread.NoBudget}), f, mib)
				assert.Len(t, p, 300_000)
				assert.Equal(t, cmp.Or(broken.err, io.ErrUnexpectedEOF), err, "without hedges it is an error")
			})
		})
	}
}

// TestReaderContinuesBrokenBodyOfFirstRange checks that no latency must be known to do so.
func TestReaderContinuesBrokenBodyOfFirstRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(mib)
		f.plan = given(answer{first: 5 * ms, cut: 1000, err: errStore})
		store := rangeread.NewStore(rangeread.Options{})
		p, took, err := readFrom(t, store, f, mib)
		require.NoError(t, err)
		assert.Len(t, p, int(mib))
		assert.Equal(t, 12*ms, took)
		assert.EqualValues(t, 1, store.Stats().StallHedges)
	})
}

// TestReaderReturnsPrimaryErrorIfAllFail checks that the error is unchanged, and that the bytes before it are returned.
func TestReaderReturnsPrimaryErrorIfAllFail(t *testing.T) {
	first, other := errors.New("first"), errors.New("other")
	for name, test := range map[string]struct {
		plan []answer
		n    int
		want error
		took func(delay time.Duration) time.Duration
	}{
		"no hedge is due":   {[]answer{{first: 3 * ms, err: first}}, 0, first, func(time.Duration) time.Duration { return 3 * ms }},
		"the hedge fails":   {[]answer{{first: time.Second, err: first}, {err: other}, {err: other}}, 0, first, func(time.Duration) time.Duration { return time.Second }},
		"the body breaks":   {[]answer{{first: 3 * ms, cut: 1000, err: first}, {first: ms, err: other}}, 1000, first, func(time.Duration) time.Duration { return 4 * ms }},
		"the rest is short": {[]answer{{first: 3 * ms, cut: 1000, err: first}, {first: 2 * ms, broken: true, err: other}}, 1000, first, func(time.Duration) time.Duration { return 5 * ms }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(mib)
				f.plan = given(test.plan...)
				store, p, took, err := readWarm(t, f, mib)
				assert.Same(t, test.want, err)
				assert.Len(t, p, test.n)
				assert.Equal(t, test.took(store.Stats().Classes[0].Delay), took)
				synctest.Wait()
				f.allClosed(t)
			})
		})
	}
}

// TestContinuingBodyBeatsRemainder checks that the remainder is requested, but not read, and paid for as far as it was
// read.
func TestContinuingBodyBeatsRemainder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(mib)
		f.plan = given(answer{first: 5 * ms, stall: 60 * ms, after: 1000}, answer{first: 20 * ms})
		store, p, took, err := readWarm(t, f, mib)
		require.NoError(t, err)
		assert.Len(t, p, int(mib))
		assert.Equal(t, 65*ms, took)
		synctest.Wait()
		s := store.Stats()
		assert.Equal(t, []int64{1, 0, 0}, []int64{s.StallHedges, s.StallWins, s.BytesTwice})
		f.allClosed(t)
	})
}

// TestSlowlyContinuingBodyBeatsRemainder: the rest would come after some of its bytes were read.
func TestSlowlyContinuingBodyBeatsRemainder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(mib)
		f.plan = given(answer{first: 5 * ms, every: 5 * ms, stall: 60 * ms, after: 1000}, answer{first: 20 * ms})
		store, p, took, err := readWarm(t, f, mib)
		require.NoError(t, err)
		assert.Len(t, p, int(mib))
		assert.Equal(t, 150*ms, took)
		s := store.Stats()
		assert.Equal(t, []int64{1, 0}, []int64{s.StallHedges, s.StallWins})
	})
}

// TestFailureOfBodyIsHeldBriefly checks that a broken body waits for its remainder as long as a remainder usually
// takes.
func TestFailureOfBodyIsHeldBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(mib)
		f.plan = given(answer{first: 5 * ms, cut: 1000, err: errStore}, answer{first: time.Hour})
		_, p, took, err := readWarm(t, f, mib)
		assert.Equal(t, errStore, err)
		assert.Len(t, p, 1000)
		assert.InDelta(t, 15*ms, took, float64(ms), "10 ms is the 99th percentile, about")
		synctest.Wait()
		f.allClosed(t)
	})
}

// lateEnd is a body that returns io.EOF in a separate Read, as a chunked body does.
type lateEnd struct {
	io.Reader
	ended, closed *atomic.Int64
}

func (l lateEnd) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if n == 0 && err == io.EOF {
		l.ended.Add(1)
	}
	return n, err
}

func (l lateEnd) Close() error { l.closed.Add(1); return nil }

// TestReaderReadsBodyToItsEnd, though all bytes are there: its connection can be used again.
func TestReaderReadsBodyToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended, closed atomic.Int64
		object := make([]byte, mib)
		fetch := memory(object)
		late := func(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
			body, info, err := fetch(ctx, r)
			return lateEnd{body, &ended, &closed}, info, err
		}
		_, err := rangeread.New(late, rangeread.Options{}).ReadAt(make([]byte, 500_000), 0)
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, []int64{1, 1}, []int64{ended.Load(), closed.Load()})
	})
}

// TestReaderIgnoresErrorAfterLastByte also covers responses that are shorter than the range according to their Info.
func TestReaderIgnoresErrorAfterLastByte(t *testing.T) {
	f := newFake(5000)
	f.plan = func(int, rangeread.Range) answer {
		return answer{cut: 1000, err: errStore, info: func(i *rangeread.Info) { i.Length = min(i.Length, 1000) }}
	}
	store := rangeread.NewStore(rangeread.Options{BudgetPercent: rangeread.NoBudget})
	p, _, err := readFrom(t, store, f, 5000)
	require.NoError(t, err)
	assert.Len(t, p, 5000)
	assert.EqualValues(t, 5, store.Stats().Requests)
}

// TestReaderRejectsResponseThatDoesNotFit covers inconsistent Infos, and responses with other bytes than requested.
func TestReaderRejectsResponseThatDoesNotFit(t *testing.T) {
	for name, test := range map[string]struct {
		answer
		want string
	}{
		"it starts later":        {answer{shift: 1}, "starts at byte 101, instead of 100"},
		"an earlier part":        {answer{shift: -50, info: func(i *rangeread.Info) { i.Length, i.Size = 50, -1 }}, "from 50 to 100, instead of from 100 on"},
		"a part without length":  {answer{shift: -50, cut: 50, blunt: true}, "unexpected EOF"},
		"a negative offset":      {answer{info: func(i *rangeread.Info) { i.Offset = -1 }}, "cannot be"},
		"a negative length":      {answer{info: func(i *rangeread.Info) { i.Length = -2 }}, "cannot be"},
		"a negative size":        {answer{info: func(i *rangeread.Info) { i.Size = -2 }}, "cannot be"},
		"longer than the object": {answer{info: func(i *rangeread.Info) { i.Length = mib }}, "cannot be"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(1000)
				f.plan = func(int, rangeread.Range) answer { return test.answer }
				n, err := rangeread.New(f.fetch, rangeread.Options{}).ReadAt(make([]byte, 10), 100)
				assert.Zero(t, n)
				assert.ErrorContains(t, err, test.want)
				synctest.Wait()
				f.allClosed(t)
			})
		})
	}
	_, err := rangeread.New(func(context.Context, rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		return nil, rangeread.Info{}, nil
	}, rangeread.Options{}).ReadAt(make([]byte, 10), 0)
	assert.ErrorContains(t, err, "neither a body nor an error")
}

// TestReaderHedgesStalledRemainder checks that the bytes still missing are requested again.
func TestReaderHedgesStalledRemainder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(mib)
		f.plan = given(answer{first: 5 * ms, stall: time.Minute, after: 1000}, answer{first: 20 * ms, stall: time.Minute, after: 2000})
		_, p, took, err := readWarm(t, f, mib)
		require.NoError(t, err)
		assert.Len(t, p, int(mib))
		assert.Equal(t, 5*ms+50*ms+20*ms+50*ms+7*ms, took)
		asked, _ := f.requests()
		require.Len(t, asked, 3)
		assert.EqualValues(t, 3000, asked[2].Offset)
		synctest.Wait()
		f.allClosed(t)
	})
}

// TestHedgeWithoutBytesIsIgnored checks that an empty response or io.EOF only counts if it is the primary's.
func TestHedgeWithoutBytesIsIgnored(t *testing.T) {
	nothing := func(i *rangeread.Info) { i.Length = 0 }
	for name, hedge := range map[string]answer{
		"no bytes":              {first: ms, info: nothing},
		"no bytes, whole":       {first: ms, info: nothing, whole: true},
		"the object ends":       {first: ms, err: io.EOF},
		"the object is another": {first: ms, err: rangeread.ErrChanged},
	} {
		for slow, primary := range map[string]answer{"first byte": {first: 500 * ms}, "body": {first: 5 * ms, stall: 495 * ms, after: 1000}} {
			t.Run(name+", "+slow, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake(mib)
					f.plan = given(primary, hedge, hedge)
					_, p, took, err := readWarm(t, f, mib)
					require.NoError(t, err)
					assert.Len(t, p, int(mib))
					assert.Equal(t, 500*ms, took)
					synctest.Wait()
					f.allClosed(t)
				})
			})
		}
	}
}

// TestReaderSkipsToRangeInLargeReads: a store that ignores ranges sends a great deal of it.
func TestReaderSkipsToRangeInLargeReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(mib)
		f.plan = func(int, rangeread.Range) answer { return answer{whole: true, every: ms} }
		r := rangeread.New(f.fetch, rangeread.Options{})
		began := time.Now()
		var one [1]byte
		_, err := r.ReadAt(one[:], mib-1)
		require.NoError(t, err)
		isOf(t, 0, mib-1, one[:])
		assert.Equal(t, 17*ms, time.Since(began))
		assert.Equal(t, mib-1, r.Store().Stats().BytesSkipped)

		r = rangeread.New(f.fetch, rangeread.Options{})
		began = time.Now()
		_, err = r.ReadAt(one[:], 2*mib)
		assert.Equal(t, io.EOF, err)
		assert.Zero(t, time.Since(began), "the object is known to end before")
	})
}

// TestBudgetOfBytesLimitsHedges checks that hedges request a burst of four parts, plus a tenth of the read bytes.
func TestBudgetOfBytesLimitsHedges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := rangeread.NewStore(rangeread.Options{PartSize: part})
		for range 20 {
			warm(t, store, part)
		}
		f := newFake(part)
		f.plan = func(int, rangeread.Range) answer { return answer{first: time.Hour} }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { _, _ = store.Open(f.fetch).ReadAtContext(ctx, make([]byte, part), 0) })
		}
		all.Wait()
		s := store.Stats()
		assert.EqualValues(t, 4, s.FirstByteHedges, "the burst")
		assert.EqualValues(t, 4*part, s.BytesHedged)
		assert.Equal(t, 20-s.FirstByteHedges, s.DeniedBytes, "two are due for each read")

		// A stall that the budget does not pay for is asked for again when it has lasted twice as long: after 50, 100, 200, 400 and 800 ms.
		stalled := newFake(part)
		stalled.plan = given(answer{first: 5 * ms, stall: time.Second, after: 10})
		_, took, err := readFrom(t, store, stalled, part)
		require.NoError(t, err)
		assert.Equal(t, 1005*ms, took)
		assert.Equal(t, s.DeniedBytes+5, store.Stats().DeniedBytes)
		assert.Equal(t, s.Denied+5, store.Stats().Denied)

		warm(t, store, part/2) // 20 parts
		f.plan = given(answer{first: time.Second}, answer{first: time.Second}, answer{first: time.Second})
		for range 4 {
			f.asked = nil
			_, _, err := readFrom(t, store, f, part)
			require.NoError(t, err)
		}
		assert.EqualValues(t, 4+2, store.Stats().FirstByteHedges, "a tenth of 20")
	})
}

// TestHedgePaysForBytesBeforeIgnoredRange: its answer brings all that comes before the range as well.
func TestHedgePaysForBytesBeforeIgnoredRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := rangeread.NewStore(rangeread.Options{PartSize: part})
		for range 20 {
			warm(t, store, part)
		}
		f := newFake(100 * part)
		f.plan = func(n int, _ rangeread.Range) answer {
			if n == 0 {
				return answer{first: 5 * ms, whole: true} // which says that ranges are ignored
			}
			return answer{first: time.Second, whole: true}
		}
		object := store.Open(f.fetch)
		for range 5 {
			_, err := object.ReadAt(make([]byte, part), 3*part)
			require.NoError(t, err)
		}
		s := store.Stats()
		assert.Equal(t, []int64{1, 4 * part}, []int64{s.FirstByteHedges, s.BytesHedged}, "the burst is four parts")
		assert.EqualValues(t, 7, s.DeniedBytes, "two were due for each of four reads")
	})
}

// TestDeniedHedgeCostsNoBytes: here because the caller's deadline comes before any answer.
func TestDeniedHedgeCostsNoBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := rangeread.NewStore(rangeread.Options{PartSize: part})
		warm(t, store, part)
		f := newFake(part)
		f.plan = func(n int, _ rangeread.Range) answer { return answer{first: time.Duration(1+n%2) * 10 * ms} }
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), store.Stats().Classes[0].Delay+ms)
			_, _ = store.Open(f.fetch).ReadAtContext(ctx, make([]byte, part), 0)
			cancel()
		}
		require.Greater(t, store.Stats().Denied, int64(4))
		require.Zero(t, store.Stats().FirstByteHedges)
		f = newFake(part)
		f.plan = given(answer{first: time.Second})
		_, took, err := readFrom(t, store, f, part)
		require.NoError(t, err)
		assert.Less(t, took, 100*ms)
	})
}

// TestHangingFetchDoesNotBlockReads: neither a hedge that answers nor a caller that gives up waits for a Fetch or a body that ignores its context.
func TestHangingFetchDoesNotBlockReads(t *testing.T) {
	for name, test := range map[string]struct {
		hang answer
		more int64 // bytes that are read of what has lost
	}{
		"Fetch": {answer{first: time.Hour, deaf: true}, 0},
		"body":  {answer{first: 5 * ms, stall: time.Hour, after: 1000, deaf: true}, chunk}, // by the Read that hangs
	} {
		hang := test.hang
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(mib)
				f.plan = given(hang)
				store, _, took, err := readWarm(t, f, mib)
				require.NoError(t, err)
				assert.Less(t, took, 100*ms)
				read := store.Stats().BytesRead
				time.Sleep(2 * time.Hour)
				assert.LessOrEqual(t, store.Stats().BytesRead, read+test.more)

				f = newFake(mib)
				f.plan = func(int, rangeread.Range) answer { return hang }
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				_, err = store.Open(f.fetch).ReadAtContext(ctx, make([]byte, mib), 0)
				assert.Equal(t, context.DeadlineExceeded, err)
				assert.Equal(t, time.Second, time.Since(began))
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				f.allClosed(t)
			})
		})
	}
}

// TestReadReturnsErrorOfItsContext, whatever the client says of that.
func TestReadReturnsErrorOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := errors.New("rpc error: code = Canceled")
		fetch := func(ctx context.Context, _ rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
			<-ctx.Done()
			return nil, rangeread.Info{}, status
		}
		for range 100 { // the error may be there before the end of the context is seen
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(ms, cancel)
			r := rangeread.New(fetch, rangeread.Options{PartSize: part})
			_, err := r.ReadAtContext(ctx, make([]byte, 10*part), 0)
			require.Equal(t, context.Canceled, err)
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(ms, cancel)
			_, err = io.ReadAll(r.NewReader(ctx, 0, -1))
			require.Equal(t, context.Canceled, err)
		}
	})
}

// TestPanicsCanBeRecovered: the primary's is raised in the caller's goroutine, in whichever part it is; a hedge's is counted.
func TestPanicsCanBeRecovered(t *testing.T) {
	for name, part := range map[string]int64{"first part": 0, "later part": 5} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(mib)
				f.plan = func(_ int, r rangeread.Range) answer { return answer{panics: r.Offset == part*64*kib} }
				r := rangeread.New(f.fetch, rangeread.Options{PartSize: 64 * kib})
				assert.Panics(t, func() { _, _ = r.ReadAt(make([]byte, mib), 0) })
				s := r.NewReader(t.Context(), 0, -1)
				assert.Panics(t, func() { _, _ = io.ReadAll(s) })
				require.NoError(t, s.Close())
				synctest.Wait()
				f.allClosed(t)
			})
		})
	}
	t.Run("hedge", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(mib)
			f.plan = given(answer{first: 500 * ms}, answer{panics: true}, answer{panics: true})
			store, p, took, err := readWarm(t, f, mib)
			require.NoError(t, err)
			assert.Len(t, p, int(mib))
			assert.Equal(t, 500*ms, took)
			assert.Positive(t, store.Stats().Panics)
		})
	})
	t.Run("rest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(mib)
			f.plan = given(answer{first: 5 * ms, stall: 500 * ms, after: 9}, answer{panics: true})
			store, p, took, err := readWarm(t, f, mib)
			require.NoError(t, err)
			assert.Len(t, p, int(mib))
			assert.Equal(t, 505*ms, took)
			assert.EqualValues(t, 1, store.Stats().Panics)
		})
	})
}

// TestReaderCloseEndsReads checks that reads in progress return at once.
func TestReaderCloseEndsReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(mib)
		f.plan = func(int, rangeread.Range) answer { return answer{stall: time.Hour, after: 1000} }
		r := rangeread.New(f.fetch, rangeread.Options{PartSize: 64 * kib})
		s := r.NewReader(t.Context(), 0, -1)
		began := time.Now()
		time.AfterFunc(time.Second, func() { _ = r.Close() })
		n, err := r.ReadAt(make([]byte, mib), 0)
		assert.Equal(t, 1000, n)
		assert.ErrorIs(t, err, fs.ErrClosed)
		assert.Equal(t, time.Second, time.Since(began))
		_, err = s.Read(make([]byte, 10))
		assert.ErrorIs(t, err, fs.ErrClosed)
		require.NoError(t, s.Close())
		synctest.Wait()
		f.allClosed(t)
	})
}

// TestReaderNeverMixesVersions checks that, after the first byte of a version, another version in any part and attempt
// is ErrChanged.
func TestReaderNeverMixesVersions(t *testing.T) {
	t.Run("the object is replaced", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(mib)
			f.plan = func(n int, _ rangeread.Range) answer { return answer{next: n == 3} }
			r := rangeread.New(f.fetch, rangeread.Options{PartSize: 64 * kib, Parallel: 1})
			p := make([]byte, mib)
			n, err := r.ReadAt(p, 0)
			assert.EqualValues(t, 3*64*kib, n)
			isOf(t, 0, 0, p[:n])
			assert.ErrorIs(t, err, rangeread.ErrChanged)
			_, err = r.ReadAt(p, 0)
			assert.ErrorIs(t, err, rangeread.ErrChanged, "it stays")
		})
	})
	t.Run("a hedge of another version is not read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(mib)
			f.plan = given(answer{first: 5 * ms, stall: 500 * ms, after: 1000}, answer{blind: true, next: true})
			store := rangeread.NewStore(rangeread.Options{})
			warm(t, store, mib)
			p := make([]byte, mib)
			n, err := store.Open(f.fetch).ReadAt(p, 0)
			require.NoError(t, err)
			assert.EqualValues(t, mib, n)
			isOf(t, 0, 0, p)
		})
	})
	t.Run("a store without tags is told by its size", func(t *testing.T) {
		f := newFake(mib)
		f.tagless, f.grow = true, 1
		f.plan = func(n int, _ rangeread.Range) answer { return answer{next: n == 1} }
		r := rangeread.New(f.fetch, rangeread.Options{})
		_, err := r.ReadAt(make([]byte, 10), 0)
		require.NoError(t, err)
		_, err = r.ReadAt(make([]byte, 10), 10)
		assert.ErrorIs(t, err, rangeread.ErrChanged)
	})
}

// TestReaderRejectsInconsistentInfo: an object is not cut short because a later answer says that it ends.
func TestReaderRejectsInconsistentInfo(t *testing.T) {
	f := newFake(mib)
	f.plan = func(n int, _ rangeread.Range) answer {
		if n == 1 {
			return answer{err: io.EOF}
		}
		return answer{}
	}
	r := rangeread.New(f.fetch, rangeread.Options{})
	_, err := r.ReadAt(make([]byte, 10), 0)
	require.NoError(t, err)
	n, err := r.ReadAt(make([]byte, 10), 10)
	assert.Zero(t, n)
	assert.Equal(t, io.ErrUnexpectedEOF, err)
}

// TestReaderSendsNoHedgeWhenForbidden: by the caller, the options, or the environment.
func TestReaderSendsNoHedgeWhenForbidden(t *testing.T) {
	for name, test := range map[string]struct {
		options rangeread.Options
		env     string
		ctx     func(context.Context) context.Context
	}{
		"by the caller":          {ctx: hedge.WithoutHedging},
		"by a budget of nothing": {options: rangeread.Options{BudgetPercent: rangeread.NoBudget}},
		"by HEDGE_DISABLED":      {env: "HEDGE_DISABLED"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.env != "" {
				t.Setenv(test.env, "true")
			}
			synctest.Test(t, func(t *testing.T) {
				store := rangeread.NewStore(test.options)
				warm(t, store, mib)
				for _, slow := range []answer{{first: time.Second}, {stall: time.Second, after: 10}} {
					f := newFake(mib)
					f.plan = given(slow)
					ctx := t.Context()
					if test.ctx != nil {
						ctx = test.ctx(ctx)
					}
					began := time.Now()
					_, err := store.Open(f.fetch).ReadAtContext(ctx, make([]byte, mib), 0)
					require.NoError(t, err)
					assert.Equal(t, time.Second, time.Since(began))
				}
				s := store.Stats()
				assert.Zero(t, s.FirstByteHedges+s.StallHedges)
			})
		})
	}
}

// TestShadowModeSendsNoRangeHedge, and counts hedges within both budgets, as if they were sent: ten reads are late, and the burst is four parts.
func TestShadowModeSendsNoRangeHedge(t *testing.T) {
	t.Setenv("HEDGE_MODE", "shadow")
	synctest.Test(t, func(t *testing.T) {
		store := rangeread.NewStore(rangeread.Options{PartSize: part})
		for range 20 {
			warm(t, store, part)
		}
		before := store.Stats()
		f := newFake(part)
		f.plan = func(int, rangeread.Range) answer { return answer{first: time.Second} }
		ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
		defer cancel()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { _, _ = store.Open(f.fetch).ReadAtContext(ctx, make([]byte, part), 0) })
		}
		all.Wait()
		s := store.Stats()
		assert.Zero(t, s.FirstByteHedges+s.StallHedges+s.BytesHedged)
		assert.EqualValues(t, 10, s.Requests-before.Requests)
		assert.EqualValues(t, 4, s.Denied-s.DeniedBytes, "that were not sent for the mode alone")
	})
}

// TestEmptyResponsesAreNotMeasured: that an object ends is said sooner than its bytes come.
func TestEmptyResponsesAreNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := rangeread.NewStore(rangeread.Options{})
		warm(t, store, mib)
		before := store.Stats().Classes[0]
		f := newFake(0)
		for range 100 {
			n, err := store.Open(f.fetch).ReadAt(make([]byte, mib), 0)
			require.Zero(t, n)
			require.Equal(t, io.EOF, err)
		}
		after := store.Stats().Classes[0]
		assert.Equal(t, []time.Duration{before.P50, before.P99, before.Delay}, []time.Duration{after.P50, after.P99, after.Delay})
	})
}

// TestReaderReleasesMemoryAndGoroutines: neither the Reader nor the caller's context remembers reads that are over.
func TestReaderReleasesMemoryAndGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := rangeread.New(memory(make([]byte, 20_000)), rangeread.Options{PartSize: 4 << 10})
		p := make([]byte, 20_000)
		read := func(n int) uint64 {
			for range n {
				_, err := r.ReadAtContext(ctx, p, 0)
				require.NoError(t, err)
			}
			synctest.Wait()
			return heap()
		}
		before := read(200)
		assert.Less(t, read(5000), before+(1<<20))

		for range 20_000 { // that have failed, and are not closed
			_, err := r.NewReader(ctx, -1, 5).Read(p)
			require.Error(t, err)
		}
		assert.Less(t, heap(), before+(1<<20))
		runtime.KeepAlive(r)
	})
}

// TestHedgingCutsTailOfOneMebibyte: of 1 % of the ranges the first byte is a second late, and 1 % of the bodies stall. The 99th percentile is a tenth
// of what it is without hedging at most, and 3 % more bytes are read at most.
func TestHedgingCutsTailOfOneMebibyte(t *testing.T) {
	reads := 1500
	if doubles.RaceEnabled {
		reads = 500
	}
	measure := func(o rangeread.Options) (p99 time.Duration, sent int64) {
		synctest.Test(t, func(t *testing.T) {
			store := rangeread.NewStore(o)
			f := newFake(mib)
			f.plan = func(n int, _ rangeread.Range) answer {
				random := rand.New(rand.NewPCG(1, uint64(n)))
				a := answer{first: time.Duration((8 + 6*random.ExpFloat64()) * float64(ms)), every: time.Duration(random.IntN(2000)) * time.Microsecond}
				switch random.IntN(100) {
				case 0:
					a.first += time.Second
				case 1:
					a.stall, a.after = time.Second, random.Int64N(mib)
				}
				return a
			}
			p, r := make([]byte, mib), store.Open(f.fetch)
			var all []time.Duration
			for range reads {
				began := time.Now()
				_, err := r.ReadAt(p, 0)
				require.NoError(t, err)
				all = append(all, time.Since(began))
			}
			isOf(t, 0, 0, p)
			slices.Sort(all)
			p99 = all[len(all)*99/100]
			sent = f.bytesSent()
		})
		return p99, sent
	}
	plain, plainBytes := measure(rangeread.Options{BudgetPercent: rangeread.NoBudget})
	hedged, hedgedBytes := measure(rangeread.Options{})
	t.Logf("p99 %v plain, %v hedged (%.3f); bytes %.4f", plain, hedged, float64(hedged)/float64(plain), float64(hedgedBytes)/float64(plainBytes))
	assert.LessOrEqual(t, hedged, plain/10)
	assert.LessOrEqual(t, float64(hedgedBytes), 1.03*float64(plainBytes))
}
