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

// A Process is a function that runs in a helper process, for which this program is started again.
type Process[In any] struct{ name string }

// New returns a process that calls the function call. Packages call New in variable declarations, so that Serve knows all
// functions. name must be unique in the program.
func New[In any](name string, call func(In) error) Process[In] {
	calls[name] = func(input []byte) error {
		var in In
		if err := json.Unmarshal(input, &in); err != nil {
			return err
		}
		return call(in)
	}
	return Process[In]{name}
}

// Command returns a command that starts this program again, as a process that only calls the function with the input
// in. env adds environment variables. The process is killed if ctx ends. The program must call Serve first.
func (p Process[In]) Command(ctx context.Context, in In, env ...string) (*exec.Cmd, error) {
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(append(os.Environ(), requestEnv+"="+p.name+" "+string(text)), env...)
	return cmd, nil
}

// Serve calls the function of a Process, and then exits, if Process.Command started this process. Otherwise it returns
// at once. main or TestMain calls it first.
func Serve() {
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
