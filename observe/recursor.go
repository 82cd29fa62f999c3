package observe

import (
	"fmt"
	"net/netip"
	"time"
)

// RecursorStats holds the current state of a recursor.Resolver, and its counters since it was first used. In JSON,
// durations are numbers of nanoseconds.
type RecursorStats struct {
	Name string `json:"name,omitempty"` // as in [KeyInfo]

	Questions int64 `json:"questions"` // questions from callers
	Failures  int64 `json:"failures"`  // questions answered with SERVFAIL or an error
	Local     int64 `json:"local"`     // questions answered without servers: special-use names
	Lookups   int64 `json:"lookups"`   // names of name servers that were resolved

	Wire      int64 `json:"wire"`       // queries sent to servers, over UDP and TCP
	TCP       int64 `json:"tcp"`        // queries sent over TCP
	Hedges    int64 `json:"hedges"`     // queries sent because a response was late
	HedgeWins int64 `json:"hedge_wins"` // hedges that delivered the answer
	Denied    int64 `json:"denied"`     // hedges not sent because of the budget
	Timeouts  int64 `json:"timeouts"`   // queries sent because the retransmission timeout had passed
	Failovers int64 `json:"failovers"`  // queries sent because another server had failed
	Lame      int64 `json:"lame"`       // responses of lame servers, which do not serve the zone delegated to them
	Ignored   int64 `json:"ignored"`    // received messages that match no query: from unknown senders, damaged or forged
	Scrubbed  int64 `json:"scrubbed"`   // records that were removed from responses because their server has no authority for them

	// Limited is the number of questions that ended because of a limit, by the name of the field of recursor.Limits.
	// Limits that were never reached are missing.
	Limited map[string]int64 `json:"limited"`

	// Secure and the fields up to LastBogus are about DNSSEC validation. They are zero if it is off.
	//
	// Secure is the number of questions whose answers have a valid chain of trust to an anchor.
	Secure        int64            `json:"secure"`
	Insecure      int64            `json:"insecure"`      // questions whose answers are provably unsigned, or are not below an anchor
	Bogus         map[uint16]int64 `json:"bogus"`         // questions whose answers failed validation, by extended DNS error code (RFC 8914)
	Verifications int64            `json:"verifications"` // cost of verified signatures, in the units of recursor.Limits
	KeyQueries    int64            `json:"key_queries"`   // queries for DNSKEY records
	PassedOver    int64            `json:"passed_over"`   // responses that were rejected because of their signatures, so that another server was asked
	Synthesized   int64            `json:"synthesized"`   // answers, or parts of them, that were synthesized from cached proofs without asking a server (RFC 8198)
	Anchors       []RecursorAnchor `json:"anchors"`       // trust anchors of the root
	UnknownSEP    []uint16         `json:"unknown_sep"`   // key tags of root keys with the SEP flag that have no anchor
	ClockOff      time.Duration    `json:"clock_off"`     // distance of the clock from the validity period of the root's signatures, negative if the clock is before it; 0: within it

	// LastBogus are the most recent bogus answers, the newest first; at most 20.
	LastBogus []RecursorBogus `json:"last_bogus"`

	InFlight     int           `json:"in_flight"`     // queries waiting for a response
	Servers      int           `json:"servers"`       // known addresses of name servers
	Resting      int           `json:"resting"`       // addresses that are asked last for a while, because they did not respond
	Zones        int           `json:"zones"`         // zones with known name servers
	RRsets       int           `json:"rrsets"`        // cached RRsets
	Bytes        int64         `json:"bytes"`         // estimated memory for servers, zones and RRsets
	MaxBytes     int64         `json:"max_bytes"`     // limit of Bytes
	Budget       float64       `json:"budget"`        // hedges that the budget can pay for now
	FirstContact time.Duration `json:"first_contact"` // time after which the response of a server that was never asked before is late
}

// A RecursorAnchor is the state of a trust anchor of the root.
type RecursorAnchor struct {
	Tag     uint16 `json:"tag"`     // key tag
	Present bool   `json:"present"` // the DNSKEY records of the root contain the key
	Signs   bool   `json:"signs"`   // the key has signed these DNSKEY records
}

// A RecursorBogus describes an answer that failed DNSSEC validation.
type RecursorBogus struct {
	Time   time.Time      `json:"time"`
	Name   string         `json:"name"`            // queried name
	Type   string         `json:"type"`            // queried type: A, AAAA, ...
	Reason string         `json:"reason"`          // as returned by [ExtendedError]
	Text   string         `json:"text"`            // error text in one line
	Zone   string         `json:"zone,omitempty"`  // zone whose keys should have signed the answer; "": unknown
	Server netip.AddrPort `json:"server,omitzero"` // server that sent the response; invalid: unknown
}

// extendedErrors are the names of Extended DNS Error codes about signatures, as in IANA's registry (RFC 8914 section 4,
// RFC 9276 section 3.2).
var extendedErrors = map[uint16]string{
	0: "Other", 1: "Unsupported DNSKEY Algorithm", 2: "Unsupported DS Digest Type", 5: "DNSSEC Indeterminate", 6: "DNSSEC Bogus",
	7: "Signature Expired", 8: "Signature Not Yet Valid", 9: "DNSKEY Missing", 10: "RRSIGs Missing", 11: "No Zone Key Bit Set",
	12: "NSEC Missing", 27: "Unsupported NSEC3 Iterations Value",
}

// ExtendedError returns the name of an Extended DNS Error code (RFC 8914) about signatures, such as "Signature Expired"
// for 7. For any other code it returns "EDE" and the number, such as "EDE 99".
func ExtendedError(code uint16) string {
	if name := extendedErrors[code]; name != "" {
		return name
	}
	return fmt.Sprint("EDE ", code)
}
