package rangeread

import (
	"errors"
	"fmt"
	"sync"
)

// An objectVersion is the version of the object that a Reader reads: the version of its first response. It is safe for
// concurrent use.
type objectVersion struct {
	mu        sync.Mutex // guards the fields below
	known     bool       // a response was received
	tag       string     // "": the store has no version tags
	size      int64      // size of the object; unknown unless sized is true
	sized     bool
	changeErr error // first ErrChanged that a read has returned; nil: none
}

// changeError returns the [ErrChanged] that a read has returned; nil if there is none. Every later read returns it too.
func (v *objectVersion) changeError() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changeErr
}

// recordChange stores the error of a read if it wraps [ErrChanged], unless an earlier one is stored.
func (v *objectVersion) recordChange(err error) {
	if !errors.Is(err, ErrChanged) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changeErr == nil {
		v.changeErr = err
	}
}

// currentTag returns the tag that responses must have; "": any version.
func (v *objectVersion) currentTag() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.tag
}

// knownSize returns the size of the object, and whether it is known.
func (v *objectVersion) knownSize() (size int64, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.size, v.sized
}

// checkInfo returns an error if the response with Info i is of another version.
func (v *objectVersion) checkInfo(i Info) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.checkLocked(i)
}

// checkLocked implements checkInfo. The caller holds mu.
func (v *objectVersion) checkLocked(i Info) error {
	switch {
	case v.changeErr != nil:
		return v.changeErr
	case v.known && i.Tag != v.tag:
		return fmt.Errorf("%w: its tag was %q and is %q", ErrChanged, v.tag, i.Tag)
	case v.sized && i.Size >= 0 && i.Size != v.size:
		return fmt.Errorf("%w: its size was %d and is %d", ErrChanged, v.size, i.Size)
	}
	return nil
}

// adoptInfo checks the Info of a response that will be read, and stores its tag and size. It returns an error if the
// response is of another version.
func (v *objectVersion) adoptInfo(i Info) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.checkLocked(i); err != nil {
		return err
	}
	v.known, v.tag = true, i.Tag
	if i.Size >= 0 {
		v.size, v.sized = i.Size, true
	}
	return nil
}

// recordEnd records that a response ended at the given offset; if the size is unknown, that offset is the size. It
// reports whether the object can end there.
func (v *objectVersion) recordEnd(at int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.sized {
		v.size, v.sized = at, true
	}
	return v.size <= at
}
