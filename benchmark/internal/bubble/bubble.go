// Package bubble runs functions in the fake time of testing/synctest from programs that are not tests.
package bubble

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"os"
	"testing"
	"testing/synctest"

	"github.com/gohedge/hedge/benchmark/internal/helper"
)

// A Func is a function that runs in the fake time of testing/synctest. That package works only in tests, so [Func.Run]
// starts this program again as a helper process, and [Func.Serve] runs a test there. The result comes by encoding/gob.
type Func[In, Out any] struct {
	Name string // unique in the program
	Call func(context.Context, In) (Out, error)
}

// Run starts this program again, which must call Serve first, and returns the result of the function in fake time.
func (f Func[In, Out]) Run(ctx context.Context, in In) (out Out, err error) {
	cmd, err := f.process().Command(ctx, in)
	if err != nil {
		return out, err
	}
	var result, errorText bytes.Buffer
	cmd.Stdout, cmd.Stderr = &result, &errorText
	if err := cmd.Run(); err != nil {
		return out, fmt.Errorf("%s: %w\n%s%s", f.Name, err, &errorText, &result)
	}
	if err := gob.NewDecoder(&result).Decode(&out); err != nil {
		return out, fmt.Errorf("%s: %w", f.Name, err)
	}
	return out, nil
}

// Serve calls the function in fake time if Run has started this process as a helper, and then exits. In any other
// process it returns at once. A program that calls Run must call Serve first.
func (f Func[In, Out]) Serve() { f.process().Serve() }

func (f Func[In, Out]) process() helper.Process[In] {
	return helper.Process[In]{Name: f.Name, Call: func(in In) error {
		os.Args = os.Args[:1] // the rest would be flags of the test
		all := func(string, string) (bool, error) { return true, nil }
		testing.Main(all, []testing.InternalTest{{Name: f.Name, F: func(t *testing.T) {
			var out Out
			var err error
			synctest.Test(t, func(t *testing.T) { out, err = f.Call(t.Context(), in) })
			if err == nil {
				err = gob.NewEncoder(os.Stdout).Encode(out)
			}
			if err != nil {
				t.Fatal(err)
			}
		}}}, nil, nil)
		return nil
	}}
}
