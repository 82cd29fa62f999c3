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
				time.Sleep(lineInterval + 1)
				task.setDone(50 + n)
			})
		}
		wg.Wait()
		assert.Equal(t, 1, strings.Count(out.String(), "\n"), "a line every ten seconds: %s", &out)
		assert.Contains(t, out.String(), "clean all in turn")
	})
}

func TestBarsAreDrawnInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newProgressDisplay(&out, true)
		half, none := p.addTask("clean", "hedge", 100), p.addTask("clean", "none", 100)
		half.setDone(0)
		time.Sleep(10*time.Second - 1)
		half.setDone(50)
		time.Sleep(time.Second / 10)
		synctest.Wait()
		frames := strings.Split(out.String(), "\x1b[2A\x1b[J")
		last := strings.Split(frames[len(frames)-1], "\n")
		assert.Equal(t, "clean hedge                      ████████████░░░░░░░░░░░░  50 %, 10s left", last[0])
		assert.Equal(t, "clean none                       ░░░░░░░░░░░░░░░░░░░░░░░░   0 %", last[1])
		half.finishAfter(11 * time.Second)
		assert.True(t, strings.HasSuffix(out.String(), "\x1b[2A\x1b[Jclean hedge                      done in 11.0 s\n"+last[1]+"\n"), out.String())
		none.markStopped()
		p.stopBars()
		assert.True(t, strings.HasSuffix(out.String(), "\x1b[1A\x1b[Jclean none                       stopped\n"), out.String())
	})
}
