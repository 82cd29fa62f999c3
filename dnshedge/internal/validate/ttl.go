package validate

const maxTTL = 1<<31 - 1 // maximum TTL in seconds (RFC 2181 §8)

// ValidTTL returns ttl, in seconds. If ttl is above the maximum of 2^31 - 1, it returns 0 (RFC 2181 §8).
func ValidTTL(ttl uint32) uint32 {
	if ttl > maxTTL {
		return 0
	}
	return ttl
}
