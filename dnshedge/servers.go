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
// ones. The Client keeps the states for at least 30 s after the last call for the servers. It returns an error if a
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

// acquireServers returns the states of the servers for upstreams, in their order, and creates missing ones. Equal
// upstreams result in one server, because a failover to the same server is useless. It returns an error if an upstream
// is invalid or the Client is closed.
//
// use determines how long the Client must keep each state: permanently, for at least 30 s after the last call, or until
// pool.Release.
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
// use determines how long the Client must keep the state. It is permanently, for at least 30 s after the last call
// (group.UseForQuestions), or until the caller passes the server to pool.Release (group.UseOnce).
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
// string that ParseUpstream accepts, or a host name with an optional port, for a server over UDP. If it is equal to the
// String of an Upstream of this Client, that Upstream's server is returned.
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

// defaultServers returns the servers for names without a route: the Upstreams, or the system's servers. It returns an
// error if the system's configuration cannot be read, or the Client is closed.
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

// resolveByRoute sends q to its Exchanger, if it has one: the Exchanger of its route, or else the Client's. Otherwise
// it sends q to servers: the operating system's separate servers for q's domain, or else the servers for all names and
// the fallback servers. It repeats queries to servers that are briefly unavailable.
//
// explore may be true only if no caller waits for the answer. Then any of the servers for all names may be queried
// first, so that its latency is measured.
func (s *clientServers) resolveByRoute(ctx context.Context, q question, explore bool) *result {
	if q.exchanger != nil {
		return s.resolveByExchanger(ctx, q)
	}
	return s.retryUntilAvailable(ctx, q, func(q question) *result {
		if s.system != nil && q.IsStandard() {
			return s.resolveWithSystemChanges(ctx, q, explore)
		}
		return s.resolveOnce(ctx, q, explore)
	})
}

// retryUntilAvailable calls ask, which queries the servers, and returns its result. It pauses and calls ask again while
// the result is an error that a restarting server may cause: the server refuses or ends connections, or reports
// overload. A response is returned at once, even if it is a failure. A message with another opcode than QUERY is not
// repeated.
//
// A truncated response from a server that refuses the TCP connection is an error, too. ask is then called again if a
// server has refused connections.
//
// The first pause is 200 ms, and each further one is twice as long. A pause is at most half of the remaining time. The
// time ends with ctx, or Timeout after the servers began to refuse connections. A longer pause that a server requires
// (Retry-After) has precedence. The last result is returned if no time remains for a pause.
//
// If q may be the reason for the end of a connection, q is repeated over a connection of its own, at most 8 times
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

// resolveWithSystemChanges queries the operating system's servers. If the system has other servers before there is an
// answer, it queries the new servers. This change shows that the network has changed, so the old servers may be
// unreachable.
//
// If explore is true, any server may be queried first, to measure its latency.
func (s *clientServers) resolveWithSystemChanges(ctx context.Context, q question, explore bool) *result {
	for {
		version := s.system.Version(time.Now())
		r := s.resolveWithSystemVersion(ctx, q, explore, version)
		if !r.isFailure(q.Query) || ctx.Err() != nil || s.system.Version(time.Now()) == version {
			return r
		}
	}
}

