// Package socketerror recognises errors of sockets on all operating systems.
package socketerror

import (
	"errors"
	"slices"
	"syscall"
)

// windowsCodes maps errors of Unix to the codes that the sockets of Windows return instead. Package syscall has
// constants for the errors of Unix on Windows too, but no function of Windows returns them.
var windowsCodes = map[syscall.Errno]syscall.Errno{
	syscall.EACCES:        10013, // WSAEACCES
	syscall.EMFILE:        10024, // WSAEMFILE
	syscall.EMSGSIZE:      10040, // WSAEMSGSIZE
	syscall.EAFNOSUPPORT:  10047, // WSAEAFNOSUPPORT
	syscall.EADDRINUSE:    10048, // WSAEADDRINUSE
	syscall.EADDRNOTAVAIL: 10049, // WSAEADDRNOTAVAIL
	syscall.ENETDOWN:      10050, // WSAENETDOWN
	syscall.ENETUNREACH:   10051, // WSAENETUNREACH
	syscall.ECONNABORTED:  10053, // WSAECONNABORTED
	syscall.ECONNRESET:    10054, // WSAECONNRESET
	syscall.ENOBUFS:       10055, // WSAENOBUFS
	syscall.EPIPE:         10058, // WSAESHUTDOWN
	syscall.ECONNREFUSED:  10061, // WSAECONNREFUSED
	syscall.EHOSTUNREACH:  10065, // WSAEHOSTUNREACH
}

// IsAny reports whether err is, or wraps, one of the given errors of Unix, or the error of Windows with the same
// meaning.
func IsAny(err error, errnos ...syscall.Errno) bool {
	return slices.ContainsFunc(errnos, func(e syscall.Errno) bool {
		code, hasCode := windowsCodes[e]
		return errors.Is(err, e) || hasCode && errors.Is(err, code)
	})
}
