package dnshedge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/group"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/decode"
)

const maxExport = 64 << 20 // bytes

// maxAnswerAge limits the age of an exported answer. An older answer shows that the export is damaged.
const maxAnswerAge = 10 * 365 * 24 * time.Hour

// envelope frames an export. The content is the number of servers and their latencies, the sources of answers, and the
// number of answers and the answers. Numbers are varints, and byte strings are preceded by their length.
var envelope = decode.Envelope{Name: "hedge dns ", Foreign: errForeign, Max: maxExport}

var errForeign = errors.New("this is no export of a Client")

// Export writes the latencies of the servers to w, for Import after a restart or in another process. With a Cache, it
// also writes the answers that this Client or Cache.Set has stored, the most popular first, but no failures. It writes
// at most 64 MiB. It returns an error if writing to w fails, a field is invalid, or the hosts file cannot be read.
func (c *Client) Export(w io.Writer) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	if _, err := w.Write(core.exportState(time.Now())); err != nil {
		return fmt.Errorf("dnshedge: Export: %w", err)
	}
	return nil
}

// Import reads the output of Export. It adds the latencies of servers that this Client has too. With a Cache, it adds
// answers to questions for which the Cache has no entry. It skips:
//
//   - answers that this Client would get from another source, or with another RebindFilter if the filter applies; this
//     does not concern answers of Cache.Set,
//   - names that this Client answers from Hosts or by SpecialUse,
//   - answers that have been expired for MaxStale or longer.
//
// The time since the export counts against the TTLs. MaxTTL and MaxNegativeTTL of the Cache apply, and MinTTL does not.
// Two Exchangers are the same source if they have the same type, and their methods Identity() string return the same
// non-empty string.
//
// Import returns an error and changes nothing if the data is damaged, larger than 64 MiB, older than a day, or in
// another format. It also returns an error if a field of the Client is invalid, or if the hosts file or the system's
// configuration cannot be read.
func (c *Client) Import(r io.Reader) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	if _, err := core.servers.defaultServers(); err != nil { // adds the system's servers to those that are known
		return err
	}
	if err := core.importState(r, time.Now()); err != nil {
		return fmt.Errorf("dnshedge: Import: %w", err)
	}
	return nil
}

// exportState returns an export: the measured latencies of the servers and the cached answers at the time now, in
// the format that importState reads.
func (c *core) exportState(now time.Time) []byte {
	servers := c.servers.pool.AllServers()
	b := envelope.Header(now)
	b = binary.AppendUvarint(b, uint64(len(servers)))
	for _, s := range servers {
		b = s.AppendLatencies(b, now)
	}
	b = c.currentSources(now).appendSources(b)
	var all []byte
	var n uint64
	if cache := c.conf.Cache; cache != nil {
		all, n = cache.encodeAnswers(now, maxExport-len(b)-64, c.cacheClient)
	}
	return decode.AppendChecksum(append(binary.AppendUvarint(b, n), all...))
}

