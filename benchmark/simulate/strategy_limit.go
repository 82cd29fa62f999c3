package main

// Package limitlab runs these, and none, which has no limit.
func init() {
	enter(
		strategy{
			name: "fixed-best", rank: 1100, limits: true, about: "the best limit that does not change, found afterwards",
			look: look{shade: shade{"#a16207", "#facc15"}, dashed: true, highlight: true},
		},
		strategy{
			name: "adaptive-1", rank: 1102, limits: true, finds: true, about: "this library's limit that finds itself, from 1",
			look: look{shade: shade{"#0284c7", "#38bdf8"}, highlight: true},
		},
		strategy{
			name: "adaptive-10000", rank: 1104, limits: true, finds: true, about: "the same, from 10,000",
			look: look{shade: shade{"#1e40af", "#93c5fd"}, highlight: true},
		},
		strategy{
			name: "failsafe-adaptive", rank: 1106, limits: true, finds: true, about: "failsafe-go's AdaptiveLimiter with its defaults, and our line before it",
			look: look{shade: shade{"#15803d", "#4ade80"}},
		},
		strategy{
			name: "gradient2", rank: 1108, limits: true, finds: true, about: "Netflix' gradient2 with its defaults, written anew from its description, and our line before it",
			look: look{shade: shade{"#b91c1c", "#f87171"}},
		},
	)
}
