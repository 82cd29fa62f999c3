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

// acquireSystemServers returns the operating system's DNS servers with their state, such as measured latencies, in the
// given order. It creates missing states, and keeps them for at least 30 s. It returns an error if a server is invalid
// or the Client is closed.
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

// acquireServers returns the servers for upstreams, in the given order, without duplicates, and creates missing ones.
// use sets how long they are kept; with group.UseOnce, the caller must call pool.Release. It fails if an upstream is
// invalid or the Client is closed.
func (s *clientServers) acquireServers(upstreams []Upstream, use group.Usage) (out group.Servers, err error) {
	for _, up := range upstreams {
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

// acquireServer returns the server for an upstream with its state, such as latencies, and creates it if necessary. use
// sets how long it is kept; with group.UseOnce, the caller must call pool.Release. It fails if the upstream is invalid
// or the Client is closed.
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

// findServerByAddress returns the server for an address that ParseUpstream accepts, or for a host name with an optional
// port (UDP). The caller must pass the server to pool.Release after use. It returns an error if the address is invalid
// or the Client is closed.
func (s *clientServers) findServerByAddress(address string) (*group.Server, error) {
	if i := slices.IndexFunc(s.upstreams, func(up Upstream) bool { return up.String() == address }); i >= 0 {
		return s.acquireServer(s.upstreams[i], group.UseOnce) // with Addrs, which String omits
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

// resolveByRoute sends q to q.exchanger if it is set, and otherwise to the servers for q's name, repeatedly while they
// are unavailable. explore makes it first query a random default server, to measure its latency. It may be true only if
// no caller waits.
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
// connections, or report overload, it calls ask again after a pause, until the time for the question ends. It repeats
// only messages with the opcode QUERY.
func (s *clientServers) retryUntilAvailable(ctx context.Context, q question, ask func(q question) *result) *result {
	ends := 0
	for pause := firstPause; ; pause *= 2 {
		r := ask(q)
		// A truncated response is repeated if a server has refused the connection for the whole answer.
		// hasRefused is needed if the server has since answered another question, and refusingSince if it was not asked.
		hasRefused := r.hasRefused || !r.refusingSince.IsZero()
		if !q.IsStandard() || r.err == nil || !r.isUnavailable && !(hasRefused && transport.IsTruncationError(r.err)) {
			return r
		}
		if r.endedByQuery { // then the question must not end the connections of other questions
			if ends++; ends > maxConnEndRepeats {
				return r
			}
			q.Query = q.WithOwnConnection()
		}
		if end, ok := ctx.Deadline(); ok {
			pause = min(pause, time.Until(end)/2) // a longer Retry-After has precedence
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

// resolveWithCurrentServers queries the operating system's servers for q. If the list of servers changes before an
// answer, it queries the new servers. If explore is true, it first queries a random default server, to measure its
// latency. With a strict order, explore has no effect.
func (s *clientServers) resolveWithCurrentServers(ctx context.Context, q question, explore bool) *result {
	for {
		version := s.system.Version(time.Now())
		r := s.resolveWithSystemVersion(ctx, q, explore, version)
		if !r.isFailure(q.Query) || ctx.Err() != nil || s.system.Version(time.Now()) == version {
			return r
		}
	}
}

// resolveWithSystemVersion queries the operating system's servers for q. The queries are cancelled when the number of
// the list is no longer version. If explore is true, it first queries a random default server, to measure its latency.
// With a strict order, explore has no effect.
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

// resolveOnce queries the servers for q's name, group after group, and returns the best result. It also probes
// unhealthy servers. If explore is true, it first queries a random default server, to measure its latency. With a
// strict order, explore has no effect.
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

// startProbes probes unhealthy servers in the background, to find out whether they work again. If strict is false, g,
// the servers for q's name, has no fixed order, and startProbes also measures their latency. first is the server to
// which the caller sends q.
func (s *clientServers) startProbes(q *wire.Query, g group.Servers, first *group.Server, strict bool) {
	now, forGroup, isFallback := time.Now(), q, !slices.Contains(g, first)
	if strict || isFallback {
		forGroup = nil // servers of g must not see q's name, because first may answer
	}
	if len(g)+len(s.fallback) > 1 && (!g.AreAllSilent() || !s.fallback.AreAllSilent()) {
		g.ProbeUnhealthy(now, forGroup, first)
		n := 0
		if isFallback {
			n = slices.Index(s.fallback, first)
		}
		s.fallback[:n].ProbeUnhealthy(now, q, first) // they precede first, and so may see q's name
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

// newQueryTiers divides the servers for q into groups (tiers) to query one after the other: g, the default servers, or
// each of them if strict is true, and each fallback server. Fallback servers come last, or first if all servers of g
// are down.
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
		other = other.SortByRTT(q, false)[:1] // all are silent: ask only the least recently used one
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

// probeDownServers sends q in the background to servers that are down, to find out whether they work again. It selects
// only servers that precede the first of the tiers (groups of servers, in the order of the queries) in the configured
// order.
func probeDownServers(q *wire.Query, tiers []queryTier) {
	for _, later := range tiers[1:] {
		if later.position < tiers[0].position { // other servers must not see q's name while the first tier works
			later.group.RetryDownServers(time.Now(), q)
		}
	}
}

// countTimeShares returns the number of equal parts into which the time for a question is divided. Each tier (group of
// servers) gets one part. If the first tier is not a fallback tier, however, all fallback tiers together get one part.
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
// failure. A message with another opcode than QUERY, such as an update, is sent to the next tier only if no server has
// received it.
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

// queryTiersInOrder queries groups of servers (tiers) and returns the best result. The next tier starts when the
// current one has failed, is down, or is late. The late tier's answer has precedence for up to 5 s. bestEarlier returns
// the best earlier response or nil.
func (s *clientServers) queryTiersInOrder(ctx context.Context, q question, tiers []queryTier, bestEarlier bestResponseFunc) *result {
	t := tiers[0]
	if t.isFallback {
		s.count.fallbacks.Add(1)
	}
	probeDownServers(q.Query, tiers)
	if len(tiers) == 1 {
		r := s.queryGroup(ctx, new(groupQuery), q, t.group)
		return betterResult(q.Query, bestEarlier(), r)
	}
	x := new(groupQuery)
	soFar := func() *result { return x.bestResponse(q.Query, bestEarlier()) }
	mine, overtake := context.WithCancelCause(ctx)
	defer overtake(nil)
	others, stop := context.WithCancel(ctx)
	defer stop()
	var rest *result
	var came time.Time // when rest arrived
	done := make(chan struct{})
	stopTimer := s.startNextTierWhenLate(mine, x, q.Query, tiers, func() bool {
		defer close(done)
		if isFollowedOnlyByFallback(tiers) && soFar().isDeliberateFailure() {
			return true // the failure is final, and later tiers are not asked
		}
		rest = s.queryTiersInOrder(others, q, tiers[1:], soFar)
		came = time.Now()
		return !rest.isFailure(q.Query)
	}, func() { overtake(errOtherAnswered) })
	r := s.queryGroup(mine, x, q, t.group)
	final, isClosed := !r.isFailure(q.Query), s.pool.IsClosed()
	if !final {
		r = betterResult(q.Query, bestEarlier(), r)
		final = isFollowedOnlyByFallback(tiers) && r.isDeliberateFailure()
	}
	begun := !stopTimer()
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

// bestResponse returns the better of two failures for q: the failure response of the exchange x, and earlier, the
// result of servers that were queried before, or nil. If x has no failure response, it returns earlier. It may be
// called while x runs.
func (x *groupQuery) bestResponse(q *wire.Query, earlier *result) *result {
	failure, from := x.FirstFailure()
	if failure == nil {
		return earlier
	}
	return betterResult(q, earlier, &result{answer: failure, from: from})
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

// startNextTierWhenLate calls queryLaterTiers when the first tier (group of servers) is late, down or failing. After
// the result true it calls endFirstTier, which must end its exchange x. When x has ended, the caller must call stop,
// which returns true if queryLaterTiers was not called.
func (s *clientServers) startNextTierWhenLate(ctx context.Context, x *groupQuery, q *wire.Query, tiers []queryTier, queryLaterTiers func() bool, endFirstTier func()) (stop func() bool) {
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
		if !queryLaterTiers() {
			return
		}
		hold := min(end.Sub(start)-end.Sub(start)/finalTimeFraction, maxTierPatience)
		// HasAnsweredMost is needed because a server that leaves certain questions unanswered would delay them.
		for !failed() && g.HasAnsweredSince(start) && g.HasAnsweredMost(q) && time.Since(start) < hold {
			if !waitForDuration(ctx, min(recheckInterval, hold-time.Since(start))) {
				return
			}
		}
		endFirstTier()
	})
	return func() bool {
		probe.Stop()
		return late.Stop()
	}
}

// betterResult returns the better of two results for q, or a copy of first if they are equal. first must be nil or a
// failure. From best to worst: an answer, a deliberate failure response (such as a filter's), another failure response,
// an error.
func betterResult(q *wire.Query, first, second *result) *result {
	if first == nil || !second.isFailure(q) || first.err != nil && second.err == nil || second.isDeliberateFailure() && !first.isDeliberateFailure() {
		return second
	}
	// A copy, because other goroutines may read first. It also has the properties of second by which a query is repeated.
	merged := *first
	merged.hasRefused = merged.hasRefused || second.hasRefused
	if second.isUnavailable && !merged.isUnavailable {
		merged.isUnavailable, merged.pause = true, second.pause
	}
	merged.endedByQuery = merged.endedByQuery || second.endedByQuery
	if second.refusingSince.After(merged.refusingSince) {
		merged.refusingSince = second.refusingSince
	}
	return &merged
}

// isDeliberateFailure reports whether a failure response seems to be a decision of a working server, for example of a
// filter, so that fallback servers must not replace it. r must be a failure or nil. The result is false for nil and for
// errors.
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

// queryGroup sends q to a group of equivalent servers, with hedging, and returns the servers' response, even if it is a
// failure such as SERVFAIL. Without a response, the result has an error. x must be new; it holds the state and the
// result.
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

// filterAnswer removes private addresses from a, the answer to q, if the Client has a RebindFilter. It does nothing if
// the opcode is not QUERY, or if the name has separate servers. It returns an error if a cannot be unpacked or packed
// again.
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
