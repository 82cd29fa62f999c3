// Package bubble runs functions in the fake time of testing/synctest, from programs that are no tests.
package bubble

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
)

// playsEnv is the variable that makes this program play something: its name, a space, and its input as JSON.
const playsEnv = "HEDGE_BUBBLE_PLAYS"

// Run returns what the function returns that was given to [Serve] under that name. A bubble needs a test: so it starts this program again,
// where Serve is that test. What it takes and returns is encoded as JSON and by gob.
func Run[In, Out any](ctx context.Context, name string, in In) (out Out, err error) {
	text, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	program, err := os.Executable()
	if err != nil {
		return out, err
	}
	var said, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), playsEnv+"="+name+" "+string(text))
	cmd.Stdout, cmd.Stderr = &said, &complaint
	if err := cmd.Run(); err != nil {
		return out, fmt.Errorf("%s: %w\n%s%s", name, err, &complaint, &said)
	}
	if err := gob.NewDecoder(&said).Decode(&out); err != nil {
		return out, fmt.Errorf("%s: %w", name, err)
	}
	return out, nil
}

// Serve does what Run has started this program for, if that is f, and does not return then. Programs that call Run call it first.
func Serve[In, Out any](name string, f func(context.Context, In) (Out, error)) {
	text, ok := strings.CutPrefix(os.Getenv(playsEnv), name+" ")
	if !ok {
		return
	}
	os.Args = os.Args[:1] // which are flags of a test
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: name, F: func(t *testing.T) {
		var in In
		if err := json.Unmarshal([]byte(text), &in); err != nil {
			t.Fatal(err)
		}
		var out Out
		var err error
		synctest.Test(t, func(t *testing.T) { out, err = f(t.Context(), in) })
		if err == nil {
			err = gob.NewEncoder(os.Stdout).Encode(out)
		}
		if err != nil {
			t.Fatal(err)
		}
	}}}, nil, nil)
}
