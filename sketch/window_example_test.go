package sketch_test

import (
	"fmt"
	"time"

	"github.com/gohedge/hedge/sketch"
)

// A delay that one call in ten reaches, and the share of calls that reach it.
func Example() {
	var w sketch.Window
	now := time.Now()
	for i := range 1000 {
		latency := 5 * time.Millisecond
		if i%20 == 0 {
			latency = 80 * time.Millisecond
		}
		w.Add(now.Add(time.Duration(i)*time.Millisecond), latency)
	}

	var delay time.Duration
	var share float64
	for edge, above := range w.Tail() {
		if above > 0.10 {
			break
		}
		delay, share = edge, above
	}
	fmt.Printf("hedge after %v: %.0f %% of the calls\n", delay.Round(time.Millisecond), 100*share)
	// Output: hedge after 5ms: 5 % of the calls
}

func ExampleWindow() {
	var w sketch.Window
	now := time.Now()
	for ms := range 100 {
		w.Add(now, time.Duration(ms+1)*time.Millisecond)
	}
	p90, ok := w.Quantile(0.90)
	fmt.Println(p90.Round(5*time.Millisecond), ok)
	// Output: 90ms true
}
