package forward

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/observe"
)

// A metric is a Prometheus metric without labels: its name, type, help text and value.
type metric struct {
	name, kind, help string
	value            int64
}

// MetricsHandler returns a handler that writes the statistics of c in the text format of Prometheus. c must not be nil.
// Metric names begin with prefix and an underscore. Metrics of single DNS servers have the label upstream. If the
// Exchanger of c is a recursor.Resolver or a dnssec.Validator, its statistics are included.
func MetricsHandler(prefix string, c *dnshedge.Client) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		writeMetrics(w, prefix, findForwarderParts(c))
	})
}

// writeMetrics writes the statistics of a Client, and of its resolver or validator, to w in the text format of
// Prometheus. The name of each metric begins with prefix and an underscore.
func writeMetrics(w io.Writer, prefix string, parts forwarderParts) {
	client, upstreams := parts.client.Stats(), parts.upstreams.Stats()
	cache := cmp.Or(client.Cache, new(observe.DNSCacheStats))
	all := []metric{
		{"questions_total", "counter", "Questions asked by clients.", client.Queries},
		{"cache_hits_total", "counter", "Questions answered from the cache.", client.Hits},
		{"stale_total", "counter", "Questions answered with an expired answer from the cache.", client.Stale},
		{"local_total", "counter", "Questions answered from the hosts file, and for special-use names.", client.Local},
		{"failures_total", "counter", "Questions without any answer.", client.Failures},
		{"queries_total", "counter", "Queries sent to servers.", upstreams.Wire},
		{"hedges_total", "counter", "Hedges: queries sent because an answer was late.", upstreams.Hedges},
		{"hedge_wins_total", "counter", "Hedges that gave the answer.", upstreams.HedgeWins},
		{"resends_total", "counter", "Retransmissions: queries sent because an earlier query was presumed lost.", upstreams.Resends},
		{"failovers_total", "counter", "Queries sent because another server could not answer.", upstreams.Failovers},
		{"ignored_total", "counter", "Messages that matched no query.", upstreams.Ignored},
		{"cache_bytes", "gauge", "Bytes of memory that the cache uses, estimated.", cache.Bytes},
	}
	if parts.resolver != nil {
		r := parts.resolver.Stats()
		all = append(all,
			metric{"recursor_questions_total", "counter", "Questions that were resolved from the root down.", r.Questions},
			metric{"recursor_failures_total", "counter", "Questions answered with SERVFAIL.", r.Failures},
			metric{"recursor_queries_total", "counter", "Queries sent to the servers of zones.", r.Wire},
			metric{"recursor_hedges_total", "counter", "Queries sent because an answer was late.", r.Hedges},
			metric{"recursor_hedge_wins_total", "counter", "Hedges that gave the answer.", r.HedgeWins},
			metric{"recursor_timeouts_total", "counter", "Queries sent because an earlier one had timed out.", r.Timeouts},
			metric{"recursor_failovers_total", "counter", "Queries sent because another server could not answer.", r.Failovers},
			metric{"recursor_servers", "gauge", "Servers that are known.", int64(r.Servers)},
			metric{"recursor_servers_resting", "gauge", "Servers that are asked last because they did not answer.", int64(r.Resting)},
			metric{"recursor_bytes", "gauge", "Bytes of memory that the resolver uses, estimated.", r.Bytes},
		)
		all = append(all, securityMetrics("recursor", r)...)
	}
	if parts.validator != nil {
		all = append(all, securityMetrics("validator", parts.validator.Stats())...)
	}
	for _, m := range all {
		fmt.Fprintf(w, "# HELP %s_%s %s\n# TYPE %[1]s_%[2]s %[4]s\n%[1]s_%[2]s %[5]d\n", prefix, m.name, m.help, m.kind, m.value)
	}
	writeUpstreamMetrics(w, prefix, upstreams.Upstreams)
}

