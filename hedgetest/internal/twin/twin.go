// Package twin repeats calls, and checks that several calls have the same results, and the same effect on the state, as
// a single call.
package twin

import (
	"cmp"
	"sync"
	"testing"
)

// A CallComparer makes calls several times, and fails a test if the repetition changes a result or the state of the program.
// It is safe for concurrent use; concurrent calls wait for each other.
type CallComparer struct {
	T       testing.TB    // test that fails
	state   func() any    // returns the state to compare; nil: the state is not compared
	calling chan struct{} // a lock, held while calls are made. It is not a Mutex: a goroutine that waits for a Mutex is not durably blocked, and would stop the fake time of a bubble
}

// NewCallComparer returns a CallComparer that fails the test t. The function state returns the state of the program that repeated
// calls must not change; nil: the state is not compared.
func NewCallComparer(t testing.TB, state func() any) *CallComparer {
	return &CallComparer{T: t, state: state, calling: make(chan struct{}, 1)}
}

// CompareCalls makes a call twice at the same time and, when both have returned, a third time. It returns the result of
// the first call. The test fails if another result differs, if the third call changes the state, or if the state cannot
// be read. The name of the call is used in messages.
//
// The function call makes the call; n is 0, 1 or 2. The function record, unless nil, copies the parts of a result that
// a later call may change into the result. It runs while no call is in progress. The function differ returns the
// difference between two results as text; "" if there is none.
func CompareCalls[T any](j *CallComparer, name string, call func(n int) T, record func(*T), differ func(a, b T) string) T {
	j.T.Helper()
	j.calling <- struct{}{}
	defer func() { <-j.calling }()
	var answers [3]T
	var pair sync.WaitGroup
	for n := range 2 {
		pair.Go(func() { answers[n] = call(n) })
	}
	pair.Wait()
	if record != nil {
		record(&answers[0])
		record(&answers[1])
	}
	before, err := j.stateText()
	answers[2] = call(2)
	if record != nil {
		record(&answers[2])
	}
	after, later := j.stateText()
	if err = cmp.Or(err, later); err != nil {
		j.T.Errorf("hedgetest: whether %s changes the state cannot be told: let state return what can be read: %v", name, err)
	}
	if how := differ(answers[0], answers[1]); how != "" {
		j.T.Errorf("hedgetest: %s is not safe to hedge: of two at once, the answers differ: %s", name, how)
	}
	if how := differ(answers[0], answers[2]); how != "" {
		j.T.Errorf("hedgetest: %s is not safe to hedge: the answer differs when it is sent once more: %s", name, how)
	}
	if before != after {
		j.T.Errorf("hedgetest: %s is not safe to hedge: sent once more, it changes the state\nfrom %s\nto   %s", name, before, after)
	}
	return answers[0]
}

// stateText returns the state of the program as text, because the value itself may change later. It returns "" if the
// state is not compared, and an error if a part of the state cannot be read.
func (j *CallComparer) stateText() (string, error) {
	if j.state == nil {
		return "", nil
	}
	return FormatValue(j.state())
}

// CompareErrors compares the errors of two calls. If both errors are nil, decided is false, and the caller must compare
// the results. Otherwise decided is true, and how is the difference as text; it is "" if both calls have failed.
func CompareErrors(a, b error) (how string, decided bool) {
	switch {
	case a == nil && b == nil:
		return "", false
	case a == nil:
		return "one is the error " + b.Error(), true
	case b == nil:
		return "one is the error " + a.Error(), true
	}
	return "", true
}
