package rangeread

import (
	"errors"
	"fmt"
	"sync"
)

// A objectVersion is the one that a Reader reads: that of its first answer.
type objectVersion struct {
	mu        sync.Mutex // guards the fields below
	known     bool       // a response was read
	tag       string     // "": the store names no versions
	size      int64      // of the object; not known unless sized
	sized     bool
	changeErr error // the ErrChanged that a read returned first; nil: no read did
}

// changeError returns the [ErrChanged] that a read has returned, nil if there is none. Every later read returns it too.
func (v *objectVersion) changeError() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changeErr
}

// recordChange stores err, which a read is about to return, if it wraps [ErrChanged] and is the first error that does.
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

// currentTag returns the tag that requests must match; "": any version.
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

// checkInfo returns an error if a response is of another version.
func (v *objectVersion) checkInfo(i Info) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.checkLocked(i)
}

// checkLocked is checkInfo. The caller holds mu.
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

// adoptInfo stores the tag and the size of a response that is read. It returns an error if the response is of another version.
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

// recordEnd records that a response ended at the given byte. It reports whether that can be the end of the object.
func (v *objectVersion) recordEnd(at int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.sized {
		v.size, v.sized = at, true
	}
	return v.size <= at
}
