package main

import (
	"time"

	"github.com/gohedge/hedge/benchmark/dnslab"
	"github.com/gohedge/hedge/benchmark/internal/lab"
)

func init() {
	registerEngine(40, newDNSEngine(dnsTransports[0]))
	registerStrategies(
		strategy{name: "single", rank: 80, description: "this library without hedging; a lost query is sent again"},
		strategy{name: "miekg", rank: 230, description: "the plain client of github.com/miekg/dns"},
	)
}

// dnsTransports has the names of the transports in package dnslab, UDP first.
var dnsTransports = []string{"udp", "tls", "https"}

// newDNSEngine returns the engine dns of simulate, for the transport udp, tls or https. DNS clients and forwarders query
// DNS servers over a simulated network, through kernel sockets in network namespaces. It needs root on Linux. Forwarders
// are processes of their own. Extra requests are all queries beyond one for each lookup, so they include retransmissions.
func newDNSEngine(transport string) engine {
	return labEngine[lab.Row]{
		engineSpec: engineSpec{
			name: "dns", description: "asks DNS servers through kernel sockets, over a simulated network (root, Linux)",
			scenarios: newLabScenarios("DNS: ", dnslab.Scenarios, func(sc *scenario) {
				if sc.name == "dead-primary" {
					sc.parts = []scenarioPart{newPeriodPart("after", time.Second, forever)}
				}
			}),
			refusal: "not offered for DNS over " + transport, maxTimerDelay: maxTimerDelay, hidden: []string{"sent"},
		},
		contenders: func(string) []string { return dnslab.ContenderNames(transport) },
		how:        "all in turn", run: dnslab.Run,
		calls: func(run scenarioRun) int { return run.requestCount(dnslab.DefaultLookups, 505) },
	}
}
