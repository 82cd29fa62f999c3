package recursor

import "github.com/gohedge/hedge/observe"

// Stats is what a Resolver knows and has done. The fields are documented at
// observe.RecursorStats, for which debug and hedgeprom need no package recursor.
type Stats = observe.RecursorStats

// Stats returns what the Resolver knows and did. The zero Stats is that of a Resolver whose
// fields are invalid.
func (r *Resolver) Stats() Stats { return Stats{} }
