// Package helper runs functions of a program in processes of their own.
package helper

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// requestEnv is the variable of a helper process: the name of its function, a space, and the input as JSON.
const requestEnv = "HEDGE_BENCHMARK_HELPER"

// calls has the functions by their names. They decode their input from JSON.
var calls = make(map[string]func(input []byte) error)

// A Func is a function with a name that can run in a helper process: this program, started again to run only the function.
type Func[In any] struct{ name string }

// New returns the function call as a Func. name must be unique in the program. Packages call New in variable
// declarations, so that RunIfHelper finds the function by its name.
func New[In any](name string, call func(In) error) Func[In] {
	calls[name] = func(input []byte) error {
		var in In
		if err := json.Unmarshal(input, &in); err != nil {
			return err
		}
		return call(in)
	}
	return Func[In]{name}
}

// Command returns a command that starts this program again, to call only the function, with the input in. env adds
// environment variables. The process is killed if ctx ends. main or TestMain must begin with RunIfHelper.
func (f Func[In]) Command(ctx context.Context, in In, env ...string) (*exec.Cmd, error) {
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(append(os.Environ(), requestEnv+"="+f.name+" "+string(text)), env...)
	return cmd, nil
}

// RunIfHelper runs the function of a Func and exits, in a process that Func.Command started. In any other process it
// returns at once. main or TestMain calls it first.
func RunIfHelper() {
	name, input, ok := strings.Cut(os.Getenv(requestEnv), " ")
	if !ok {
		return
	}
	if err := calls[name]([]byte(input)); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}
