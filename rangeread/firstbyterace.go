package rangeread

import (
	"context"
	"errors"
	"io"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
)

// A firstByteRace sends a range request, and hedges if the first byte is late. The attempt that receives its first byte
// first wins. It implements [race.Op].
type firstByteRace struct {
	policy.Call
	race     race.Race[openResult]
	request  *rangeRequest
	from, to int64
}

// raceFirstByte requests the bytes [from, to) for the range of t, and waits until an attempt has received its first
// byte. If hedged is true, it sends hedges when the first byte is late.
//
// It returns the response of the winning attempt, and the number of attempts that were started. If no attempt succeeds,
// it returns the error of the primary.
func raceFirstByte(ctx context.Context, t *rangeRequest, from, to int64, hedged bool) (s *response, started int, err error) {
	o := &firstByteRace{request: t, from: from, to: to}
	o.race.Style.Async, o.race.Style.TryAbandon = true, func() bool { return true }
	if hedged {
		o.Begin(ctx, t.key, race.OverridesFrom(ctx).Delay)
	}
	out := o.race.Run(t.ctx, o, o.RaceSchedule())
	if hedged {
		answered := out.Winner >= 0
		o.End(policy.Outcome{
			Answered: answered, Winner: out.Winner, AnswersNotTaken: out.AnswersNotTaken,
			LatencyUnknown: answered && (out.Value.err != nil || out.Value.response.isEmpty()), // no first byte came
		})
	}
	if out.Winner > 0 {
		t.store.firstByteWins.Add(1)
	}
	if err = out.Err; err == nil {
		err = out.Value.err
	}
	if err != nil && out.Attempt != nil {
		out.Attempt.Release()
	}
	return out.Value.response, out.Started, err
}

// Attempt implements [race.Op]: it sends the request once and reads the first chunk of the response. io.EOF, ErrChanged
// and an empty body are not failures: they are valid results, which end the race.
func (o *firstByteRace) Attempt(a *race.Attempt, _ int) (openResult, error) {
	s, err := o.request.openResponse(a, o.from, o.to)
	if err == io.EOF || errors.Is(err, ErrChanged) {
		return openResult{err: err}, race.ErrAnswer
	}
	if err == nil && s.isEmpty() {
		err = race.ErrAnswer
	}
	return openResult{response: s}, err
}

// Discard implements [race.Op]: it closes the response of an attempt that has lost, and counts a panic of the attempt.
func (o *firstByteRace) Discard(v openResult, err error) {
	if _, ok := err.(*race.Panic); ok {
		o.request.store.panics.Add(1)
	}
	if v.response != nil {
		v.response.closeBody()
	}
}

// Admit implements [race.Op]: it reports whether the hedge with the given index may start. If so, it takes tokens from
// the budget of hedges and from the budget of bytes.
func (o *firstByteRace) Admit(index int) bool {
	if !o.request.admitHedge(&o.Call, index, o.from, o.to) {
		return false
	}
	o.request.store.firstByteHedges.Add(1)
	return true
}
