package func_test

import (
	"testing"
	"time"

	"github.com/gohedge/hedge/test/internal/fixture"
)

func TestMain(m *testing.M) { fixture.RunTests(m) }

// Short names for values and functions that tests of several folders share.
const (
	ms    = time.Millisecond
	usual = fixture.UsualLatency
)

var (
	errDown = fixture.ErrDown
)
