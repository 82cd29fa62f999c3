package names

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/lookup"
)

const (
	lookupTimeout   = 10 * time.Second // limit of a lookup that has a slot
	lookupPatience  = time.Second      // how long a caller waits for a lookup before it uses the addresses that are known
	firstRetry      = time.Second      // delay after the first failed lookup of a host without addresses
	longestRetry    = time.Minute      // longest delay after a failed lookup
	failureMemory   = 2 * time.Minute  // for this long, callers do not wait for a lookup if the lookup before failed
	minRemainingTTL = time.Second      // shortest TTL from a server's cache

	failureDuration = time.Minute      // how long an address that failed is dialled last
	removedMemory   = 10 * time.Minute // how long a removed address is remembered
	maxAddrs        = 256              // limit of the addresses of a host, present and removed, above which removed ones are forgotten
	maxPorts        = 16               // limit of the ports of an address with a stored state
)

var errNothing = errors.New("names: Exchanger returned neither a response nor an error")

// A host is the state of one host name: its addresses, its lookups, and the number of its users (connections, dials and
// watchers). Names.mu guards its fields.
type host struct {
	n        *Names
	name     string
	rotation uint // counts dials, and rotates the addresses of a family

	families      [2][]netip.Addr             // the present addresses: IPv4, IPv6
	addrs         map[netip.Addr]*hostAddress // state of the present addresses and of removed ones
	version       uint64                      // counts changes of families; 0: no address is known
	ttls          [2][2]time.Duration         // the last two TTLs, by family; the older is first
	lastLookup    time.Time                   // when the last lookup started
	nextLookup    time.Time                   // when the next lookup is due
	failures      uint64                      // number of failed lookups
	failuresInRow int                         // failed lookups since the last successful one
	err           error                       // error of the last lookup
	lookup        *lookupState                // nil: no lookup is running
	changed       chan struct{}               // closed when a lookup has published a result or has ended

	users         int           // number of connections, dials and watchers
	unusedElement *list.Element // element of Names.unused; nil: the host is used, or a lookup is running
	timer         *time.Timer   // fires at nextLookup; nil: the host has no users

	returnTimes       [3]time.Time  // the last lookups that found removed addresses again, the latest first
	hasUnsureSource   bool          // an address has an unsure source
	draining          bool          // the host is counted in Names.drainingHosts
	closesNext        bool          // the next request closes its connection and sets closeUntil
	closeUntil        time.Time     // until then, requests close their connections
	closeIdleTimer    *time.Timer   // closes idle connections; nil: not scheduled
	closeIdleInterval time.Duration // time between the next sweep and the one after it
}

// A hostAddress is the state of one address that a host has, or had until recently. Names.mu guards its fields.
type hostAddress struct {
	source         netip.Addr             // source address of connections; not valid: there is no route, or it is not known yet
	isSourceUnsure bool                   // the source could not be determined
	removedAt      time.Time              // when the host's answer lacked the address for the first time; zero: the host has the address
	ports          map[string]*portHealth // ports that were dialled
	conns          map[*trackedConn]struct{}
}

// A portHealth records whether dials to one port of an address succeeded. Ports are separate, because the failure of
// one port does not affect other ports.
type portHealth struct {
	failed  time.Time // when a dial last failed, or was slower than a later dial
	reached bool      // the last completed dial succeeded
}

// portHealthOf returns the state of dials to a port of the address, and creates it if necessary. If the address already
// has the states of 16 other ports (maxPorts), these states are removed first. The caller must hold Names.mu.
func (a *hostAddress) portHealthOf(port string) *portHealth {
	s := a.ports[port]
	if s == nil {
		if a.ports == nil || len(a.ports) == maxPorts {
			a.ports = make(map[string]*portHealth)
		}
		s = new(portHealth)
		a.ports[port] = s
	}
	return s
}

