package engine

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
	"github.com/gohedge/hedge/sketch"
)

const (
	maxExport = 64 << 20 // bytes
	maxName   = 8 << 10  // bytes of a host or route

	windowsVersion = "1"
	auditedVersion = "1.1"
)

// What an Engine learned is written, in its envelope, as the number of keys, and for each key its host,
// its route and its window, all with their lengths before them. Version 1.1, which is written if there are
// any, has the verdicts of audits after that: their number, and each with its host as
// [audit.Judgement.Append] writes it.
var envelope = decode.Envelope{
	Name: "hedge windows ", Foreign: errForeign, Versions: []string{windowsVersion, auditedVersion}, Max: maxExport,
}

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
	var all []byte
	var n uint64
	for _, k := range keys {
		b := k.append(nil, now)
		if len(b) == 0 || len(k.Name.Host) > maxName || len(k.Name.Route) > maxName {
			continue
		}
		if len(all)+len(b)+len(audits) > maxExport-1024 {
			break
		}
		all = append(all, b...)
		n++
	}
	version := windowsVersion
	if judged > 0 {
		version = auditedVersion
	}
	out := binary.AppendUvarint(envelope.Begin(version, now), n)
	out = append(out, all...)
	if judged > 0 {
		out = binary.AppendUvarint(out, judged)
		out = append(out, audits...)
	}
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
// The share of a route is asked for, see [Engine.RouteKey]. It returns how many keys
// learned. If there is anything wrong, nothing changes; the windows of keys for which there
// is no room are not looked at, and no memory is taken for them.
func (e *Engine) Import(r io.Reader, now time.Time, share func(Name) float64) (keys int, err error) {
	version, _, d, err := envelope.Open(r, now)
	if err != nil {
		return 0, err
	}
	e.mu.Lock()
	room := max(e.Config().MaxKeys, 1) - e.size
	e.mu.Unlock()
	wanted := make(map[Name]bool)
	learned, err := decodeWindows(&d, now, func(n Name) bool {
		if wanted[n] || e.Lookup(n) != nil {
			return true
		}
		if len(wanted) < room {
			wanted[n] = true
		}
		return wanted[n]
	})
	var audits []hostJudgement
	if err == nil && version == auditedVersion {
		audits, err = decodeAudits(&d, learned)
	}
	if err == nil && (d == nil || len(d) > 0) {
		err = decode.ErrDamaged
	}
	if err != nil {
		return 0, err
	}
	for _, l := range learned {
		if e.Lookup(l.name) != nil || e.room() {
			e.RouteKey(l.name, share(l.name)).absorb(l.window, now)
			keys++
		}
	}
	e.absorbAudits(audits, now)
	return keys, nil
}

// room reports whether a key can be made without forgetting another.
func (e *Engine) room() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.size < e.Config().MaxKeys
}

type learned struct {
	name   Name
	window *sketch.Window
}

// decodeWindows takes off the windows of the keys that are wanted, once for each.
func decodeWindows(d *decode.Decoder, now time.Time, wanted func(Name) bool) (all []learned, err error) {
	seen := make(map[Name]bool)
	for n := d.Uvarint(); n > 0 && *d != nil; n-- {
		name := Name{Host: string(d.Bytes(maxName)), Route: string(d.Bytes(maxName))}
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

// A hostJudgement is what an export says of the audit of a host.
type hostJudgement struct {
	host string
	audit.Judgement
}

// decodeAudits takes off the verdicts for hosts of which a window was learned, once for each.
func decodeAudits(d *decode.Decoder, learned []learned) (all []hostJudgement, err error) {
	wanted := make(map[string]bool)
	for _, l := range learned {
		wanted[l.name.Host] = true
	}
	for n := d.Uvarint(); n > 0 && *d != nil; n-- {
		host := string(d.Bytes(maxName))
		j, ok := audit.Decode(d)
		if !ok {
			return nil, fmt.Errorf("%w: a verdict makes no sense", decode.ErrDamaged)
		}
		if wanted[host] {
			wanted[host] = false // the first of two counts
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
	e.mu.Lock()
	defer e.mu.Unlock()
	for host, a := range e.audits {
		if len(host) > maxName || len(b) > maxExport/4 {
			continue
		}
		if j, ok := a.Judgement(now); ok {
			b = decode.AppendBytes(b, host)
			b = j.Append(b)
			n++
		}
	}
	return b, n
}

// absorbAudits takes verdicts for hosts that have a key and no verdict of their own.
func (e *Engine) absorbAudits(all []hostJudgement, now time.Time) {
	now = e.clock(now)
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range all {
		if a := e.audits[all[i].host]; a != nil {
			a.Absorb(&all[i].Judgement, now)
		}
	}
}
