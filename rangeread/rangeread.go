// Package rangeread reads byte ranges of objects from an object store, and hedges slow ranges.
//
// An object store is any server that supports range requests: S3, Google Cloud Storage, Azure, or a plain HTTP file
// server. A [Fetch] sends one range request. It is a few lines around an existing client, so requests are signed,
// retried and measured as before. Objects are read through [io.ReaderAt] and [io.Reader]:
//
//	store := rangeread.NewStore(rangeread.Options{})    // one for each bucket
//	object := store.Open(fetch)                         // one for each object
//	n, err := object.ReadAt(footer, size-int64(len(footer)))
//	_, err = io.Copy(file, object.NewReader(ctx, 0, -1))
//
// # When a hedge is sent
//
// A [Store] measures the latency of ranges by size class, such as 64 KiB and 8 MiB. Two events cause a hedge:
//
//   - The first byte takes longer than for most ranges. The hedge requests the whole range. The response that has its
//     first byte first wins.
//   - The body stalls or breaks off. The hedge requests the missing bytes. If they arrive first, reading continues with
//     them. A body has stalled after twice the longest pause of 95 % of the bodies.
//
// Until ten ranges of a size class have been measured, only bodies that break off are hedged.
//
// [Options].BudgetPercent limits the number and the bytes of the hedges of a store. As in package hedge, hedging is
// paused while most requests are slow. [hedge.WithoutHedging] and the environment variables HEDGE_MODE and
// HEDGE_DISABLED apply.
//
// # Consistency
//
// A [Reader] returns bytes of a single version of its object: the version of the first response. Later requests specify
// it, and a response of another version is the error [ErrChanged]. If a store has no version tags, its objects must not
// change while they are read.
//
// [hedge.WithoutHedging]: https://pkg.go.dev/github.com/gohedge/hedge#WithoutHedging
package rangeread

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// A Range is a range of bytes of an object. A [Reader] passes it to a [Fetch], which requests these bytes.
type Range struct {
	Offset int64 // offset of the first byte in the object
	// Length is the number of bytes, at least 1. The object may end before. -1 means up to the end of the object; a Reader
	// does not use -1 yet.
	Length int64
	// Match is the Tag of the version of the object that the request must require; "" means any version.
	Match string
}

// An Info describes the response to a range request. A [Fetch] returns it with the body.
type Info struct {
	// Offset is the offset in the object of the first byte of the body. It is the Offset of the Range, or 0 if the server
	// ignores ranges and sends the whole object. Bytes before the Range are read and discarded.
	Offset int64
	Length int64  // length of the body in bytes; -1: unknown
	Size   int64  // size of the whole object in bytes; -1: unknown
	Tag    string // identifies the version of the object, such as a strong ETag or a generation; "": unknown
}

// A Fetch sends one request for the range r and returns the body of the response. It must be safe for concurrent use. A
// Reader closes the body once, after the last Read of the body has returned.
//
// ctx is the context of one attempt, and ends when the attempt has lost. The Fetch must pass it to the request, because
// the body's Read must return soon after ctx has ended.
//
// The error must wrap [ErrChanged] if the object no longer has the version in Match (status 412). It must be [io.EOF],
// not wrapped, if the object ends at or before Offset (status 416, unless its Content-Range gives a larger size). A part
// of the object (status 206) that ends at or before Offset is an error.
//
// Any other error fails the attempt; a body returned with an error is closed. A Reader does not retry failed attempts;
// the Fetch may retry requests.
//
// A body that returns an error, or ends before Info.Length, has broken off. An error returned with or after the last
// byte of the body is ignored.
type Fetch func(ctx context.Context, r Range) (io.ReadCloser, Info, error)

// ErrChanged is wrapped by the errors of reads that got a response from another version of the object than the version
// being read. Once a read of a Reader has returned ErrChanged, all later reads of the Reader return it too. To read the
// new version, open the object again.
var ErrChanged = errors.New("rangeread: the object has changed")

// checkAgainstRange returns an error if i contradicts itself, or cannot describe a response to a request for r because
// the body starts too late or ends too early. A body from offset 0 may be the whole object, which may end before r.
func (i Info) checkAgainstRange(r Range) error {
	switch {
	case i.Offset < 0 || i.Length < -1 || i.Size < -1 ||
		i.Size >= 0 && i.Length > i.Size-i.Offset:
		return fmt.Errorf("rangeread: Fetch says what cannot be: offset %d, length %d, size %d", i.Offset, i.Length, i.Size)
	case i.Offset > r.Offset:
		return fmt.Errorf("rangeread: the answer starts at byte %d, instead of %d", i.Offset, r.Offset)
	case i.Offset > 0 && i.Offset < r.Offset && i.Length >= 0 && i.Length <= r.Offset-i.Offset && i.Offset+i.Length != i.Size:
		return fmt.Errorf("rangeread: the answer has the bytes from %d to %d, instead of from %d on", i.Offset, i.Offset+i.Length, r.Offset)
	}
	return nil
}