// isFailing reports whether a dial to the port failed in the minute before now (failureDuration), and none has
// succeeded since. If port is empty, this must apply to all stored ports, and there must be one. The caller must hold
// Names.mu.
func (a *hostAddress) isFailing(port string, now time.Time) bool {
	if port != "" {
		s := a.ports[port]
		return s != nil && now.Sub(s.failed) < failureDuration
	}
	for _, s := range a.ports {
		if now.Sub(s.failed) >= failureDuration {
			return false
		}
	}
	return len(a.ports) > 0
}

// A lookupState is the state of one lookup of a host. The lookup is running, or waits because too many lookups are
// running. Names.mu guards its fields.
type lookupState struct {
	started        bool            // it has a slot
	abandoned      chan struct{}   // closed if a host without addresses loses its last user before the lookup has a slot
	waitEnd        time.Time       // lookupPatience after the start; without addresses, lookupTimeout after the slot
	previousFailed bool            // the lookup before this one has failed, so callers with known addresses do not wait
	first          time.Time       // when the earliest published result arrived; zero: none is published
	published      addressFamilies // families whose results are published
}

// hasEnoughResults reports whether the lookup has published enough results for a caller. If waitForAll is true, the
// caller needs the results of all families, and otherwise the result of any family. The caller must hold Names.mu.
func (l *lookupState) hasEnoughResults(families addressFamilies, waitForAll bool) bool {
	if !waitForAll {
		return !l.first.IsZero()
	}
	return (l.published[0] || !families[0]) && (l.published[1] || !families[1])
}

// waitDeadline returns when a caller stops waiting for more results of the lookup: at waitEnd, or earlier, 50 ms after
// the first result if hasUsableAddress is true: the host already has an address for the caller. The caller must hold
// Names.mu.
func (l *lookupState) waitDeadline(hasUsableAddress bool) time.Time {
	if end := l.first.Add(lookup.ResolutionDelay); hasUsableAddress && !l.first.IsZero() && end.Before(l.waitEnd) {
		return end
	}
	return l.waitEnd
}

// hasAddresses reports whether an earlier lookup has found addresses of the host.
func (h *host) hasAddresses() bool { return h.version > 0 }

// hasFamilies reports whether the host has an address of at least one of the families in want.
func (h *host) hasFamilies(want addressFamilies) bool {
	return want[0] && len(h.families[0]) > 0 || want[1] && len(h.families[1]) > 0
}

// addUser counts a connection, dial or watcher that uses the host. While a host has users, it is looked up again
// whenever the TTL of its addresses ends. The caller must hold mu.
func (h *host) addUser() {
	h.users++
	if h.users == 1 {
		h.n.removeUnusedHost(h)
		h.armLookupTimer(time.Now())
	}
}

// removeUser records that a connection, dial or watcher no longer uses the host. After the last one, the host is not
// looked up again until it is next used. The caller must hold mu.
func (h *host) removeUser() {
	h.users--
	if h.users == 0 {
		h.stopTimers()
		if h.lookup != nil && !h.lookup.started && !h.hasAddresses() { // no caller waits for the addresses any more
			close(h.lookup.abandoned)
			h.lookup = nil
		}
		if h.lookup == nil {
			h.n.addUnusedHost(h)
		}
	}
}

// stopTimers stops the timers for the next lookup and for closing idle connections. The caller must hold mu.
func (h *host) stopTimers() {
	stopAndClear(&h.timer)
	stopAndClear(&h.closeIdleTimer)
}

// stopAndClear stops the timer *t and sets *t to nil. It does nothing if *t is nil.
func stopAndClear(t **time.Timer) {
	if *t != nil {
		(*t).Stop()
		*t = nil
	}
}

