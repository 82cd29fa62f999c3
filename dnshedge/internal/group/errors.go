package group

import (
	"errors"
	"slices"
	"syscall"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

// Refused reports whether an error says that nobody listens: the server may be about to restart. A connection that was closed
// is none of these: the question may be what ended it.
func Refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// ours are the errors of this process, this machine or its network.
var ours = [...]error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EADDRNOTAVAIL, syscall.EPERM, syscall.EACCES,
}

// Ours reports whether an error is this process's, this machine's or its network's, and says nothing about the
// server or the name.
func Ours(err error) bool {
	return slices.ContainsFunc(ours[:], func(one error) bool { return errors.Is(err, one) })
}

// Unsent reports whether an error says that a message has reached no server: then also one that must not be repeated may be sent to another.
func Unsent(err error) bool { return (Refused(err) || Ours(err)) && !transport.MayBeReceived(err) }
