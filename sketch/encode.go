package sketch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/DataDog/sketches-go/ddsketch"
	"github.com/DataDog/sketches-go/ddsketch/store"
)

// Append appends an encoding of the window to b, and returns the extended slice. The encoding contains both halves, as
// encoded by sketches-go, with their ages at the current time t, of at most 1,000 hours. [Decode] decodes it.
func (w *Window) Append(b []byte, t time.Time) []byte {
	for _, h := range [...]struct {
		halfWindow
		since time.Time
	}{{w.current, w.currentStart}, {w.previous, w.previousStart}} {
		if h.sampleCount() == 0 {
			b = append(b, 0, 0)
			continue
		}
		b = binary.AppendUvarint(b, uint64(min(max(t.Sub(h.since), 0), maxEncodedAge)))
		var s []byte
		h.sketch.Encode(&s, false)
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}

// errCorrupt is the error of Decode for data that [Window.Append] cannot have written.
var errCorrupt = errors.New("sketch: window is corrupt")

const (
	maxEncodedAge  = 1000 * time.Hour // age of a half that is older; such a half differs little from one of this age
	maxDecodedSize = 1 << 40          // maximum number of samples of a half
	maxEncodedSize = 64 << 10         // maximum number of bytes of a half: twice the size of a half with all buckets
)

// Decode decodes a window that [Window.Append] has encoded. The argument t is the current time: the halves get the ages
// that they had when they were encoded.
//
// Decode returns an error if b is not a complete window. A half must not have more than 2⁴⁰ samples or be longer than
// 64 KiB. A half that is older than 1,000 hours gets this age. So b may come from an untrusted source: a decoded window
// takes at most about 40 KB.
func Decode(b []byte, t time.Time) (*Window, error) {
	w := new(Window)
	for _, h := range [...]struct {
		half  *halfWindow
		since *time.Time
	}{{&w.current, &w.currentStart}, {&w.previous, &w.previousStart}} {
		age, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errCorrupt
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > min(uint64(len(b)-n), maxEncodedSize) {
			return nil, errCorrupt
		}
		if size > 0 {
			if err := h.half.decodeSketch(b[n:][:size]); err != nil {
				return nil, err
			}
			*h.since = t.Add(-time.Duration(min(age, uint64(maxEncodedAge))))
		}
		b = b[n:][size:]
	}
	if len(b) > 0 {
		return nil, errCorrupt
	}
	return w, nil
}

// decodeSketch adds to h the samples of a sketch that sketches-go has encoded. It returns an error if b is invalid, so
// b may come from an untrusted source.
func (h *halfWindow) decodeSketch(b []byte) error {
	// A sparse store takes memory only for buckets with samples, and not for the range between them.
	s := ddsketch.NewDDSketch(nil, store.NewSparseStore(), store.NewSparseStore())
	if err := s.DecodeAndMergeWith(b); err != nil {
		return fmt.Errorf("sketch: %w", err)
	}
	if s.IndexMapping == nil || !indexMapping.Equals(s.IndexMapping) {
		return errors.New("sketch: window has another mapping of values to buckets")
	}
	bad, total := s.GetZeroCount() != 0 || !s.GetNegativeValueStore().IsEmpty(), 0.0
	s.GetPositiveValueStore().ForEach(func(i int, n float64) bool {
		total += n
		bad = bad || i < lowestIndex || i >= lowestIndex+len(upperBounds) || !(n > 0 && total <= maxDecodedSize)
		return bad
	})
	if bad || total < 1 {
		return errCorrupt
	}
	s.GetPositiveValueStore().ForEach(func(i int, n float64) bool {
		h.addToBucket(i, n)
		return false
	})
	return nil
}

// Merge adds the samples of from to the window, without changing from. Use it to add imported latencies. If w is empty,
// it becomes a copy of from. Otherwise the samples are added to the previous half, so that new samples soon outweigh
// them.
func (w *Window) Merge(from *Window) {
	if w.currentStart.IsZero() && w.previousStart.IsZero() {
		w.current.addSamples(from.current)
		w.previous.addSamples(from.previous)
		w.currentStart, w.previousStart = from.currentStart, from.previousStart
		return
	}
	w.previous.addSamples(from.current)
	w.previous.addSamples(from.previous)
	for _, t := range [...]time.Time{w.currentStart, from.currentStart, from.previousStart} {
		if w.previous.sampleCount() > 0 && !t.IsZero() && (w.previousStart.IsZero() || t.Before(w.previousStart)) {
			w.previousStart = t
		}
	}
}

// addSamples adds all samples of another half to h.
func (h *halfWindow) addSamples(from halfWindow) {
	if from.sketch == nil {
		return
	}
	from.bins.ForEach(func(i int, n float64) bool {
		h.addToBucket(i, n)
		return false
	})
}