// armLookupTimer replaces the timer that starts the next lookup at nextLookup. There is no timer if the host is unused
// or was never looked up, during a lookup, and after Names is closed. now is the present time. The caller must hold mu.
func (h *host) armLookupTimer(now time.Time) {
	stopAndClear(&h.timer)
	if h.users == 0 || h.lookup != nil || h.lastLookup.IsZero() || h.n.closed {
		return
	}
	h.timer = time.AfterFunc(h.nextLookup.Sub(now), func() {
		h.n.mu.Lock()
		defer h.n.mu.Unlock()
		if h.users > 0 {
			h.startLookupIfDue(time.Now())
		}
	})
}

// requestLookup makes the next lookup due before the TTL of the addresses has ended: at the present time now, or
// MinTTL after the start of the last lookup if that is later. The addresses remain in use. The caller must hold mu.
func (h *host) requestLookup(now time.Time) {
	due := h.lastLookup.Add(h.n.minTTL())
	if due.Before(now) {
		due = now
	}
	if due.Before(h.nextLookup) {
		h.nextLookup = due
		h.armLookupTimer(now)
	}
}

// startLookupIfDue starts a lookup if it is due at the present time now. It is due if the TTL of the addresses, or the
// delay after a failed lookup, has ended, or if the host was never looked up. The caller must hold mu.
func (h *host) startLookupIfDue(now time.Time) {
	if !now.Before(h.nextLookup) {
		h.startLookup(now)
	}
}

// startLookup starts a lookup in a new goroutine, at the present time now. It does nothing if a lookup is running or
// Names is closed. The caller must hold mu.
func (h *host) startLookup(now time.Time) {
	if h.lookup != nil || h.n.closed {
		return
	}
	ctx, turn := h.n.ctx, h.n.slots.newHosts
	h.lookup = &lookupState{abandoned: make(chan struct{})}
	if h.hasAddresses() {
		ctx, turn = lookup.WithCacheBypass(ctx), h.n.slots.knownHosts
		h.lookup.waitEnd, h.lookup.previousFailed = now.Add(lookupPatience), h.failuresInRow > 0 && now.Sub(h.lastLookup) < failureMemory
	}
	h.lastLookup = now
	h.armLookupTimer(now)
	h.n.wg.Add(1)
	go h.runLookup(ctx, turn, h.lookup)
}

// waitForLookup waits until the running lookup has published a result or ended, and returns true. It returns false if
// ctx ends before. If bounded is true, it also returns false at the deadline.
//
// The caller must hold Names.mu, which is unlocked while waitForLookup waits.
func (h *host) waitForLookup(ctx context.Context, deadline time.Time, bounded bool) bool {
	changed := h.changed
	h.n.mu.Unlock()
	defer h.n.mu.Lock()
	var late <-chan time.Time
	if bounded {
		t := time.NewTimer(time.Until(deadline))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-changed:
		return true
	case <-late:
	case <-ctx.Done():
	}
	return false
}

// hasAddresses reports whether a lookup, whose results for IPv4 and IPv6 are given, has found at least one address.
func hasAddresses(results [2]*lookup.FamilyResult) bool {
	return slices.ContainsFunc(results[:], func(f *lookup.FamilyResult) bool { return f != nil && len(f.Addrs) > 0 })
}

// runLookup performs the lookup l when the semaphore slots has a free slot, and keeps the slot for at most one second
// (slotTime). If l is abandoned or ctx ends before that, no query is sent. The caller must add one to Names.wg.
func (h *host) runLookup(ctx context.Context, slots lookupSlots, l *lookupState) {
	defer h.n.wg.Done()
	select {
	case slots <- struct{}{}:
		over := sync.OnceFunc(func() { <-slots })
		defer over()
		if h.markLookupStarted(l) {
			defer time.AfterFunc(slotTime, over).Stop()
			h.lookupBothFamilies(ctx)
		}
	case <-l.abandoned:
	case <-ctx.Done():
		if h.markLookupStarted(l) {
			h.endLookup([2]*lookup.FamilyResult{})
		}
	}
}

