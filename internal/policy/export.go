package policy

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/sketch"
)

// Limits of an export.
const (
	maxExport        = 64 << 20 // bytes
	maxNameBytes     = 8 << 10  // bytes of a host or route; written ones are short
	maxExportedCalls = 1 << 50  // from which a state is believed to be learned
)

// The content of an export is three lists, each with its length in front: for each key its host, its route and its window,
// with their lengths in front; each host that has a verdict, and the verdict as [hostVerdict] has it; each key
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
	for k := range e.allKeys() {
		keys = append(keys, aged{k, k.lastUsed.Load()})
	}
	slices.SortFunc(keys, func(a, b aged) int { return cmp.Compare(b.used, a.used) })
	verdicts, judged, brakes, braked := e.encodeStates(now)
	var all []byte
	var n uint64
	for _, k := range keys {
		b := k.appendWindow(nil, now)
		if len(all)+len(b)+len(verdicts)+len(brakes) > maxExport-1024 {
			break
		}
		if len(b) > 0 {
			all = append(all, b...)
			n++
		}
	}
	out := append(binary.AppendUvarint(envelope.Begin(now), n), all...)
	out = append(binary.AppendUvarint(out, judged), verdicts...)
	out = append(binary.AppendUvarint(out, braked), brakes...)
	_, err := w.Write(decode.End(out))
	return err
}

// appendWindow appends the key's name and window; nothing if the window is empty.
func (k *Key) appendWindow(b []byte, now time.Time) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.latency.window.Len() == 0 {
		return b
	}
	b = decode.AppendBytes(b, k.Name.Host)
	b = decode.AppendBytes(b, k.Name.Route)
	return decode.AppendBytes(b, k.latency.window.Append(nil, now))
}

// Import adds the latencies and states that another Engine has exported. It makes new keys while there is room, and evicts none for them. The
// function share returns the share of a route, see [Engine.RouteKey]. Brake states apply to keys without calls. It returns the number of
// keys that got latencies.
//
// If the export is invalid, nothing changes. Windows of keys for which there is no room are not decoded, and take no memory.
func (e *Engine) Import(r io.Reader, now time.Time, share func(Name) float64) (keys int, err error) {
	passed, d, err := envelope.Open(r, now)
	if err != nil {
		return 0, err
	}
	learned, err := decodeWindows(&d, now, e.acceptsKey())
	var verdicts []hostVerdict
	var states []keyBrakeState
	most := max(e.Config().MaxKeys, 1)
	if err == nil {
		verdicts, err = decodeVerdicts(&d, most)
	}
	if err == nil {
		states, err = decodeBrakeStates(&d, now.Add(-passed), most)
	}
	if err == nil && (d == nil || len(d) > 0) {
		err = decode.ErrDamaged
	}
	if err != nil {
		return 0, err
	}
	e.importBrakeStates(states)
	for _, l := range learned {
		if e.Lookup(l.name) != nil || e.hasRoom(l.name) {
			e.RouteKey(l.name, share(l.name)).importWindow(l.window, now)
			keys++
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.experiments.ImportVerdicts(verdicts, e.engineTime(now), e.ageDuration(), e.Config().MaxKeys)
	return keys, nil
}

// acceptsKey returns a function that reports whether to import a key: the key exists, or there is room for it.
func (e *Engine) acceptsKey() func(Name) bool {
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

// hasRoom reports whether a key, and the key of its host if that is missing, can be made without an eviction.
func (e *Engine) hasRoom(name Name) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	more := 1
	if e.setup.PerHost && name.Route != "" && e.Lookup(Name{Host: name.Host}) == nil {
		more++
	}
	return e.size+more <= e.Config().MaxKeys
}

type importedWindow struct {
	name   Name
	window *sketch.Window
}

// decodeWindows reads all windows, and returns those of the keys for which wanted returns true.
func decodeWindows(d *decode.Decoder, now time.Time, wanted func(Name) bool) (all []importedWindow, err error) {
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
		all = append(all, importedWindow{name, w})
	}
	return all, nil
}

func decodeName(d *decode.Decoder) Name {
	return Name{Host: string(d.Bytes(maxNameBytes)), Route: string(d.Bytes(maxNameBytes))}.shortened()
}

// A keyBrakeState is the state of the brakes of a key in an export. Brakes deny hedges for a time: after pushback, in an outage, or while hedges do not win.
type keyBrakeState struct {
	name  Name
	calls int64
	brakeState
}

// encodeStates returns, in the format of an export, the verdicts of the audits of all hosts and the brake states of all keys, evicted ones included,
// and the number of each.
func (e *Engine) encodeStates(now time.Time) (verdicts []byte, judged uint64, brakes []byte, braked uint64) {
	add := func(name Name, s *brakeState, calls int64) bool {
		if s.isNotable() && len(brakes) < maxExport/8 {
			brakes = decode.AppendBytes(decode.AppendBytes(brakes, name.Host), name.Route)
			brakes = s.appendTo(binary.AppendUvarint(brakes, uint64(calls)), now)
			braked++
		}
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	verdicts, judged = e.experiments.AppendVerdicts(nil, e.engineTime(now), maxExport/4)
	for k := range e.allKeys() {
		s := k.copyBrakeState()
		add(k.Name, &s, k.earlierCalls+k.totalRequests())
	}
	e.brakeStates.Each(add)
	return verdicts, judged, brakes, braked
}

// decodeBrakeStates reads the states that were written at the given time, and returns the first ones, at most so many.
func decodeBrakeStates(d *decode.Decoder, then time.Time, keys int) (all []keyBrakeState, err error) {
	for n := d.Uvarint(); n > 0 && *d != nil; n-- {
		k := keyBrakeState{name: decodeName(d), calls: int64(min(d.Uvarint(), maxExportedCalls))}
		var ok bool
		if k.brakeState, ok = decodeBrakeState(d, then); !ok {
			return nil, fmt.Errorf("%w: what holds hedges back makes no sense", decode.ErrDamaged)
		}
		if len(all) < keys {
			all = append(all, k)
		}
	}
	return all, nil
}

// importBrakeStates merges the states into keys without calls, and stores the states of keys that do not exist. Of several states of a key,
// the most restrictive values apply.
func (e *Engine) importBrakeStates(all []keyBrakeState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range all {
		k := &all[i]
		if known := e.Lookup(k.name); known != nil {
			known.importBrakeState(k.brakeState)
			continue
		}
		if s, calls, ok := e.brakeStates.Take(k.name); ok {
			k.mergeState(&s)
			k.calls = max(k.calls, calls)
		}
		e.brakeStates.Put(k.name, k.brakeState, k.calls, e.ageDuration(), e.Config().MaxKeys)
	}
}

// importBrakeState merges the state of another key of the same name into that of k, unless k has had calls.
func (k *Key) importBrakeState(s brakeState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.totalRequests() == 0 {
		own := k.brakes.copyState()
		s.mergeState(&own)
		k.brakes.setState(&s)
	}
}
