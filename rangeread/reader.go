package rangeread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime/debug"

	"github.com/gohedge/hedge/internal/race"
)

var (
	errClosed      = fmt.Errorf("rangeread: the Reader is closed: %w", fs.ErrClosed)
	errNegative    = errors.New("rangeread: negative offset")
	errUnknownSize = errors.New("rangeread: the store does not say how large the object is")
)

// A Reader reads one version of one object: the version of its first response. It is safe for concurrent use. The zero
// Reader is not usable; call [New] or [Store.Open].
type Reader struct {
	store      *Store
	fetch      Fetch
	version    objectVersion
	closed     context.Context // ends when the Reader is closed
	closeReads context.CancelFunc
}

var _ io.ReaderAt = (*Reader)(nil)

// New returns a Reader of one object with its own Store. To read several objects, use [NewStore] and [Store.Open], so
// that they share latencies and budgets.
func New(fetch Fetch, o Options) *Reader { return NewStore(o).Open(fetch) }

// Open returns a Reader of the object that fetch requests. It sends no request. A Reader without reads in progress need
// not be closed. Open panics if fetch is nil.
func (s *Store) Open(fetch Fetch) *Reader {
	if fetch == nil {
		panic("rangeread: nil Fetch")
	}
	r := &Reader{store: s, fetch: fetch}
	r.closed, r.closeReads = context.WithCancel(context.Background())
	return r
}

// Store returns the Store of the object.
func (r *Reader) Store() *Store { return r.store }

// ReadAt is [Reader.ReadAtContext] with the background context.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	return r.ReadAtContext(context.Background(), p, off)
}

// ReadAtContext reads len(p) bytes at offset off into p, as specified by [io.ReaderAt]. The error is nil only if all
// bytes were read, and [io.EOF] if the object ends before. The n bytes returned with an error are the first n of the
// range. p is not used after it has returned. If p is empty, no request is sent.
//
// If every attempt has failed, it returns the unchanged error of the first attempt, or the error of ctx if that has
// ended. A panic in the Fetch or in a body is raised in the caller's goroutine, unless another attempt delivers the
// bytes.
func (r *Reader) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	if err := r.checkReadable(ctx, off); err != nil || len(p) == 0 {
		return 0, err
	}
	n, err := readParts(ctx, r, p, off)
	return n, r.convertError(ctx, err)
}

// checkReadable returns an error if no read is possible: the Reader is closed, off is negative, ctx has ended, or a
// read has returned [ErrChanged].
func (r *Reader) checkReadable(ctx context.Context, off int64) error {
	switch {
	case r.closed.Err() != nil:
		return errClosed
	case off < 0:
		return errNegative
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		return r.version.changeError()
	}
}

// convertError converts the error of an attempt to the error that a read returns. If the Reader is closed or ctx has
// ended, it returns that error, whatever err is. A panic of an attempt is raised in the caller's goroutine.
func (r *Reader) convertError(ctx context.Context, err error) error {
	if p, ok := err.(*race.Panic); ok {
		p.Rethrow()
	}
	switch {
	case err == nil || err == io.EOF:
		return err
	case r.closed.Err() != nil:
		return errClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	r.version.recordChange(err)
	return err
}

// callRecovered calls f, and then passes its error to then. If f panics or calls runtime.Goexit, the error is a
// [race.Panic].
func callRecovered(f func() error, then func(error)) {
	var err error = new(race.Panic) // unless f returns
	defer func() {
		switch v := recover().(type) {
		case nil:
		case *race.Panic:
			err = v
		default:
			err = &race.Panic{Value: v, Stack: debug.Stack()}
		}
		then(err)
	}()
	err = f()
}

// Size returns the size of the object. If no response has contained it, Size requests the first byte.
func (r *Reader) Size(ctx context.Context) (int64, error) {
	if size, known := r.version.knownSize(); known && r.version.changeError() == nil {
		return size, nil
	}
	if err := r.checkReadable(ctx, 0); err != nil {
		return 0, err
	}
	f := newRangeBody(ctx, r, 0, 1)
	defer f.close()
	_, err := f.nextBytes()
	if size, known := r.version.knownSize(); known {
		return size, nil
	}
	if err == nil || err == io.EOF {
		err = errUnknownSize
	}
	return 0, r.convertError(ctx, err)
}

// Close ends all reads without waiting for them. These and later reads return an error that wraps [fs.ErrClosed].
func (r *Reader) Close() error {
	r.closeReads()
	return nil
}