// markLookupStarted marks the lookup l as started, because it has a slot or its context has ended, and returns true. It
// returns false if l was dropped, because the host has no users any more. The caller must then not perform l.
func (h *host) markLookupStarted(l *lookupState) bool {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if h.lookup != l {
		return false
	}
	l.started = true
	if !h.hasAddresses() {
		l.waitEnd = time.Now().Add(lookupTimeout) // a new host's caller waits for the family that works
	}
	return true
}

// lookupBothFamilies queries the IPv4 and IPv6 addresses of the host at the same time, and publishes the results
// together (publishResults). If the second result is more than 50 ms late (RFC 8305 §3), the first one is published
// without it.
func (h *host) lookupBothFamilies(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	results := lookup.QueryBothFamilies(func(typ uint16, r *lookup.FamilyResult) { h.queryFamily(ctx, typ, r) })
	var both [2]*lookup.FamilyResult
	first := <-results
	both[first.Family] = first
	h.n.mu.Lock()
	now := first.Family == 1 && !h.hasAddresses() // a new host's IPv6 addresses are published at once
	h.n.mu.Unlock()
	delay := time.NewTimer(lookup.ResolutionDelay)
	defer delay.Stop()
	if now || len(first.Addrs) == 0 {
		delay.Reset(0)
	}
	var second *lookup.FamilyResult
	select {
	case second = <-results:
	case <-delay.C:
		h.publishResults(both)
		second = <-results
	}
	both[second.Family] = second
	h.publishResults(both)
	h.endLookup(both)
}

// queryFamily performs the query for one record type, A or AAAA, and sets the addresses or the error in r. The error is
// a *net.DNSError. A panic of the Exchanger becomes an error, because no caller could recover the panic in this
// goroutine.
func (h *host) queryFamily(ctx context.Context, typ uint16, r *lookup.FamilyResult) {
	err := errNothing // if the Exchanger ends the goroutine
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("names: Exchanger panicked: %v", p)
		}
		if err != nil {
			r.Err = lookup.NewDNSError(h.name, err)
		}
	}()
	r.Addrs, err = lookup.LookupAddrs(ctx, h.n.exchanger(), h.name, typ)
}

// publishResults stores the results of a lookup, IPv4 before IPv6, as the addresses of the host, and wakes waiting
// goroutines. A family with an error or nil keeps its addresses. If no result has an address, nothing changes. The
// caller must not hold mu.
func (h *host) publishResults(results [2]*lookup.FamilyResult) {
	var all []netip.Addr
	for _, f := range results {
		if f != nil {
			for _, a := range f.Addrs {
				all = append(all, a.Addr.Unmap())
			}
		}
	}
	sources := h.n.sourcesOf(all)
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if h.n.closed || !hasAddresses(results) {
		return
	}
	now := time.Now()
	changed := false
	for i, f := range results {
		// also NXDOMAIN: some servers return it although the other family has addresses (RFC 4074 §4.2)
		if f == nil || f.Err != nil {
			continue
		}
		addrs, seen := make([]netip.Addr, 0, len(f.Addrs)), make(map[netip.Addr]bool, len(f.Addrs))
		for _, a := range f.Addrs {
			if ip := a.Addr.Unmap(); !seen[ip] {
				addrs, seen[ip] = append(addrs, ip), true
			}
		}
		changed = h.replaceAddresses(i, addrs, now) || changed
	}
	h.setSources(all, sources)
	for i, f := range results {
		if f != nil {
			h.lookup.published[i] = true
			if h.lookup.first.IsZero() || f.At.Before(h.lookup.first) {
				h.lookup.first = f.At
			}
		}
	}
	if changed {
		h.version++
		h.trimAddresses(now)
	}
	if was := h.draining; changed {
		h.startDraining(now)
	} else if h.updateDraining(now); h.draining && !was { // a removed address has been absent for long enough
		h.startDraining(now)
	}
	h.notifyWatchers()
}

