package virtual

import "time"

type eventKind uint8

const (
	requestArrived eventKind = iota
	hedgeDue                 // of a call
	attemptAnswered
	jobFinished
	callTimedOut
)

// An event is a change of the simulation at a scheduled time.
type event struct {
	at     time.Duration
	seq    uint64 // events at the same time happen in the order in which they were pushed
	call   callID // for requestArrived: unused; for jobFinished: its generation is that of the server
	server *server
	n      uint8 // attempt
	kind   eventKind
}

func (e *event) isBefore(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// An eventQueue is a binary heap with the earliest event first. container/heap would allocate for each event.
type eventQueue struct {
	list []event
	seq  uint64
}

func (h *eventQueue) pushEvent(e event) {
	h.seq++
	e.seq = h.seq
	h.list = append(h.list, e)
	i := len(h.list) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h.list[parent].isBefore(&e) {
			break
		}
		h.list[i] = h.list[parent]
		i = parent
	}
	h.list[i] = e
}

// popEvent removes and returns the earliest event of a queue that is not empty.
func (h *eventQueue) popEvent() event {
	top := h.list[0]
	last := len(h.list) - 1
	e := h.list[last]
	h.list = h.list[:last]
	if last == 0 {
		return top
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && h.list[child+1].isBefore(&h.list[child]) {
			child++
		}
		if e.isBefore(&h.list[child]) {
			break
		}
		h.list[i] = h.list[child]
		i = child
	}
	h.list[i] = e
	return top
}
