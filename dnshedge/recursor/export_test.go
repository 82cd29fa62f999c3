package recursor

import (
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// For tests in package recursor_test.
var (
	Canonical = canonical
	Within    = within
	Parent    = parent
	InWire    = inWire
	Unique    = unique
)

// Expiries returns when what a Resolver keeps expires.
func Expiries(r *Resolver) (all []time.Time) {
	c, err := r.setup()
	if err != nil {
		panic(err)
	}
	c.cache.mu.RLock()
	defer c.cache.mu.RUnlock()
	for _, e := range c.cache.entries {
		all = append(all, e.expires)
		if e.zone != nil {
			all = append(all, e.zone.expires)
		}
	}
	return all
}

// Read reads a response of a zone's server, as it comes from the wire, and returns how many of
// its records are believed.
func Read(b []byte, zone, name string, typ uint16) (believed int) {
	m, err := wire.ParseMsg(b)
	if err != nil {
		return 0
	}
	r := read(m, &delegation{zone: zone}, question{name: name, qtype: typ, do: true}, true, time.Now())
	if r.cut != nil {
		return len(r.cut.names)
	}
	return len(r.answer) + len(r.authority)
}
