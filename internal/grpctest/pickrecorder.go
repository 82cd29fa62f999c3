package grpctest

import (
	"sync"
	"time"

	"google.golang.org/grpc/balancer"
	basebalancer "google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Lesson is what a policy can learn from the end of a pick.
type Lesson struct {
	Backend int           // from 1
	Took    time.Duration // since the pick
	Code    codes.Code
}

// Learner is what the policy test_learner picks, and has learned. It picks the backends that Plan names, from 1, then the first.
var Learner learner

type learner struct {
	mu      sync.Mutex // guards the fields below
	plan    []int
	lessons []Lesson
}

// Plan sets the next picks, and returns the lessons since it was called last, in their order.
func (l *learner) Plan(backends ...int) []Lesson {
	l.mu.Lock()
	defer l.mu.Unlock()
	lessons := l.lessons
	l.plan, l.lessons = backends, nil
	return lessons
}

func init() {
	balancer.Register(basebalancer.NewBalancerBuilder("test_learner", &Learner, basebalancer.Config{}))
}

func (l *learner) Build(info basebalancer.PickerBuildInfo) balancer.Picker {
	if all := ordered(info); len(all) > 0 {
		return learning(all)
	}
	return basebalancer.NewErrPicker(balancer.ErrNoSubConnAvailable)
}

type learning []balancer.SubConn

func (p learning) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	l, n, start := &Learner, 1, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.plan) > 0 {
		n, l.plan = l.plan[0], l.plan[1:]
	}
	return balancer.PickResult{SubConn: p[n-1], Done: func(d balancer.DoneInfo) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lessons = append(l.lessons, Lesson{n, time.Since(start), status.Code(d.Err)})
	}}, nil
}
