package main

// Package placelab runs these, and none and hedge, which go to the near place.
func init() {
	enter(
		strategy{
			name: "far", rank: 1090, places: true, about: "all calls go to the last of the places",
			look: look{shade: shade{"#7e22ce", "#c084fc"}},
		},
		strategy{
			name: "failover", rank: 1092, places: true, about: "after an error, a call goes to the next place",
			look: look{shade: shade{"#c2410c", "#fb923c"}, highlight: true},
		},
		strategy{
			name: "far-hedge", rank: 1094, places: true, about: "this library, all calls go to the last of the places",
			look: look{shade: shade{"#0e7490", "#22d3ee"}},
		},
		strategy{
			name: "hedge-places", rank: 1096, places: true, chooses: true, about: "this library with WithPlaces",
			look: look{shade: shade{"#0284c7", "#38bdf8"}, highlight: true},
		},
		strategy{
			name: "hedge-places-3", rank: 1098, places: true, chooses: true, about: "the same, and a hedge to another place than the first one costs three tokens",
			look: look{shade: shade{"#1e40af", "#93c5fd"}, highlight: true},
		},
	)
}
