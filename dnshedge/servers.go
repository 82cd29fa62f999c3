package dnshedge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/domain"
	"github.com/gohedge/hedge/dnshedge/internal/group"
	"github.com/gohedge/hedge/dnshedge/internal/system"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// clientServers holds the servers, routes and Exchanger of a Client, and sends questions to them. Its fields do not
// change after init, so several goroutines may use it.
type clientServers struct {
	conf      *Client
	pool      *group.Pool                      // all servers, and the state that they share
	group     group.Servers                    // the Upstreams; empty: the operating system's servers are queried
	fallback  group.Servers                    // the Fallback
	system    *system.Servers                  // nil if there are Upstreams or an Exchanger
	upstreams []Upstream                       // Upstreams and Fallback
	dialing   *dialConfig                      // how connections to upstreams are made
	udpSize   int                              // longest datagram that servers may send, in bytes
	timeout   time.Duration                    // limit of a question
	spawn     func(func(context.Context)) bool // starts a goroutine that Client.Close waits for
	count     *counters
	routes    map[string]Exchanger // Client.Routes by domain, in wire format and lower case
}

// init sets up the servers, fallback servers and routes from the fields of the Client. It returns an error if an
// upstream or a domain in Routes is invalid.
func (s *clientServers) init() (err error) {
	conf := s.conf
	if s.group, err = s.acquireServers(conf.Upstreams, group.UsePermanently); err != nil {
		return err
	}
	if s.fallback, err = s.acquireServers(conf.Fallback, group.UsePermanently); err != nil {
		return err
	}
	s.upstreams = slices.Concat(conf.Upstreams, conf.Fallback)
	if len(s.group) == 0 && conf.Exchanger == nil {
		s.system = system.NewServers(conf.ResolvConf, func(addr string) bool { return Upstream{Addr: addr}.validate() == nil }, s.spawn)
	}
	s.routes, err = parseRoutes(conf.Routes)
	return err
}

// acquireSystemServers returns the states of the operating system's DNS servers, in their order, and creates missing
// states. The Client keeps each state for at least 30 s after the last call that needed it. It returns an error if a
// server is invalid or the Client is closed.
func (s *clientServers) acquireSystemServers(servers []system.Server) (group.Servers, error) {
	ups := make([]Upstream, len(servers))
	for i, server := range servers {
		ups[i] = systemUpstream(server)
	}
	return s.acquireServers(ups, group.UseForQuestions)
}

// systemUpstream converts a DNS server of the operating system to an Upstream. It uses UDP, or TCP if the system's
// configuration demands that (the option use-vc of resolv.conf).
func systemUpstream(server system.Server) Upstream {
	if server.Stream {
		return Upstream{Net: streamNet, Addr: server.Addr}
	}
	return Upstream{Net: defaultNet, Addr: server.Addr}
}

// acquireServers returns the states of the servers for upstreams, in their order, and creates missing states. Equal
// upstreams result in one server. It returns an error if an upstream is invalid or the Client is closed.
//
// use determines how long the Client must keep each state: permanently (group.UsePermanently), for at least 30 s after
// the last call for this server (group.UseForQuestions), or until pool.Release (group.UseOnce).
func (s *clientServers) acquireServers(ups []Upstream, use group.Usage) (out group.Servers, err error) {
	for _, up := range ups {
		known, err := s.acquireServer(up, use)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, known) {
			out = append(out, known)
		}
	}
	return out, nil
}

// acquireServer returns the state of the server for an upstream, such as its measured latencies, and creates it if
// necessary. It returns an error if the upstream is invalid or the Client is closed.
//
// use determines how long the Client must keep the state: permanently (group.UsePermanently), for at least 30 s after
// the last call for this server (group.UseForQuestions), or until the caller passes the server to pool.Release
// (group.UseOnce).
func (s *clientServers) acquireServer(up Upstream, use group.Usage) (*group.Server, error) {
	return s.pool.GetOrCreateServer(up.identityKey(), use, func() (group.Target, error) {
		if err := up.validate(); err != nil {
			return group.Target{}, err
		}
		scheme, _ := up.transportScheme()
		return group.Target{
			Upstream: &up, Scheme: scheme, Addresses: up.Addrs, IsLocal: up.isLoopback(),
			Transport: transport.Config{
				Dialer: s.dialing.newDialer(up), Addr: up.Addr, Path: up.urlPath(), Post: up.Post, TLS: s.dialing.newTLSConfig(up), Size: s.udpSize,
			},
		}, nil
	})
}

