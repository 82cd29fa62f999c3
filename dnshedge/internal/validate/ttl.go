package validate

const maxTTL = 1<<31 - 1 // maxTTL is the highest TTL in seconds (RFC 2181 §8).

// ValidTTL returns a TTL in seconds, and 0 in place of a value from 2^31 on (RFC 2181 §8).
func ValidTTL(ttl uint32) uint32 {
	if ttl > maxTTL {
		return 0
	}
	return ttl
}
