package hedgetest_test

import (
	"container/list"
	"context"
	"math"
	"math/big"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unique"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/hedgetest"
)

// failuresOf returns the failures of a TwiceFunc of which each call makes a change to the state.
func failuresOf(t *testing.T, change func(n int), state func() any) string {
	t.Helper()
	f := &failures{TB: t}
	var mu sync.Mutex
	n := 0
	call := hedgetest.TwiceFunc(f, func(context.Context) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		n++
		change(n)
		return 0, nil
	}, state)
	_, err := call(t.Context())
	require.NoError(t, err)
	return strings.Join(f.all, "\n")
}

type account struct{ balance int }

// TestTwiceReadsStatesOfPackageSync covers states that change, and states that are replaced by equal ones.
func TestTwiceReadsStatesOfPackageSync(t *testing.T) {
	var orders, settings sync.Map
	var current, same atomic.Pointer[account]
	var value, sameValue atomic.Value
	var count, sameCount atomic.Int64
	var flag, sameFlag atomic.Bool
	queue, slots := make(chan int, 10), make(chan struct{}, 10)
	quiet := make(chan int)
	kept := new(account)
	current.Store(kept)
	ref := weak.Make(kept)
	for name, test := range map[string]struct {
		change  func(n int)
		state   any
		changes bool
	}{
		"sync.Map grows":                  {func(n int) { orders.Store(n, "book") }, &orders, true},
		"sync.Map in a field":             {func(n int) { orders.Store(n, account{n + 10}) }, struct{ m *sync.Map }{&orders}, true},
		"sync.Map with NaN":               {func(int) { orders.Store(math.NaN(), 1) }, &orders, true},
		"sync.Map is set to the same":     {func(int) { settings.Store("currency", &account{1}) }, &settings, false},
		"atomic.Pointer's target changes": {func(int) { kept.balance++ }, &current, true},
		"weak.Pointer's target changes":   {func(int) { kept.balance++ }, ref, true},
		"atomic.Pointer in a map":         {func(int) { kept.balance++ }, map[string]*atomic.Pointer[account]{"a": &current}, true},
		"atomic.Pointer is set to equal":  {func(int) { same.Store(&account{1}) }, &same, false},
		"atomic.Value changes":            {func(n int) { value.Store(n) }, &value, true},
		"atomic.Value is set to equal":    {func(int) { sameValue.Store(map[string]int{"a": 1}) }, &sameValue, false},
		"atomic.Int64 changes":            {func(int) { count.Add(1) }, &count, true},
		"atomic.Int64 stays":              {func(int) { sameCount.Store(7) }, &sameCount, false},
		"atomic.Bool changes":             {func(n int) { flag.Store(n == 3) }, &flag, true},
		"atomic.Bool stays":               {func(int) { sameFlag.Store(true) }, &sameFlag, false},
		"channel fills":                   {func(n int) { queue <- n }, queue, true},
		"channel of nothing fills":        {func(int) { slots <- struct{}{} }, slots, true},
		"channel is empty":                {func(int) {}, struct{ a, b chan int }{quiet, make(chan int, 3)}, false},
		"mutex, pool and the like are not": {func(int) {}, &struct {
			sync.Mutex
			pool sync.Pool
			wg   sync.WaitGroup
		}{pool: sync.Pool{New: func() any { return 1 }}}, false},
	} {
		all := failuresOf(t, test.change, func() any { return test.state })
		assert.Equal(t, test.changes, strings.Contains(all, "it changes the state"), "%s: %s", name, all)
		if !test.changes {
			assert.Empty(t, all, name)
		}
	}
}

