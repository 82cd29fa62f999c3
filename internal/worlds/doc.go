// Package worlds searches for defects with random scenarios. It consists of tests alone.
//
// A number determines a scenario: a server, the network between server and client, options, and calls. A player runs
// the scenario twice in fake time, with the plain client and with the hedging client. It compares the results of the
// callers and the observations of the server. The checks are promises that hold in every scenario:
//
//  1. A call that succeeds with the plain client succeeds with hedging, no later, with the bytes of one successful
//     attempt.
//
//  2. A call of which every attempt fails fails as with the plain client. It is not held longer than rule R2 allows.
//
//  3. A call that writes reaches the server once, and hedges stay within the budget of rule R5.
//
//  4. There is no crash, data race or deadlock, and no panic that the plain client does not have.
//
//  5. After the calls no goroutine, connection, body or context of them is left, and the next call works.
//
//  6. No argument of a call is changed, and none is used after the caller owns it again.
//
// A scenario is a list of parts, each a name with a value:
//
//	over=http/2 call0.method=POST call0.try1.wait=30ms
//
// This list is how a scenario is printed, replayed, kept in testdata, and reduced: parts are removed while the finding
// remains. A part that is missing stands for the default. By default a call is a GET, its host is known to the client,
// and the host answers after 5 ms.
//
// # HTTP with endpoints
//
// Scenarios with elsewhere=1 or elsewhere=2 use WithEndpoints. The server recognizes the endpoint by the Host header.
// Their promises:
//
//   - 3: A call that must not be hedged goes to the first endpoint, and hedges cost no more tokens than the budget has.
//
//   - 5: Bodies that Prepare has set are closed.
//
//   - 6: No credential of a call reaches another host or Prepare. The request on the wire is the one that Prepare has
//     signed. A call to a host that is not an endpoint goes to that host. A response names another host in
//     Response.Request alone.
//
// The choice of endpoints is not checked here; benchmark/simulate measures it.
//
// # HTTP over a wrapped transport
//
// The transport may write the primary after the call has ended (way.lags=60ms), or use another HTTP version than the
// client knows (way.upgraded=true). Its promises:
//
//   - 1: A call returns a success when it arrives, without waiting for losers.
//   - 3: Two layers of hedging hedge a call once.
//   - 6: After the call a loser uses neither the request nor the context nor the httptrace hooks of the caller.
//
// # gRPC with connections for hedges
//
// Scenarios with way.conns=2 use WithHedgeConns. Each connection has a server of its own, which may refuse connections,
// stop, fail, be late or stay silent. Their promises:
//
//   - 2: The timeout of a method ends its call with all attempts.
//
//   - 3: A primary goes to the target of its call. Only calls to a named target have hedges over these connections, and
//     hedges cost no more tokens than the budget has. The interceptors of a connection observe each attempt over it
//     once, and no other attempt.
//
//   - 5: A server stream without a message occupies no slot of a Limiter.
//
// With way.outlier the callers' connection has three servers, chosen by hedge_elsewhere above a model of gRPC's outlier
// detection. Outlier detection counts no loser as a failure, and each failure that arrives before its call ends
// (promise 5).
//
// With way.spelt two targets have the same spelling, and a policy holds for one of them (promise 3).
//
// # DNS
//
// Scenarios with over=dns have servers with faults, and a dnshedge.Client with a cache, as a forwarder, or between
// others. The reference is a patient resolver: it has no memory and queries all servers in turn, each for a part of the
// time.
//
// The records of every response have its number. The checker therefore knows the server, the query and the time of each
// answer. The promises:
//
//   - 1: A question that the patient resolver can answer is answered, not much later, by a server that may be queried,
//     with the records of one response. The TTLs decrease with the age of the records. Only a bound in the
//     documentation of dnshedge excuses a failure.
//
//   - 2: A failure that all servers have reported, or that is cached, comes at once.
//
//   - 3: There is one query at a time for equal questions, and the number of queries is bounded. Answers pay for
//     retransmissions. A question that the caller forbids to hedge is not hedged. Updates and notifications reach one
//     server once, no probe repeats them, and their response comes back.
//
// In strict order a server gets no name that an earlier server would answer, not even in a probe. A Client that imports
// the cache of a Client with other servers returns none of its answers. Upstreams may have names, which the Dialer
// resolves for each connection, or be behind a proxy (way.dials).
//
// They may allow fewer concurrent requests over a connection than there are questions (way.net=https way.streams=1).
// The files hosts and resolv.conf may be unreadable at first or for a time (way.files).
//
// Upstreams over QUIC and HTTP/3 have scenarios of their own in module dnshedge/quic, because the root must not require
// package quic-go.
//
// # Recursors
//
// Scenarios with over=recursor have a tree of zones in memory, with signatures, flaws and servers with faults, and a
// recursor.Resolver. The construction of the tree determines the right answers and whether they are secure, insecure or
// bogus. The promises:
//
//   - 1: No bogus answer comes without CD.
//
//   - 2: Any other name is answered while every zone on its path has a good server, in 4.5 s at most.
//
//   - 3: AD is set exactly for secure answers, and a secure answer can be validated again.
//
//   - 5: The number of queries stays within Limits and the budget.
//
//   - 6: No goroutine or connection is left.
//
//   - 7: The data are those of the zones, also with CD and without validation. A secure answer does not outlive its
//     original TTL or its signature.
//
//   - 8: No response is ignored where there is no flaw. Random names in a zone (call0.burst=flood) cost at most two
//     queries more than the zone has denial records.
//
//   - 9: If all servers are good, an answer comes within a second.
//
//   - 10: A client without DO gets no signatures.
//
// Servers may raise TTLs and add wrong signatures. Anchors may be below the root, and aliases may cross their border.
// With validator=resolver and validator=upstreams a dnssec.Validator answers the same questions, over the Resolver or
// over a Client of upstreams with faults.
//
// With client.cached a Client above the Resolver caches answers. Two cases are not checked: servers that lie about
// unsigned names, and zones that need more time than a question has.
//
// # Ranges
//
// Scenarios with over=range have an object in a store and readers of package rangeread, with and without hedges. Fetch
// may wait, stall, break off, fail, panic or ignore its context, and the object may be replaced in the meantime. The
// promises:
//
//   - 1: The bytes are those of one version of the object, in full length.
//
//   - 3: Hedges and the bytes that they request stay within the budget.
//
//   - 5: No body is open, and the counters are consistent.
//
//   - 6: The memory of a caller is not used after the read. No body is read by two readers or closed twice.
//
// # Processes
//
// One process draws scenarios and checks the results, others play. A crash, a data race or a deadlock ends a player and
// is a finding as well.
//
//	WORLDS_ONLY="part=value part=value" go test -run TestOneWorld -v ./internal/worlds   # plays one scenario with a log
//	make worlds N=60                                                                      # plays new scenarios for a minute
package worlds
