package grpctest

import (
	"sync"
	"time"

	"google.golang.org/grpc/balancer"
	basebalancer "google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A PickEnd describes the end of a call as a load balancing policy observes it: by the Done function of its pick.
type PickEnd struct {
	Backend int           // number of the backend, from 1
	Took    time.Duration // time from the pick to its end
	Code    codes.Code    // status code of the call
}

// PickRecorder controls and records the load balancing policy test_recorder. The policy picks the backends that
// SetPicks has set, one after another. After that, it picks the first backend. It is safe for concurrent use.
var PickRecorder pickRecorder

// A pickRecorder is the type of [PickRecorder]. It is safe for concurrent use.
type pickRecorder struct {
	mu    sync.Mutex // guards the fields below
	picks []int      // numbers of the backends to pick next, from 1
	ends  []PickEnd  // ends of picks since the last SetPicks
}

// SetPicks sets the backends that are picked next, numbered from 1. It returns the ends of all picks since the previous
// SetPicks, in order.
func (l *pickRecorder) SetPicks(backends ...int) []PickEnd {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends := l.ends
	l.picks, l.ends = backends, nil
	return ends
}

func init() {
	balancer.Register(basebalancer.NewBalancerBuilder("test_recorder", &PickRecorder, basebalancer.Config{}))
}

// Build returns a picker for the ready connections. Without ready connections, calls wait.
func (l *pickRecorder) Build(info basebalancer.PickerBuildInfo) balancer.Picker {
	if all := sortReadyConns(info); len(all) > 0 {
		return recorderPicker(all)
	}
	return basebalancer.NewErrPicker(balancer.ErrNoSubConnAvailable)
}

// A recorderPicker is the picker of test_recorder. It holds the ready connections, sorted by address.
type recorderPicker []balancer.SubConn

// Pick returns the next connection that SetPicks has set, or the first connection.
func (p recorderPicker) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	l, n, start := &PickRecorder, 1, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.picks) > 0 {
		n, l.picks = l.picks[0], l.picks[1:]
	}
	return balancer.PickResult{SubConn: p[n-1], Done: func(d balancer.DoneInfo) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ends = append(l.ends, PickEnd{n, time.Since(start), status.Code(d.Err)})
	}}, nil
}
