// Package twin repeats calls, and checks that their results and their effect on the state are those of one call.
package twin

import (
	"cmp"
	"sync"
	"testing"
)

// A Judge repeats calls and reports unsafe ones to a test. It is safe for concurrent use; calls wait for each other.
type Judge struct {
	T       testing.TB
	state   func() any    // returns the state to compare; nil: the state is not compared
	calling chan struct{} // a lock, held while calls are made. It is not a Mutex: a goroutine that waits for a Mutex is not durably blocked, and would stop the fake time of a bubble
}

// NewJudge returns a Judge that fails t if a repeated call changes the result of state.
func NewJudge(t testing.TB, state func() any) *Judge {
	return &Judge{T: t, state: state, calling: make(chan struct{}, 1)}
}

// CompareCalls makes a call twice at the same time and, when both have returned, a third time. It returns the first
// result. The test fails if another result differs, if the third call changes the state, or if the state cannot be
// read.
//
// The function record, unless nil, stores parts of a result that a later call may change. It runs while no call is in
// progress. The function differ returns the difference between two results as text; "" if there is none.
func CompareCalls[T any](j *Judge, name string, call func(n int) T, record func(*T), differ func(a, b T) string) T {
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

// stateText returns the state as text, because the value itself may change later. It returns "" if the state is not
// compared.
func (j *Judge) stateText() (string, error) {
	if j.state == nil {
		return "", nil
	}
	return FormatValue(j.state())
}

// CompareErrors compares the errors of two calls. The result how is the difference as text, "" if there is none. It
// reports false if both errors are nil, so that the results must be compared.
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
