package rangeread

import (
	"errors"
	"fmt"
	"sync"
)

// A version is the one that a Reader reads: that of its first answer.
type version struct {
	mu    sync.Mutex // guards the fields below
	known bool       // there was an answer
	tag   string     // "": it has none
	size  int64      // of the object, if sized
	sized bool
	gone  error // the ErrChanged that a read returned first; nil: no read did
}

// changed returns the [ErrChanged] that a read has returned, nil if there is none. Every later read returns it too.
func (v *version) changed() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.gone
}

// recordChange stores err, which a read is about to return, if it wraps [ErrChanged] and is the first error that does.
func (v *version) recordChange(err error) {
	if !errors.Is(err, ErrChanged) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.gone == nil {
		v.gone = err
	}
}

// match returns what a request is to name.
func (v *version) match() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.tag
}

// length returns the size of the object, and whether it is known.
func (v *version) length() (size int64, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.size, v.sized
}

// check returns why an answer cannot be one of this version.
func (v *version) check(i Info) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.differs(i)
}

// differs is check. The caller holds mu.
func (v *version) differs(i Info) error {
	switch {
	case v.gone != nil:
		return v.gone
	case v.known && i.Tag != v.tag:
		return fmt.Errorf("%w: its tag was %q and is %q", ErrChanged, v.tag, i.Tag)
	case v.sized && i.Size >= 0 && i.Size != v.size:
		return fmt.Errorf("%w: its size was %d and is %d", ErrChanged, v.size, i.Size)
	}
	return nil
}

// adopt takes the version of an answer that is read, or returns why it is another one.
func (v *version) adopt(i Info) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.differs(i); err != nil {
		return err
	}
	v.known, v.tag = true, i.Tag
	if i.Size >= 0 {
		v.size, v.sized = i.Size, true
	}
	return nil
}

// ends says that the object ends at the given byte, as was found out by reading. It reports false if it does not.
func (v *version) ends(at int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.sized {
		v.size, v.sized = at, true
	}
	return v.size <= at
}
