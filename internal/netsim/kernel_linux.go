package netsim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	device = "sim0" // name of the TUN device in each namespace
	mtu    = 1500   // maximum size of a packet in bytes
)

// NewKernel returns a network in which each host is a network namespace of the Linux kernel. The namespaces have no names, and
// exist only while this process keeps them open. If the process is killed, the kernel removes them.
//
// It returns [ErrUnsupported] if the process lacks the permission or the system lacks TUN devices. Networks of several
// processes do not affect each other.
func NewKernel(seed uint64, hosts ...string) (*Network, error) {
	n, err := newNetwork(seed, hosts)
	if err != nil {
		return nil, err
	}
	k := &kernel{net: n}
	n.back = k
	for _, h := range n.hosts {
		if err := k.join(h); err != nil {
			_ = n.Close()
			return nil, unsupported(err)
		}
	}
	for i := range k.spaces {
		k.wg.Go(func() { k.forwardPackets(i) })
	}
	return n, nil
}

// A kernel is the backend of a network of namespaces.
type kernel struct {
	net    *Network
	spaces []hostNamespace // namespaces by Host.id
	wg     sync.WaitGroup  // counts the goroutines that forward packets
}

// A hostNamespace is the namespace of one host.
type hostNamespace struct {
	ns  *os.File // open file of the namespace
	tun *os.File // TUN device in the namespace
}

// join creates the namespace of the host h, and a TUN device in it.
func (k *kernel) join(h *Host) error {
	return onThread(func() error {
		ns, err := newNamespace()
		if err != nil {
			return err
		}
		tun, err := openTUN(h.addr)
		if err != nil {
			return errors.Join(err, ns.Close())
		}
		k.spaces = append(k.spaces, hostNamespace{ns, tun})
		return nil
	})
}

// onThread calls f on an operating system thread that ends after the call, so that f may change the state of the thread. It
// returns the error of f.
func onThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		result <- f()
	}()
	return <-result
}

// openTUN creates a TUN device in the namespace of the current thread and gives it the address a. It activates the device and
// the loopback device.
func openTUN(a netip.Addr) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("netsim: open /dev/net/tun: %w", err)
	}
	err = func() error {
		req, err := unix.NewIfreq(device)
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
			return fmt.Errorf("netsim: make device: %w", err)
		}
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		return configure(s, a)
	}()
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), device), nil
}

// configure gives the TUN device the address a, and activates the device and the loopback device. The argument s is a socket of
// the namespace.
func configure(s int, a netip.Addr) error {
	ip := a.As4()
	for _, step := range []struct {
		dev  string
		call uint
		set  func(*unix.Ifreq) error
	}{
		{"lo", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil }},
		{device, unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(ip[:]) }},
		{device, unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr([]byte{255, 255, 255, 0}) }},
		{device, unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil }},
	} {
		if err := ioctl(s, step.dev, step.call, step.set); err != nil {
			return err
		}
	}
	return nil
}

// forwardPackets forwards the packets that host number i sends to their destinations. It returns when the TUN device of the host is
// closed.
func (k *kernel) forwardPackets(i int) {
	buf := make([]byte, mtu)
	for {
		n, err := k.spaces[i].tun.Read(buf)
		if err != nil {
			return
		}
		f, ok := parsePacket(buf[:n])
		if !ok {
			continue // not IPv4, as the kernel's router solicitations
		}
		for _, h := range k.net.hosts {
			if h.addr == f.to.Addr() {
				packet := append([]byte(nil), buf[:n]...)
				tun := k.spaces[h.id].tun
				k.net.links[i][h.id].send(f, n, func() { _, _ = tun.Write(packet) }) // a closed device loses the packet
			}
		}
	}
}

// parsePacket returns the flow of the IPv4 packet p, or false if p is not an IPv4 packet. The ports are 0 for protocols without
// ports, and for fragments except the first.
func parsePacket(p []byte) (flow, bool) {
	if len(p) < 20 || p[0]>>4 != 4 {
		return flow{}, false
	}
	f := flow{proto: p[9]}
	var from, to uint16
	head := int(p[0]&15) * 4
	first := binary.BigEndian.Uint16(p[6:])&0x1fff == 0
	if (f.proto == protoTCP || f.proto == protoUDP) && first && len(p) >= head+4 {
		from, to = binary.BigEndian.Uint16(p[head:]), binary.BigEndian.Uint16(p[head+2:])
	}
	f.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte(p[12:16])), from)
	f.to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(p[16:20])), to)
	return f, true
}

// runInNamespace calls f in the namespace of the host h and returns its error. Sockets and processes that f creates belong to that
// namespace.
func (k *kernel) runInNamespace(h *Host, f func() error) error {
	return enter(k.spaces[h.id].ns, f)
}

// dial implements [backend]. It opens a UDP socket or a TCP connection in the namespace of the host h.
func (k *kernel) dial(ctx context.Context, h *Host, network string, to netip.AddrPort) (c net.Conn, err error) {
	err = k.runInNamespace(h, func() (err error) {
		var d net.Dialer
		c, err = d.DialContext(ctx, network, to.String())
		return err
	})
	return c, err
}

// listen implements [backend]. It opens a TCP listener in the namespace of the host h.
func (k *kernel) listen(h *Host, network string, at netip.AddrPort) (l net.Listener, err error) {
	err = k.runInNamespace(h, func() (err error) {
		l, err = net.Listen(network, at.String())
		return err
	})
	return l, err
}

// listenPacket implements [backend]. It opens a UDP socket in the namespace of the host h.
func (k *kernel) listenPacket(h *Host, network string, at netip.AddrPort) (c net.PacketConn, err error) {
	err = k.runInNamespace(h, func() (err error) {
		c, err = net.ListenPacket(network, at.String())
		return err
	})
	return c, err
}

// start implements [backend]. It starts the command c in the namespace of the host h.
func (k *kernel) start(h *Host, c *exec.Cmd) error { return k.runInNamespace(h, c.Start) }

// close implements [backend]. It closes the devices and namespaces, and waits for the goroutines that forward packets.
func (k *kernel) close() error {
	var errs []error
	for _, s := range k.spaces {
		errs = append(errs, s.tun.Close())
	}
	k.wg.Wait()
	for _, s := range k.spaces {
		errs = append(errs, s.ns.Close())
	}
	return errors.Join(errs...)
}
