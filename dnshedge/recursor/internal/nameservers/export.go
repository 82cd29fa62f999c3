package nameservers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/sketch"
)

const (
	maxExport    = 16 << 20 // bytes
	maxZoneBytes = 64 << 10 // of a zone in an export; larger ones are left out
	maxSource    = 64       // bytes of the source of zones
)

// exportEnvelope surrounds an export: first round trip times, a count and the servers, the source of the zones, a count
// and the zones. Numbers are varints; byte strings are prefixed by their length.
var exportEnvelope = decode.Envelope{Name: "hedge recursor ", Foreign: errNotExport, Max: maxExport}

var errNotExport = errors.New("this is no export of a Resolver")

// Limits of a Delegation.
const (
	MaxNames    = 20 // server names
	MaxAddrs    = 64
	MaxEvidence = 64 // records
)

// A Delegation has the servers of a zone according to its parent.
type Delegation struct {
	Zone       string
	Names      []string // server names
	Addrs      []netip.AddrPort
	Expires    time.Time
	DSEvidence [][]byte // DS records or their denial, with signatures, in wire format
}

// Export writes the servers' round trip times and the zones. source, of at most 64 bytes, identifies the origin of the
// zones.
func (f *Pool) Export(w io.Writer, source string, zones []Delegation) error {
	if _, err := w.Write(f.encodeExport(source, zones, time.Now())); err != nil {
		return fmt.Errorf("recursor: Export: %w", err)
	}
	return nil
}

func (f *Pool) encodeExport(source string, zones []Delegation, now time.Time) []byte {
	b := decode.AppendBytes(f.appendServers(exportEnvelope.Begin(now), now), source)
	var all []byte
	n := 0
	for _, z := range zones {
		left := z.Expires.Sub(now)
		one := appendZone(nil, z, left)
		if left <= 0 || len(one) > maxZoneBytes || len(b)+len(all)+len(one)+64 > maxExport {
			continue
		}
		all = append(all, one...)
		n++
	}
	b = binary.AppendUvarint(b, uint64(n))
	return decode.End(append(b, all...))
}

// appendServers appends the first round trip times and the servers that have answered within decode.MaxAge.
func (f *Pool) appendServers(b []byte, now time.Time) []byte {
	at := now.Sub(f.epoch)
	f.mu.Lock()
	defer f.mu.Unlock()
	b = decode.AppendBytes(b, f.firstRTTs.window.Append(nil, now))
	var all []byte
	n := 0
	for addr, s := range f.servers.all {
		if !s.hasAnswered() || at-s.lastAnswer > decode.MaxAge || len(all) > maxExport/2 {
			continue
		}
		all = appendAddr(all, addr)
		all = binary.AppendUvarint(all, uint64(s.rtt.SRTT))
		all = binary.AppendUvarint(all, uint64(s.rtt.RTTVAR))
		all = binary.AppendUvarint(all, uint64(max(at-s.lastAnswer, 0)))
		all = binary.AppendUvarint(all, uint64(max(s.noEDNSUntil-at, 0)))
		n++
	}
	b = binary.AppendUvarint(b, uint64(n))
	return append(b, all...)
}

func appendZone(b []byte, z Delegation, left time.Duration) []byte {
	b = decode.AppendBytes(b, z.Zone)
	b = binary.AppendUvarint(b, uint64(max(left, 0)))
	b = binary.AppendUvarint(b, uint64(len(z.Names)))
	for _, name := range z.Names {
		b = decode.AppendBytes(b, name)
	}
	b = binary.AppendUvarint(b, uint64(len(z.Addrs)))
	for _, at := range z.Addrs {
		b = appendAddr(b, at)
	}
	b = binary.AppendUvarint(b, uint64(len(z.DSEvidence)))
	for _, rr := range z.DSEvidence {
		b = decode.AppendBytes(b, rr)
	}
	return b
}

func appendAddr(b []byte, at netip.AddrPort) []byte {
	b = decode.AppendBytes(b, at.Addr().AsSlice())
	return binary.AppendUvarint(b, uint64(at.Port()))
}