// TestTwiceFailsOnUnreadableState has states that stay as they are, as far as can be seen.
func TestTwiceFailsOnUnreadableState(t *testing.T) {
	full := make(chan int, 3)
	full <- 1
	n := 7
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer c.Close()
	for where, state := range map[string]any{
		"it is a chan int":               full,
		".queue is a <-chan int":         struct{ queue <-chan int }{full},
		".next is a func() int":          &struct{ next func() int }{func() int { return n }},
		"it[key] is a chan int":          map[chan int]bool{full: true},
		"[1] is a func()":                []any{1, func() {}},
		"it is a unsafe.Pointer":         unsafe.Pointer(&n),
		"it is a time.Timer":             time.NewTimer(time.Hour),
		"it is a reflect.Value":          reflect.ValueOf(n),
		"is a poll.FD":                   os.Stdin,
		".pfd is a poll.FD, whose conte": c,
	} {
		all := failuresOf(t, func(int) {}, func() any { return state })
		assert.Contains(t, all, "hedgetest: whether the function changes the state cannot be told", where)
		assert.Contains(t, all, where)
	}
	var hidden sync.Map
	hidden.Store("a", func() {})
	assert.Contains(t, failuresOf(t, func(int) {}, func() any { return &hidden }), "is a func()")
	all := failuresOf(t, func(int) { full <- <-full }, func() any { return full })
	assert.Contains(t, all, "whose elements cannot be read", "an element is replaced")
}

// TestTwiceReadsStatesOfTheStandardLibrary has values whose fields are not exported, and nils of all kinds.
func TestTwiceReadsStatesOfTheStandardLibrary(t *testing.T) {
	var b strings.Builder
	l, x := list.New(), big.NewInt(1)
	handle := unique.Make("a")
	for name, test := range map[string]struct {
		change func(n int)
		state  any
	}{
		"strings.Builder": {func(int) { b.WriteString("x") }, &b},
		"list.List":       {func(n int) { l.PushBack(n) }, l},
		"big.Int":         {func(int) { x.Add(x, x) }, x},
		"unique.Handle":   {func(n int) { handle = unique.Make(strings.Repeat("a", n)) }, &handle},
	} {
		assert.Contains(t, failuresOf(t, test.change, func() any { return test.state }), "it changes the state", name)
	}
	var nils struct {
		f  func()
		c  chan int
		p  unsafe.Pointer
		i  any
		m  *sync.Map
		v  atomic.Value
		t  *time.Timer
		rt reflect.Type
		at time.Time
		na map[float64]float64
	}
	nils.na = map[float64]float64{math.NaN(): math.NaN()}
	nils.rt = reflect.TypeFor[int]()
	assert.Empty(t, failuresOf(t, func(int) {}, func() any { return nils }))
	assert.Empty(t, failuresOf(t, func(int) {}, func() any { return nil }))
}

// TestTwiceFuncComparesResultsByContent has results that are equal, results that a later call changes, and results that cannot be read.
func TestTwiceFuncComparesResultsByContent(t *testing.T) {
	type quote struct {
		price float64
		more  map[string]any
	}
	shared, list, table, fixed := new(account), []int{0}, map[string]int{}, &struct{ f func() }{func() {}}
	for name, test := range map[string]struct {
		call    func(n int) any
		differs bool
	}{
		"NaN":                     {func(int) any { return quote{math.NaN(), map[string]any{"a": []float64{math.NaN()}}} }, false},
		"NaN as a key":            {func(int) any { return map[float64]int{math.NaN(): 1} }, false},
		"complex NaN":             {func(int) any { return complex(math.NaN(), 0) }, false},
		"NaN and a number":        {func(n int) any { return []float64{math.NaN(), float64(n)} }, true},
		"shared pointer, counts":  {func(int) any { shared.balance++; return shared }, true},
		"shared slice, counts":    {func(int) any { list[0]++; return list }, true},
		"shared map, counts":      {func(int) any { table["a"]++; return table }, true},
		"equal pointers":          {func(int) any { return &account{1} }, false},
		"other type":              {func(n int) any { return []any{int64(n / 3), map[bool]any{true: 1, false: int8(1)}[n == 3]} }, true},
		"shared, with a function": {func(int) any { return fixed }, false},
		"new, with a function":    {func(int) any { return &struct{ f func() }{func() {}} }, true},
	} {
		f := &failures{TB: t}
		var mu sync.Mutex
		n := 0
		call := hedgetest.TwiceFunc(f, func(context.Context) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			n++
			return test.call(n), nil
		}, nil)
		_, err := call(t.Context())
		require.NoError(t, err)
		assert.Equal(t, test.differs, len(f.all) > 0, "%s: %v", name, f.all)
	}
}
