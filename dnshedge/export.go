package dnshedge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/sketch"
)

const maxExport = 64 << 20 // bytes

// In its envelope, an export is the number of servers and what was learned of each, and the
// number of answers and each of them. Numbers are varints, and bytes have their number before them.
var envelope = decode.Envelope{Name: "hedge dns ", Foreign: errForeign, Versions: []string{"1"}, Max: maxExport}

var errForeign = errors.New("this is no export of a Client")

// Export writes what was learned of the servers' times and, if there is a Cache, its
// answers, but no failures, for Import in another process or after a restart: at most
// 64 MiB, the answers that are most likely to be asked for first.
func (c *Client) Export(w io.Writer) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	if _, err := w.Write(core.export(time.Now())); err != nil {
		return fmt.Errorf("dnshedge: Export: %w", err)
	}
	return nil
}

// Import adds what Export wrote: the times of servers that this Client has, and, if
// there is a Cache, answers that it does not have. The time that has passed
// since then counts against their TTLs.
//
// Import returns an error and changes nothing if the export is damaged, was not
// written by Export, has another version, is larger than 64 MiB or is older than a day.
func (c *Client) Import(r io.Reader) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	if _, err := core.upstreams(); err != nil { // adds the system's servers to those that are known
		return err
	}
	if err := core.importFrom(r, time.Now()); err != nil {
		return fmt.Errorf("dnshedge: Import: %w", err)
	}
	return nil
}

func (c *core) export(now time.Time) []byte {
	c.mu.Lock()
	var servers []*upstreamState
	for _, s := range c.servers {
		servers = append(servers, s)
	}
	c.mu.Unlock()
	b := envelope.Begin("1", now)
	b = binary.AppendUvarint(b, uint64(len(servers)))
	for _, s := range servers {
		b = s.appendTimes(b, now)
	}
	var all []byte
	var n uint64
	if cache := c.conf.Cache; cache != nil {
		all, n = cache.appendAnswers(now, maxExport-len(b)-64)
	}
	return decode.End(append(binary.AppendUvarint(b, n), all...))
}

// appendTimes appends what was learned of a server.
func (s *upstreamState) appendTimes(b []byte, now time.Time) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b = decode.AppendBytes(b, s.name)
	b = binary.AppendUvarint(b, uint64(s.srtt))
	b = binary.AppendUvarint(b, uint64(s.handshake))
	b = decode.AppendBytes(b, s.answers.Append(nil, now))
	return decode.AppendBytes(b, s.path.Append(nil, now))
}

// appendAnswers returns the answers that are still kept, in at most limit bytes, and
// their number.
func (c *Cache) appendAnswers(now time.Time, limit int) (b []byte, n uint64) {
	c.init()
	at := now.Sub(c.epoch)
	for node := range c.store.Hottest() {
		e := node.Value
		if !c.usable(e, at) {
			continue
		}
		if len(b)+len(e.Packed())+1024*(1+len(e.EDE)) > limit {
			break
		}
		b = append(b, e.bits)
		b = binary.AppendUvarint(b, uint64(max(at-e.stored, 0)))
		b = binary.AppendUvarint(b, uint64(e.ttl))
		b = binary.AppendUvarint(b, uint64(len(e.EDE)))
		for _, x := range e.EDE {
			b = binary.AppendUvarint(b, uint64(x.Code))
			b = decode.AppendBytes(b, x.Text)
		}
		b = decode.AppendBytes(b, e.Packed())
		n++
	}
	return b, n
}

// times is what an export says of a server.
type times struct {
	server          string
	srtt, handshake time.Duration
	answers, path   *sketch.Window
}

func (c *core) importFrom(r io.Reader, now time.Time) error {
	_, passed, d, err := envelope.Open(r, now)
	if err != nil {
		return err
	}
	var learned []times
	for n := d.Uvarint(); n > 0 && d != nil; n-- {
		l := times{server: string(d.Bytes(maxExport)), srtt: d.Duration(), handshake: d.Duration()}
		for _, w := range [...]**sketch.Window{&l.answers, &l.path} {
			if *w, err = sketch.Decode(d.Bytes(maxExport), now); err != nil {
				return fmt.Errorf("%w: %w", decode.ErrDamaged, err)
			}
		}
		learned = append(learned, l)
	}
	cache := c.conf.Cache
	var entries []*entry
	for n := d.Uvarint(); n > 0 && d != nil; n-- {
		e, err := decodeEntry(&d)
		if err != nil {
			return err
		}
		if cache != nil {
			entries = append(entries, e)
		}
	}
	if d == nil || len(d) > 0 {
		return decode.ErrDamaged
	}
	c.learn(learned)
	if cache != nil {
		cache.add(entries, max(passed, 0), now)
	}
	c.log.Tell(slog.LevelInfo, "imported what was learned", slog.Int("upstreams", len(learned)), slog.Int("answers", len(entries)))
	return nil
}

// decodeEntry takes an answer off. Its time is how old it was.
func decodeEntry(d *decode.Decoder) (*entry, error) {
	if len(*d) == 0 {
		return nil, decode.ErrDamaged
	}
	e := &entry{bits: (*d)[0]}
	d.Skip(1)
	e.stored, e.ttl = d.Duration(), d.Duration()
	var errs []wire.EDE
	for n := d.Uvarint(); n > 0 && *d != nil; n-- {
		code := d.Uvarint()
		errs = append(errs, wire.EDE{Code: uint16(code), Text: string(d.Bytes(maxExport))})
	}
	b := d.Bytes(maxExport)
	if *d == nil {
		return nil, decode.ErrDamaged
	}
	a, err := wire.ParseAnswer(b, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", decode.ErrDamaged, err)
	}
	a.EDE = errs
	if e.bits&wire.KeyAnyType != 0 && !a.NoName() || a.Outcome >= wire.FinalFailure {
		return nil, decode.ErrDamaged
	}
	e.Answer = a
	return e, nil
}

// learn adds what is known of servers that the Client has.
func (c *core) learn(all []times) {
	now := time.Now()
	for _, l := range all {
		c.mu.Lock()
		s := c.servers[l.server]
		c.mu.Unlock()
		if s != nil {
			s.learn(l, now)
		}
	}
}

func (s *upstreamState) learn(l times, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers.Merge(l.answers)
	s.path.Merge(l.path)
	s.sent, s.got = s.sent+float64(l.answers.Len()), s.got+float64(l.answers.Len())
	if l.srtt > 0 {
		s.srtt = float64(l.srtt)
	}
	if l.handshake > 0 {
		s.handshake = float64(l.handshake)
	}
	s.updateDelays()
}

// add adds answers that are not yet known. Each is as old as it says, and by as much
// older as has passed.
func (c *Cache) add(entries []*entry, passed time.Duration, now time.Time) {
	c.init()
	at := now.Sub(c.epoch)
	for _, e := range entries {
		e.stored = at - e.stored - passed
		e.ttl = min(e.ttl, orDefault(c.MaxTTL, defaultMaxTTL))
		if !c.usable(e, at) {
			continue
		}
		key := append(append([]byte(nil), e.Question()...), e.bits)
		if e.bits&wire.KeyAnyType != 0 {
			wire.AnyType(key)
		}
		c.store.SetIfAbsent(maphash.Bytes(c.seed, key), e)
	}
}
