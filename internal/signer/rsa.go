package signer

import (
	"crypto/rsa"
	_ "crypto/sha1" // of algorithms 5 and 7
	"crypto/sha512"
	"fmt"
	"math/big"
	"sync"
)

// rsaKeys are functions that return the shared RSA keys: two zone-signing keys, and then two key-signing keys. Each key is
// generated when its function is first called.
var rsaKeys = [4]func() *rsa.PrivateKey{newRSAKeyFunc(0), newRSAKeyFunc(1), newRSAKeyFunc(2), newRSAKeyFunc(3)}

// newRSAKeyFunc returns a function that returns RSA key number i. The function generates the key when it is first called.
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

// exponent is the public exponent of the shared RSA keys.
const exponent = 65537

// PrecomputeRSAKeys generates the shared RSA keys, which takes about a second. A test or benchmark calls it first, so that its
// first RSA signatures are not delayed.
func PrecomputeRSAKeys() {
	var all sync.WaitGroup
	for _, f := range rsaKeys {
		all.Go(func() { f() })
	}
	all.Wait()
}

// findPrime returns a prime number of 1,024 bits that is derived from the label. Its two highest bits are set, so that the
// product of two such primes has 2,048 bits. The prime minus one is not divisible by the public exponent, as RSA requires.
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
