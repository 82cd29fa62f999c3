// Package rangeread reads ranges of objects from an object store, and hedges the slow ones.
//
// A store is whatever answers "give me these bytes": S3, Google Cloud Storage, Azure, or any server of files over HTTP. How it
// is asked, a [Fetch] says, which is a few lines around a client that exists; so requests are signed, retried and counted as
// before. What is read is an [io.ReaderAt] or an [io.Reader]:
//
//	store := rangeread.NewStore(rangeread.Options{})    // one for each bucket
//	object := store.Open(fetch)                         // one for each object
//	n, err := object.ReadAt(footer, size-int64(len(footer)))
//	_, err = io.Copy(file, object.NewReader(ctx, 0, -1))
//
// # When a second request is sent
//
// A [Store] learns how long ranges take: those of 64 KiB other than those of 8 MiB. Two clocks run for each. The first one is the
// time to the first byte: if that is longer than for most, the range is asked for once more, and who
// has its first byte sooner is read. The second one is the longest pause in the body: if a body pauses for
// twice as long as nineteen bodies in twenty ever do, or breaks off, what is missing of it is asked for, and if that comes first, reading goes on
// with it. No delay is known, and nothing is hedged but a body that breaks off, until ten ranges of that size were read.
//
// The second requests of a store are at most so many, in number and in bytes, as [Options].BudgetPercent allows, and a burst.
// They stop while most requests are slow, as those of package hedge do, and where [hedge.WithoutHedging] or the variables HEDGE_MODE and
// HEDGE_DISABLED say so.
//
// # What is read
//
// All bytes that a [Reader] returns are those of one version of its object, the one that was there at its first answer. Later
// requests name it, and an answer of another version is [ErrChanged]. A store that names no versions must not change its objects
// while they are read.
//
// [hedge.WithoutHedging]: https://pkg.go.dev/github.com/gohedge/hedge#WithoutHedging
package rangeread

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// A Range is what a [Fetch] is asked for.
type Range struct {
	Offset int64  // of the first byte
	Length int64  // how many bytes, at least 1; there may be fewer in the object. -1: to the end, which a Reader does not ask for as yet
	Match  string // the Tag of the version that is read; "": any version will do
}

// An Info says what came.
type Info struct {
	// Offset is where in the object the body starts: that of the Range, or 0 if the server has ignored the Range and sent the whole
	// object. What comes before the Range is read and dropped.
	Offset int64
	Length int64  // of the body; -1: not known
	Size   int64  // of the whole object; -1: not known
	Tag    string // of the version: a strong ETag, a generation; "": none
}

// A Fetch asks the store for a range, once. It is called by several goroutines at the same time. The context is that of one
// attempt: it ends when the attempt has lost, and it must reach the request, as the body's Read must return soon after it has
// ended. The body is closed once, after its last Read has returned.
//
// A Fetch returns an error that wraps [ErrChanged] if the version that Match names is there no more (status 412), and [io.EOF] itself, not
// wrapped, if the object ends at or before Offset (status 416, unless its Content-Range says that the object is longer). Any other error fails the attempt, and a body beside it is closed. Retries are the Fetch's own business.
//
// A body that ends before Info.Length, or fails, has broken off. An error that comes with its last byte, or after that, is not looked at.
type Fetch func(ctx context.Context, r Range) (io.ReadCloser, Info, error)

// ErrChanged is wrapped by the errors of reads that found another version of the object than the one that is read. Once a read has returned it, all
// later reads of the Reader return it as well, even if the object is again as it was: open the object anew.
var ErrChanged = errors.New("rangeread: the object has changed")

// checkAgainst returns why what came cannot be what was asked for.
func (i Info) checkAgainst(r Range) error {
	switch {
	case i.Offset < 0 || i.Length < -1 || i.Size < -1 ||
		i.Size >= 0 && i.Length > i.Size-i.Offset:
		return fmt.Errorf("rangeread: Fetch says what cannot be: offset %d, length %d, size %d", i.Offset, i.Length, i.Size)
	case i.Offset > r.Offset:
		return fmt.Errorf("rangeread: the answer starts at byte %d, instead of %d", i.Offset, r.Offset)
	}
	return nil
}