// findServerByAddress returns the server for an address that a caller of ExchangeContext has given. The address is a
// string that ParseUpstream accepts, or a host name with an optional port, for a server over UDP. If address is the
// String of an upstream in Upstreams or Fallback, the result is the server of that upstream.
//
// It returns an error if the address is invalid or the Client is closed. The caller must pass the server to
// pool.Release after use.
func (s *clientServers) findServerByAddress(address string) (*group.Server, error) {
	if i := slices.IndexFunc(s.upstreams, func(up Upstream) bool { return up.String() == address }); i >= 0 {
		return s.acquireServer(s.upstreams[i], group.UseOnce)
	}
	if !strings.Contains(address, "://") {
		if _, err := ParseUpstream(address); err != nil {
			address = defaultNet + "://" + address
		}
	}
	up, err := ParseUpstream(address)
	if err != nil {
		return nil, err
	}
	return s.acquireServer(up, group.UseOnce)
}

// defaultServers returns the servers for all names: the Upstreams, or the operating system's servers if there are no
// Upstreams. It does not consider separate servers for certain domains. It returns an error if the system's
// configuration cannot be read, or the Client is closed.
func (s *clientServers) defaultServers() (group.Servers, error) {
	if s.system == nil {
		return s.group, nil
	}
	named, err := s.system.DefaultServers(time.Now())
	if err != nil {
		return nil, &systemError{cmp.Or(s.system.Path, "the system's servers"), err}
	}
	if named == nil { // the Client was closed before it asked the system
		return nil, transport.ErrClosed
	}
	g, err := s.acquireSystemServers(named)
	if err != nil && !errors.Is(err, transport.ErrClosed) {
		err = fmt.Errorf("dnshedge: %s: %w", cmp.Or(s.system.Path, "the system's servers"), err)
	}
	return g, err
}

// A systemError is the error of a question that was not sent, because the system's list of servers could not be read.
// It is not cached, because it does not depend on the question.
type systemError struct {
	from string // the file's path, or "the system's servers"
	err  error
}

func (e *systemError) Error() string { return fmt.Sprintf("dnshedge: %s: %v", e.from, e.err) }
func (e *systemError) Unwrap() error { return e.err }

// isStrict reports whether the servers are queried in their given order, and not in the order of their round trip
// times. That is the case with OrderStrict. With OrderAuto, it is the case for the operating system's servers, unless
// resolv.conf has the option rotate.
func (s *clientServers) isStrict() bool {
	switch s.conf.Order {
	case OrderStrict:
		return true
	case OrderAuto:
		return s.system != nil && !s.system.HasRotateOption()
	default:
		return false
	}
}

// resolveByRoute sends q to q.exchanger if it is set, and otherwise to servers: the operating system's separate servers
// for q's domain, or else the servers for all names and the fallback servers. Servers that refuse or end connections,
// or report overload, are queried again after a pause.
//
// explore may be true only if no caller waits for the answer. If it is true, a random one of the servers for all names
// is queried first, to measure its latency. With a strict order, explore has no effect.
func (s *clientServers) resolveByRoute(ctx context.Context, q question, explore bool) *result {
	if q.exchanger != nil {
		return s.resolveByExchanger(ctx, q)
	}
	return s.retryUntilAvailable(ctx, q, func(q question) *result {
		if s.system != nil && q.IsStandard() {
			return s.resolveWithCurrentServers(ctx, q, explore)
		}
		return s.resolveOnce(ctx, q, explore)
	})
}

