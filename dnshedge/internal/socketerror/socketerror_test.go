package socketerror_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/internal/socketerror"
)

func TestIsAnyKnowsErrorsOfUnixAndWindows(t *testing.T) {
	const refusedByWindows = syscall.Errno(10061) // WSAECONNREFUSED
	for _, errno := range []syscall.Errno{syscall.ECONNREFUSED, refusedByWindows} {
		err := fmt.Errorf("question: %w", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errno)})
		assert.True(t, socketerror.IsAny(err, syscall.ECONNRESET, syscall.ECONNREFUSED), "%d", errno)
		assert.False(t, socketerror.IsAny(err, syscall.ECONNRESET, syscall.ENOMEM), "%d", errno)
	}
	assert.False(t, socketerror.IsAny(nil, syscall.ENOMEM))
	assert.False(t, socketerror.IsAny(errors.New("no socket"), syscall.ENOMEM))
	assert.False(t, socketerror.IsAny(syscall.Errno(0), syscall.ENOMEM), "ENOMEM has no code of Windows")
}
