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
	maxExport    = 16 << 20 // maximum size of an export, in bytes
	maxZoneBytes = 64 << 10 // maximum size of one zone in an export, in bytes
	maxSource    = 64       // maximum length of the source of the zones, in bytes
)

// exportEnvelope is the header and checksum of an export. The content consists of the window of first round trip times,
// the number of servers, the servers, the source, the number of zones, and the zones.
//
// Numbers are varints. Byte strings have a length prefix.
var exportEnvelope = decode.Envelope{Name: "hedge recursor ", Foreign: errNotExport, Max: maxExport}

// errNotExport is the error of Import for input that is not an export of a Resolver.
var errNotExport = errors.New("this is no export of a Resolver")

// Limits of the fields of a Delegation.
const (
	MaxNames    = 20 // names of servers
	MaxAddrs    = 64 // addresses of servers
	MaxEvidence = 64 // records in DSEvidence
)

// A Delegation describes a zone as its parent zone's referral does. It has the name servers of the zone, and its DS
// records or the proof that there are none.
type Delegation struct {
	Zone       string
	Names      []string         // names of the servers, from NS records
	Addrs      []netip.AddrPort // addresses of the servers, from glue records
	Expires    time.Time        // end of the TTL
	DSEvidence [][]byte         // DS records, or the records that deny them, with signatures; in wire format
}

// Export writes the learned round trip times of servers, and the given zones, for Import in another process. source
// identifies the configuration for which the zones are valid. It must have at most 64 bytes.
func (p *Pool) Export(w io.Writer, source string, zones []Delegation) error {
	if _, err := w.Write(p.encodeExport(source, zones, time.Now())); err != nil {
		return fmt.Errorf("recursor: Export: %w", err)
	}
	return nil
}

// encodeExport encodes the servers of the Pool and the given delegations of zones, in the format that Import reads.
// source identifies the configuration for which the zones are valid, and now is the time of the export.
//
// It omits zones that have expired, zones larger than maxZoneBytes, and zones that do not fit into maxExport bytes.
func (p *Pool) encodeExport(source string, zones []Delegation, now time.Time) []byte {
	b := decode.AppendBytes(p.appendServers(exportEnvelope.Header(now), now), source)
	var all []byte
	n := 0
	for _, z := range zones {
		left := z.Expires.Sub(now)
		one := appendDelegation(nil, z, left)
		if left <= 0 || len(one) > maxZoneBytes || len(b)+len(all)+len(one)+64 > maxExport {
			continue
		}
		all = append(all, one...)
		n++
	}
	b = binary.AppendUvarint(b, uint64(n))
	return decode.AppendChecksum(append(b, all...))
}

