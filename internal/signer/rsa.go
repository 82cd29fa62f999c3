package signer

import (
	"crypto/rsa"
	_ "crypto/sha1" // of algorithms 5 and 7
	"crypto/sha512"
	"fmt"
	"math/big"
	"sync"
)

// rsaKeys are two keys for the data of zones, and two that sign keys.
var rsaKeys = [4]func() *rsa.PrivateKey{newRSAKeyFunc(0), newRSAKeyFunc(1), newRSAKeyFunc(2), newRSAKeyFunc(3)}

// newRSAKeyFunc returns what makes a key, once.
func newRSAKeyFunc(i int) func() *rsa.PrivateKey {
	return sync.OnceValue(func() *rsa.PrivateKey {
		p, q := findPrime(fmt.Sprint("p", i)), findPrime(fmt.Sprint("q", i))
		one := big.NewInt(1)
		phi := new(big.Int).Mul(new(big.Int).Sub(p, one), new(big.Int).Sub(q, one))
		k := &rsa.PrivateKey{
			PublicKey: rsa.PublicKey{N: new(big.Int).Mul(p, q), E: exponent},
			D:         new(big.Int).ModInverse(big.NewInt(exponent), phi), Primes: []*big.Int{p, q},
		}
		k.Precompute()
		return k
	})
}

const exponent = 65537

// Prepare makes the RSA keys, which takes about a second, for those whose first signature must not take as long.
func Prepare() {
	var all sync.WaitGroup
	for _, f := range rsaKeys {
		all.Go(func() { f() })
	}
	all.Wait()
}

// findPrime returns a number of 1,024 bits, of which the first two and the last are set, that is prime
// and has no factor in common with the exponent after one is subtracted.
func findPrime(label string) *big.Int {
	a, b := sha512.Sum512([]byte(label+"a")), sha512.Sum512([]byte(label+"b"))
	n := new(big.Int).SetBytes(append(a[:], b[:]...))
	n.SetBit(n.SetBit(n.SetBit(n, 1023, 1), 1022, 1), 0, 1)
	two, rest := big.NewInt(2), new(big.Int)
	for ; ; n.Add(n, two) {
		if rest.Mod(n, big.NewInt(exponent)).Int64() != 1 && n.ProbablyPrime(0) {
			return n
		}
	}
}
