package virtual

import "time"

type kind uint8

const (
	arrival kind = iota // of a request
	due                 // a hedge of a call
	answer              // to an attempt
	served              // the attempt in a slot
	giveUp              // by the caller
)

// event is what happens at a time.
type event struct {
	at   time.Duration
	seq  uint64 // events of one time happen in the order they were pushed in
	call ref    // for arrival: unused; for served: its gen is the slot's
	slot *slot
	n    uint8 // attempt
	kind kind
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// heap is a binary heap of events. Package container's would box each of them.
type heap struct {
	list []event
	seq  uint64
}

func (h *heap) len() int { return len(h.list) }

func (h *heap) push(e event) {
	h.seq++
	e.seq = h.seq
	h.list = append(h.list, e)
	i := len(h.list) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h.list[parent].before(&e) {
			break
		}
		h.list[i] = h.list[parent]
		i = parent
	}
	h.list[i] = e
}

func (h *heap) pop() event {
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
		if child+1 < last && h.list[child+1].before(&h.list[child]) {
			child++
		}
		if e.before(&h.list[child]) {
			break
		}
		h.list[i] = h.list[child]
		i = child
	}
	h.list[i] = e
	return top
}
