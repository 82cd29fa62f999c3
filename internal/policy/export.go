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
	maxNameBytes     = 8 << 10  // bytes of a host or route; Export writes shortened names
	maxExportedCalls = 1 << 50  // maximum number of calls of a state; larger numbers count as this
)

// envelope frames an export. Its content is three lists, each preceded by its length:
//
//   - for each key: host, route and window, each preceded by its length;
//   - for each host with a verdict: the host and the verdict, see [hostVerdict];
//   - for each key with a notable brake state: host, route, number of calls and state, see [brakeState.appendTo].
var envelope = decode.Envelope{Name: "hedge windows ", Foreign: errForeign, Max: maxExport}

var errForeign = errors.New("this is no export of learned latencies")

// Export writes the latencies of the keys, the states of their brakes and the verdicts of the audits. If the export would be larger than
// Import accepts, it leaves out the least recently used keys. Keys without latencies are left out.
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
	out := append(binary.AppendUvarint(envelope.Header(now), n), all...)
	out = append(binary.AppendUvarint(out, judged), verdicts...)
	out = append(binary.AppendUvarint(out, braked), brakes...)
	_, err := w.Write(decode.AppendChecksum(out))
	return err
}

// appendWindow appends the name and the latency window of the key to b. It appends nothing if the window is empty.
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

// Import adds the latencies, brake states and verdicts that another Engine has exported. It adds keys while there is room, and evicts none.
// A brake state only applies to a key without calls. Import returns the number of keys that got latencies.
//
// The function share returns the share of a new route key, see [Engine.RouteKey]. If the export is invalid, nothing changes. Windows of
// keys for which there is no room are not decoded, so they use no memory.
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

// acceptsKey returns a function that reports whether to import a key: the key exists, or the table has room for it.
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

// hasRoom reports whether the table has room for a key, and for the key of its host if that is missing.
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

// decodeWindows decodes the list of windows, and returns the windows of the keys for which wanted returns true.
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

// A keyBrakeState is the exported brake state of a key.
type keyBrakeState struct {
	name  Name
	calls int64
	brakeState
}

// encodeStates returns the encoded verdicts of all hosts, and the encoded brake states of all keys, including evicted keys. It also returns
// the number of verdicts (judged) and of states (braked).
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

// decodeBrakeStates decodes the list of brake states that was encoded at the time then. It returns the first states, for at most the given
// number of keys.
func decodeBrakeStates(d *decode.Decoder, then time.Time, keys int) (all []keyBrakeState, err error) {
	for n := d.Uvarint(); n > 0 && *d != nil; n-- {
		k := keyBrakeState{name: decodeName(d), calls: int64(min(d.Uvarint(), maxExportedCalls))}
		var ok bool
		if k.brakeState, ok = decodeBrakeState(d, then); !ok {
			return nil, fmt.Errorf("%w: a brake state has invalid values", decode.ErrDamaged)
		}
		if len(all) < keys {
			all = append(all, k)
		}
	}
	return all, nil
}

// importBrakeStates merges the states into keys without calls. It stores the states of keys that do not exist, merged with states that are
// stored already.
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

// importBrakeState merges s into the state of k. It does nothing if k has had calls.
func (k *Key) importBrakeState(s brakeState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.totalRequests() == 0 {
		own := k.brakes.copyState()
		s.mergeState(&own)
		k.brakes.setState(&s)
	}
}
