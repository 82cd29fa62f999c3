package policy

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/internal/label"
	"github.com/gohedge/hedge/sketch"
)

const (
	maxExport = 64 << 20 // bytes
	maxName   = 8 << 10  // bytes of a host or route; those that are written are short

	maxCalls = 1 << 50 // that anything is believed to rest on
)

// The content of an export is three lists, each with its length in front: for each key its host, its route and its window,
// with their lengths in front; each host that has the verdict of an audit, and the verdict ([audit.Judgement.Append]); each key
// that has a notable state of its brakes: host, route, number of calls, state ([brakeState.append]).
var envelope = decode.Envelope{Name: "hedge windows ", Foreign: errForeign, Max: maxExport}

var errForeign = errors.New("this is no export of learned latencies")

// Export writes what the keys learned, the most recently used first, as many as
// Import would read. Keys without a sample are left out.
func (e *Engine) Export(w io.Writer, now time.Time) error {
	type aged struct {
		*Key
		used int64
	}
	var keys []aged
	for k := range e.all() {
		keys = append(keys, aged{k, k.used.Load()})
	}
	slices.SortFunc(keys, func(a, b aged) int { return cmp.Compare(b.used, a.used) })
	audits, judged := e.appendAudits(now)
	holds, held := e.appendHolds(now)
	var all []byte
	var n uint64
	for _, k := range keys {
		b := k.append(nil, now)
		if len(all)+len(b)+len(audits)+len(holds) > maxExport-1024 {
			break
		}
		if len(b) > 0 {
			all = append(all, b...)
			n++
		}
	}
	out := append(binary.AppendUvarint(envelope.Begin(now), n), all...)
	out = append(binary.AppendUvarint(out, judged), audits...)
	out = append(binary.AppendUvarint(out, held), holds...)
	_, err := w.Write(decode.End(out))
	return err
}

// append appends the key's name and window; nothing if the window is empty.
func (k *Key) append(b []byte, now time.Time) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.window.Len() == 0 {
		return b
	}
	b = decode.AppendBytes(b, k.Name.Host)
	b = decode.AppendBytes(b, k.Name.Route)
	return decode.AppendBytes(b, k.window.Append(nil, now))
}

// Import learns what another Engine has written, in addition to what this one
// knows. New keys are made while there is room, and none is forgotten for them.
// The share of a route is asked for, see [Engine.RouteKey]. What held hedges back counts for keys that have
// had no calls, now or when they are made. It returns how many keys
// learned. If there is anything wrong, nothing changes; the windows of keys for which there
// is no room are not looked at, and no memory is taken for them.
func (e *Engine) Import(r io.Reader, now time.Time, share func(Name) float64) (keys int, err error) {
	passed, d, err := envelope.Open(r, now)
	if err != nil {
		return 0, err
	}
	learned, err := decodeWindows(&d, now, e.wanted())
	var audits []hostJudgement
	var holds []keyHold
	most := max(e.Config().MaxKeys, 1)
	if err == nil {
		audits, err = decodeAudits(&d, most)
	}
	if err == nil {
		holds, err = decodeHolds(&d, now.Add(-passed), most)
	}
	if err == nil && (d == nil || len(d) > 0) {
		err = decode.ErrDamaged
	}
	if err != nil {
		return 0, err
	}
	e.absorbHolds(holds)
	for _, l := range learned {
		if e.Lookup(l.name) != nil || e.room(l.name) {
			e.RouteKey(l.name, share(l.name)).absorb(l.window, now)
			keys++
		}
	}
	e.absorbAudits(audits, now)
	return keys, nil
}

// wanted returns a function that reports whether to learn of a key: there is one, or room for it.
func (e *Engine) wanted() func(Name) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	room := max(e.Config().MaxKeys, 1) - e.size
	wanted := make(map[Name]bool)
	return func(n Name) bool {
		if wanted[n] || e.Lookup(n) != nil {
			return true
		}
		if len(wanted) < room {
			wanted[n] = true
		}
		return wanted[n]
	}
}

// room reports whether a key can be made, with one for its host if there must be, without forgetting another.
func (e *Engine) room(name Name) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	more := 1
	if e.setup.PerHost && name.Route != "" && e.Lookup(Name{Host: name.Host}) == nil {
		more++
	}
	return e.size+more <= e.Config().MaxKeys
}

type learned struct {
	name   Name
	window *sketch.Window
}

// decodeWindows takes off the windows of the keys that are wanted, once for each.
func decodeWindows(d *decode.Decoder, now time.Time, wanted func(Name) bool) (all []learned, err error) {
	seen := make(map[Name]bool)
	for n := d.Uvarint(); n > 0 && *d != nil; n-- {
		name := decodeName(d)
		window := d.Bytes(maxExport)
		switch {
		case *d == nil:
			return nil, decode.ErrDamaged
		case !wanted(name):
			continue
		case seen[name]:
			return nil, fmt.Errorf("%w: two windows for one key", decode.ErrDamaged)
		}
		seen[name] = true
		w, err := sketch.Decode(window, now)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", decode.ErrDamaged, err)
		}
		all = append(all, learned{name, w})
	}
	return all, nil
}

