package validate

const maxTTL = 1<<31 - 1 // maximum TTL in seconds (RFC 2181 §8)

// ValidTTL returns ttl, or 0 if ttl is above the maximum of 2^31 - 1 (RFC 2181 §8).
func ValidTTL(ttl uint32) uint32 {
	if ttl > maxTTL {
		return 0
	}
	return ttl
}
