package main

// Package faultlab runs these, and net-resolver and unbound.
func init() {
	enter(
		strategy{
			name: "hedge-resolvconf", rank: 1030, faults: true, about: "this library's DNS client without Upstreams, which reads resolv.conf",
			look: look{shade: shade{"#1d4ed8", "#60a5fa"}, highlight: true},
		},
		strategy{
			name: "hedge-upstreams", rank: 1040, faults: true, about: "the same with both servers as Upstreams; with OrderStrict if they know different names",
			look: look{shade: shade{"#0284c7", "#38bdf8"}, highlight: true},
		},
		strategy{
			name: "hedge-fallback", rank: 1050, faults: true, about: "the same with the second server as Fallback",
			look: look{shade: shade{"#0e7490", "#22d3ee"}, highlight: true},
		},
	)
}
