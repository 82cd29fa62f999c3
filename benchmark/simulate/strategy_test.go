package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEveryStrategyHasAPlaceAndAnEngine(t *testing.T) {
	ranks, names := make(map[int]string), make(map[string]bool)
	for _, s := range strategies {
		assert.Empty(t, ranks[s.rank], "the rank of %s", s.name)
		assert.False(t, names[s.name], s.name)
		ranks[s.rank], names[s.name] = s.name, true
		assert.NotEmpty(t, s.description, s.name)
		offered := false
		for _, e := range engines() {
			for _, sc := range e.spec().scenarios {
				offered = offered || e.supports(sc, s)
			}
		}
		assert.True(t, offered, "%s runs nowhere", s.name)
	}
}
