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
	errClosed      = fmt.Errorf("rangeread: the Reader is closed: %w", fs.ErrClosed) // errClosed is the error of reads after Close. It wraps fs.ErrClosed.
	errNegative    = errors.New("rangeread: negative offset")
	errUnknownSize = errors.New("rangeread: the store does not say how large the object is")
)

// A Reader reads a single version of an object by range requests, and hedges slow requests. The first response
// determines the version. A Reader is safe for concurrent use. The zero Reader is not usable; call [New] or
// [Store.Open].
type Reader struct {
	store      *Store
	fetch      Fetch
	version    objectVersion      // version of the object that is being read
	closed     context.Context    // ends when the Reader is closed
	closeReads context.CancelFunc // ends the context closed
}

var _ io.ReaderAt = (*Reader)(nil)

// New returns a Reader of the object that fetch requests, with a Store of its own. To read several objects, use
// [NewStore] and [Store.Open], so that they share latencies and budgets. New panics if fetch is nil or an option is
// invalid.
func New(fetch Fetch, o Options) *Reader { return NewStore(o).Open(fetch) }

// Open returns a Reader of the object that fetch requests. It sends no request. A Reader need not be closed if no read
// is in progress. Open panics if fetch is nil.
func (s *Store) Open(fetch Fetch) *Reader {
	if fetch == nil {
		panic("rangeread: nil Fetch")
	}
	r := &Reader{store: s, fetch: fetch}
	r.closed, r.closeReads = context.WithCancel(context.Background())
	return r
}

// Store returns the Store whose latencies and budgets the Reader uses.
func (r *Reader) Store() *Store { return r.store }

// ReadAt implements [io.ReaderAt]. It is [Reader.ReadAtContext] with the background context.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	return r.ReadAtContext(context.Background(), p, off)
}

// ReadAtContext reads len(p) bytes at offset off into p, as specified by [io.ReaderAt]. The error is nil only if all
// bytes were read, and [io.EOF] if the object ends before.
//
// With an error, n is the number of bytes that were read without a gap from off on. p is not used after ReadAtContext
// has returned. If p is empty, no request is sent.
//
// If every attempt has failed, the error is the unchanged error of the first attempt, or the error of ctx if ctx has
// ended. A panic in the Fetch or in a body is raised in the caller's goroutine, unless another attempt delivers the
// bytes.
func (r *Reader) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	if err := r.checkReadable(ctx, off); err != nil || len(p) == 0 {
		return 0, err
	}
	n, err := readParts(ctx, r, p, off)
	return n, r.convertError(ctx, err)
}

// checkReadable returns an error if a read at offset off is not possible: the Reader is closed, off is negative, ctx
// has ended, or an earlier read has returned [ErrChanged].
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

// convertError returns the error that a read returns if an attempt has ended with err. If the Reader is closed or ctx
// has ended, that is the reported error, whatever err is. If err is a panic of the attempt, convertError panics with
// it, in the caller's goroutine. It also records an [ErrChanged] for later reads.
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

// callRecovered calls f, and then passes the error of f to the function report. If f panics or calls runtime.Goexit,
// the error is a [race.Panic], so that the caller's goroutine can raise the panic.
func callRecovered(f func() error, report func(error)) {
	var err error = new(race.Panic) // unless f returns
	defer func() {
		switch v := recover().(type) {
		case nil:
		case *race.Panic:
			err = v
		default:
			err = &race.Panic{Value: v, Stack: debug.Stack()}
		}
		report(err)
	}()
	err = f()
}

// Size returns the size of the object in bytes. If no response has contained the size yet, Size requests the first
// byte. It returns an error if the request fails, or if the response does not contain the size.
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

// Close ends all reads of the Reader without waiting for them. These and later reads return an error that wraps
// [fs.ErrClosed]. The error of Close is always nil.
func (r *Reader) Close() error {
	r.closeReads()
	return nil
}
