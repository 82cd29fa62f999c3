package doubles

import "testing"

// NeedsHTTP2InABubble skips a test that speaks HTTP/2 in the fake time of testing/synctest, where Go is older than 1.26: net/http
// then keeps a channel of one bubble for the next, which ends the process. In a bubble, what is open must be closed by Cleanup.
// make floors counts what is skipped by these words.
func NeedsHTTP2InABubble(t testing.TB) {
	t.Helper()
	if !Go126 {
		t.Skip("HTTP/2 in fake time needs Go 1.26")
	}
}
