package forward_test

import (
	"io"
	"log"
	"os"
	"testing"
)

// TestMain discards the lines of net/http about handshakes that a test has ended.
func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	os.Exit(m.Run())
}
