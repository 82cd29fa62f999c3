package steering_test

import (
	"io"
	"log"
	"os"
	"testing"
)

// TestMain discards the warnings about files that cannot be used.
func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	os.Exit(m.Run())
}