// appendServers encodes the state of servers for an export, and appends the result to b. It includes each server that
// has answered within decode.MaxAge before now. It also includes the round trip times from which the delays for unknown
// servers are estimated.
func (p *Pool) appendServers(b []byte, now time.Time) []byte {
	at := now.Sub(p.epoch)
	p.mu.Lock()
	defer p.mu.Unlock()
	b = decode.AppendBytes(b, p.firstRTTs.window.Append(nil, now))
	var all []byte
	n := 0
	for addr, s := range p.servers.all {
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

// appendDelegation encodes the delegation z of a zone for an export, appends the result to b, and returns the extended
// slice. left is the time until the delegation expires.
func appendDelegation(b []byte, z Delegation, left time.Duration) []byte {
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

// appendAddr encodes the address and the port in addr for an export, appends the result to b, and returns the extended
// slice.
func appendAddr(b []byte, addr netip.AddrPort) []byte {
	b = decode.AppendBytes(b, addr.Addr().AsSlice())
	return binary.AppendUvarint(b, uint64(addr.Port()))
}

// An exportedServer is the exported state of one server. It stores each time as a duration relative to the time of the
// export.
type exportedServer struct {
	addr   netip.AddrPort
	rtt    rtt.Estimate[float32] // in nanoseconds
	age    time.Duration         // time from the last answer to the export
	noEDNS time.Duration         // time for which the server is queried without EDNS
}

// Import reads an export of another Pool, and adds its servers. Servers that have already answered this Pool are not
// changed. It returns the zones of the export, or none if the source in the export differs from source.
//
// If the export is invalid or too old, Import changes nothing and returns an error.
func (p *Pool) Import(r io.Reader, source string) ([]Delegation, error) {
	zones, err := p.decodeImport(r, source, time.Now())
	if err != nil {
		return nil, fmt.Errorf("recursor: Import: %w", err)
	}
	return zones, nil
}

// decodeImport reads an export from r at the time now, and adds its servers to the Pool. It returns the delegations
// that have not expired. It returns none if the source in the export differs from source.
func (p *Pool) decodeImport(r io.Reader, source string, now time.Time) ([]Delegation, error) {
	age, d, err := exportEnvelope.Open(r, now)
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
	sameSource := string(d.Bytes(maxSource)) == source
	var zones []Delegation
	for n := d.Uvarint(); n > 0 && d != nil; n-- {
		z := decodeDelegation(&d, now.Add(-age))
		if sameSource && z.Expires.After(now) {
			zones = append(zones, z)
		}
	}
	if d == nil || len(d) > 0 {
		return nil, decode.ErrDamaged
	}
	p.importServers(servers, window, age, now)
	return zones, nil
}

// decodeDelegation decodes the delegation of a zone from an export that was created at the time exported. It reads from
// d and advances it. If the input is invalid, it sets *d to nil, by which the caller detects the error.
func decodeDelegation(d *decode.Decoder, exported time.Time) Delegation {
	z := Delegation{Zone: string(d.Bytes(maxZoneBytes))}
	z.Expires = exported.Add(d.Duration())
	z.Names = decodeList(d, MaxNames, func() string { return string(d.Bytes(maxZoneBytes)) })
	z.Addrs = decodeList(d, MaxAddrs, func() netip.AddrPort { return decodeAddr(d) })
	z.DSEvidence = decodeList(d, MaxEvidence, func() []byte { return d.Bytes(maxZoneBytes) })
	return z
}

// decodeList decodes a count from an export, and then as many values with the function decodeValue. If the count exceeds limit, it
// sets *d to nil, by which the caller detects the error.
func decodeList[T any](d *decode.Decoder, limit uint64, decodeValue func() T) (all []T) {
	n := d.Uvarint()
	if n > limit {
		*d = nil
	}
	for ; n > 0 && *d != nil; n-- {
		all = append(all, decodeValue())
	}
	return all
}

// decodeAddr decodes the address and port of a server from an export. If the input is invalid, it sets *d to nil, by which the caller detects
// the error.
func decodeAddr(d *decode.Decoder) netip.AddrPort {
	a, ok := netip.AddrFromSlice(d.Bytes(16))
	port := d.Uvarint()
	if !ok || port > math.MaxUint16 {
		*d = nil
	}
	return netip.AddrPortFrom(a, uint16(port))
}

// decodeRTT decodes a round trip time, in nanoseconds. A value above tcpTimeout is invalid: decodeRTT then sets *d to
// nil, by which the caller detects the error.
func decodeRTT(d *decode.Decoder) float32 {
	t := d.Duration()
	if t > tcpTimeout {
		*d = nil
	}
	return float32(t)
}

// importServers adds the servers in an export to the server table, until the table is full. It skips servers that have
// already answered this Pool.
//
// window holds the exported round trip times of first answers (see firstRTTEstimator). age is the time since the export,
// and now the present time.
func (p *Pool) importServers(servers []exportedServer, window *sketch.Window, age time.Duration, now time.Time) {
	at := now.Sub(p.epoch)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.firstRTTs.mergeSamples(window)
	for _, x := range servers {
		if s := p.servers.all[x.addr]; s != nil && s.hasAnswered() {
			continue
		} else if s == nil && len(p.servers.all) >= p.servers.max {
			break
		}
		s := p.servers.getOrCreateServer(x.addr, at)
		s.rtt, s.lastAnswer = x.rtt, at-age-min(x.age, decode.MaxAge)
		if left := min(x.noEDNS, noEDNSTime) - age; left > 0 {
			s.noEDNSUntil = at + left
		}
	}
}
