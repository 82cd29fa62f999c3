package sketch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/DataDog/sketches-go/ddsketch"
	"github.com/DataDog/sketches-go/ddsketch/store"
)

// Append appends the window as it is at time t to b, and returns the result. It
// writes both halves, each with its age at t and in the encoding of sketches-go.
// [Decode] reads them.
func (w *Window) Append(b []byte, t time.Time) []byte {
	for _, h := range [...]struct {
		half
		since time.Time
	}{{w.now, w.nowSince}, {w.old, w.oldSince}} {
		if h.count() == 0 {
			b = append(b, 0, 0)
			continue
		}
		b = binary.AppendUvarint(b, uint64(max(t.Sub(h.since), 0)))
		var s []byte
		h.s.Encode(&s, false)
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}

var errCorrupt = errors.New("sketch: window is corrupt")

const (
	maxDecodedAge  = 1000 * time.Hour // of a half
	maxDecodedSize = 1 << 40          // of a half, in samples
	maxEncodedSize = 64 << 10         // of a half, in bytes; with all its buckets it has half of that
)

// Decode returns the window that [Window.Append] wrote to b. Its halves have the ages
// at t that they had when they were written: the time in between does not count. Decode
// returns an error if b is not a whole window, if a half is older than 1,000 hours, or if
// it has more than 2⁴⁰ samples or 64 KiB. Whatever b holds, the window takes at most some
// 40 KB: buckets between the fastest and the slowest sample take memory even if they are empty.
func Decode(b []byte, t time.Time) (*Window, error) {
	w := new(Window)
	for _, h := range [...]struct {
		half  *half
		since *time.Time
	}{{&w.now, &w.nowSince}, {&w.old, &w.oldSince}} {
		age, n := binary.Uvarint(b)
		if n <= 0 || age > uint64(maxDecodedAge) {
			return nil, errCorrupt
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > min(uint64(len(b)-n), maxEncodedSize) {
			return nil, errCorrupt
		}
		if size > 0 {
			if err := h.half.decode(b[n:][:size]); err != nil {
				return nil, err
			}
			*h.since = t.Add(-time.Duration(age))
		}
		b = b[n:][size:]
	}
	if len(b) > 0 {
		return nil, errCorrupt
	}
	return w, nil
}

// decode fills the half with the sketch in b, which it does not trust.
func (h *half) decode(b []byte) error {
	// A sparse store needs memory for the buckets that there are, not for the range they claim.
	s := ddsketch.NewDDSketch(nil, store.NewSparseStore(), store.NewSparseStore())
	if err := s.DecodeAndMergeWith(b); err != nil {
		return fmt.Errorf("sketch: %w", err)
	}
	if s.IndexMapping == nil || !index.Equals(s.IndexMapping) {
		return errors.New("sketch: window has another mapping of values to buckets")
	}
	bad, total := s.GetZeroCount() != 0 || !s.GetNegativeValueStore().IsEmpty(), 0.0
	s.GetPositiveValueStore().ForEach(func(i int, n float64) bool {
		total += n
		bad = bad || i < lowest || i >= lowest+len(edges) || !(n > 0 && total <= maxDecodedSize)
		return bad
	})
	if bad || total < 1 {
		return errCorrupt
	}
	s.GetPositiveValueStore().ForEach(func(i int, n float64) bool {
		h.addBin(i, n)
		return false
	})
	return nil
}

// Merge adds the samples of from to the window, and does not change from. An empty
// window becomes a copy of from. In a window that has samples, those of from become part
// of the previous half, so that new samples soon outweigh them.
func (w *Window) Merge(from *Window) {
	if w.nowSince.IsZero() && w.oldSince.IsZero() {
		w.now.merge(from.now)
		w.old.merge(from.old)
		w.nowSince, w.oldSince = from.nowSince, from.oldSince
		return
	}
	w.old.merge(from.now)
	w.old.merge(from.old)
	for _, t := range [...]time.Time{w.nowSince, from.nowSince, from.oldSince} {
		if w.old.count() > 0 && !t.IsZero() && (w.oldSince.IsZero() || t.Before(w.oldSince)) {
			w.oldSince = t
		}
	}
}

func (h *half) merge(from half) {
	if from.s == nil {
		return
	}
	from.bins.ForEach(func(i int, n float64) bool {
		h.addBin(i, n)
		return false
	})
}
