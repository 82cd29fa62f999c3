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

// Limits of exported data, which Import enforces because the data may be damaged or forged.
const (
	maxExport        = 64 << 20 // maximum size of an export in bytes
	maxNameBytes     = 8 << 10  // maximum length of a host or route in bytes; Export writes shortened names
	maxExportedCalls = 1 << 50  // maximum number of calls of an exported key; larger numbers are reduced to this one
)

// envelope frames an export. Its content is three lists, each preceded by its length:
//
//   - for each key: host, route and window, each preceded by its length;
//   - for each host with a verdict: the host and the verdict, see [hostVerdict];
//   - for each key whose safety checks restrict hedging: host, route, number of calls and state, see [safetyState.appendTo].
var envelope = decode.Envelope{Name: "hedge windows ", Foreign: errForeign, Max: maxExport}

// errForeign is the error of Import for data that is not an export.
var errForeign = errors.New("this is no export of learned latencies")

// Export writes the learned state of the engine to w: the latencies of the keys, the states of their safety checks, and the
// verdicts of the audits. Keys without latencies are left out. If the export would be larger than Import accepts, the least
// recently used keys are left out too.
//
// Export returns the error of w.
func (e *Engine) Export(w io.Writer, now time.Time) error {
	type aged struct {
		*Key
		used int64
	}
	var keys []aged
	for k := range e.AllKeys() {
		keys = append(keys, aged{k, k.lastUsed.Load()})
	}
	slices.SortFunc(keys, func(a, b aged) int { return cmp.Compare(b.used, a.used) })
	verdicts, judged, states, stateCount := e.encodeStates(now)
	var all []byte
	var n uint64
	for _, k := range keys {
		b := k.appendWindow(nil, now)
		if len(all)+len(b)+len(verdicts)+len(states) > maxExport-1024 {
			break
		}
		if len(b) > 0 {
			all = append(all, b...)
			n++
		}
	}
	out := append(binary.AppendUvarint(envelope.Header(now), n), all...)
	out = append(binary.AppendUvarint(out, judged), verdicts...)
	out = append(binary.AppendUvarint(out, stateCount), states...)
	_, err := w.Write(decode.AppendChecksum(out))
	return err
}

// appendWindow appends the key to an export: its encoded name and latency window. It returns the extended slice, or b
// unchanged if the window is empty.
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

// Import reads an export from r, and adds its latencies, states of safety checks and verdicts to the engine. It adds new
// keys while the engine has room, and evicts no keys. States of safety checks are applied only to keys that have had no
// calls.
//
// For a new key, the function share must return the share of the key's requests to which its hedges are limited, see
// [Engine.RouteKey].
//
// Import returns the number of keys that got latencies. If the export is invalid, it returns an error and changes nothing.
// Latencies of keys without room are not decoded, so that they use no memory.
func (e *Engine) Import(r io.Reader, now time.Time, share func(Name) float64) (keys int, err error) {
	passed, d, err := envelope.Open(r, now)
	if err != nil {
		return 0, err
	}
	learned, err := decodeWindows(&d, now, e.acceptsKey())
	var verdicts []hostVerdict
	var states []keySafetyState
	most := max(e.Config().MaxKeys, 1)
	if err == nil {
		verdicts, err = decodeVerdicts(&d, most)
	}
	if err == nil {
		states, err = decodeSafetyStates(&d, now.Add(-passed), most)
	}
	if err == nil && (d == nil || len(d) > 0) {
		err = decode.ErrDamaged
	}
	if err != nil {
		return 0, err
	}
	e.importSafetyStates(states)
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

// acceptsKey returns a function with which Import filters the keys of an export. The function reports whether the engine has
// the key n or has room for it. It reserves the room for the keys that it accepts. It must not be called concurrently.
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

// hasRoom reports whether a key with the given name can be added without evicting other keys. If keys share the bucket of
// their host, there must also be room for the key of the host.
func (e *Engine) hasRoom(name Name) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	more := 1
	if e.setup.PerHost && name.Route != "" && e.Lookup(Name{Host: name.Host}) == nil {
		more++
	}
	return e.size+more <= e.Config().MaxKeys
}

