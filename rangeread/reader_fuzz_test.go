package rangeread_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/rangeread"
)

var errStore = errors.New("the store has failed")

// fuzzAnswers are possible responses of the store. Their Info is correct, except that the body may have another length.
var fuzzAnswers = []answer{
	{},
	{},
	{first: 3 * ms},
	{first: time.Second},
	{first: 2 * time.Minute},
	{stall: 3 * time.Second},
	{stall: 3 * time.Second, after: 1500},
	{stall: time.Hour, after: 1, first: 4 * ms},
	{every: 40 * ms},
	{every: 90 * ms, stall: time.Minute, after: 5000},
	{cut: 1},
	{cut: 3000},
	{cut: 3000, err: errStore},
	{cut: 5, err: errStore, first: 300 * ms},
	{err: errStore},
	{err: errStore, first: 700 * ms},
	{broken: true, err: errStore},
	{whole: true},
	{whole: true, blunt: true},
	{blunt: true},
	{blunt: true, stall: time.Second, after: 700},
	{shift: 1},
	{shift: -1},
	{shift: -5000, cut: 2000},
	{shift: 1 << 20},
	{next: true},
	{next: true, blind: true},
	{blind: true, stall: 5 * time.Second, after: 999, next: true},
	{info: func(i *rangeread.Info) { i.Length += 7 }},
	{info: func(i *rangeread.Info) { i.Length /= 2 }},
	{info: func(i *rangeread.Info) { i.Length = 0 }},
	{info: func(i *rangeread.Info) { i.Length = -2 }},
	{info: func(i *rangeread.Info) { i.Offset = -3 }},
	{info: func(i *rangeread.Info) { i.Size = -1 }},
	{info: func(i *rangeread.Info) { i.Size, i.Length = -1, -1 }},
	{info: func(i *rangeread.Info) { i.Tag = "" }},
	{first: time.Second, deaf: true},
	{stall: 20 * time.Second, after: 100, deaf: true},
}

// FuzzRangeReader reads an object in several ways from a store that does anything: what is returned is of one version, and io.EOF is where
// that ends; every body is closed, and no memory or budget stays.
func FuzzRangeReader(f *testing.F) {
	f.Add(uint16(20_000), uint16(100), true, []byte{}, []byte{0, 9, 40, 90, 130, 200})
	f.Add(uint16(9_000), uint16(0), false, []byte{5, 6, 7, 8, 9, 10, 11, 12}, []byte{3, 77, 255, 4, 0, 18})
	f.Add(uint16(50_000), uint16(1), true, []byte{26, 0, 27, 4, 6, 3, 28, 30, 31, 22}, []byte{128, 10, 64, 64, 250, 1})
	f.Add(uint16(0), uint16(3), true, []byte{18, 19, 20}, []byte{1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, size, grow uint16, warmed bool, answers, reads []byte) {
		synctest.Test(t, func(t *testing.T) {
			store := rangeread.NewStore(rangeread.Options{PartSize: 4 << 10, Parallel: 3, MaxBytes: 10 << 10, BudgetPercent: 300})
			if warmed {
				warm(t, store, 4<<10)
			}
			x := newFake(int64(size))
			x.grow = int64(grow)
			x.plan = func(n int, _ rangeread.Range) answer {
				if n >= len(answers) {
					return answer{}
				}
				return fuzzAnswers[int(answers[n])%len(fuzzAnswers)]
			}
			play(t, x, store.Open(x.fetch), reads)
			time.Sleep(3 * time.Hour) // what ignores its context ends
			synctest.Wait()
			x.allClosed(t)
			require.Zero(t, store.Stats().BytesHeld)
		})
	})
}

// play makes the reads that pairs of bytes describe, some of them concurrently, and checks their results.
func play(t *testing.T, x *fake, r *rangeread.Reader, reads []byte) {
	var versions atomic.Int64 // that everything returned can be of, a bit each
	versions.Store(-1)
	check := func(off int64, p []byte, err error) {
		for v := range int(x.version.Load()) + 1 {
			end := off + int64(len(p))
			if !same(v, off, p) || err == io.EOF && !(end == x.size+x.grow*int64(v) || len(p) == 0 && end >= x.size+x.grow*int64(v)) {
				versions.And(^(1 << v))
			}
		}
	}
	var all sync.WaitGroup
	for i := 0; i+1 < min(len(reads), 12); i += 2 {
		off, length, how := int64(reads[i])*300, int(reads[i+1])*150, reads[i]%4
		read := func() {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			if how == 0 {
				s := r.NewReader(ctx, off, int64(length))
				p, err := io.ReadAll(s)
				if err == nil && len(p) < length {
					err = io.EOF
				}
				check(off, p, err)
				_ = s.Close()
				return
			}
			p := make([]byte, length)
			n, err := r.ReadAtContext(ctx, p, off)
			if n < length && err == nil {
				t.Errorf("%d of %d bytes without an error", n, length)
			}
			check(off, p[:n], err)
		}
		if how == 1 {
			read()
		} else {
			all.Go(read)
		}
	}
	all.Wait()
	if versions.Load() == 0 {
		t.Error("what was read is of no version")
	}
}
