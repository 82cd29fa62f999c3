package race

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSetCopiesEveryFieldOfAStyle(t *testing.T) {
	full := Style{
		Detach: true, Join: true, Sever: true, Prompt: true, Fresh: true, Linger: new(Linger), Grace: time.Second,
		Leave: func() bool { return true }, Usual: time.Second, Watch: &struct{ Watch }{}, Primary: new(Attempt), Call: Called{Target: "host"},
	}
	var copied Style
	copied.set(&full)
	v := reflect.ValueOf(copied)
	for i := range v.NumField() {
		require.False(t, v.Field(i).IsZero(), "%s is not copied", v.Type().Field(i).Name)
	}
}
