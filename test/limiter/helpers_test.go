package limiter_test

import (
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/test/internal/fixture"
)

func TestMain(m *testing.M) { fixture.RunTests(m) }

// Short names for values and functions that tests of several folders share.
const (
	ms   = time.Millisecond
	site = fixture.Site
)

var (
	after  = fixture.AnswerAfter
	get    = fixture.Get
	warm   = fixture.NewWarmTransport
	bubble = fixture.RunInBubble
	text   = doubles.ReadBody
)

type (
	recorder = doubles.Recorder
)
