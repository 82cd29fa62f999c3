// Package worlds is a machine that looks for defects. It consists of tests alone.
//
// From a number it draws a world: a server, what stands between server and client, options, and calls. It plays the world
// twice in fake time, with the plain client and with the hedged one, and compares what the callers, the server and the
// bystanders saw. What it compares are promises that hold in every world:
//
//  1. A call that succeeds plainly succeeds when it is hedged, with the bytes of one attempt that succeeded, and not later.
//  2. A call of which every attempt fails fails as the plain one does, and is not held longer than rule R2 says.
//  3. What writes reaches the server once, and hedges stay within the budget of rule R5.
//  4. There is no crash, no race, no deadlock, and no panic that the plain client has not.
//  5. When the calls are over nothing is left of them: no goroutine, connection, body or context. The next call works.
//  6. Nothing that was handed in is changed, and nothing is touched after it was given back.
//
// A world is a list of parts, each a name with a value:
//
//	over=http/2 call0.method=POST call0.try1.wait=30ms
//
// Worlds of HTTP with endpoints (elsewhere=1, elsewhere=2) have WithEndpoints, and a server that knows by the Host which endpoint it is. Promise 3 is
// there as well: what may not be hedged goes to the first endpoint, and hedges cost no more tokens than the budget has; promise 5: bodies that
// Prepare has set are closed; promise 6: nothing secret that a call has reaches another host, nor Prepare, what is sent there is what Prepare has
// signed, a call for a host that is no endpoint goes there, and what comes back tells of no other host but in Response.Request. Not judged is how
// well endpoints are chosen: benchmark/simulate does that.
//
// Worlds of HTTP over a wrapped transport may write the primary after their call (way.lags=60ms), or change their version (way.upgraded=true).
// Promise 1 is there as well: a call returns its success when that is sent, and waits for no loser; promise 3: hedging around hedging hedges a call
// once; promise 6: a loser uses neither the request, nor the context, nor the httptrace hooks of its caller after the call.
//
// Worlds of gRPC with connections for hedges (way.conns=2) have WithHedgeConns, and for each connection a server of its own, which refuses connections, stops,
// fails, is late or says nothing. Promise 3 is there as well: primaries go where the caller has made them for, hedges over these connections, and only of
// calls to a target that is named, and they cost no more tokens than the budget has. The interceptors of a connection see each attempt over it
// once, and no other attempt. Promise 2: the timeout of a method ends its call with all attempts. Promise 5: server streams without a message
// hold no place of a Limiter. With way.spelt two targets have one spelling, and a policy holds for one of the two (promise 3).
//
// Worlds of DNS (over=dns) are servers with faults in a network, and a Client of package dnshedge before them, with a cache, as a
// forwarder, between others. What it does is compared with a patient resolver, which has no memory and asks all servers in turn,
// each for its part of the time. Every response of a server has a number in its records, so that the judge knows of each
// answer who said it, to which question and when. Promise 1 is there: a question that the patient resolver has an answer to is
// answered, not much later, by a server that may be asked, with the records of one response, and with TTLs that are as old as
// they are; promise 2: a failure that all servers have told, or that was known before, comes at once; promise 3: the same question
// is asked once at a time, queries are bounded, answers pay for those that are sent again, and what the caller forbids to hedge
// is not hedged. A question that a patient resolver has an answer to may fail only by a bound that the doc of dnshedge states.
// Callers send updates and notifications, too: each reaches one server once, not even a probe repeats it, and its response comes back.
// In a strict order, a server hears no name that a server before it would answer, not even in a probe.
// A Client that imports from a Client of other servers answers nothing of theirs.
// Upstreams may have names, which the Dialer resolves for each connection, or be behind a proxy (way.dials), and allow fewer requests at a time over
// a connection than there are questions (way.net=https way.streams=1). Files of hosts and resolv.conf may be unreadable at first or for a while (way.files).
//
// Worlds of recursors (over=recursor) are a tree of zones in memory, signed in several ways or not, with flaws, servers with faults, and a
// recursor.Resolver that is asked about them. There is nothing to compare with: what is right to answer, and whether that is secure, insecure or
// bogus, follows from how the world is made. Promise 1 is there: nothing bogus is answered without CD; promise 2: what is not bogus is answered while
// every zone on the way has a good server, whatever the others say, with the form of a response, in 4.5 s at most, and in one if all servers are well
// (promise 9); promise 3: AD says secure and nothing else does, and what has it can be verified again; promise 5: queries stay within Limits and the
// budget; promise 6: nothing is left; promise 7: the data are those of the zones, also with CD and without validation; promise 8: no response is
// passed over where nothing is wrong; promise 10: who does not ask for signatures gets none. Servers may raise TTLs and add signatures that are not
// right: a secure answer outlives neither its original TTL nor its signature (promise 7), and is not refused for them. Questions for names that a
// zone does not have (call0.burst=flood) cost no more queries than the zone's chain has records, and two (promise 8). Anchors may be below the root,
// where aliases lead over their border. With validator=resolver and validator=upstreams a dnssec.Validator answers the same questions, over the
// Resolver or a Client of upstreams with faults, and keeps the same promises. With client.cached a Client above the Resolver keeps answers, which
// outlive no signature either. Not judged is what no resolver can know: a server that lies about names that need no signature, and zones that need
// more time than a question has.
//
// Worlds of ranges (over=range) are an object in a store, whose Fetch waits, stalls, breaks off, fails, panics or ignores its context, and which may be
// replaced meanwhile, and readers of package rangeread, each with and without hedges. Promise 1 is there: the bytes are those of one version of the
// object, and as many; promise 3: hedges and the bytes that they ask for stay within the budget; promise 5: nothing is held, no body
// is open, and counters add up; promise 6: a caller's memory is not touched after the read, and no body is read or closed twice.
//
// That list is how a world is printed, replayed, kept in testdata, and made smaller: parts are left out for as long as the
// finding stays. A part that a world has not stands for the usual: a call is a GET of a warm host that answers after 5 ms.
//
// One process draws and judges, others play: a crash, a data race or a deadlock ends a player, and is a finding like any other.
//
//	WORLDS_ONLY="part=value part=value" go test -run TestOneWorld -v ./internal/worlds   # plays one world, and tells what was seen
//	make worlds N=60                                                                      # plays for a minute from a new number
package worlds
