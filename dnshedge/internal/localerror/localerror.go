// Package localerror distinguishes errors of this process, its machine and its network from errors of servers.
package localerror

import (
	"errors"
	"slices"
	"syscall"
)

// ErrBusy is why a query is not sent: all streams that its server allows are in use for longer than there is time.
var ErrBusy = errors.New("dnshedge: no stream of the server is free in time")

var local = [...]error{
	ErrBusy, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EADDRNOTAVAIL, syscall.EPERM, syscall.EACCES,
}

// IsLocal reports whether err says nothing about the server or the name that was asked for: a descriptor, memory, a route, a right or a
// stream was missing here.
func IsLocal(err error) bool {
	return slices.ContainsFunc(local[:], func(one error) bool { return errors.Is(err, one) })
}
