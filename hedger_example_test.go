package hedge_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gohedge/hedge"
)

// A client that ignores its context gains nothing by Do, which waits for it.
func ExampleDoDetached() {
	hedger := hedge.NewHedger()
	asked := make(chan int, 8)
	get := func(context.Context) (string, error) { // a client that takes no context
		if asked <- 1; len(asked) == 1 {
			time.Sleep(500 * time.Millisecond) // the first connection is stuck
		}
		return "value", nil
	}
	discard := func(string) {} // nothing to close

	ctx := hedge.WithDelay(context.Background(), 5*time.Millisecond) // known after ten calls, as a rule
	start := time.Now()
	value, err := hedge.DoDetached(ctx, hedger, "cache", get, discard)
	fmt.Println(value, err, time.Since(start) < 400*time.Millisecond)
	time.Sleep(time.Second) // here, for the test: the first call goes on for a while
	// Output: value <nil> true
}
