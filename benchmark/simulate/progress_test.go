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
		task := newProgress(&out, false).begin("clean", "all in turn", 100)
		var wg sync.WaitGroup
		for n := range 50 {
			wg.Go(func() {
				task.set(n)
				time.Sleep(everyLine + 1)
				task.set(50 + n)
			})
		}
		wg.Wait()
		assert.Equal(t, 1, strings.Count(out.String(), "\n"), "a line every ten seconds: %s", &out)
		assert.Contains(t, out.String(), "clean all in turn")
	})
}
