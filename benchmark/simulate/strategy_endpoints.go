package main

// Package endpointlab runs these, and none and hedge, which go to the near endpoint.
func init() {
	enter(
		strategy{
			name: "far", rank: 1090, endpoints: true, about: "all calls go to the last of the endpoints",
			look: look{shade: shade{"#7e22ce", "#c084fc"}},
		},
		strategy{
			name: "failover", rank: 1092, endpoints: true, about: "after an error, a call goes to the next endpoint",
			look: look{shade: shade{"#c2410c", "#fb923c"}, highlight: true},
		},
		strategy{
			name: "far-hedge", rank: 1094, endpoints: true, about: "this library, all calls go to the last of the endpoints",
			look: look{shade: shade{"#0e7490", "#22d3ee"}},
		},
		strategy{
			name: "hedge-endpoints", rank: 1096, endpoints: true, chooses: true, about: "this library with WithEndpoints",
			look: look{shade: shade{"#0284c7", "#38bdf8"}, highlight: true},
		},
		strategy{
			name: "hedge-endpoints-3", rank: 1098, endpoints: true, chooses: true, about: "the same, and a hedge to another endpoint than the first one costs three tokens",
			look: look{shade: shade{"#1e40af", "#93c5fd"}, highlight: true},
		},
	)
}
