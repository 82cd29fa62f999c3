// Package twin makes each call several times, and checks that the results and the state are those of one call.
package twin

import (
	"cmp"
	"sync"
	"testing"
)

// A Judge makes calls twice. It is safe for concurrent use; calls wait for each other.
type Judge struct {
	T       testing.TB
	state   func() any    // nil: the state is not compared
	calling chan struct{} // full while a call is made. A goroutine that waits for a Mutex is not durably blocked, and would stop the time of a bubble
}

// NewJudge returns a Judge that tells t how calls change the state.
func NewJudge(t testing.TB, state func() any) *Judge {
	return &Judge{T: t, state: state, calling: make(chan struct{}, 1)}
}

// CompareCalls makes a call twice at once and, when both are answered, once more. It returns the first one's answer. The test
// fails if another answer differs, or the last one changes the state, or the state cannot be read. Record, unless nil, notes in an answer what
// a later call may change; no call is under way then. Differ says how two answers differ; "": not at all.
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

// stateText returns the state as text, because the value itself may change. It returns "" if the state is not compared.
func (j *Judge) stateText() (string, error) {
	if j.state == nil {
		return "", nil
	}
	return FormatValue(j.state())
}

// CompareErrors says how the outcomes of two calls differ of which at least one may be an error, and whether that decides.
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