func decodeName(d *decode.Decoder) Name {
	return Name{Host: string(d.Bytes(maxName)), Route: string(d.Bytes(maxName))}.short()
}

// A hostJudgement is what an export says of the audit of a host.
type hostJudgement struct {
	host string
	audit.Judgement
}

// decodeAudits takes off the verdicts, once for each host, and keeps so many.
func decodeAudits(d *decode.Decoder, most int) (all []hostJudgement, err error) {
	seen := make(map[string]bool)
	for n := d.Uvarint(); n > 0 && *d != nil; n-- {
		host := label.Short(string(d.Bytes(maxName)))
		j, ok := audit.Decode(d)
		if !ok {
			return nil, fmt.Errorf("%w: a verdict makes no sense", decode.ErrDamaged)
		}
		if !seen[host] && len(all) < most {
			seen[host] = true
			all = append(all, hostJudgement{host, j})
		}
	}
	return all, nil
}

// absorb learns what another key did.
func (k *Key) absorb(w *sketch.Window, now time.Time) {
	k.planning.Lock()
	defer k.planning.Unlock()
	k.mu.Lock()
	k.window.Merge(w)
	if k.engine.setup.Shadow {
		k.actual.Merge(w)
	}
	k.mu.Unlock()
	k.replan(now)
}

// appendAudits appends the verdicts that there are, and returns how many.
func (e *Engine) appendAudits(now time.Time) (b []byte, n uint64) {
	now = e.clock(now)
	add := func(host string, a *hostAudit) {
		if j, ok := a.Judgement(now); ok && len(b) < maxExport/4 {
			b = j.Append(decode.AppendBytes(b, host))
			n++
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for host, a := range e.audits {
		add(host, a)
	}
	e.judged.Each(func(host string, a **hostAudit, _ int64) bool {
		add(host, *a)
		return true
	})
	return b, n
}

// absorbAudits takes verdicts for hosts that have none.
func (e *Engine) absorbAudits(all []hostJudgement, now time.Time) {
	if !e.setup.Audit || e.setup.Shadow {
		return
	}
	now = e.clock(now)
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range all {
		host, j := all[i].host, &all[i].Judgement
		if a := e.audits[host]; a != nil {
			a.Absorb(j, now)
			continue
		}
		a, calls, ok := e.judged.Take(host)
		if !ok {
			a = &hostAudit{Audit: audit.New(host)}
		}
		a.Absorb(j, now)
		e.judged.Put(host, a, calls, e.runs(), e.Config().MaxKeys)
	}
}

// A keyHold is what an export says of what holds the hedges of a key back.
type keyHold struct {
	name  Name
	calls int64
	brakeState
}

// appendHolds appends what holds hedges back, of keys that there are and were, and returns of how many.
func (e *Engine) appendHolds(now time.Time) (b []byte, n uint64) {
	add := func(name Name, h *brakeState, calls int64) bool {
		if h.isNotable() && len(b) < maxExport/8 {
			b = decode.AppendBytes(decode.AppendBytes(b, name.Host), name.Route)
			b = h.append(binary.AppendUvarint(b, uint64(calls)), now)
			n++
		}
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for k := range e.all() {
		h := k.copyBrakeState()
		add(k.Name, &h, k.earlier+k.requests())
	}
	e.holds.Each(add)
	return b, n
}

// decodeHolds takes off what was written at the given time, and keeps that of so many keys.
func decodeHolds(d *decode.Decoder, then time.Time, most int) (all []keyHold, err error) {
	for n := d.Uvarint(); n > 0 && *d != nil; n-- {
		k := keyHold{name: decodeName(d), calls: int64(min(d.Uvarint(), maxCalls))}
		var ok bool
		if k.brakeState, ok = decodeBrakeState(d, then); !ok {
			return nil, fmt.Errorf("%w: what holds hedges back makes no sense", decode.ErrDamaged)
		}
		if len(all) < most {
			all = append(all, k)
		}
	}
	return all, nil
}

// absorbHolds takes what held hedges back, for keys that have had no calls. If several exports say
// it of a key, the worse counts.
func (e *Engine) absorbHolds(all []keyHold) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range all {
		k := &all[i]
		if known := e.Lookup(k.name); known != nil {
			known.absorbHold(&k.brakeState)
			continue
		}
		if h, calls, ok := e.holds.Take(k.name); ok {
			k.merge(&h)
			k.calls = max(k.calls, calls)
		}
		e.holds.Put(k.name, k.brakeState, k.calls, e.runs(), e.Config().MaxKeys)
	}
}

// absorbHold takes what held the hedges of another key of the same name back, unless k has had calls.
func (k *Key) absorbHold(h *brakeState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.requests() == 0 {
		k.brakes.merge(h)
	}
}
