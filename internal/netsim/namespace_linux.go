package netsim

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// A Namespace is a network namespace of Linux with only the loopback device. It has no name, and exists while it is open or
// while sockets or processes belong to it.
type Namespace struct{ ns *os.File }

// NewNamespace returns a namespace in which all addresses of the IPv4 prefix local are local addresses, in addition to
// 127.0.0.0/8. A socket that is not bound to an address receives packets to all of them.
//
// It returns [ErrUnsupported] if the process lacks the permission. The caller must call Close.
func NewNamespace(local netip.Prefix) (*Namespace, error) {
	n := new(Namespace)
	err := onThread(func() (err error) {
		if n.ns, err = newNamespace(); err != nil {
			return err
		}
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return errors.Join(err, n.ns.Close())
		}
		defer unix.Close(s)
		if err := ownPrefix(s, local); err != nil {
			return errors.Join(err, n.ns.Close())
		}
		return nil
	})
	if err != nil {
		return nil, unsupported(err)
	}
	return n, nil
}

// Do calls f in the namespace and returns its error. Sockets and processes that f creates belong to the namespace. Goroutines
// that f starts do not run in it.
func (n *Namespace) Do(f func() error) error { return enter(n.ns, f) }

// Close closes the namespace. It does not close sockets or end processes that belong to it.
func (n *Namespace) Close() error { return n.ns.Close() }

// ownPrefix gives the IPv4 prefix p to the loopback device, which makes all addresses of p local. The argument s is a socket of
// the namespace.
func ownPrefix(s int, p netip.Prefix) error {
	if !p.IsValid() || !p.Addr().Is4() {
		return fmt.Errorf("netsim: prefix %v is not IPv4", p)
	}
	ip := p.Masked().Addr().Next().As4()
	mask := [4]byte{}
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	for _, step := range []struct {
		dev  string
		call uint
		set  func(*unix.Ifreq) error
	}{
		{"lo", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil }},
		{"lo:0", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(ip[:]) }},
		{"lo:0", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask[:]) }},
	} {
		if err := ioctl(s, step.dev, step.call, step.set); err != nil {
			return err
		}
	}
	return nil
}

// newNamespace creates a namespace, moves the current thread into it, and returns the open file of the namespace.
func newNamespace() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("netsim: new namespace: %w", err)
	}
	return os.Open(ownNamespace())
}

// ownNamespace returns the path of the current thread's network namespace.
func ownNamespace() string { return fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()) }

// enter calls f on a thread that is in the namespace ns, and returns the error of f.
func enter(ns *os.File, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open(ownNamespace())
		if err != nil {
			runtime.UnlockOSThread()
			result <- err
			return
		}
		defer own.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("netsim: enter namespace: %w", err)
			return
		}
		err = f()
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
		result <- err
	}()
	return <-result
}

// ioctl calls ioctl on the socket s to configure the network device dev. The function set stores the argument of the call.
func ioctl(s int, dev string, call uint, set func(*unix.Ifreq) error) error {
	req, err := unix.NewIfreq(dev)
	if err != nil {
		return err
	}
	if err := set(req); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, call, req); err != nil {
		return fmt.Errorf("netsim: configure %s: %w", dev, err)
	}
	return nil
}

// unsupported returns err wrapped in [ErrUnsupported] if the cause is a missing permission or device. Otherwise it returns err
// unchanged.
func unsupported(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}