// An exportedServer is a server in an export.
type exportedServer struct {
	addr   netip.AddrPort
	rtt    rtt.Estimate[float32]
	age    time.Duration // since the last answer, at the time of the export
	noEDNS time.Duration // remaining time without EDNS, at the time of the export
}

// Import adds the unknown servers of an export. It returns the zones, or none if their source differs. After an error
// nothing has changed.
func (f *Pool) Import(r io.Reader, source string) ([]Delegation, error) {
	zones, err := f.decodeImport(r, source, time.Now())
	if err != nil {
		return nil, fmt.Errorf("recursor: Import: %w", err)
	}
	return zones, nil
}

func (f *Pool) decodeImport(r io.Reader, source string, now time.Time) ([]Delegation, error) {
	passed, d, err := exportEnvelope.Open(r, now)
	if err != nil {
		return nil, err
	}
	window, err := sketch.Decode(d.Bytes(maxExport), now)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", decode.ErrDamaged, err)
	}
	var servers []exportedServer
	for n := d.Uvarint(); n > 0 && d != nil; n-- {
		s := exportedServer{addr: decodeAddr(&d), rtt: rtt.Estimate[float32]{SRTT: decodeRTT(&d), RTTVAR: decodeRTT(&d)}, age: d.Duration(), noEDNS: d.Duration()}
		if s.rtt.SRTT < 1 {
			d = nil
		}
		servers = append(servers, s)
	}
	same := string(d.Bytes(maxSource)) == source
	var zones []Delegation
	for n := d.Uvarint(); n > 0 && d != nil; n-- {
		z := decodeZone(&d, now.Add(-passed))
		if same && z.Expires.After(now) {
			zones = append(zones, z)
		}
	}
	if d == nil || len(d) > 0 {
		return nil, decode.ErrDamaged
	}
	f.importServers(servers, window, passed, now)
	return zones, nil
}

// decodeZone decodes a zone of an export made at the given time.
func decodeZone(d *decode.Decoder, at time.Time) Delegation {
	z := Delegation{Zone: string(d.Bytes(maxZoneBytes))}
	z.Expires = at.Add(d.Duration())
	z.Names = decodeList(d, MaxNames, func() string { return string(d.Bytes(maxZoneBytes)) })
	z.Addrs = decodeList(d, MaxAddrs, func() netip.AddrPort { return decodeAddr(d) })
	z.DSEvidence = decodeList(d, MaxEvidence, func() []byte { return d.Bytes(maxZoneBytes) })
	return z
}

// decodeList decodes a count and as many values. It fails if there are more than most.
func decodeList[T any](d *decode.Decoder, most uint64, take func() T) (all []T) {
	n := d.Uvarint()
	if n > most {
		*d = nil
	}
	for ; n > 0 && *d != nil; n-- {
		all = append(all, take())
	}
	return all
}

func decodeAddr(d *decode.Decoder) netip.AddrPort {
	a, ok := netip.AddrFromSlice(d.Bytes(16))
	port := d.Uvarint()
	if !ok || port > math.MaxUint16 {
		*d = nil
	}
	return netip.AddrPortFrom(a, uint16(port))
}

// decodeRTT decodes a round trip time in ns.
func decodeRTT(d *decode.Decoder) float32 {
	t := d.Duration()
	if t > tcpTimeout {
		*d = nil
	}
	return float32(t)
}

// importServers adds the servers of an export that are not better known already.
func (f *Pool) importServers(servers []exportedServer, window *sketch.Window, passed time.Duration, now time.Time) {
	at := now.Sub(f.epoch)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.firstRTTs.mergeSamples(window)
	for _, x := range servers {
		if s := f.servers.all[x.addr]; s != nil && s.hasAnswered() {
			continue
		} else if s == nil && len(f.servers.all) >= f.servers.max {
			break
		}
		s := f.servers.getOrCreateServer(x.addr, at)
		s.rtt, s.lastAnswer = x.rtt, at-passed-min(x.age, decode.MaxAge)
		if left := min(x.noEDNS, noEDNSTime) - passed; left > 0 {
			s.noEDNSUntil = at + left
		}
	}
}