// writeUpstreamMetrics writes the metrics of each upstream server to w, in the text format of Prometheus. Their label
// upstream is the server's address. The name of each metric begins with prefix and an underscore.
func writeUpstreamMetrics(w io.Writer, prefix string, upstreams []observe.DNSUpstreamStats) {
	for i, m := range []metric{
		{"upstream_queries_total", "counter", "Queries sent to a server.", 0},
		{"upstream_silent", "gauge", "1 if a server does not answer.", 0},
		{"upstream_srtt_seconds", "gauge", "Smoothed round trip time.", 0},
		{"upstream_p99_seconds", "gauge", "99th percentile of the times of recent answers.", 0},
	} {
		fmt.Fprintf(w, "# HELP %s_%s %s\n# TYPE %[1]s_%[2]s %[4]s\n", prefix, m.name, m.help, m.kind)
		for _, u := range upstreams {
			values := [...]float64{float64(u.Queries), map[bool]float64{true: 1}[u.Silent], u.SRTT.Seconds(), u.P99.Seconds()}
			fmt.Fprintf(w, "%s_%s{upstream=%q} %g\n", prefix, m.name, u.Upstream, values[i])
		}
	}
}

// countBogus returns the number of bogus answers in s: answers that have failed DNSSEC validation, for any reason.
func countBogus(s observe.RecursorStats) (n int64) {
	for _, one := range s.Bogus {
		n += one
	}
	return n
}

// securityMetrics returns metrics that count the results of DNSSEC validation in s: secure, insecure and bogus answers.
// Their names begin with prefix and an underscore.
func securityMetrics(prefix string, s observe.RecursorStats) []metric {
	return []metric{
		{prefix + "_secure_total", "counter", "Answers with a valid signature.", s.Secure},
		{prefix + "_insecure_total", "counter", "Answers that are proven to be unsigned.", s.Insecure},
		{prefix + "_bogus_total", "counter", "Answers that must be signed and have no valid signature.", countBogus(s)},
	}
}

// roundDuration rounds d to 10 µs, for reports.
func roundDuration(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// WriteReport writes the statistics of c, and of its resolver or validator, to w as text for people. c must not be nil.
// The format may change.
func WriteReport(w io.Writer, c *dnshedge.Client) {
	parts := findForwarderParts(c)
	client, upstreams := c.Stats(), parts.upstreams.Stats()
	cache := cmp.Or(client.Cache, new(observe.DNSCacheStats))
	fmt.Fprintf(w, "questions %d  cache hits %d  stale %d  local %d  refreshes %d  failures %d  cached bytes %d\n",
		client.Queries, client.Hits, client.Stale, client.Local, client.Refreshes, client.Failures, cache.Bytes)
	fmt.Fprintf(w, "queries %d  hedges %d (won %d, denied %d)  resends %d  failovers %d  ignored messages %d\n",
		upstreams.Wire, upstreams.Hedges, upstreams.HedgeWins, upstreams.Denied, upstreams.Resends, upstreams.Failovers, upstreams.Ignored)
	for _, u := range upstreams.Upstreams {
		fmt.Fprintf(w, "  %v: queries %d  round trip %v  p50 %v  p99 %v  loss delay %v  slow delay %v%s\n",
			u.Upstream, u.Queries, roundDuration(u.SRTT), roundDuration(u.P50), roundDuration(u.P99), roundDuration(u.LossDelay), roundDuration(u.SlowDelay), map[bool]string{true: "  SILENT"}[u.Silent])
	}
	if parts.resolver != nil {
		r := parts.resolver.Stats()
		fmt.Fprintf(w, "from the root: questions %d  failures %d  queries %d (TCP %d)  hedges %d (won %d, denied %d)  timeouts %d  failovers %d  lame %d\n",
			r.Questions, r.Failures, r.Wire, r.TCP, r.Hedges, r.HedgeWins, r.Denied, r.Timeouts, r.Failovers, r.Lame)
		fmt.Fprintf(w, "  servers %d (resting %d)  zones %d  RRsets %d  bytes %d  first contact %v\n",
			r.Servers, r.Resting, r.Zones, r.RRsets, r.Bytes, roundDuration(r.FirstContact))
		if r.Bogus != nil {
			reportSecurity(w, r)
		}
	}
	if parts.validator != nil {
		reportSecurity(w, parts.validator.Stats())
	}
}

// reportSecurity writes the results of DNSSEC validation in s to w, as one line of WriteReport: the numbers of secure,
// insecure and bogus answers, and of responses that were rejected because of their signatures, so that another server
// was queried.
func reportSecurity(w io.Writer, s observe.RecursorStats) {
	fmt.Fprintf(w, "  secure %d  insecure %d  bogus %d  passed over %d\n", s.Secure, s.Insecure, countBogus(s), s.PassedOver)
}
