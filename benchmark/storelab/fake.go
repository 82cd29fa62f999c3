package storelab

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"testing/synctest"
)

// playsEnv is the variable that makes this program play what a Config in JSON says.
const playsEnv = "HEDGE_STORELAB_PLAYS"

// RunFake is Run in fake time. A bubble of testing/synctest needs a test: so it starts this program again, where Play is that test.
func RunFake(ctx context.Context, conf Config) (rows []Row, err error) {
	text, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), playsEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("storelab: %w\n%s%s", err, &complaint, &out)
	}
	if err := gob.NewDecoder(&out).Decode(&rows); err != nil {
		return nil, fmt.Errorf("storelab: %w", err)
	}
	return rows, nil
}

// Play does what RunFake has started this program for, and does not return then. Programs that call RunFake call it first.
func Play() {
	text := os.Getenv(playsEnv)
	if text == "" {
		return
	}
	os.Args = os.Args[:1] // which are flags of a test
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "storelab", F: func(t *testing.T) {
		var conf Config
		if err := json.Unmarshal([]byte(text), &conf); err != nil {
			t.Fatal(err)
		}
		var rows []Row
		var err error
		synctest.Test(t, func(t *testing.T) { rows, err = Run(t.Context(), conf) })
		if err == nil {
			err = gob.NewEncoder(os.Stdout).Encode(rows)
		}
		if err != nil {
			t.Fatal(err)
		}
	}}}, nil, nil)
}