// encodeAnswers encodes cached answers for an export (Client.Export), the most popular first, and returns the number n
// of answers. It includes the answers that Cache.Set or the Client with the number client has stored. b has about limit
// bytes at most.
func (c *Cache) encodeAnswers(now time.Time, limit int, client uint16) (b []byte, n uint64) {
	c.init()
	at := c.clock.timeSinceEpoch(now)
	for node := range c.store.Hottest() {
		e := node.Value
		if !c.canServeStale(e, at) || e.client != 0 && (e.client != client || client == notExported) {
			continue
		}
		if len(b)+len(e.Packed())+1024*(1+len(e.EDE)) > limit {
			break
		}
		b = append(b, e.keyBits, e.domainLen, boolToByte(e.client == 0))
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

// importState reads an export (Client.Export) from r. It imports the latencies of servers that this Client also has,
// and cached answers of the same sources. If it returns an error, it changes nothing. The limits are 64 MiB and an age
// of a day.
func (c *core) importState(r io.Reader, now time.Time) error {
	passed, d, err := envelope.Open(r, now)
	if err != nil {
		return err
	}
	var learned []group.LearnedLatencies
	for n := d.Uvarint(); n > 0 && d != nil; n-- {
		l, err := group.DecodeLatencies(&d, maxExport, now)
		if err != nil {
			return err
		}
		learned = append(learned, l)
	}
	then, here := decodeSources(d.Bytes(maxExport)), c.currentSources(now)
	cache := c.conf.Cache
	var entries []*entry
	for n := d.Uvarint(); n > 0 && d != nil; n-- {
		e, err := decodeEntry(&d)
		if err != nil {
			return err
		}
		if cache != nil && c.adoptOrigin(e, then, here) {
			entries = append(entries, e)
		}
	}
	if d == nil || len(d) > 0 {
		return decode.ErrDamaged
	}
	upstreams, answers := 0, 0
	for _, l := range learned {
		if s := c.servers.pool.FindServer(l.Name); s != nil {
			s.MergeLatencies(l)
			upstreams++
		}
	}
	if cache != nil {
		answers = cache.importEntries(entries, passed, now)
	}
	c.log.Log(slog.LevelInfo, "imported what was learned", slog.Int("upstreams", upstreams), slog.Int("answers", answers))
	return nil
}

// adoptOrigin reports whether this Client may import the exported answer e. The answer must come from Cache.Set, or
// from a source that is equal in exportSources and ownSources. In the second case, adoptOrigin sets e.answerOrigin.
// Names that this Client answers locally are rejected.
func (c *core) adoptOrigin(e *entry, exportSources, ownSources answerSources) bool {
	b := e.Question()
	n := len(b) - 4
	q := c.findRoute(&wire.Query{Name: string(b[:n]), Type: binary.BigEndian.Uint16(b[n:]), Class: binary.BigEndian.Uint16(b[n+2:])})
	if q.local != nil {
		return false
	}
	if e.client == 0 {
		return true
	}
	from := c.currentOrigin(q)
	if source := ownSources.identityFor(q.Query, int(from.domainLen)); from.domainLen != e.domainLen || source == "" || source != exportSources.identityFor(q.Query, int(e.domainLen)) {
		return false
	}
	e.answerOrigin = from
	return true
}

// boolToByte returns 1 for true and 0 for false.
func boolToByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// decodeEntry reads one answer of an export from d. In the returned entry, the field stored is the age of the answer at
// the export. The field client is 0 for an answer of Cache.Set, and 1 otherwise. An error wraps decode.ErrDamaged.
func decodeEntry(d *decode.Decoder) (*entry, error) {
	if len(*d) < 3 {
		return nil, decode.ErrDamaged
	}
	// adoptOrigin replaces the client number 1 by the number of the importing Client.
	e := &entry{keyBits: (*d)[0], answerOrigin: answerOrigin{domainLen: (*d)[1], client: uint16(boolToByte((*d)[2] == 0))}}
	d.Skip(3)
	e.stored, e.ttl = d.Duration(), d.Duration()
	if e.stored > maxAnswerAge {
		return nil, decode.ErrDamaged
	}
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
	if e.keyBits&wire.KeyNameError != 0 && !a.DeniesQuestionName() || a.Outcome >= wire.FinalFailure {
		return nil, decode.ErrDamaged
	}
	e.Answer = a
	return e, nil
}

// importEntries adds exported answers to the cache, and returns their number. It skips answers that the cache may not
// store or serve, and questions that have an entry. The field stored of each entry must be the age at the export;
// importEntries changes it.
func (c *Cache) importEntries(entries []*entry, sinceExport time.Duration, now time.Time) (added int) {
	c.init()
	at, limits := c.clock.timeSinceEpoch(now), c.ttlLimits()
	limits.Min = 0 // a raised TTL would outlast the entry
	for _, e := range entries {
		e.stored = at - e.stored - sinceExport
		e.ttl = min(e.ttl, e.LimitTTLs(limits))
		if e.ttl == 0 || !c.canServeStale(e, at) {
			continue
		}
		key := append(append([]byte(nil), e.Question()...), e.keyBits)
		if e.keyBits&wire.KeyNameError != 0 {
			wire.SetNameErrorType(key)
		}
		if _, isNew := c.store.SetIfAbsent(maphash.Bytes(c.seed, key), e); isNew {
			added++
		}
	}
	return added
}
