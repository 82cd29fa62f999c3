package main

import (
	"cmp"
	"fmt"
)

// compareWithPeers returns two sentences that compare this library with no hedging and with one peer. The peer is the
// other library with the lowest p99.9 in the whole scenario. The text is empty if this library or no hedging did not
// run. names has titles for the names of strategies; it may be nil.
func (f scenarioResults) compareWithPeers(names map[string]string) string {
	var us, without, peer *row
	for _, r := range f.results {
		whole := &r.rows[0]
		switch peerOf(r.strategy) {
		case peerOf(ours):
			if r.strategy == ours {
				us = whole
			}
		case baseline:
			without = whole
		case bestStatic:
		default:
			if peer == nil || whole.P999 < peer.P999 {
				peer = whole
			}
		}
	}
	if us == nil || without == nil {
		return ""
	}
	text := fmt.Sprintf("With hedge, p99 is %s ms (without hedging %s ms) and p99.9 is %s ms (%s ms), for %s",
		formatMillis(us.P99), formatMillis(without.P99), formatMillis(us.P999), formatMillis(without.P999), describeCost(*us))
	if peer != nil {
		text += fmt.Sprintf(". The lowest p99.9 of the other libraries is %s ms, of %s, for %s", formatMillis(peer.P999), cmp.Or(names[peer.Strategy], peer.Strategy), describeCost(*peer))
	}
	return text + "."
}

// describeCost returns a phrase with the extra requests and the connections in row r.
func describeCost(r row) string {
	cost := formatPercent(r.Extra) + " extra requests"
	if r.Conns != nil {
		cost += " and " + formatThousands(*r.Conns) + " connections"
	}
	return cost
}
