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

// A Reader reads one object: the version of it that was there at the first answer. It is safe for concurrent use.
// The zero Reader is not usable; [New] and [Store.Open] make one.
type Reader struct {
	store      *Store
	fetch      Fetch
	version    objectVersion
	closed     context.Context // until Close
	closeReads context.CancelFunc
}

var _ io.ReaderAt = (*Reader)(nil)

// New returns a Reader of one object in a store of its own. Who reads more than one object has [NewStore] and [Store.Open]: what is
// learned of one object then counts for the others.
func New(fetch Fetch, o Options) *Reader { return NewStore(o).Open(fetch) }

// Open returns a Reader of the object that fetch fetches. It asks for nothing yet. A Reader that nobody reads from needs no Close.
func (s *Store) Open(fetch Fetch) *Reader {
	if fetch == nil {
		panic("rangeread: nil Fetch")
	}
	r := &Reader{store: s, fetch: fetch}
	r.closed, r.closeReads = context.WithCancel(context.Background())
	return r
}

// Store returns the store that the object is in.
func (r *Reader) Store() *Store { return r.store }

// ReadAt is ReadAtContext without a limit of time.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	return r.ReadAtContext(context.Background(), p, off)
}

// ReadAtContext reads len(p) bytes of the object into p, from byte off on, as [io.ReaderAt] says: the error is nil only if it has read them
// all, and [io.EOF] if the object ends before. What it returns with an error are the bytes up to there, in order. p is not used any more
// once it has returned. If every attempt has failed, the error is that of the first one, as it is, or that of ctx if that has ended. To read no bytes asks for nothing.
//
// A panic of the Fetch, or of a body, is raised in the caller's goroutine, unless another attempt has what is missing.
func (r *Reader) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	if err := r.checkReadable(ctx, off); err != nil || len(p) == 0 {
		return 0, err
	}
	n, err := readParts(ctx, r, p, off)
	return n, r.convertError(ctx, err)
}

// checkReadable returns an error if nothing can be read: the Reader is closed, the offset is negative, the context has ended, or a read has returned [ErrChanged].
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

// convertError returns the error that a read under ctx returns for err. If an attempt has panicked, convertError panics in the goroutine of the caller.
// For a context that has ended, the error is that of the context, whatever error the client has returned.
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

// callRecovered calls f, and passes its error to then. If f panics, or ends the goroutine, the error is a [race.Panic].
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

// Size returns the size of the object. If no answer has said it, Size asks for the first byte.
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

// Close ends all reads, which then return an error that wraps [fs.ErrClosed], as all later ones do. It does not wait for them.
func (r *Reader) Close() error {
	r.closeReads()
	return nil
}