// replaceAddresses replaces the addresses of a family (0 for IPv4, 1 for IPv6) by addrs, and reports whether the set
// has changed. It records which addresses are removed and which are back. now is the present time. The caller must hold
// mu.
func (h *host) replaceAddresses(family int, addrs []netip.Addr, now time.Time) bool {
	old := h.families[family]
	changed := len(addrs) != len(old)
	stay := make(map[netip.Addr]bool, len(addrs))
	for _, ip := range addrs {
		stay[ip] = true
		a := h.addrs[ip]
		switch {
		case a == nil:
			h.addrs[ip] = &hostAddress{conns: make(map[*trackedConn]struct{})}
		case a.removedAt.IsZero():
			continue
		default:
			if now.Sub(a.removedAt) < removedMemory && h.returnTimes[0] != h.lastLookup {
				h.returnTimes = [3]time.Time{h.lastLookup, h.returnTimes[0], h.returnTimes[1]}
			}
			a.removedAt = time.Time{}
		}
		changed = true
	}
	for _, ip := range old {
		if !stay[ip] {
			changed = true
			h.addrs[ip].removedAt = now
		}
	}
	if changed { // otherwise the addresses keep their order
		h.families[family] = addrs
	}
	return changed
}

// trimAddresses forgets addresses that the host lost at least ten minutes ago (removedMemory). If more than 256
// addresses are stored (maxAddrs), it forgets all that were lost before now, the present time. Addresses with open
// connections remain. The caller must hold mu.
func (h *host) trimAddresses(now time.Time) {
	many := len(h.addrs) > maxAddrs
	for ip, a := range h.addrs {
		if !a.removedAt.IsZero() && len(a.conns) == 0 && a.removedAt != now && (many || now.Sub(a.removedAt) >= removedMemory) {
			h.dropAddress(ip)
		}
	}
}

// dropAddress removes an address that the host no longer has, and its state, from memory. The caller must hold mu.
func (h *host) dropAddress(ip netip.Addr) {
	delete(h.addrs, ip)
	h.n.returned.removeHost(ip, h)
}

// notifyWatchers wakes all goroutines that wait for a result of the host's lookups: in waitForLookup, hostDial.runDial
// and Names.Watch. The caller must hold mu.
func (h *host) notifyWatchers() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// endLookup records the end of the running lookup, schedules the next lookup, and wakes the goroutines that wait.
// results contains the results for IPv4 and IPv6. If neither has an address, endLookup stores the error of the lookup.
// The caller must not hold mu.
func (h *host) endLookup(results [2]*lookup.FamilyResult) {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	defer h.notifyWatchers()
	h.lookup = nil
	if h.users == 0 {
		defer h.n.addUnusedHost(h)
	}
	if h.n.closed {
		return
	}
	now := time.Now()
	some := hasAddresses(results)
	if h.err = nil; !some {
		h.failures++
		h.err = h.selectError(results)
	}
	until := h.computeExpiry(results)
	if some && !h.hasFailedFamily(results) { // otherwise the lookup is repeated soon, at any TTL of the other family
		h.failuresInRow, h.nextLookup = 0, until
	} else {
		h.failuresInRow++
		h.nextLookup = now.Add(h.retryDelay())
		if some && until.Before(h.nextLookup) {
			h.nextLookup = until
		}
	}
	h.armLookupTimer(now)
}

// hasFailedFamily reports whether a lookup has failed for one family although the host has addresses of that family.
// results contains the results for IPv4 and IPv6, which must not be nil. The caller must hold mu.
func (h *host) hasFailedFamily(results [2]*lookup.FamilyResult) bool {
	for i, f := range results {
		if f.Err != nil && len(h.families[i]) > 0 {
			return true
		}
	}
	return false
}

// retryDelay returns the time from a failed lookup to the next one: at first one second, or MinTTL if the host has
// addresses. It doubles with each failure in a row, up to a minute, or to MinTTL if that is longer.
func (h *host) retryDelay() time.Duration {
	d := firstRetry
	if h.hasAddresses() {
		d = h.n.minTTL()
	}
	most := max(longestRetry, d)
	for i := 1; i < h.failuresInRow && d < most; i++ {
		d *= 2
	}
	return min(d, most)
}

