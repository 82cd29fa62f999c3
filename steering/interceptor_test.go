//go:build !hedge_nogrpc

package steering_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/steering"
)

func TestMethodsOnlyForbid(t *testing.T) {
	unsetVariables(t)
	in := hedge.NewInterceptor(hedge.WithMethods("/shop.Cart/*"), hedge.WithDeclaredMethods())
	for _, test := range []struct {
		methods map[string]bool
		hedged  []string
	}{
		{nil, []string{"/shop.Cart/Get", "/shop.Cart/Put"}},
		{map[string]bool{"/shop.Cart/Put": false}, []string{"/shop.Cart/Get"}},
		{map[string]bool{"/*": false, "/shop.Cart/*": true, "/shop.Cart/Put": false, "/shop.Order/Get": true}, []string{"/shop.Cart/Get"}},
		{map[string]bool{"/*": false}, nil},
		{map[string]bool{"/*": true}, []string{"/shop.Cart/Get", "/shop.Cart/Put"}},
	} {
		require.NoError(t, steering.File{Methods: test.methods}.Apply(in))
		var hedged []string
		for _, method := range []string{"/shop.Cart/Get", "/shop.Cart/Put", "/shop.Order/Get"} {
			if n, _ := in.Hedges(method); n > 0 {
				hedged = append(hedged, method)
			}
		}
		assert.Equal(t, test.hedged, hedged, "%v", test.methods)
	}
	require.NoError(t, steering.File{Methods: map[string]bool{"/*": false}}.Apply(in))
	_, why := in.Hedges("/shop.Cart/Get")
	assert.Equal(t, "the file with settings excludes it", why)
}