// An importedWindow is the latency window of one key of an export.
type importedWindow struct {
	name   Name
	window *sketch.Window
}

// decodeWindows decodes the latency windows of an export. It returns the windows of the keys for which wanted returns true,
// and an error that wraps decode.ErrDamaged if the list is invalid. The argument now is the current time.
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

// decodeName decodes the name of a key. It shortens host and route to the maximum length that the engine stores.
func decodeName(d *decode.Decoder) Name {
	return Name{Host: string(d.Bytes(maxNameBytes)), Route: string(d.Bytes(maxNameBytes))}.shortened()
}

// A keySafetyState is the state of one key's safety checks in an export.
type keySafetyState struct {
	name  Name
	calls int64 // number of calls of the key before the export
	safetyState
}

// encodeStates encodes the verdicts of all hosts, and the notable states of the safety checks of all keys, including evicted
// keys. The results verdictCount and stateCount are the numbers of encoded verdicts and states.
func (e *Engine) encodeStates(now time.Time) (verdicts []byte, verdictCount uint64, states []byte, stateCount uint64) {
	add := func(name Name, s *safetyState, calls int64) bool {
		if s.isWorthKeeping() && len(states) < maxExport/8 {
			states = decode.AppendBytes(decode.AppendBytes(states, name.Host), name.Route)
			states = s.appendTo(binary.AppendUvarint(states, uint64(calls)), now)
			stateCount++
		}
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	verdicts, verdictCount = e.experiments.AppendVerdicts(nil, e.engineTime(now), maxExport/4)
	for k := range e.AllKeys() {
		s := k.copySafetyState()
		add(k.Name, &s, k.earlierCalls+k.totalRequests())
	}
	e.safetyStates.Each(add)
	return verdicts, verdictCount, states, stateCount
}

// decodeSafetyStates decodes the states of safety checks in an export. The argument then is the time at which the export was
// written. It returns the states of at most the given number of keys. The error wraps decode.ErrDamaged if the list is
// invalid.
func decodeSafetyStates(d *decode.Decoder, then time.Time, keys int) (all []keySafetyState, err error) {
	for n := d.Uvarint(); n > 0 && *d != nil; n-- {
		k := keySafetyState{name: decodeName(d), calls: int64(min(d.Uvarint(), maxExportedCalls))}
		var ok bool
		if k.safetyState, ok = decodeSafetyState(d, then); !ok {
			return nil, fmt.Errorf("%w: the state of a safety check has invalid values", decode.ErrDamaged)
		}
		if len(all) < keys {
			all = append(all, k)
		}
	}
	return all, nil
}

// importSafetyStates applies imported states of safety checks to the keys that have had no calls. If a key does not exist,
// its state is stored until the key is added. If a state is already stored, it is merged with the imported state.
func (e *Engine) importSafetyStates(all []keySafetyState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range all {
		k := &all[i]
		if known := e.Lookup(k.name); known != nil {
			known.importSafetyState(k.safetyState)
			continue
		}
		if s, calls, ok := e.safetyStates.Take(k.name); ok {
			k.mergeState(&s)
			k.calls = max(k.calls, calls)
		}
		e.safetyStates.Put(k.name, k.safetyState, k.calls, e.ageDuration(), e.Config().MaxKeys)
	}
}

// importSafetyState merges the imported state s into the safety checks of k, so that the more restrictive values apply. It does
// nothing if k has already had calls.
func (k *Key) importSafetyState(s safetyState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.totalRequests() == 0 {
		own := k.safetyChecks.copyState()
		s.mergeState(&own)
		k.safetyChecks.setState(&s)
	}
}
