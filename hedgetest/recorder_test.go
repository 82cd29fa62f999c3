package hedgetest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/hedgetest"
	"github.com/gohedge/hedge/observe"
)

func TestSentOnceFailsForRequestForRestOfBody(t *testing.T) {
	var r hedgetest.Recorder
	rest := observe.AttemptInfo{Number: 1, IsResumption: true}
	r.RequestDone(t.Context(), observe.KeyInfo{}, observe.RequestResult{Attempts: 1})
	r.AttemptStart(t.Context(), observe.KeyInfo{}, rest)
	f := &failures{TB: t}
	r.SentOnce(f)
	assert.Len(t, f.all, 1)
	r.RequestDone(t.Context(), observe.KeyInfo{}, observe.RequestResult{Attempts: 1})
	r.SentOnce(t)
}