// resolveWithSystemVersion queries the operating system's servers. version is the number of their present list
// (system.Servers.Version). As soon as that number changes, because the system has other servers, the exchange is
// cancelled. If explore is true, any server may be queried first, to measure its latency.
func (s *clientServers) resolveWithSystemVersion(ctx context.Context, q question, explore bool, version uint64) *result {
	var mine transport.InlineContext
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

// resolveOnce queries the servers for q's name, group after group, and returns the result. It uses the list of the
// operating system's servers as it is at the time of the call. It also starts probes of servers that are silent,
// failing or not measured recently.
//
// If explore is true, any of the servers for all names may be queried first, to measure its latency. With a strict
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

// startProbes sends probes in the background to silent or failing servers, to find out whether they work again. It does
// so for g, the servers for q's name, and for the fallback servers. It sends none if all these servers are silent, or
// if there is only one.
//
// strict says that the servers of g are queried in their order. Otherwise startProbes also measures servers of g
// without a recent response. first is the server to which the caller sends q itself.
//
// A probe may ask for q's name only at a server that may see this name even if first answers:
//
//   - another server of g, if first is in g and strict is false;
//   - a fallback server before first, if first is a fallback server.
//
// The other probes ask for other names. Servers that are down and would precede first get q from probeDownServers.
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

// newQueryTiers divides the servers for q into tiers: groups of servers that are queried one after the other. First
// comes g, the servers for all names. They are one tier. If strict is true, each of them is a tier of its own, in the
// order of g, and servers that are down come last.
//
// Each fallback server is a tier of its own. The fallback tiers follow the tiers of g, but if all servers of g are
// down, they precede the tiers of g.
//
// A fallback server is silent if its last three queries had no response. Silent fallback servers are omitted, except
// the last server of the list. If all fallback servers are silent, only the least recently used one is kept.
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

// probeDownServers sends q in the background to servers that are down, to find out whether they work again. It does so
// only for servers that would precede the first of the tiers (groups of servers) if they were not down. The other
// servers of later tiers may see q's name only if the first tier fails or is late.
func probeDownServers(q *wire.Query, tiers []queryTier) {
	for _, later := range tiers[1:] {
		if later.position < tiers[0].position {
			later.group.SendTrials(time.Now(), q)
		}
	}
}

// countTimeShares returns into how many equal parts the remaining time of a question is divided. The tiers are groups
// of servers that are queried one after the other, and each gets one part. But if the first tier is not a fallback
// tier, all fallback tiers together get one part.
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

// maxTierPatience limits two times: how long a tier is asked alone, and how long it holds back the answer of a later
// tier. Other resolvers wait as long (timeout in resolv.conf(5)).
const maxTierPatience = 5 * time.Second

// recheckInterval is the time between two checks whether a waiting question still waits for the right servers.
const recheckInterval = 200 * time.Millisecond

// queryTiersOnce queries groups of servers (tiers) one after the other, and returns the best result, even if it is a
// failure.
//
// A message with another opcode than QUERY, such as an update, may not be safe to repeat. The next tier gets this
// message only if the error proves that it has reached no server of the tier before.
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
// answer after that, and its answer has precedence over answers of later tiers.
//
// An answer of a later tier is therefore held back for a while. This is done only while the current tier answers other
// questions, and most questions of q's type. Otherwise a server that never answers certain questions would delay them
// for long.
//
// before returns the best response so far of the tiers before tiers[0], or nil. These tiers may still be running.
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

// A bestResponseFunc returns the best response to a question that has arrived so far, or nil. By it, a group of servers
// that is queried later finds the responses of the groups before it. It may be called at any time, from any goroutine.
type bestResponseFunc func() *result

// bestResponse returns the better one of two failures: the failure response of this exchange, and before, the result of
// the servers that were queried earlier. The response of this exchange is better if before is an error, or if only this
// response is a deliberate failure, such as a filter's REFUSED.
//
// before may be nil. If this exchange has no failure response either, the result is nil. bestResponse may be called
// while the exchange runs.
func (x *groupQuery) bestResponse(q *wire.Query, before *result) *result {
	failure, from := x.FirstFailure()
	if failure == nil {
		return before
	}
	return betterResult(q, before, &result{answer: failure, from: from})
}

// isFollowedOnlyByFallback reports whether the second of the tiers (groups of servers) is a fallback server and the
// first is not. Only fallback servers follow after the first tier then. So a deliberate failure of the first tier, such
// as a filter's REFUSED, is final: the fallback servers are not queried. There must be at least two tiers.
func isFollowedOnlyByFallback(tiers []queryTier) bool {
	return !tiers[0].isFallback && tiers[1].isFallback
}

// isFromFallbackOnly reports whether the server that gave the result r is only in fallback tiers. It returns false if
// the server is also in another tier. If it returns true, r must not replace a deliberate failure of a server that is
// no fallback, such as a filter's REFUSED.
func isFromFallbackOnly(r *result, tiers []queryTier) bool {
	return !slices.ContainsFunc(tiers, func(t queryTier) bool { return !t.isFallback && slices.Contains(t.group, r.from) })
}

// startNextTierWhenLate watches x, the exchange of q with the first of the tiers (groups of servers). It calls next,
// which must query the later tiers, when the first tier has used its share of the time. That share is at most 5 s
// (maxTierPatience). ctx is the context of x.
//
// It calls next earlier when all servers of the first tier go down, or are down from the start while a later tier is
// not. If the second tier is no fallback, it also does so when all servers of the first tier have failed.
//
// next must return true if a later tier has an answer. Then startNextTierWhenLate calls overtake, which must end x.
// Before that it waits while the first tier may still answer: at most until 5 s or 95 % of the time have passed since
// the start. next and overtake run in another goroutine.
//
// If no server of the first tier has responded in the first half of its share, each of them is probed.
//
// The caller must call the returned function inTime when x has ended. inTime returns true if next was not called, and
// prevents a later call.
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

// betterResult returns the better one of two results for q, or second if first is nil. An answer is better than a
// failure. A deliberate failure response, such as a filter's REFUSED, is better than any other failure response, which
// is better than an error. Of two answers it returns second.
//
// If second is not better, it returns a copy of first, because other goroutines may read first. retryUntilAvailable
// decides by the result whether to repeat the query. So the copy also says whether servers of second are unavailable or
// refuse connections, and whether q may have ended a connection.
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

// isDeliberateFailure reports whether the result is a failure response that a working server has sent by decision, as
// filters do with REFUSED or SERVFAIL. Fallback servers must not replace this response.
//
// A failure counts as deliberate if the server is not down, and no extended error attributes the failure to DNSSEC. A
// code other than SERVFAIL counts only if the server has answered a question before. The result is false if r is nil.
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

// A groupQuery is the sending of one question to a group of servers, with hedges and retransmissions (an exchange): its
// state and its result.
type groupQuery struct {
	group.Exchange
	result
}

// queryGroup sends q to a group of equivalent servers, with hedging, and returns the result. The result is the servers'
// response, even if that is a failure, or an error if no server has responded.
//
// x must be new. It is the state of the exchange, and the memory for the result.
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

// filterAnswer removes private addresses from a, an answer to q, if the Client has a RebindFilter. It returns an error
// if the answer cannot be unpacked or packed again. It does not filter names with an Exchanger in Client.Routes, names
// in domains for which the operating system has separate servers, and messages with another opcode than QUERY.
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
