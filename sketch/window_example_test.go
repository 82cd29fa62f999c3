package sketch_test

import (
	"fmt"
	"time"

	"github.com/gohedge/hedge/sketch"
)

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
