package doubles

import "testing"

// SkipWithoutHTTP2InBubble skips a test that uses HTTP/2 in a bubble of testing/synctest if Go is older than 1.26. There, net/http uses a
// channel of one bubble in the next bubble, which ends the process. Connections of a bubble must be closed by Cleanup.
//
// make floors counts the tests that are skipped with this message.
func SkipWithoutHTTP2InBubble(t testing.TB) {
	t.Helper()
	if !Go126 {
		t.Skip("HTTP/2 in fake time needs Go 1.26")
	}
}