// retryUntilAvailable calls ask, which must query the servers, and returns the result. While the servers refuse or end
// connections, or report overload, as a restarting server does, it pauses and calls ask again. It also does so if a
// response was truncated and a server has refused the connection for the whole answer.
//
// A response is returned at once, even if it is a failure. A message with another opcode than QUERY is not repeated.
//
// The first pause is 200 ms, and the pauses double. A pause is at most half of the remaining time, unless a server
// demands a longer one (Retry-After). The time ends with ctx, or Timeout after the servers began to refuse connections.
// If too little time remains for a pause, the last result is returned.
//
// If q may have caused the end of a connection, it is sent again over a connection of its own, at most 8 times
// (maxConnEndRepeats).
func (s *clientServers) retryUntilAvailable(ctx context.Context, q question, ask func(q question) *result) *result {
	ends := 0
	for pause := firstPause; ; pause *= 2 {
		r := ask(q)
		// hasRefused is needed if the server has since answered another question, and refusingSince if it was not asked.
		hasRefused := r.hasRefused || !r.refusingSince.IsZero()
		if !q.IsStandard() || r.err == nil || !r.isUnavailable && !(hasRefused && transport.IsTruncationError(r.err)) {
			return r
		}
		if r.endedByQuery {
			if ends++; ends > maxConnEndRepeats {
				return r
			}
			q.Query = q.WithOwnConnection()
		}
		if end, ok := ctx.Deadline(); ok {
			pause = min(pause, time.Until(end)/2)
		}
		if !r.refusingSince.IsZero() { // otherwise a server has answered since
			pause = min(pause, time.Until(r.refusingSince.Add(s.timeout))/2)
		}
		if pause < firstPause || !waitForDuration(ctx, max(pause, r.pause)) {
			return r
		}
	}
}

const (
	firstPause = 200 * time.Millisecond // shortest pause before servers are asked again

	maxConnEndRepeats = 8 // limit of repetitions of a question that may have ended a connection
)

