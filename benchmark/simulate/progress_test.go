package main

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// The dns engine counts from all of its workers.
func TestProgressIsSetFromManyGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		task := newProgressDisplay(&out, false).addTask("clean", "all in turn", 100)
		var wg sync.WaitGroup
		for n := range 50 {
			wg.Go(func() {
				task.setDone(n)
				time.Sleep(10*time.Second + 1)
				task.setDone(50 + n)
			})
		}
		wg.Wait()
		assert.Equal(t, 1, strings.Count(out.String(), "\n"), "a line every ten seconds: %s", &out)
		assert.Contains(t, out.String(), "clean all in turn")
	})
}

func TestProgressReplacesItsLineOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newProgressDisplay(&out, true)
		hedge, none := p.addTask("clean", "hedge", 100), p.addTask("clean", "none", 100)
		hedge.setDone(0)
		time.Sleep(100 * ms)
		hedge.setDone(50)
		none.setDone(60) // too soon
		hedge.reportFinished(11 * time.Second)
		none.markStopped()
		assert.Equal(t, "\r\x1b[Kclean hedge                       50 %\r\x1b[Kclean hedge                      done in 11.0 s\n\r\x1b[Kclean none                       stopped\n", out.String())
	})
}
