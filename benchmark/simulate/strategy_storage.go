package main

// Package storelab runs these, and none, static-50ms and failsafe-quantile.
func init() {
	enter(
		strategy{
			name: "stall-timeout", rank: 1060, storage: true,
			about: "as Google's client with WithReadStallTimeout: if the first byte does not come in 500 ms, or the 99th percentile if that is longer, it sends the request again after a pause",
			look:  look{shade: shade{"#7e22ce", "#c084fc"}, highlight: true},
		},
		strategy{
			name: "stall-timeout-20ms", rank: 1062, storage: true, about: "the same with 20 ms instead of 500",
			look: look{shade: shade{"#be185d", "#f472b6"}},
		},
		strategy{
			name: "parts-4", rank: 1064, storage: true, about: "four parts of each range at the same time, as the downloader of the AWS SDK reads what is larger than its parts",
			look: look{shade: shade{"#c2410c", "#fb923c"}},
		},
		strategy{
			name: "hedge-resume", rank: 1070, storage: true, about: "this library's Transport with WithResume",
			look: look{shade: shade{"#0284c7", "#38bdf8"}, highlight: true},
		},
		strategy{
			name: "rangeread", rank: 1080, storage: true, about: "this library's package of that name",
			look: look{shade: shade{"#1d4ed8", "#60a5fa"}, highlight: true},
		},
	)
}
