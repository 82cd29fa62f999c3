package signer_test

import (
	"encoding/base64"
	"fmt"
	"math/big"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/signer"
)

// TestRSAKeyOfAnySizeSigns raises each signature to the power of the exponent, which must give the padded hash.
func TestRSAKeyOfAnySizeSigns(t *testing.T) {
	for size, bits := range map[signer.RSASize]int{signer.RSA512: 512, signer.RSA1000: 1000, signer.RSA4096: 4096, signer.RSAExponent: 2048} {
		t.Run(fmt.Sprint(bits), func(t *testing.T) {
			k := signer.NewRSAKey("example.", signer.ZSK, size)
			b, err := base64.StdEncoding.DecodeString(k.PublicKey)
			require.NoError(t, err)
			exponent, modulus := new(big.Int).SetBytes(b[1:1+b[0]]), new(big.Int).SetBytes(b[1+b[0]:])
			assert.Equal(t, bits, modulus.BitLen())
			assert.Equal(t, size == signer.RSAExponent, exponent.BitLen() > 32)
			g, err := base64.StdEncoding.DecodeString(k.Sign(set(t, "www.example. 300 IN A 192.0.2.1"), signer.SignatureOptions{}).Signature)
			require.NoError(t, err)
			assert.Len(t, g, (bits+7)/8)
			text := new(big.Int).Exp(new(big.Int).SetBytes(g), exponent, modulus).Text(16)
			assert.Regexp(t, `^1(ff){8,}003031300d060960864801650304020105000420.{64}$`, text)
			assert.Equal(t, uint8(dns.RSASHA256), k.Algorithm)
		})
	}
}
