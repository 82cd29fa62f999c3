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

// A Process is a function that runs in a helper process, for which this program is started again.
type Process[In any] struct {
	Name string // unique in the program
	Call func(In) error
}

// Command returns a command that calls the function with the input in, and is killed if ctx ends. env has further variables.
// The program must call Serve first.
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
	cmd.Env = append(append(os.Environ(), requestEnv+"="+p.Name+" "+string(text)), env...)
	return cmd, nil
}

// Serve calls the function if Command describes this process, and then exits. In any other process it returns at once.
func (p Process[In]) Serve() {
	text, ok := strings.CutPrefix(os.Getenv(requestEnv), p.Name+" ")
	if !ok {
		return
	}
	var in In
	err := json.Unmarshal([]byte(text), &in)
	if err == nil {
		err = p.Call(in)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}
