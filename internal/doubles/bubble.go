package doubles

import "testing"

// SkipWithoutHTTP2InBubble skips a test that uses HTTP/2 in a bubble of testing/synctest, if the Go version is older than 1.26.
// In these versions, net/http uses a channel of one bubble in the next bubble, which crashes the process. The test must close
// connections with t.Cleanup before its bubble ends.
//
// The command make floors counts the tests that are skipped with this message.
func SkipWithoutHTTP2InBubble(t testing.TB) {
	t.Helper()
	if !Go126 {
		t.Skip("HTTP/2 in fake time needs Go 1.26")
	}
}
