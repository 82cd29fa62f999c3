package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCompareNamesNoHedgingAndTheBestPeer(t *testing.T) {
	conns := func(n int) *int { return &n }
	of := func(strategy string, p99, p999, extra float64, conns *int) strategyResult {
		return strategyResult{strategy: strategy, rows: []row{{Strategy: strategy, P99: p99, P999: p999, Extra: extra, Conns: conns}}}
	}
	f := scenarioResults{results: []strategyResult{
		of("none", 64.9, 104, 0, conns(20)), of("hedgedhttp-10ms", 18.2, 49, 8, conns(2424)), of("failsafe-quantile", 17.8, 47.3, 10.4, conns(2970)),
		of("hedge", 17.9, 25.9, 9, conns(40)), of("hedge-1", 17, 20, 9, conns(40)), of("static-best-2", 19.1, 24.1, 8.8, conns(41)),
	}}
	assert.Equal(t, "With hedge, p99 is 17.9 ms (without hedging 64.9 ms) and p99.9 is 25.9 ms (104 ms), for 9.0 % extra requests and 40 connections. "+
		"The lowest p99.9 of the other libraries is 47.3 ms, of failsafe-go, for 10.4 % extra requests and 2,970 connections.", f.compareWithPeers(map[string]string{"failsafe-quantile": "failsafe-go"}))

	f.results = []strategyResult{of("none", 64.9, 104, 0, nil), of("hedge", 17.9, 25.9, 9, nil)}
	assert.Equal(t, "With hedge, p99 is 17.9 ms (without hedging 64.9 ms) and p99.9 is 25.9 ms (104 ms), for 9.0 % extra requests.", f.compareWithPeers(nil))
	f.results = f.results[1:]
	assert.Empty(t, f.compareWithPeers(nil), "there is nothing to compare with")
}
