package main

import (
	"fmt"
	"net/http"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// metricsHandler is an http.Handler that writes a forwarder's metrics in the text format of Prometheus.
type metricsHandler struct{ *forwarder }

// A metric is a Prometheus metric without labels.
type metric struct {
	name, kind, help string
	value            int64
}

func (m metricsHandler) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s, a := m.client.Stats(), m.upstreamClient().Stats()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	all := []metric{
		{"questions_total", "counter", "Questions asked by clients.", s.Queries},
		{"cache_hits_total", "counter", "Questions answered from the cache.", s.Hits},
		{"stale_total", "counter", "Questions answered with an expired answer from the cache.", s.Stale},
		{"local_total", "counter", "Questions answered from the hosts file, and for special-use names.", s.Local},
		{"failures_total", "counter", "Questions without any answer.", s.Failures},
		{"queries_total", "counter", "Queries sent to servers.", a.Wire},
		{"hedges_total", "counter", "Hedges: queries sent because an answer was late.", a.Hedges},
		{"hedge_wins_total", "counter", "Hedges that gave the answer.", a.HedgeWins},
		{"resends_total", "counter", "Retransmissions: queries sent because an earlier query was presumed lost.", a.Resends},
		{"failovers_total", "counter", "Queries sent because another server could not answer.", a.Failovers},
		{"ignored_total", "counter", "Messages that matched no query.", a.Ignored},
		{"cache_bytes", "gauge", "Bytes of memory that the cache uses, estimated.", m.client.Cache.Bytes()},
	}
	if m.resolver != nil {
		s := m.resolver.Stats()
		all = append(all,
			metric{"recursor_questions_total", "counter", "Questions that were resolved from the root down.", s.Questions},
			metric{"recursor_failures_total", "counter", "Questions answered with SERVFAIL.", s.Failures},
			metric{"recursor_queries_total", "counter", "Queries sent to the servers of zones.", s.Wire},
			metric{"recursor_hedges_total", "counter", "Queries sent because an answer was late.", s.Hedges},
			metric{"recursor_hedge_wins_total", "counter", "Hedges that gave the answer.", s.HedgeWins},
			metric{"recursor_timeouts_total", "counter", "Queries sent because an earlier one had timed out.", s.Timeouts},
			metric{"recursor_failovers_total", "counter", "Queries sent because another server could not answer.", s.Failovers},
			metric{"recursor_servers", "gauge", "Servers that are known.", int64(s.Servers)},
			metric{"recursor_servers_resting", "gauge", "Servers that are asked last because they did not answer.", int64(s.Resting)},
			metric{"recursor_bytes", "gauge", "Bytes of memory that the resolver uses, estimated.", s.Bytes},
		)
		all = append(all, securityMetrics("recursor", s)...)
	}
	if m.validating != nil {
		all = append(all, securityMetrics("validator", m.validating.Stats())...)
	}
	for _, v := range all {
		fmt.Fprintf(w, "# HELP dnsforward_%s %s\n# TYPE dnsforward_%[1]s %[3]s\ndnsforward_%[1]s %[4]d\n", v.name, v.help, v.kind, v.value)
	}
	for _, v := range []struct {
		name, kind, help string
		value            func(dnshedge.UpstreamStats) float64
	}{
		{"upstream_queries_total", "counter", "Queries sent to a server.", func(u dnshedge.UpstreamStats) float64 { return float64(u.Queries) }},
		{"upstream_silent", "gauge", "1 if a server does not answer.", func(u dnshedge.UpstreamStats) float64 {
			if u.Silent {
				return 1
			}
			return 0
		}},
		{"upstream_srtt_seconds", "gauge", "Smoothed round trip time.", func(u dnshedge.UpstreamStats) float64 { return u.SRTT.Seconds() }},
		{"upstream_p99_seconds", "gauge", "99th percentile of the times of recent answers.", func(u dnshedge.UpstreamStats) float64 { return u.P99.Seconds() }},
	} {
		fmt.Fprintf(w, "# HELP dnsforward_%s %s\n# TYPE dnsforward_%[1]s %[3]s\n", v.name, v.help, v.kind)
		for _, u := range a.Upstreams {
			fmt.Fprintf(w, "dnsforward_%s{upstream=%q} %g\n", v.name, u.Upstream, v.value(u))
		}
	}
}

// countBogus returns the number of bogus answers, for all reasons together.
func countBogus(s recursor.Stats) (n int64) {
	for _, one := range s.Bogus {
		n += one
	}
	return n
}

// securityMetrics returns metrics that count the results of DNSSEC validation in s. Each name begins with prefix.
func securityMetrics(prefix string, s recursor.Stats) []metric {
	return []metric{
		{prefix + "_secure_total", "counter", "Answers with a valid signature.", s.Secure},
		{prefix + "_insecure_total", "counter", "Answers that are proven to be unsigned.", s.Insecure},
		{prefix + "_bogus_total", "counter", "Answers that must be signed and have no valid signature.", countBogus(s)},
	}
}
