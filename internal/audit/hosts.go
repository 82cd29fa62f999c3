package audit

import (
	"fmt"
	"time"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/internal/evicted"
	"github.com/gohedge/hedge/internal/sanitize"
	"github.com/gohedge/hedge/observe"
)

// maxHostBytes limits the name of a host in an import. Exported names are shorter.
const maxHostBytes = 8 << 10

// Hosts is the table of the audits of an engine's hosts. All keys of a host share its audit. It is not safe for concurrent use. Without a
// table (nil), hosts are not audited.
type Hosts struct {
	active  map[string]*hostAudit
	evicted evicted.States[string, *hostAudit] // audits that have a verdict, of hosts without keys
}

// A hostAudit is the audit of a host with the number of its keys.
type hostAudit struct {
	*Audit
	keys  int
	calls int64 // number of calls of evicted keys
}

// NewHosts returns an empty table.
func NewHosts() *Hosts { return &Hosts{active: make(map[string]*hostAudit)} }

// AddKey records a new key of the host, and returns the host's audit; nil if hosts are not audited.
func (hs *Hosts) AddKey(host string) *Audit {
	if hs == nil {
		return nil
	}
	h := hs.active[host]
	if h == nil {
		if h, _, _ = hs.evicted.Take(host); h == nil {
			h = &hostAudit{Audit: New(host)}
		}
		hs.active[host] = h
	}
	h.keys++
	return h.Audit
}

// RemoveKey records the eviction of a key that has had the given number of calls. After the last key of a host, the table keeps the
// verdict, and at most limit such verdicts. The argument at is the time of any monotonic clock.
func (hs *Hosts) RemoveKey(host string, calls int64, at time.Duration, limit int) {
	if hs == nil {
		return
	}
	h := hs.active[host]
	h.calls += calls
	if h.keys--; h.keys > 0 {
		return
	}
	delete(hs.active, host)
	if h.Verdict() != observe.AuditTrying {
		hs.evicted.Put(host, h, h.calls, at, limit)
	}
}

// ForgetEvicted deletes the verdicts of hosts without keys, if matches returns true for the host.
func (hs *Hosts) ForgetEvicted(matches func(host string) bool) {
	if hs != nil {
		hs.evicted.Each(func(host string, _ **hostAudit, _ int64) bool { return !matches(host) })
	}
}

// AppendVerdicts appends encoded verdicts to b until it has limit bytes, and returns their number. The argument now is a time of the
// engine's clock.
func (hs *Hosts) AppendVerdicts(b []byte, now time.Time, limit int) (_ []byte, n uint64) {
	if hs == nil {
		return b, 0
	}
	add := func(host string, h **hostAudit, _ int64) bool {
		if j, ok := (*h).ExportState(now); ok && len(b) < limit {
			b = j.AppendJSON(decode.AppendBytes(b, host))
			n++
		}
		return true
	}
	for host, h := range hs.active {
		add(host, &h, 0)
	}
	hs.evicted.Each(add)
	return b, n
}

// A HostVerdict is the exported verdict of a host.
type HostVerdict struct {
	host string
	State
}

// DecodeVerdicts decodes a list of verdicts. It returns the first verdict of each host, for at most limit hosts.
func DecodeVerdicts(d *decode.Decoder, limit int) (all []HostVerdict, err error) {
	seen := make(map[string]bool)
	for n := d.Uvarint(); n > 0 && *d != nil; n-- {
		host := sanitize.ShortenText(string(d.Bytes(maxHostBytes)))
		j, ok := DecodeState(d)
		if !ok {
			return nil, fmt.Errorf("%w: a verdict has invalid values", decode.ErrDamaged)
		}
		if !seen[host] && len(all) < limit {
			seen[host] = true
			all = append(all, HostVerdict{host, j})
		}
	}
	return all, nil
}

// ImportVerdicts stores imported verdicts for hosts that have none. The argument now is a time of the engine's clock. The arguments at and
// limit have the meaning that they have for RemoveKey.
func (hs *Hosts) ImportVerdicts(all []HostVerdict, now time.Time, at time.Duration, limit int) {
	if hs == nil {
		return
	}
	for i := range all {
		host, j := all[i].host, &all[i].State
		if h := hs.active[host]; h != nil {
			h.ImportState(j, now)
			continue
		}
		h, calls, ok := hs.evicted.Take(host)
		if !ok {
			h = &hostAudit{Audit: New(host)}
		}
		h.ImportState(j, now)
		hs.evicted.Put(host, h, calls, at, limit)
	}
}

// Len returns the number of hosts with keys.
func (hs *Hosts) Len() int { return len(hs.active) }
