package audit

import (
	"fmt"
	"time"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/internal/evicted"
	"github.com/gohedge/hedge/internal/sanitize"
	"github.com/gohedge/hedge/observe"
)

// maxHostBytes is the maximum length of an imported host name in bytes. Exported host names are shorter.
const maxHostBytes = 8 << 10

// A HostAudits holds the audits of an engine's hosts. All latency keys of a host share one audit. A HostAudits must not be used
// concurrently. If it is nil, no host is audited.
type HostAudits struct {
	active  map[string]*hostAudit              // audits of the hosts that have keys
	evicted evicted.States[string, *hostAudit] // audits with a verdict, of hosts whose keys were all evicted
}

// A hostAudit is the audit of one host, which is shared by the keys of the host.
type hostAudit struct {
	*Audit
	keys  int   // number of keys of the host
	calls int64 // number of calls of evicted keys
}

// NewHostAudits returns a HostAudits without audits.
func NewHostAudits() *HostAudits { return &HostAudits{active: make(map[string]*hostAudit)} }

// AddKey counts a new key of the host, and returns the audit that all keys of the host share. It returns nil if hs is nil.
func (hs *HostAudits) AddKey(host string) *Audit {
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

// RemoveKey counts a key of the host that was evicted after the given number of calls. When the last key of the host is
// evicted, only the host's verdict is kept. At most limit verdicts of hosts without keys are kept.
//
// The argument at is the current time of a monotonic clock. It decides, together with the numbers of calls, which verdicts
// are deleted first.
func (hs *HostAudits) RemoveKey(host string, calls int64, at time.Duration, limit int) {
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

// ForgetEvicted deletes the verdict of each host that has no keys and for which matches returns true.
func (hs *HostAudits) ForgetEvicted(matches func(host string) bool) {
	if hs != nil {
		hs.evicted.Each(func(host string, _ **hostAudit, _ int64) bool { return !matches(host) })
	}
}

// AppendVerdicts appends the encoded verdicts of the hosts to b. It stops when b has reached limit bytes, which the last verdict
// may exceed. It returns the extended slice and the number n of appended verdicts. The argument now is the time of the engine's
// clock, from which the ages of the verdicts count.
func (hs *HostAudits) AppendVerdicts(b []byte, now time.Time, limit int) (_ []byte, n uint64) {
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

// A HostVerdict is the decided verdict of one host, with the state of its audit, as it is exported.
type HostVerdict struct {
	host string // name of the host
	State
}

// DecodeVerdicts decodes a list of verdicts. It keeps the first verdict of each host, and at most limit verdicts. The error
// wraps decode.ErrDamaged if a verdict is invalid.
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

// ImportVerdicts adopts the exported verdicts all for hosts whose audits have no decided verdict. Verdicts of hosts without
// keys are kept for later, at most limit of them.
//
// The argument now is the time of the engine's clock. The argument at is the current time of the monotonic clock, as for
// RemoveKey.
func (hs *HostAudits) ImportVerdicts(all []HostVerdict, now time.Time, at time.Duration, limit int) {
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

// Len returns the number of hosts that have keys.
func (hs *HostAudits) Len() int { return len(hs.active) }
