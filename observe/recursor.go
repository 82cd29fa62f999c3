package observe

import (
	"fmt"
	"net/netip"
	"time"
)

// RecursorStats holds the current state of a recursor.Resolver, and its counters since its first use. In JSON,
// durations are numbers of nanoseconds.
type RecursorStats struct {
	Name string `json:"name,omitempty"` // Name of the recursor.Resolver

	Questions int64 `json:"questions"` // DNS questions from callers
	Failures  int64 `json:"failures"`  // questions answered with SERVFAIL or an error
	Local     int64 `json:"local"`     // questions answered without servers: special-use names
	Lookups   int64 `json:"lookups"`   // host names of name servers whose addresses were looked up

	Wire      int64 `json:"wire"`       // queries sent to servers, over UDP and TCP
	TCP       int64 `json:"tcp"`        // queries sent over TCP
	Hedges    int64 `json:"hedges"`     // queries sent because a response was late
	HedgeWins int64 `json:"hedge_wins"` // hedges whose response was used
	Denied    int64 `json:"denied"`     // hedges not sent because of the budget
	Timeouts  int64 `json:"timeouts"`   // queries sent because the retransmission timeout had passed
	Failovers int64 `json:"failovers"`  // queries sent because another server had failed
	Lame      int64 `json:"lame"`       // responses of lame servers, which do not serve the zone delegated to them
	Ignored   int64 `json:"ignored"`    // received messages that match no query: from unknown senders, damaged or forged
	Scrubbed  int64 `json:"scrubbed"`   // records that were removed from responses because their server has no authority for them

	// Limited is the number of questions that ended because of a limit. The map key is the name of the field of
	// recursor.Limits. Limits that were never reached are missing.
	Limited map[string]int64 `json:"limited"`

	// Secure is the number of questions whose answers have a valid chain of trust to a trust anchor.
	//
	// Secure and the fields up to LastBogus are about DNSSEC validation. They are zero if validation is off.
	Secure        int64            `json:"secure"`
	Insecure      int64            `json:"insecure"`      // questions whose answers are provably unsigned, or whose names no trust anchor covers
	Bogus         map[uint16]int64 `json:"bogus"`         // questions whose answers failed validation, by extended DNS error code (RFC 8914)
	Verifications int64            `json:"verifications"` // cost of verified signatures, in the units of recursor.Limits
	KeyQueries    int64            `json:"key_queries"`   // queries for DNSKEY records
	PassedOver    int64            `json:"passed_over"`   // responses that were rejected because of their signatures, so that the recursor queried another server
	Synthesized   int64            `json:"synthesized"`   // answers, or parts of answers, that were synthesized from cached proofs without querying a server (RFC 8198)
	Anchors       []RecursorAnchor `json:"anchors"`       // trust anchors of the root
	UnknownSEP    []uint16         `json:"unknown_sep"`   // key tags of root keys with the SEP flag that have no anchor
	ClockOff      time.Duration    `json:"clock_off"`     // time by which the local clock is outside the validity period of the root's signatures, negative if the clock is before that period; 0: within the period

	// LastBogus lists the most recent bogus answers, the newest first; at most 20.
	LastBogus []RecursorBogus `json:"last_bogus"`

	InFlight     int           `json:"in_flight"`     // queries waiting for a response
	Servers      int           `json:"servers"`       // known addresses of name servers
	Resting      int           `json:"resting"`       // addresses that are queried only after all others for a while, because they did not respond
	Zones        int           `json:"zones"`         // zones with known name servers
	RRsets       int           `json:"rrsets"`        // cached RRsets
	Bytes        int64         `json:"bytes"`         // estimated memory for servers, zones and RRsets
	MaxBytes     int64         `json:"max_bytes"`     // limit of Bytes
	Budget       float64       `json:"budget"`        // hedges that the budget suffices for now
	FirstContact time.Duration `json:"first_contact"` // time after which the response of a server that was never queried before counts as late
}

// A RecursorAnchor tells whether a configured trust anchor of the root matches a key that the root currently publishes.
type RecursorAnchor struct {
	Tag     uint16 `json:"tag"`     // key tag of the trust anchor
	Present bool   `json:"present"` // true if the DNSKEY records of the root contain the key
	Signs   bool   `json:"signs"`   // true if the key has signed these DNSKEY records
}

// A RecursorBogus describes an answer that failed DNSSEC validation, for logs and debug pages.
type RecursorBogus struct {
	Time   time.Time      `json:"time"`            // time of the validation
	Name   string         `json:"name"`            // queried name
	Type   string         `json:"type"`            // queried type: A, AAAA, ...
	Reason string         `json:"reason"`          // name of the Extended DNS Error, see [ExtendedError]
	Text   string         `json:"text"`            // text of the validation error, in one line
	Zone   string         `json:"zone,omitempty"`  // zone whose keys should have signed the answer; "": unknown
	Server netip.AddrPort `json:"server,omitzero"` // server that sent the response; invalid: unknown
}

// extendedErrors maps Extended DNS Error codes about DNSSEC to their names in the IANA registry (RFC 8914 section 4,
// RFC 9276 section 3.2).
var extendedErrors = map[uint16]string{
	0: "Other", 1: "Unsupported DNSKEY Algorithm", 2: "Unsupported DS Digest Type", 5: "DNSSEC Indeterminate", 6: "DNSSEC Bogus",
	7: "Signature Expired", 8: "Signature Not Yet Valid", 9: "DNSKEY Missing", 10: "RRSIGs Missing", 11: "No Zone Key Bit Set",
	12: "NSEC Missing", 27: "Unsupported NSEC3 Iterations Value",
}

// ExtendedError returns the name of an Extended DNS Error code (RFC 8914) about DNSSEC, such as "Signature Expired" for
// 7. For any other code it returns "EDE" and the number, such as "EDE 99".
func ExtendedError(code uint16) string {
	if name := extendedErrors[code]; name != "" {
		return name
	}
	return fmt.Sprint("EDE ", code)
}
