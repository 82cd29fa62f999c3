package twin_test

import (
	"container/list"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/hedgetest/internal/twin"
)

func text(t *testing.T, v any) string {
	s, err := twin.FormatValue(v)
	require.NoError(t, err)
	return s
}

type node struct {
	Name         string
	Child, Owner *node
}

// TestFormatValueDistinguishesCyclicPointers has a pointer that moves from its grandparent to its parent.
func TestFormatValueDistinguishesCyclicPointers(t *testing.T) {
	chain := func(owner int) *node {
		all := [3]*node{{Name: "a"}, {Name: "b"}, {Name: "c"}}
		all[0].Child, all[1].Child, all[2].Owner = all[1], all[2], all[owner]
		return all[0]
	}
	assert.Equal(t, text(t, chain(0)), text(t, chain(0)))
	assert.NotEqual(t, text(t, chain(0)), text(t, chain(1)))
	assert.NotEqual(t, text(t, chain(1)), text(t, chain(2)))
}

// TestFormatValueWritesSharedMemoryOnce has an LRU cache: a map to the elements of a list, each of which leads to all others.
func TestFormatValueWritesSharedMemoryOnce(t *testing.T) {
	cache := func(n int) any {
		l, elements := list.New(), make(map[int]*list.Element)
		for i := range n {
			elements[i] = l.PushBack(i)
		}
		return []any{l, elements}
	}
	assert.Less(t, len(text(t, cache(400))), 5*len(text(t, cache(100))))
	assert.Equal(t, text(t, cache(100)), text(t, cache(100)))
}

// TestFormatValueIsEqualForEqualStates has maps whose keys, or values, are pointers.
func TestFormatValueIsEqualForEqualStates(t *testing.T) {
	for name, state := range map[string]func() any{
		"keys":        func() any { return map[*node]int{{Name: "a"}: 1, {Name: "b"}: 2, {Name: "c"}: 3} },
		"equal keys":  func() any { return map[*node]int{{Name: "a"}: 1, {Name: "a"}: 2, {Name: "a"}: 3} },
		"shared":      func() any { n := &node{Name: "a"}; return map[int]*node{1: n, 2: n, 3: {Name: "a"}} },
		"of itself":   func() any { m := map[string]any{}; m["m"] = m; return m },
		"empty parts": func() any { return []any{[]int(nil), []int{}, map[int]int{}, &struct{}{}, &struct{}{}, []string{}} },
	} {
		for range 10 {
			assert.Equal(t, text(t, state()), text(t, state()), name)
		}
	}
	assert.Equal(t, text(t, []int(nil)), text(t, []int{}))
	one := &node{Name: "a"}
	assert.NotEqual(t, text(t, []*node{one, one}), text(t, []*node{one, {Name: "a"}}), "a change of the first is one of the second")
}
