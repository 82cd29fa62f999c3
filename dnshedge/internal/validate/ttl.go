package validate

const maxTTL = 1<<31 - 1 // RFC 2181 §8

// ValidTTL returns a TTL in seconds. From 2^31 on it counts as 0 (RFC 2181 §8).
func ValidTTL(ttl uint32) uint32 {
	if ttl > maxTTL {
		return 0
	}
	return ttl
}
