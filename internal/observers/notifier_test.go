package observers_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/observe"
)

type observer struct {
	observe.NopObserver
	do func()
}

func (o observer) Audited(observe.KeyInfo, observe.Audit) { o.do() }

func tell(w *observers.Notifier) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Notify(func(o observe.Observer) { o.Audited(observe.KeyInfo{}, observe.Audit{}) })
	}()
	<-ended
}

func TestNotifyCallsOtherObserversAfterPanic(t *testing.T) {
	var values []any
	heard := 0
	tell(observers.NewNotifier([]observe.Observer{
		observer{do: func() { panic("one") }},
		observer{do: func() { heard++ }},
		observer{do: runtime.Goexit},
		observer{do: func() { heard++ }}, // which the goroutine's end prevents
	}, func(_ observe.Observer, value any) { values = append(values, value) }))
	assert.Equal(t, []any{"one", "runtime.Goexit"}, values)
	assert.Equal(t, 1, heard)
}

func TestNotifierWithoutObserversDoesNothing(t *testing.T) {
	assert.Nil(t, observers.NewNotifier(nil, nil))
	tell(nil)
	tell(observers.NewNotifier([]observe.Observer{observer{do: func() { panic("nobody is told") }}}, nil))
}
