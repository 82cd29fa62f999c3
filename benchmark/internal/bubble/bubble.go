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

// A Func is a function that runs in the fake time of testing/synctest, which works only in tests. So [Func.Run] starts
// this program again as a helper process. That process runs the function in a test and sends the result by encoding/gob.
type Func[In, Out any] struct {
	name   string
	helper helper.Func[In]
}

// New returns a Func that calls the function call in fake time. name must be unique in the program. Packages call New in
// variable declarations, so that a helper process finds the function by its name.
func New[In, Out any](name string, call func(context.Context, In) (Out, error)) Func[In, Out] {
	return Func[In, Out]{name, helper.New(name, func(in In) error {
		os.Args = os.Args[:1] // the rest would be flags of the test
		all := func(string, string) (bool, error) { return true, nil }
		testing.Main(all, []testing.InternalTest{{Name: name, F: func(t *testing.T) {
			var out Out
			var err error
			synctest.Test(t, func(t *testing.T) { out, err = call(t.Context(), in) })
			if err == nil {
				err = gob.NewEncoder(os.Stdout).Encode(out)
			}
			if err != nil {
				t.Fatal(err)
			}
		}}}, nil, nil)
		return nil
	})}
}

// Run calls the function with in, in the fake time of a helper process. main or TestMain must begin with helper.RunIfHelper.
func (f Func[In, Out]) Run(ctx context.Context, in In) (out Out, err error) {
	cmd, err := f.helper.Command(ctx, in)
	if err != nil {
		return out, err
	}
	var result, errorText bytes.Buffer
	cmd.Stdout, cmd.Stderr = &result, &errorText
	if err := cmd.Run(); err != nil {
		return out, fmt.Errorf("%s: %w\n%s%s", f.name, err, &errorText, &result)
	}
	if err := gob.NewDecoder(&result).Decode(&out); err != nil {
		return out, fmt.Errorf("%s: %w", f.name, err)
	}
	return out, nil
}
