package rangeread

import (
	"errors"
	"fmt"
	"sync"
)

// An objectVersion records which version of the object a Reader reads: the tag and size of the first response.
// Responses of another version are rejected. It is safe for concurrent use.
type objectVersion struct {
	mu          sync.Mutex // guards the fields below
	hasResponse bool       // true once a response was received
	tag         string     // Tag of the version; "": the server has no version tags
	size        int64      // size of the object in bytes; only valid if hasSize is true
	hasSize     bool       // true once the size is known
	changeErr   error      // first error with ErrChanged that a read has returned; nil: none
}

// changeError returns the first error with [ErrChanged] that a read has returned, or nil if there is none. All later
// reads return the same error.
func (v *objectVersion) changeError() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changeErr
}

// recordChange stores the error of a read if the error wraps [ErrChanged] and no earlier one is stored.
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

// currentTag returns the Tag that later responses must have. It returns "" if any version is accepted.
func (v *objectVersion) currentTag() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.tag
}

// knownSize returns the size of the object in bytes. The size is only valid if known is true.
func (v *objectVersion) knownSize() (size int64, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.size, v.hasSize
}

// checkInfo returns an error that wraps [ErrChanged] if a response with the Info i is from another version of the
// object than earlier responses.
func (v *objectVersion) checkInfo(i Info) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.checkLocked(i)
}

// checkLocked compares the Info of a response with that of earlier responses, for checkInfo and adoptInfo. It returns
// an error that wraps [ErrChanged] if the response is from another version. The caller must hold mu.
func (v *objectVersion) checkLocked(i Info) error {
	switch {
	case v.changeErr != nil:
		return v.changeErr
	case v.hasResponse && i.Tag != v.tag:
		return fmt.Errorf("%w: its tag was %q and is %q", ErrChanged, v.tag, i.Tag)
	case v.hasSize && i.Size >= 0 && i.Size != v.size:
		return fmt.Errorf("%w: its size was %d and is %d", ErrChanged, v.size, i.Size)
	}
	return nil
}

// adoptInfo checks the Info of a response that will be read, and stores the tag and size for later checks. It returns
// an error that wraps [ErrChanged] if the response is from another version of the object.
func (v *objectVersion) adoptInfo(i Info) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.checkLocked(i); err != nil {
		return err
	}
	v.hasResponse, v.tag = true, i.Tag
	if i.Size >= 0 {
		v.size, v.hasSize = i.Size, true
	}
	return nil
}

// recordEnd records that a response ended at the given offset. If the size of the object is unknown, that offset
// becomes the size. The result is false if the object is known to be larger, so that the response has ended too early.
func (v *objectVersion) recordEnd(offset int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.hasSize {
		v.size, v.hasSize = offset, true
	}
	return v.size <= offset
}
