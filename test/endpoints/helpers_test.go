package endpoints_test

import (
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/test/internal/fixture"
)

func TestMain(m *testing.M) { fixture.RunTests(m) }

// Short names of values and functions that the tests of several folders share.
const (
	ms    = time.Millisecond
	site  = fixture.Site
	usual = fixture.UsualLatency
)

var (
	errDown = fixture.ErrDown
	quick   = fixture.AnswerAsUsual
	after   = fixture.AnswerAfter
	get     = fixture.Get
	warm    = fixture.NewWarmTransport
	warmUp  = fixture.WarmUp
	bubble  = fixture.RunInBubble
	request = doubles.NewRequest
	text    = doubles.ReadBody
)
