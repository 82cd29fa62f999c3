package grpctest

import (
	"sync"
	"time"

	"google.golang.org/grpc/balancer"
	basebalancer "google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A PickEnd describes the end of a pick, as a load balancing policy sees it.
type PickEnd struct {
	Backend int           // number of the backend, from 1
	Took    time.Duration // time between the pick and its end
	Code    codes.Code
}

// PickRecorder controls the load balancing policy test_recorder. The policy picks the backends that SetPicks names, and
// afterwards the first backend.
var PickRecorder pickRecorder

type pickRecorder struct {
	mu    sync.Mutex // guards the fields below
	picks []int
	ends  []PickEnd
}

// SetPicks sets the backends of the next picks, numbered from 1. It returns the ends of picks since the previous
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

func (l *pickRecorder) Build(info basebalancer.PickerBuildInfo) balancer.Picker {
	if all := sortReadyConns(info); len(all) > 0 {
		return recorderPicker(all)
	}
	return basebalancer.NewErrPicker(balancer.ErrNoSubConnAvailable)
}

type recorderPicker []balancer.SubConn

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
