package engine

import "github.com/gohedge/hedge/observe"

// None is no reason to deny: a hedge may start.
const None observe.Reason = ""