// computeExpiry returns when the results of a lookup expire: at the earliest end of a family's TTL, limited by MinTTL
// and MaxTTL. Without an address it returns the zero time. It stores the TTLs for the next call. The caller must hold
// mu.
func (h *host) computeExpiry(results [2]*lookup.FamilyResult) (expiry time.Time) {
	for i, f := range results {
		if len(f.Addrs) == 0 {
			continue
		}
		ttl := f.Addrs[0].TTL
		for _, a := range f.Addrs {
			ttl = min(ttl, a.TTL)
		}
		least, previous := h.n.minTTL(), h.ttls[i]
		if max(previous[0], previous[1], ttl) >= least {
			least = minRemainingTTL // a short TTL is probably the remaining TTL in a server's cache
		}
		h.ttls[i] = [2]time.Duration{previous[1], ttl}
		end := f.At.Add(min(max(ttl, least), h.n.maxTTL()))
		if expiry.IsZero() || end.Before(expiry) {
			expiry = end
		}
	}
	return expiry
}

// selectError returns the error of a lookup that found no address. This is the first error in results, IPv4 before
// IPv6, that is not a "not found" error. If there is none, the result is a "not found" error, a *net.DNSError.
func (h *host) selectError(results [2]*lookup.FamilyResult) error {
	err := lookup.NewNotFoundError(h.name)
	for _, f := range results {
		if e, ok := f.Err.(*net.DNSError); ok && !e.IsNotFound {
			return e
		}
		if f.Err != nil {
			err = f.Err
		}
	}
	return err
}

// orderAddresses returns the host's addresses of the given families in the order of dialling: by RFC 6724, with
// alternating families (RFC 8305 §4). Equal addresses are rotated by rotation. Addresses that fail at port come last
// (isFailing). The caller must hold mu.
func (h *host) orderAddresses(families addressFamilies, rotation uint, port string) []netip.Addr {
	now := time.Now()
	var tiers [2][2][]netip.Addr // first index: 1 if the address failed; second: the family
	for i, addrs := range h.families {
		for j := range addrs {
			ip := addrs[(rotation%uint(len(addrs))+uint(j))%uint(len(addrs))]
			t := 0
			if h.addrs[ip].isFailing(port, now) {
				t = 1
			}
			if families[i] {
				tiers[t][i] = append(tiers[t][i], ip)
			}
		}
	}
	var out []netip.Addr
	last := -1
	for _, left := range tiers {
		for _, addrs := range left {
			slices.SortStableFunc(addrs, h.compareAddresses)
		}
		if last < 0 && len(left[0])+len(left[1]) > 0 {
			last = h.secondFamily(left)
		}
		for len(left[0])+len(left[1]) > 0 {
			if len(left[1-last]) > 0 {
				last = 1 - last
			}
			out = append(out, left[last][0])
			left[last] = left[last][1:]
		}
	}
	return out
}

// compareAddresses compares two addresses of the host by RFC 6724, which orders the destinations of a connection. The
// result is negative if a is to be dialled before b, positive if b is to be dialled before a, and otherwise 0.
func (h *host) compareAddresses(a, b netip.Addr) int {
	return destination{a, h.addrs[a].source}.compareTo(destination{b, h.addrs[b].source})
}

// secondFamily returns which address family is dialled second when the families alternate: 0 for IPv4, and 1 for IPv6.
// It is the family whose best address is worse, and IPv4 if both are equal. The best address of each family must stand
// first in families.
func (h *host) secondFamily(families [2][]netip.Addr) int {
	if len(families[0]) > 0 && len(families[1]) > 0 && h.compareAddresses(families[0][0], families[1][0]) < 0 {
		return 1
	}
	return 0
}
