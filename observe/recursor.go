package observe

import (
	"fmt"
	"net/netip"
	"time"
)

// RecursorStats has the present numbers of a recursor.Resolver, and its counters since it was first used. In
// JSON, durations are numbers of nanoseconds.
type RecursorStats struct {
	Name string `json:"name,omitempty"` // as in [KeyInfo]

	Questions int64 `json:"questions"` // of callers
	Failures  int64 `json:"failures"`  // of them that were answered with SERVFAIL or an error
	Local     int64 `json:"local"`     // of them that were answered without servers: special-use names
	Lookups   int64 `json:"lookups"`   // names of servers that were looked up

	Wire      int64 `json:"wire"`       // queries sent to servers, over UDP and TCP
	TCP       int64 `json:"tcp"`        // of them over TCP
	Hedges    int64 `json:"hedges"`     // queries sent because an answer was late
	HedgeWins int64 `json:"hedge_wins"` // hedges that gave the answer
	Denied    int64 `json:"denied"`     // hedges not sent: the budget forbade it
	Timeouts  int64 `json:"timeouts"`   // queries sent because the retransmission timeout had passed
	Failovers int64 `json:"failovers"`  // queries sent because another server could not answer
	Lame      int64 `json:"lame"`       // responses of servers that do not serve the zone that they should
	Ignored   int64 `json:"ignored"`    // messages that answered no query: from strangers, damaged or forged
	Scrubbed  int64 `json:"scrubbed"`   // records in responses that were not believed

	// Limited counts the questions that ended at a limit, by the field of recursor.Limits.
	// Limits that were never reached are missing.
	Limited map[string]int64 `json:"limited"`

	// What validation says of answers. All is zero, and nil, if it is off.
	Secure        int64            `json:"secure"`        // questions with answers that are signed, from an anchor on
	Insecure      int64            `json:"insecure"`      // that are proven not to be, or that no anchor is for
	Bogus         map[uint16]int64 `json:"bogus"`         // that ought to be and are not rightly, by the code of the extended error (RFC 8914)
	Verifications int64            `json:"verifications"` // the cost of verified signatures, in the units of recursor.Limits
	KeyQueries    int64            `json:"key_queries"`   // questions for DNSKEY records that zones' servers were asked
	PassedOver    int64            `json:"passed_over"`   // responses that were not taken for their signatures: another server was asked
	Synthesized   int64            `json:"synthesized"`   // answers, or parts of them, that were made of proofs of others: no server was asked (RFC 8198)
	Anchors       []RecursorAnchor `json:"anchors"`       // of the root
	UnknownSEP    []uint16         `json:"unknown_sep"`   // tags of the root's keys with the SEP flag that no anchor knows
	ClockOff      time.Duration    `json:"clock_off"`     // by how much the clock is before (negative) or after the time in which the root's signatures are valid; 0: it is not

	// LastBogus are the last answers that were bogus, the newest first: 20 at most.
	LastBogus []RecursorBogus `json:"last_bogus"`

	InFlight     int           `json:"in_flight"`     // queries that wait for answers
	Servers      int           `json:"servers"`       // addresses of servers that are known
	Resting      int           `json:"resting"`       // of them that are not asked first for a while, because they were silent
	Zones        int           `json:"zones"`         // whose servers are known
	RRsets       int           `json:"rrsets"`        // kept
	Bytes        int64         `json:"bytes"`         // that all this takes, estimated
	MaxBytes     int64         `json:"max_bytes"`     // that it may take
	Budget       float64       `json:"budget"`        // hedges that would be paid for now
	FirstContact time.Duration `json:"first_contact"` // when a server that was never asked is late
}

// RecursorAnchor is a trust anchor of the root.
type RecursorAnchor struct {
	Tag     uint16 `json:"tag"`     // of the key
	Present bool   `json:"present"` // the root's DNSKEY records have it
	Signs   bool   `json:"signs"`   // and are signed by it
}

// RecursorBogus is an answer that was bogus.
type RecursorBogus struct {
	Time   time.Time      `json:"time"`
	Name   string         `json:"name"`            // that was asked for
	Type   string         `json:"type"`            // A, AAAA, ...
	Reason string         `json:"reason"`          // as [ExtendedError] names it
	Text   string         `json:"text"`            // the error, in one line
	Zone   string         `json:"zone,omitempty"`  // whose keys should have signed it; "": not known
	Server netip.AddrPort `json:"server,omitzero"` // whose response it was; invalid: not known
}

// extendedErrors are the names of extended errors about signatures, as IANA's registry "Extended DNS Error Codes" has them
// (RFC 8914 §4, RFC 9276 §3.2).
var extendedErrors = map[uint16]string{
	0: "Other", 1: "Unsupported DNSKEY Algorithm", 2: "Unsupported DS Digest Type", 5: "DNSSEC Indeterminate", 6: "DNSSEC Bogus",
	7: "Signature Expired", 8: "Signature Not Yet Valid", 9: "DNSKEY Missing", 10: "RRSIGs Missing", 11: "No Zone Key Bit Set",
	12: "NSEC Missing", 27: "Unsupported NSEC3 Iterations Value",
}

// ExtendedError returns the name of an Extended DNS Error code (RFC 8914) about signatures, such as "Signature Expired" for 7, and "EDE 99" for a
// code without a name.
func ExtendedError(code uint16) string {
	if name := extendedErrors[code]; name != "" {
		return name
	}
	return fmt.Sprint("EDE ", code)
}
