// Package localerror distinguishes errors of this machine and its network from errors of servers.
package localerror

import (
	"errors"
	"syscall"

	"github.com/gohedge/hedge/dnshedge/internal/socketerror"
)

// ErrNoStream is the error of a query that was not sent. The server limits the streams of a connection, and no stream
// became free in time.
var ErrNoStream = errors.New("dnshedge: no stream of the server is free in time")

var local = [...]syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EADDRNOTAVAIL, syscall.EPERM, syscall.EACCES,
}

// IsLocal reports whether err was caused by this machine or its network, and not by the server or the name. Examples
// are a lack of file descriptors, memory, routes or permissions. It also returns true for ErrNoStream: no stream was
// free, so the query was not sent. Callers must not regard these errors as failures of the server.
func IsLocal(err error) bool {
	return errors.Is(err, ErrNoStream) || socketerror.IsAny(err, local[:]...)
}