// waitForDuration waits for the duration d and then returns true. It returns false as soon as ctx ends. If the deadline
// of ctx is earlier than the end of the wait, it returns false at once.
func waitForDuration(ctx context.Context, d time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// resolveWithCurrentServers queries the operating system's servers for q. If the system's list of servers changes
// before there is an answer, it cancels the queries and queries the servers of the new list.
//
// If explore is true, a random one of the servers for all names is queried first, to measure its latency. With a strict
// order, explore has no effect.
func (s *clientServers) resolveWithCurrentServers(ctx context.Context, q question, explore bool) *result {
	for {
		version := s.system.Version(time.Now())
		r := s.resolveWithSystemVersion(ctx, q, explore, version)
		if !r.isFailure(q.Query) || ctx.Err() != nil || s.system.Version(time.Now()) == version {
			return r
		}
	}
}

// resolveWithSystemVersion queries the operating system's servers for q, and cancels the queries when the system's list
// of servers changes. version is the number of the list at the time of the call (system.Servers.Version).
//
// If explore is true, a random one of the servers for all names is queried first, to measure its latency. With a strict
// order, explore has no effect.
func (s *clientServers) resolveWithSystemVersion(ctx context.Context, q question, explore bool, version uint64) *result {
	var mine transport.EmbeddedContext
	mine.Begin(ctx, 0)
	defer mine.Cancel()
	var changed group.RecheckTimer
	changed.Start(func() time.Duration {
		if s.system.Version(time.Now()) != version {
			return 0
		}
		return recheckInterval
	}, func() { mine.End(errServersChanged) })
	defer changed.Stop()
	return s.resolveOnce(&mine, q, explore)
}

// resolveOnce queries the servers for q's name, group after group, and returns the result. It uses the operating
// system's list of servers at the time of the call. It also starts probes of servers that are silent, failing or not
// measured recently.
//
// If explore is true, a random one of the servers for all names is queried first, to measure its latency. With a strict
// order, explore has no effect.
func (s *clientServers) resolveOnce(ctx context.Context, q question, explore bool) *result {
	named, _ := s.system.FindDomainServers(q.Query, time.Now())
	if q.isRouted = named != nil; q.isRouted {
		g, err := s.acquireSystemServers(named)
		if err != nil {
			return &result{err: err}
		}
		tiers := newSingleServerTiers(g)
		s.startProbes(q.Query, g, tiers[0].group[0], true)
		return s.queryTiersOnce(ctx, q, tiers)
	}
	g, err := s.defaultServers()
	if err != nil {
		return &result{err: newError(q.Query, err)}
	}
	strict := s.isStrict()
	if !strict {
		g = g.SortByRTT(q.Query, explore)
		if len(s.fallback) == 0 {
			s.startProbes(q.Query, g, g[0], strict)
			return s.queryGroup(ctx, new(groupQuery), q, g)
		}
	}
	tiers := s.newQueryTiers(q.Query, g, strict)
	s.startProbes(q.Query, g, tiers[0].group[0], strict)
	return s.queryTiersOnce(ctx, q, tiers)
}

// startProbes probes silent and failing servers in the background, to find out whether they work again. It probes
// servers of g (the servers for q's name) and fallback servers, but none if all of them are silent or there is only
// one. If strict is false, it also probes servers of g without a recent response, to measure their latency.
//
// strict is true if the servers of g are queried in their order. first is the server to which the caller sends q. It is
// a server of g or a fallback server.
//
// A probe may ask for q's name only at these servers, which may see the name even if first answers:
//
//   - another server of g, if first is in g and strict is false;
//   - a fallback server before first, if first is a fallback server.
//
// The other probes ask for other names.
func (s *clientServers) startProbes(q *wire.Query, g group.Servers, first *group.Server, strict bool) {
	now, forGroup, isFallback := time.Now(), q, !slices.Contains(g, first)
	if strict || isFallback {
		forGroup = nil
	}
	if len(g)+len(s.fallback) > 1 && (!g.AreAllSilent() || !s.fallback.AreAllSilent()) {
		g.ProbeUnhealthy(now, forGroup, first)
		n := 0
		if isFallback {
			n = slices.Index(s.fallback, first)
		}
		s.fallback[:n].ProbeUnhealthy(now, q, first)
		s.fallback[n:].ProbeUnhealthy(now, nil, first)
	}
	if !strict {
		g.ProbeUnmeasured(now, forGroup, first)
	}
}

// A queryTier is one of several groups of servers that are queried one after the other: each only when the groups
// before it have failed or are late.
type queryTier struct {
	group      group.Servers
	isFallback bool
	position   int // position in the given order, which differs from the order of the tiers if servers are down
}

// newQueryTiers divides the servers for q into tiers: groups of servers that are queried one after the other. g, the
// servers for all names, is one tier. If strict is true, each server of g is a tier, in the order of g, with servers
// that are down at the end.
//
// Each fallback server is a tier. The fallback tiers follow the tiers of g, or precede them if all servers of g are
// down.
//
// A fallback server is silent if its last three queries had no response. If all are silent, only the least recently
// used one is kept. If only some are silent, these are omitted, except the last server of the list.
func (s *clientServers) newQueryTiers(q *wire.Query, g group.Servers, strict bool) []queryTier {
	first := []queryTier{{group: g}}
	if strict {
		first = newSingleServerTiers(g)
	}
	if len(s.fallback) == 0 {
		return first
	}
	other := s.fallback
	if other.AreAllSilent() {
		other = other.SortByRTT(q, false)[:1] // all are silent: ask only the first
	} else {
		last := len(other) - 1
		other = slices.DeleteFunc(slices.Clone(other), func(one *group.Server) bool { return one.IsSilent() && one != s.fallback[last] })
	}
	later := make([]queryTier, len(other))
	for i, one := range other {
		later[i] = queryTier{group: other[i : i+1], isFallback: true, position: len(g) + slices.Index(s.fallback, one)}
	}
	if g.AreAllDown() {
		return append(later, first...)
	}
	return append(first, later...)
}

// newSingleServerTiers divides g into groups of one server each (tiers), so that the servers are queried one after the
// other in the order of g. But servers that are down are queried last.
func newSingleServerTiers(g group.Servers) []queryTier {
	ordered := g.SortDownLast()
	tiers := make([]queryTier, len(ordered))
	for i, server := range ordered {
		tiers[i] = queryTier{group: ordered[i : i+1], position: slices.Index(g, server)}
	}
	return tiers
}

// probeDownServers sends q in the background to servers that are down, to find out whether they work again. tiers are
// groups of servers in the order in which they are queried. Only servers that precede the first tier in the configured
// order get q. Other servers must not see q's name unless the first tier fails or is late.
func probeDownServers(q *wire.Query, tiers []queryTier) {
	for _, later := range tiers[1:] {
		if later.position < tiers[0].position {
			later.group.RetryDownServers(time.Now(), q)
		}
	}
}

// countTimeShares returns the number of equal parts into which the remaining time for a question is divided. tiers are
// the groups of servers that are queried one after the other, and each gets one part. If the first tier is not a
// fallback tier, however, all fallback tiers together get one part.
func countTimeShares(tiers []queryTier) (n int) {
	for i, t := range tiers {
		if i == 0 || !t.isFallback || tiers[i-1].isFallback == tiers[0].isFallback {
			n++
		}
	}
	return n
}

// errServersChanged cancels a question to servers that the operating system's configuration no longer names.
var errServersChanged = errors.New("dnshedge: the system has other servers now")

// errOtherAnswered cancels a question to a late tier after a later tier has answered.
var errOtherAnswered = errors.New("dnshedge: another server answered first")

// finalTimeFraction says that no answer is held back in the last twentieth of the time for a question.
const finalTimeFraction = 20

// maxTierPatience limits two times: how long a tier is queried alone, and how long the answer of a later tier is held
// back. Other resolvers wait as long (timeout in resolv.conf(5)).
const maxTierPatience = 5 * time.Second

// recheckInterval is the time between two checks whether a waiting question still waits for the right servers.
const recheckInterval = 200 * time.Millisecond

// queryTiersOnce queries groups of servers (tiers) one after the other, and returns the best result, even if it is a
// failure.
//
// A message with another opcode than QUERY, such as an update, may not be safe to repeat. It is sent to the next tier
// only if the error of the current tier proves that no server has received it.
func (s *clientServers) queryTiersOnce(ctx context.Context, q question, tiers []queryTier) (r *result) {
	if q.IsStandard() {
		return s.queryTiersInOrder(ctx, q, tiers, func() *result { return nil })
	}
	for _, t := range tiers {
		if t.isFallback {
			s.count.fallbacks.Add(1)
		}
		r = s.queryGroup(ctx, new(groupQuery), q, t.group)
		if r.err == nil || ctx.Err() != nil || !group.IsUnsent(r.err) {
			break
		}
	}
	return r
}

// queryTiersInOrder queries groups of servers (tiers) one after the other, and returns the best result. The next tier
// starts when the current tier has failed, is down, or has used its share of the time. The current tier may still
// answer then, and its answer has precedence.
//
// An answer of a later tier is therefore held back for at most 5 s (maxTierPatience) after the start of the current
// tier. This requires that the current tier has responded since its start, and that it has answered most of its recent
// questions of q's type.
//
// before returns the best response so far of earlier tiers, which may still be running, or nil.
func (s *clientServers) queryTiersInOrder(ctx context.Context, q question, tiers []queryTier, before bestResponseFunc) *result {
	t := tiers[0]
	if t.isFallback {
		s.count.fallbacks.Add(1)
	}
	probeDownServers(q.Query, tiers)
	if len(tiers) == 1 {
		r := s.queryGroup(ctx, new(groupQuery), q, t.group)
		return betterResult(q.Query, before(), r)
	}
	x := new(groupQuery)
	soFar := func() *result { return x.bestResponse(q.Query, before()) }
	mine, overtake := context.WithCancelCause(ctx)
	defer overtake(nil)
	others, stop := context.WithCancel(ctx)
	defer stop()
	var rest *result
	var came time.Time // when rest arrived
	done := make(chan struct{})
	inTime := s.startNextTierWhenLate(mine, x, q.Query, tiers, func() bool {
		defer close(done)
		if isFollowedOnlyByFallback(tiers) && soFar().isDeliberateFailure() {
			return true // the failure is final, and later tiers are not asked
		}
		rest = s.queryTiersInOrder(others, q, tiers[1:], soFar)
		came = time.Now()
		return !rest.isFailure(q.Query)
	}, func() { overtake(errOtherAnswered) })
	r := s.queryGroup(mine, x, q, t.group)
	final, isClosed := !r.isFailure(q.Query), errors.Is(r.err, transport.ErrClosed)
	if !final {
		r = betterResult(q.Query, before(), r)
		final = isFollowedOnlyByFallback(tiers) && r.isDeliberateFailure()
	}
	begun := !inTime()
	if final {
		stop()
	}
	if begun {
		<-done
		begun = rest != nil
	}
	switch {
	case final, !begun && (isClosed || ctx.Err() != nil):
		return r
	case !begun:
		rest = s.queryTiersInOrder(ctx, q, tiers[1:], func() *result { return r })
	}
	switch {
	case rest.isFailure(q.Query):
		return betterResult(q.Query, r, rest)
	case !t.isFallback && r.isDeliberateFailure() && isFromFallbackOnly(rest, tiers):
		return r
	}
	t.group.RecordUnanswered(q.Query)
	if begun {
		rest.answer.SubtractTTL(time.Since(came)) // the time for which it was held back
	}
	return rest
}

// A bestResponseFunc returns the best response to a question that has arrived so far, or nil. A later group of servers
// calls it to obtain the responses of earlier groups. It may be called at any time, from any goroutine.
type bestResponseFunc func() *result

// bestResponse returns the better of two failures for q: the failure response of the exchange x, and before. before is
// the result of servers that were queried earlier, or nil.
//
// The response of x is better if before is nil or an error. It is also better if it alone is a deliberate failure, such
// as a filter's REFUSED. If x has no failure response, the result is before. bestResponse may be called while x runs.
func (x *groupQuery) bestResponse(q *wire.Query, before *result) *result {
	failure, from := x.FirstFailure()
	if failure == nil {
		return before
	}
	return betterResult(q, before, &result{answer: failure, from: from})
}

// isFollowedOnlyByFallback reports whether the first of the tiers (groups of servers) is not a fallback server, but the
// second and all later tiers are. There must be at least two tiers.
func isFollowedOnlyByFallback(tiers []queryTier) bool {
	return !tiers[0].isFallback && tiers[1].isFallback
}

// isFromFallbackOnly reports whether the server that gave the result r is only in fallback tiers. It returns false if
// the server is also in another tier.
func isFromFallbackOnly(r *result, tiers []queryTier) bool {
	return !slices.ContainsFunc(tiers, func(t queryTier) bool { return !t.isFallback && slices.Contains(t.group, r.from) })
}

// startNextTierWhenLate calls next, in another goroutine, when the first of the tiers (groups of servers) is late. x is
// the exchange of q with that tier, and ctx is the context of x. The tier is late as soon as one of these conditions
// holds:
//
//   - it has used its share of the time, which is at most 5 s (maxTierPatience);
//   - all its servers have gone down since the start, or all are down while a later tier is not;
//   - all its servers have failed, and the second tier is not a fallback.
//
// next must query the later tiers. It must return true if a later tier has answered, or if a failure of the first tier
// is final. After that, startNextTierWhenLate calls overtake, which must end x.
//
// It delays the call of overtake while the first tier may still answer, at most until 5 s or 95 % of the time have
// passed since the start.
//
// If no server of the first tier has responded in the first half of its share, each of its servers is probed.
//
// The caller must call inTime when x has ended. inTime prevents a later call of next, and returns true if next was not
// called.
func (s *clientServers) startNextTierWhenLate(ctx context.Context, x *groupQuery, q *wire.Query, tiers []queryTier, next func() bool, overtake func()) (inTime func() bool) {
	start, end := time.Now(), time.Now().Add(s.timeout)
	if at, ok := ctx.Deadline(); ok {
		end = at
	}
	g, part := tiers[0].group, min(end.Sub(start)/time.Duration(countTimeShares(tiers)), maxTierPatience)
	probe := time.AfterFunc(part/2, func() { // finds out whether the name or the server is slow
		if !g.HasAnsweredSince(start) {
			for _, one := range g {
				one.Probe(time.Now(), q)
			}
		}
	})
	late, down := new(group.RecheckTimer), g.AreAllDown()
	failed := func() bool { return !isFollowedOnlyByFallback(tiers) && x.CountFailedServers() == len(g) }
	late.Start(func() time.Duration {
		if g.AreAllDown() && (!down || slices.ContainsFunc(tiers[1:], func(later queryTier) bool { return !later.group.AreAllDown() })) || failed() {
			return 0
		}
		return min(recheckInterval, time.Until(start)+part)
	}, func() {
		if !next() {
			return
		}
		hold := min(end.Sub(start)-end.Sub(start)/finalTimeFraction, maxTierPatience)
		// HasAnsweredMost is needed because a server that leaves certain questions unanswered would delay them.
		for !failed() && g.HasAnsweredSince(start) && g.HasAnsweredMost(q) && time.Since(start) < hold {
			if !waitForDuration(ctx, min(recheckInterval, hold-time.Since(start))) {
				return
			}
		}
		overtake()
	})
	return func() bool {
		probe.Stop()
		return late.Stop()
	}
}

// betterResult returns the better one of two results for q. first is nil or a failure. From best to worst, the results
// are: an answer, a deliberate failure response (such as a filter's REFUSED), any other failure response, and an error.
// Of two failures of the same rank, first is returned.
//
// Instead of first, betterResult returns a copy, because other goroutines may read first. The copy also has the
// properties of second by which retryUntilAvailable decides whether to repeat the query.
func betterResult(q *wire.Query, first, second *result) *result {
	if first == nil || !second.isFailure(q) || first.err != nil && second.err == nil || second.isDeliberateFailure() && !first.isDeliberateFailure() {
		return second
	}
	both := *first // a copy, because other goroutines may read first
	both.hasRefused = both.hasRefused || second.hasRefused
	if second.isUnavailable && !both.isUnavailable {
		both.isUnavailable, both.pause = true, second.pause
	}
	both.endedByQuery = both.endedByQuery || second.endedByQuery
	if second.refusingSince.After(both.refusingSince) {
		both.refusingSince = second.refusingSince
	}
	return &both
}

// isDeliberateFailure reports whether a failure response seems to be a decision of a working server, for example of a
// filter. Fallback servers must not replace this response. r must be a failure or nil.
//
// The result is true for SERVFAIL. For another code, it is true only if the server has answered a question before. The
// result is false if r is nil or an error, if the server is down, or if an extended error attributes the failure to
// DNSSEC.
func (r *result) isDeliberateFailure() bool {
	return r != nil && r.err == nil && r.from.IsDeliberateFailure(r.answer)
}

// resolveByExchanger sends q to its Exchanger (q.exchanger), removes private addresses from the response if the Client
// has a RebindFilter, and returns the result.
func (s *clientServers) resolveByExchanger(ctx context.Context, q question) *result {
	answer, err := callExchanger(ctx, q.Query, q.exchanger)
	if err == nil {
		err = s.filterAnswer(q, answer)
	}
	if err != nil {
		s.count.failures.Add(1)
		return &result{attempts: 1, err: newError(q.Query, err)}
	}
	return &result{answer: answer, attempts: 1}
}

// A groupQuery is the state and the result of one exchange: a question that is sent to a group of servers, with hedges
// and retransmissions.
type groupQuery struct {
	group.Exchange
	result
}

// queryGroup sends q to a group of equivalent servers, with hedging, and returns the result. The result is the servers'
// response, even if that is a failure, or an error if no server has responded.
//
// x holds the state of the exchange and the result. It must not have been used before.
func (s *clientServers) queryGroup(ctx context.Context, x *groupQuery, q question, g group.Servers) *result {
	out, r := x.Run(ctx, s.pool, q.Query, g), &x.result
	r.answer, r.from, r.isHedged, r.attempts = out.Answer, out.Server, out.IsHedged, out.Attempts
	err := out.Err
	if err == nil {
		err = s.filterAnswer(q, r.answer)
	}
	if err != nil {
		s.count.failures.Add(1)
		r.answer, r.err = nil, newNoAnswerError(q.Query, r.from, err)
		r.refusingSince, r.hasRefused = g.RefusingSince(), out.HasRefused
		r.pause, r.isUnavailable = group.RetryAfter(err)
		r.endedByQuery = transport.MayBeClosedByQuery(err)
	}
	return r
}

// filterAnswer removes private addresses from a, the answer to q, if the Client has a RebindFilter. It returns an error
// if the answer cannot be unpacked or packed again.
//
// It does nothing if the opcode of q is not QUERY, or if q's name has an Exchanger in Client.Routes or separate servers
// of the operating system.
func (s *clientServers) filterAnswer(q question, a *wire.Answer) error {
	if s.conf.RebindFilter == nil || !q.IsStandard() || q.isRouted {
		return nil
	}
	return s.conf.RebindFilter.filterAnswer(q.Query, a)
}

// parseRoutes converts Client.Routes to a map with the domains in wire format and lower case as its keys. It returns an
// error if a domain is invalid or occurs twice.
func parseRoutes(given map[string]Exchanger) (map[string]Exchanger, error) {
	out := make(map[string]Exchanger, len(given))
	for name, e := range given {
		key, err := domain.ParseKey(name)
		if err != nil {
			return nil, fmt.Errorf("dnshedge: Client.Routes has domain %q; want a name such as corp.example", name)
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("dnshedge: Client.Routes has domain %q twice", dns.CanonicalName(name))
		}
		out[key] = e
	}
	return out, nil
}

// An unwrapper is an Exchanger that passes questions to another Exchanger, for example a dnssec.Validator. Unwrap
// returns that other Exchanger.
type unwrapper interface{ Unwrap() any }

// maxUnwrapped limits the length of a chain of unwrappers, which may be a loop.
const maxUnwrapped = 32

// A systemServerFinder collects the lists of the operating system's servers that a Client queries, directly or through
// Exchangers. When a list changes, answers in the Client's Cache become invalid.
type systemServerFinder struct {
	servers []*system.Servers
	visited map[*Client]bool // prevents loops, because Clients may refer to each other
}

// visitExchanger adds to f the operating system's servers that the Exchanger e queries, directly or through Exchangers
// that it wraps. e may be nil. Its type is any because an Exchanger may return a wrapped Exchanger of any type.
func (f *systemServerFinder) visitExchanger(e any) {
	for range maxUnwrapped {
		u, ok := e.(unwrapper)
		if !ok {
			break
		}
		e = nil // if Unwrap panics
		usercode.RunGuarded(func() { e = u.Unwrap() })
	}
	c, ok := e.(*Client)
	if !ok || c == nil || f.visited[c] {
		return
	}
	f.visited[c] = true
	if core, err := c.getCore(); err == nil {
		f.visitClient(core.servers)
	}
}

// visitClient adds to f the operating system's servers that a Client queries, directly or through its Exchanger and its
// routes. s holds the servers and routes of that Client.
func (f *systemServerFinder) visitClient(s *clientServers) {
	if s.system != nil {
		f.servers = append(f.servers, s.system)
	}
	f.visitExchanger(s.conf.Exchanger)
	for _, e := range s.routes {
		f.visitExchanger(e)
	}
}
