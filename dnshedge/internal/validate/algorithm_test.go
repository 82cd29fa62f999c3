package validate_test

import (
	"encoding/asn1"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// Two numbers of a signature are what encoding/asn1 makes of them, whatever bytes they begin with.
func TestEncodeECDSASignatureMatchesASN1(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	number := func(size int) []byte {
		b := make([]byte, size)
		for i := rng.IntN(size + 1); i < size; i++ {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	for i := range 2000 {
		size := 32 + 16*(i%2)
		r, s := number(size), number(size)
		want, err := asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(r), new(big.Int).SetBytes(s)})
		require.NoError(t, err)
		assert.Equal(t, want, validate.Sequence(r, s))
	}
}
